"""Models of timm, torchvision and transformers, by their own names; nothing is downloaded unless asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from lucid.errors import ConfigError, nearest


def timm(name: str, options: Mapping[str, Any], *, input_shape: tuple[int, ...], num_classes: int, **_: Any) -> Any:
    """Return `timm.create_model(name, num_classes=..., in_chans=..., **options)`."""
    library = _library("timm")
    if not library.is_model(name):
        raise ConfigError(f"model.name: timm has no model {name!r}.{nearest(name, library.list_models())}")
    channels = {"in_chans": input_shape[0]} if len(input_shape) == 3 else {}
    return _make(library.create_model, name, {"num_classes": num_classes, **channels, **options})


def torchvision(name: str, options: Mapping[str, Any], *, num_classes: int, **_: Any) -> Any:
    """Return `torchvision.models.get_model(name, num_classes=..., **options)`."""
    library = _library("torchvision.models", "torchvision")
    known = library.list_models()
    if name not in known:
        raise ConfigError(f"model.name: torchvision has no model {name!r}.{nearest(name, known)}")
    return _make(library.get_model, name, {"num_classes": num_classes, **options})


def transformers(name: str, options: Mapping[str, Any], *, num_classes: int, **_: Any) -> nn.Module:
    """Return a transformers model that gives logits.

    Args:
        name: a class with a configuration built from `options` (`BertForSequenceClassification`), or a folder or hub
            name whose weights are loaded into a model for sequence classification.
        options: fields of the model's configuration; `model_class` picks another Auto class for a folder.
        num_classes: becomes `num_labels` where the class has labels.
    """
    library = _library("transformers")
    labels = {} if "CausalLM" in name or "LMHead" in name else {"num_labels": num_classes}
    kind = getattr(library, name, None)
    if isinstance(kind, type) and issubclass(kind, nn.Module):
        settings = kind.config_class(**{**labels, **options})  # type: ignore[attr-defined]
        return Logits(kind(settings))
    options = dict(options)
    auto = getattr(library, options.pop("model_class", "AutoModelForSequenceClassification"))
    try:
        model: nn.Module = auto.from_pretrained(name, **{**labels, **options})
    except OSError as error:
        raise ConfigError(f"model.name: transformers has no class and finds no model {name!r}: {error}") from error
    return Logits(model.float())  # it comes in the type of its file; parameters stay fp32, autocast lowers the rest


class Logits(nn.Module):
    """Lets a transformers model be called as `model(x)`: token ids or a dictionary in, logits out."""

    def __init__(self, model: nn.Module) -> None:
        """Wrap `model`, which stays reachable as `.model`."""
        super().__init__()
        self.model = model

    def forward(self, x: Any) -> Any:
        """Return the logits for x, a tensor (the model's main input) or a mapping of its arguments."""
        if isinstance(x, Mapping):
            return self.model(**x).logits
        return self.model(x).logits


def _library(module: str, package: str | None = None) -> Any:
    package = package or module
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or package).partition(".")[0]
        why = "" if missing == package else f", as {package} needs it"
        words = f"model.name asks for {missing}{why}, which is not installed: pip install {missing}."
        raise ConfigError(words) from error
    except (ImportError, OSError, RuntimeError) as error:  # built for another torch: an operator or a file is missing
        raise ConfigError(
            f"model.name asks for {package}, which cannot be imported: {error}. What it is built of must belong to "
            f"torch {torch.__version__}: install torch and torchvision together, from one place."
        ) from error


def _make(create: Any, name: str, arguments: Mapping[str, Any]) -> Any:
    try:
        return create(name, **arguments)
    except TypeError as error:
        if "unexpected keyword" in str(error):
            raise ConfigError(f"model.options do not fit {name!r}: {error}.") from error
        raise
