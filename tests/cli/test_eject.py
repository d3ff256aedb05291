"""An ejected file is plain PyTorch and gives the weights of the run that it came from, bit for bit."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch

import lucid as library

from .conftest import Lucid

DIGITS = ["--model.name", "mlp", "--model.options.width", "16", "--model.options.dropout", "0.2", "--train.epochs", "2"]
MATRIX = {
    "accumulation": [*DIGITS, "--train.gradient_accumulation_steps", "4"],
    "convolutions": ["--model.options.width", "4", "--train.epochs", "1", "--train.clip", "value"],
    "residual": ["--model.name", "resnet", "--model.options.width", "4", "--train.max_steps", "20"],
    "adaptive clip, no schedule": [*DIGITS, "--train.clip", "adaptive", "--train.max_grad_norm", "0.01"],
    "no schedule, no clip": [*DIGITS, "--scheduler.name", "none", "--train.max_grad_norm", "none"],
    "bf16": [*DIGITS, "--train.precision", "bf16", "--scheduler.name", "one_cycle"],
    "fp16": [*DIGITS, "--train.precision", "fp16", "--train.gradient_accumulation_steps", "2"],
    "sgd, step decay": [*DIGITS, "--optimizer.name", "sgd", "--optimizer.options.momentum", "0.9",
                        "--scheduler.name", "step_decay"],
    "plateau, patience": [*DIGITS, "--scheduler.name", "plateau", "--scheduler.options.patience", "0",
                          "--train.patience", "2", "--optimizer.lr", "0.3", "--train.eval_every", "7",
                          "--train.save_every", "7"],
    "average, short epochs": [*DIGITS, "--train.ema_decay", "0.9", "--data.drop_last", "true",
                              "--train.max_steps", "60"],
    "best by accuracy, no test": [*DIGITS, "--train.monitor", "eval/accuracy", "--train.mode", "max",
                                  "--data.test", "0"],
    "no validation, stable then down": [*DIGITS, "--data.validation", "0", "--scheduler.name", "warmup_stable_decay"],
    "rates by layer": ["--data.name", "text:text.txt", "--data.options.block_size", "8", "--data.options.stride", "3",
                       "--model.name", "gpt", "--model.options.width", "8", "--model.options.layers", "2",
                       "--model.options.heads", "2", "--model.options.dropout", "0.1", "--train.epochs", "2",
                       "--optimizer.options.layer_decay", "0.5"],
    "bytes": ["--data.name", "text:text.txt", "--data.options.tokens", "bytes", "--data.options.block_size", "8",
              "--model.name", "gpt", "--model.options.width", "8", "--model.options.heads", "1",
              "--model.options.layers", "1", "--train.epochs", "1"],
    "table of classes": ["--data.name", "csv:flowers.csv", "--model.name", "mlp", "--train.epochs", "3"],
    "table, regression": ["--data.name", "csv:flowers.csv", "--data.options.target", "long", "--model.name", "mlp",
                          "--train.epochs", "3", "--train.gradient_accumulation_steps", "2", "--loss", "huber"],
    "arrays, labels": ["--data.name", "npz:labels.npz", "--model.name", "mlp", "--train.epochs", "2",
                       "--optimizer.name", "rmsprop", "--train.gradient_accumulation_steps", "2"],
    "own model, data, step": ["--data.name", "own:rows", "--data.options.count", "50", "--model.name", "own:Net",
                              "--task", "own:train_step", "--data.validation", "0", "--train.epochs", "2"],
    "own data that draws": ["--data.name", "own:Drawing", "--model.name", "own:Net", "--train.epochs", "2",
                            "--train.gradient_accumulation_steps", "2"],
}  # fmt: skip
OWN = '''
import random
import numpy
import torch
from torch import nn


def rows(count):
    x = torch.randn(count, 3, generator=torch.Generator().manual_seed(0))
    return torch.utils.data.TensorDataset(x, x.argmax(1))


class Drawing(torch.utils.data.Dataset):
    """Every row is another one each time."""

    def __len__(self):
        return 40

    def __getitem__(self, row):
        return torch.randn(3) + random.random() + float(numpy.random.rand()), row % 3


class Net(nn.Module):
    def __init__(self, num_outputs):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.3), nn.Linear(8, num_outputs))

    def forward(self, x):
        return self.layers(x)


def train_step(model, batch):
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)
'''


@pytest.fixture
def place(tmp_path: Path, flowers: str) -> Path:
    """A folder with data of each kind."""
    (tmp_path / "text.txt").write_text("".join(chr(97 + (number * number) % 11) for number in range(900)))
    x = numpy.random.default_rng(0).normal(size=(40, 4))
    numpy.savez(tmp_path / "labels.npz", x=x, y=(x > 0).astype(int))
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


@pytest.mark.parametrize("name", list(MATRIX))
def test_ejected_file_gives_the_same_bits(
    lucid: Lucid, place: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Last weights, and the best where the run has any."""
    if "text" not in str(MATRIX[name]):
        pytest.importorskip("sklearn")
    monkeypatch.syspath_prepend(str(place))
    words = [*MATRIX[name], "--run_dir", "run"]
    assert lucid("train", *words, "--console", "quiet")[::2] == (0, "")
    assert lucid("eject", *words, "--out", "plain.py")[::2] == (0, "")
    runpy.run_path("plain.py", run_name="__main__")
    same("last.pt", max(Path("run/checkpoints").glob("*.lcs")))
    if Path("best.pt").exists():
        same("best.pt", library.trained.find_checkpoint("run"))


def test_ejected_file_needs_no_lucid(lucid: Lucid, place: Path) -> None:
    """It runs where importing lucid is an error."""
    assert lucid("eject", *MATRIX["table of classes"], "--out", "plain.py")[0] == 0
    source = "import sys, runpy; sys.modules['lucid'] = None; runpy.run_path('plain.py', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert Path("last.pt").is_file()


def same(weights: str, checkpoint: Path) -> None:
    """Compare bit for bit; the best of a run with an average holds the average."""
    found, tree = torch.load(weights, weights_only=True), library.load(checkpoint)
    wanted = tree["model"]
    if weights == "best.pt":
        wanted = {**wanted, **tree["callbacks"].get("EMA", {}).get("average", {})}
    assert set(found) == set(wanted)
    assert [key for key in wanted if not torch.equal(found[key], wanted[key])] == []


def test_file_has_only_the_branches_in_use(lucid: Lucid, place: Path) -> None:
    """No accumulation, average, scaler or patience where none was asked for."""
    text = lucid("eject", *DIGITS)[1]
    for word in ("ACCUMULATION", "average", "scaler", "autocast", "PATIENCE", "plateau", "conv"):
        assert word.lower() not in text.lower()
    assert "lucid" not in text.replace("`lucid eject`", "").replace("not lucid", "")


def test_file_keeps_to_the_line_length_and_is_not_overwritten(lucid: Lucid, place: Path) -> None:
    """Readable; and nothing of a person's is lost."""
    assert lucid("eject", *MATRIX["accumulation"], "--out", "plain.py")[0] == 0
    assert max(map(len, Path("plain.py").read_text().splitlines())) <= 120
    code, _, err = lucid("eject", "--out", "plain.py")
    assert (code, "plain.py exists" in err) == (2, True)


def test_place_that_cannot_be_written_is_said(lucid: Lucid, place: Path) -> None:
    """Here a folder that is none."""
    code, _, err = lucid("eject", "--out", "none/plain.py")
    assert (code, "cannot write none/plain.py: No such file" in err) == (2, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--train.max_time", "60"], "train.max_time ends a run by the clock"),
        (["--data.name", "csv:flowers.csv", "--data.options.target", "long", "--model.name", "mlp",
          "--train.monitor", "eval/r2", "--train.mode", "max"], "no plain form of train.monitor = 'eval/r2'"),
        (["--data.name", "own:rows", "--data.options.count", "50", "--model.name", "own:Net", "--task",
          "own:train_step"], "needs data.validation = 0"),
    ],
)  # fmt: skip
def test_what_has_no_plain_form_is_said(lucid: Lucid, place: Path, words: list[str], message: str) -> None:
    """With what to change."""
    code, _, err = lucid("eject", *words)
    assert (code, message in err) == (2, True), err
