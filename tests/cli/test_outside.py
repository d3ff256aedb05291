"""Models of timm and torchvision through the command: trained on a folder of images, broken off, used, ejected."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy
import pytest
import torch

import lucid as library
import outside

from .conftest import Lucid

MODELS = {"timm": "timm:test_resnet", "torchvision": "torchvision:squeezenet1_1"}


@pytest.fixture(params=list(MODELS))
def words(request: pytest.FixtureRequest, images: Path) -> list[str]:
    """Settings of a run on these images that takes a moment."""
    outside.load()
    return [
        "--data.name", f"image-folder:{images.name}", "--data.options.size", "32", "--data.options.augment", "true",
        "--data.batch_size", "8", "--train.epochs", "2", "--train.save_every", "2",
        "--model.name", MODELS[request.param], "--run_dir", "run", "--console", "quiet",
    ]  # fmt: skip


def test_model_goes_on_with_the_same_bits(lucid: Lucid, words: list[str]) -> None:
    """Without its last checkpoint: weights, running statistics, optimizer and random streams of the unbroken run."""
    assert lucid("train", *words)[::2] == (0, "")
    before, last = sorted(Path("run/checkpoints").glob("*.lcs"))[-2:]
    whole = library.load(last)
    last.unlink()
    assert lucid("resume", "run", "--console", "quiet")[::2] == (0, "")
    again = library.load(last)
    assert library.load(before)["progress"]["step"] == whole["progress"]["step"] - 2
    for part in ("model", "optimizer", "rng"):
        assert flat(again[part]) == flat(whole[part])


def test_model_answers_from_its_checkpoint(lucid: Lucid, words: list[str], images: Path) -> None:
    """`predict` and `load_model` agree."""
    assert lucid("train", *words)[0] == 0
    picture = next(images.rglob("*.png"))
    answer = json.loads(lucid("predict", "run", str(picture), "--json")[1])
    model = library.load_model("run")
    row = library.datasets.read_rows(picture, library.trained.load_trained("run").meta["transform_state"])[0]
    with torch.no_grad():
        best = model(row).softmax(1).max(1)
    assert answer == {
        "row": str(picture), "answer": "xyz"[int(best.indices)], "probability": round(float(best.values), 4)
    }  # fmt: skip


def test_ejected_file_gives_the_same_bits(lucid: Lucid, words: list[str]) -> None:
    """With the library's own call in it."""
    assert lucid("train", *words)[0] == 0
    assert lucid("eject", *words[:-2], "--out", "plain.py")[::2] == (0, "")
    runpy.run_path("plain.py", run_name="__main__")
    found = torch.load("last.pt", weights_only=True)
    wanted = library.load(max(Path("run/checkpoints").glob("*.lcs")))["model"]
    assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []


def flat(tree: object) -> object:
    """A tree with its tensors as bytes, to compare."""
    if isinstance(tree, dict):
        return {key: flat(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [flat(value) for value in tree]
    return numpy.asarray(tree).tobytes() if isinstance(tree, torch.Tensor | numpy.ndarray) else tree
