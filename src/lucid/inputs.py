"""What is said where a model cannot take what it got: the batch, the module that failed, the usual cure.

Torch's own error names neither. The text is a note on it, so that its type and its traceback stay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import is_lazy

from lucid.errors import LucidError

T = TypeVar("T")

_SHOWN = 6  # tensors of a batch


def explained(function: Callable[[nn.Module, Any], T], model: nn.Module, batch: Any) -> T:
    """Return `function(model, batch)`; an error in it gets a note of what the model got, and of what fits it."""
    try:
        return function(model, batch)
    except LucidError:
        raise
    except Exception as error:
        error.add_note(_words(model, batch, error))
        raise


def _words(model: nn.Module, batch: Any, error: Exception) -> str:
    text = f"Lucid: the batch was {_shown(batch)}"
    first = next(iter(model.named_parameters()), None)
    if first is not None:
        text += f"; the model's first parameter {first[0]} is {_described(first[1])}"
    names = {id(module): name for name, module in model.named_modules()}
    frame = _innermost(error, names)
    if frame is None:
        return f"{text}."
    module, value = frame.f_locals["self"], _argument(frame)
    got = f", which got {_described(value)}" if isinstance(value, Tensor) else ""
    where = names[id(module)] or type(model).__name__
    if type(module).__module__.startswith("torch.") and next(module.children(), None) is None:
        where += f" = {module}"
    cure = _cure(module, value) if isinstance(value, Tensor) else ""
    return f"{text}. It failed in {where}{got}. {cure}".rstrip()


def _shown(batch: Any) -> str:
    tensors = [f"{name} {_described(value)}".lstrip() for name, value in _tensors(batch)]
    more = f" and {len(tensors) - _SHOWN} tensors more" if len(tensors) > _SHOWN else ""
    return ", ".join(tensors[:_SHOWN]) + more or f"a {type(batch).__name__} without tensors"


def _tensors(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(item, str(key))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item, name)


def _described(value: Tensor) -> str:
    if is_lazy(value):
        return "not made yet"
    return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')} on {value.device}"


def _innermost(error: Exception, names: Mapping[int, str]) -> FrameType | None:
    """Return the deepest frame of a method of one of the model's modules."""
    found, trace = None, error.__traceback__
    while trace is not None:
        if id(trace.tb_frame.f_locals.get("self")) in names:
            found = trace.tb_frame
        trace = trace.tb_next
    return found


def _argument(frame: FrameType) -> Any:
    names = frame.f_code.co_varnames[1 : frame.f_code.co_argcount]
    return frame.f_locals.get(names[0]) if names else None


def _cure(module: nn.Module, value: Tensor) -> str:
    """Return what is usually meant where a layer of torch got this."""
    if isinstance(module, nn.Embedding):
        if value.is_floating_point():
            return "It looks up whole numbers: use inputs.long()."
        if (
            value.numel()
            and value.device.type == "cpu"
            and not 0 <= int(value.min()) <= int(value.max()) < module.num_embeddings
        ):
            return f"Its rows are 0 to {module.num_embeddings - 1}, got {int(value.min())} to {int(value.max())}."
        return ""
    weight = getattr(module, "weight", None)
    if isinstance(weight, Tensor) and weight.device != value.device:
        return f"Its weight is on {weight.device}: keep the module where the model is."
    if isinstance(module, nn.Linear | nn.Bilinear | _ConvNd) and (words := _of_shape(module, value)):
        return words
    if isinstance(weight, Tensor) and weight.dtype != value.dtype and not value.is_complex():
        method = "float" if weight.dtype is torch.float32 else f"to(torch.{str(weight.dtype)[6:]})"
        return f"Its weight is {str(weight.dtype)[6:]}: use inputs.{method}{'()' if method == 'float' else ''}."
    return ""


def _of_shape(module: nn.Module, value: Tensor) -> str:
    if isinstance(module, nn.Linear) and value.shape[-1:] != (module.in_features,):
        if math.prod(value.shape[1:]) == module.in_features:
            return f"A row is {module.in_features} numbers in another shape: put nn.Flatten() before it."
        return f"It takes {module.in_features} numbers in the last dimension: change in_features, or the rows."
    if isinstance(module, _ConvNd):
        dims = len(module.kernel_size)
        if value.dim() == dims + 1 and module.in_channels == 1:
            return "The channel is missing: use inputs.unsqueeze(1)."
        if value.dim() == dims + 2 and value.shape[1] != module.in_channels:
            last = "; they stand last: use inputs.movedim(-1, 1)" if value.shape[-1] == module.in_channels else ""
            return f"It takes {module.in_channels} channels in dimension 1{last}."
    return ""
