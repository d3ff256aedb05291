"""Models by name: shapes, options, what does not fit; others' libraries by their own names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lucid import models
from lucid.errors import ConfigError


def build(name: str, shape: tuple[int, ...] = (1, 8, 8), outputs: int = 3, **options: Any) -> nn.Module:
    """A model for rows of this shape."""
    return models.build(name, options, input_shape=shape, num_outputs=outputs)


@pytest.mark.parametrize(
    ("name", "shape"), [("mlp", (5,)), ("mlp", (1, 8, 8)), ("cnn", (3, 9, 12)), ("resnet", (1, 8, 8))]
)
def test_models_give_one_number_per_output(name: str, shape: tuple[int, ...]) -> None:
    """For any size of row."""
    assert build(name, shape)(torch.randn(4, *shape)).shape == (4, 3)


def test_gpt_sees_only_what_came_before() -> None:
    """A later token changes no earlier output, and does change its own."""
    model = build("gpt", (8,), 10, layers=2, heads=2, width=16).eval()
    tokens = torch.randint(0, 10, (2, 8))
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 10
    before, after = model(tokens), model(changed)
    assert before.shape == (2, 8, 10)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5], after[:, 5])


def test_gpt_starts_at_the_loss_of_a_guess() -> None:
    """ln V within a few percent, head tied to the embedding."""
    model: Any = build("gpt", (16,), 65)
    tokens = torch.randint(0, 65, (8, 16))
    loss = F.cross_entropy(model(tokens).flatten(0, 1), torch.randint(0, 65, (128,)))
    assert abs(loss.item() - 4.174) < 0.1
    assert model.head.weight is model.tokens.weight


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet"])
def test_every_parameter_gets_a_gradient(name: str) -> None:
    """Nothing in a model stands idle."""
    model = build(name)
    F.cross_entropy(model(torch.randn(4, 1, 8, 8)), torch.tensor([0, 1, 2, 0])).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_options_change_the_model() -> None:
    """And are checked by name and type."""
    assert sum(p.numel() for p in build("mlp", (4,), width=8, depth=1).parameters()) == 4 * 8 + 8 + 8 * 3 + 3
    with pytest.raises(ConfigError, match=r"unknown key 'model.options.wdith'. Did you mean 'width'"):
        build("cnn", wdith=3)
    with pytest.raises(ConfigError, match=r"model.options.width must be a whole number, got '3'"):
        build("cnn", width="3")


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("cnn", (5,), "'cnn' takes images (channels, height, width), the data has rows of shape (5,)"),
        ("gpt", (1, 8, 8), "'gpt' takes rows of tokens (length,)"),
        ("cn", (5,), "model.name = 'cn' is not known. Did you mean 'cnn'? Known: auto, mlp, cnn"),
    ],
)
def test_what_does_not_fit_the_data_is_said(name: str, shape: tuple[int, ...], words: str) -> None:
    """Before anything trains."""
    with pytest.raises(ConfigError) as caught:
        build(name, shape)
    assert words in str(caught.value)


def test_own_factory_gets_what_it_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shape and outputs are given only where there is a parameter."""
    source = "from torch import nn\ndef net(num_outputs, width=2):\n    return nn.Linear(width, num_outputs)\n"
    (tmp_path / "own_net.py").write_text(source + "def wrong():\n    return 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert build("own_net:net", width=4).weight.shape == (3, 4)
    with pytest.raises(ConfigError, match=r"'own_net:wrong' must give a torch.nn.Module, got int"):
        build("own_net:wrong")


@pytest.mark.parametrize("library", ["timm", "torchvision", "transformers"])
def test_missing_library_says_how_to_get_it(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line with the command."""
    import sys

    for name in (library, f"{library}.models"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=f"asks for {library}, which is not installed: pip install {library}"):
        build(f"{library}:x")


def test_transformers_class_gives_logits(tmp_path: Path) -> None:
    """A tiny configuration, built here, no download; weights of a folder are trained in fp32 whatever they lie in."""
    pytest.importorskip("transformers")
    small = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model: Any = build("transformers:BertForSequenceClassification", (6,), 3, intermediate_size=8, **small)
    assert model(torch.randint(0, 20, (2, 6))).shape == (2, 3)
    model.model.to(torch.bfloat16).save_pretrained(tmp_path)
    again = build(f"transformers:{tmp_path}", (6,), 3)
    assert {p.dtype for p in again.parameters()} == {torch.float32}
    with pytest.raises(ConfigError, match="transformers has no class and finds no model"):
        build("transformers:./not-there")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mlp", {"width": 0}, r"model\.options\.width must be at least 1, got 0"),
        ("mlp", {"depth": -1}, r"model\.options\.depth must be at least 0, got -1"),
        ("gpt", {"heads": 3}, r"model\.options\.width must be a multiple of heads, got 128 and 3"),
    ],
)
def test_sizes_that_make_no_model_are_refused(name: str, options: dict[str, int], message: str) -> None:
    """A layer without units trains in silence; heads that do not divide the width fail in the first step."""
    with pytest.raises(ConfigError, match=message):
        build(name, (8,), **options)
