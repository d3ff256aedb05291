"""Models of timm and torchvision by their own names."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import nn

import outside
from lucid import models
from lucid.errors import ConfigError


def build(name: str, shape: tuple[int, ...] = (3, 32, 32), **options: Any) -> nn.Module:
    """A model for rows of this shape and three classes."""
    return models.build(name, options, input_shape=shape, num_outputs=3)


def test_timm_model_takes_the_datas_channels_and_classes() -> None:
    """One grey channel, three classes; an option reaches the model."""
    outside.load()
    model = build("timm:test_resnet", (1, 32, 32), drop_rate=0.5)
    assert model(torch.randn(2, 1, 32, 32)).shape == (2, 3)
    assert model.drop_rate == 0.5


def test_torchvision_model_takes_the_datas_classes() -> None:
    """Three classes."""
    outside.load()
    assert build("torchvision:squeezenet1_1").eval()(torch.randn(2, 3, 32, 32)).shape == (2, 3)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("timm:test_resnt", "timm has no model 'test_resnt'. Did you mean 'test_resnet'?"),
        ("torchvision:resnet19", "torchvision has no model 'resnet19'. Did you mean 'resnet18'?"),
    ],
)
def test_names_that_do_not_exist_are_told_with_the_nearest(name: str, words: str) -> None:
    """Of the library's own names."""
    outside.load()
    with pytest.raises(ConfigError) as caught:
        build(name)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["timm:test_resnet", "torchvision:squeezenet1_1"])
def test_options_that_do_not_exist_are_said(name: str) -> None:
    """By the library's own words."""
    outside.load()
    with pytest.raises(ConfigError, match=r"model.options do not fit .*dept"):
        build(name, dept=3)


def test_library_that_lacks_another_names_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timm without torchvision asks for torchvision."""
    monkeypatch.setattr(importlib, "import_module", raising(ModuleNotFoundError("none", name="torchvision.ops")))
    with pytest.raises(ConfigError, match="asks for torchvision, as timm needs it, which is not installed"):
        build("timm:test_resnet")


def test_library_of_another_torch_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when torch is one for the CPU and torchvision one for CUDA."""
    monkeypatch.setattr(importlib, "import_module", raising(RuntimeError("operator torchvision::nms does not exist")))
    words = rf"torchvision, which cannot be imported: operator .*must belong to torch {torch.__version__[:4]}"
    with pytest.raises(ConfigError, match=words):
        build("torchvision:resnet18")


def raising(error: Exception) -> Any:
    """A function that raises this."""

    def function(*_: Any) -> None:
        raise error

    return function
