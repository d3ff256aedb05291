"""Models by name. `mlp`, `cnn`, `resnet`, `gpt`: small ones, each a file of plain PyTorch. `outside`: others'."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from torch import nn

from lucid.config.names import bind, call, import_object
from lucid.errors import ConfigError, nearest

OURS = {"mlp": "MLP", "cnn": "CNN", "resnet": "ResNet", "gpt": "GPT"}
LIBRARIES = ("timm", "torchvision", "transformers")


def choose(task: str, input_shape: tuple[int, ...]) -> str:
    """Return which of our models `auto` means for data of this task and rows of this shape.

    Example:
        >>> choose("classification", (1, 28, 28)), choose("regression", (5,))
        ('cnn', 'mlp')
    """
    if task == "language-modelling":
        return "gpt"
    return "cnn" if len(input_shape) == 3 and min(input_shape[1:]) >= 4 else "mlp"


def build(name: str, options: Mapping[str, Any], *, input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    """Make the model that a configuration names, with fresh weights from torch's current random stream.

    Args:
        name: one of ours, `timm:NAME`, `torchvision:NAME`, `transformers:NAME`, or `my_module:factory`.
        options: keyword arguments of the model.
        input_shape: shape of one row of the data; given to factories that ask for it.
        num_outputs: classes or numbers to predict; given to factories that ask for it.

    Raises:
        ConfigError: an unknown name or option, or rows of a shape that the model cannot take.
    """
    library, _, rest = name.partition(":")
    given: dict[str, Any] = {"input_shape": input_shape, "num_outputs": num_outputs, "num_classes": num_outputs}
    if name in OURS:
        _check_shape(name, input_shape)
        kind = getattr(importlib.import_module(f"lucid.models.{name}"), OURS[name])
        _check_sizes(bind(kind, options, "model.options", given))
        try:
            return _module(call(kind, options, "model.options", given), name)
        except ValueError as error:  # torch's own checks, such as of a share above 1
            raise ConfigError(f"model.options do not fit {name!r}: {error}.") from error
    if library in LIBRARIES and rest:
        from lucid.models import outside

        return _module(getattr(outside, library)(rest, options, **given), name)
    if not rest:
        known = ["auto", *OURS, *(f"{library}:NAME" for library in LIBRARIES), "my_module:factory"]
        raise ConfigError(
            f"model.name = {name!r} is not known.{nearest(name, ['auto', *OURS])} Known: {', '.join(known)}."
        )
    return _module(call(import_object(name, "model.name"), options, "model.options", given), name)


def _module(made: Any, name: str) -> nn.Module:
    if not isinstance(made, nn.Module):
        raise ConfigError(f"model.name = {name!r} must give a torch.nn.Module, got {type(made).__name__}.")
    return made


def _check_sizes(options: Mapping[str, Any]) -> None:
    """Refuse sizes that would give a model without weights, or none at all."""
    for name, least in (("width", 1), ("heads", 1), ("layers", 1), ("depth", 0)):
        if options.get(name, least) < least:
            raise ConfigError(f"model.options.{name} must be at least {least}, got {options[name]}.")
    width, heads = options.get("width", 128), options.get("heads", 1)
    if width % heads:
        raise ConfigError(f"model.options.width must be a multiple of heads, got {width} and {heads}.")


def _check_shape(name: str, shape: tuple[int, ...]) -> None:
    dims, words = {
        "cnn": (3, "images (channels, height, width)"),
        "resnet": (3, "images (channels, height, width)"),
        "gpt": (1, "rows of tokens (length,)"),
    }.get(name, (None, ""))
    if dims is not None and len(shape) != dims:
        fit = "mlp" if name != "gpt" or len(shape) != 3 else "cnn"
        raise ConfigError(
            f"model.name = {name!r} takes {words}, the data has rows of shape {shape}. "
            f"Take another model, such as {fit!r}."
        )
