"""Micro-batches in smaller pieces: what a step does when memory runs out. Rows, global batch and gradient stay."""

from __future__ import annotations

import dataclasses
import gc
import warnings
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from lucid.state import TrainState
from lucid.windows import Window, num_rows

_CPU_WORDS = ("can't allocate memory", "out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this error says that a device, or the host, has no memory left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _CPU_WORDS)


def cut(window: Window, halvings: int) -> Window:
    """Return the window with each micro-batch in 2**halvings pieces, or as many as it has rows."""
    if not halvings:
        return window
    batches = [piece for batch in window.batches for piece in split(batch, 2**halvings)]
    return Window(batches, window.epoch, window.start, window.last, window.data_state)


def joined(losses: list[Tensor], window: Window, halvings: int) -> list[Tensor]:
    """Return one loss for each micro-batch, bad if one of its pieces is."""
    sizes = [len(_bounds(batch, 2**halvings)) - 1 for batch in window.batches]
    return [part.sum() for part in torch.stack(losses).split(sizes)]


def halve(state: TrainState, window: Window, error: BaseException) -> bool:
    """Take back what the failed passes did, and have every micro-batch from now on in half as large pieces.

    Returns:
        False if the error is no lack of memory, or nothing is left to halve: then it is to be raised.
    """
    pieces = 2**state.progress.halvings
    largest = -(-max(window.rows) // pieces)
    if not is_out_of_memory(error) or largest < 2 or not all(is_divisible(batch) for batch in window.batches):
        return False
    for parameter in state.parameters():
        parameter.grad = None
    state.buffers.restore()
    state.progress.halvings += 1
    changed = "the same gradient in more time"
    if any(isinstance(module, _BatchNorm) and module.training for module in state.model.modules()):
        changed = (
            "the same rows in more time, but BatchNorm sees fewer of them at once: gradient and running averages are "
            "no longer those of the whole micro-batch"
        )
    warnings.warn(
        f"step {state.step + 1}: out of memory with {largest} rows at once. Each micro-batch is from now on taken in "
        f"{2 * pieces} pieces: {changed}. Settings of batch_size and gradient_accumulation_steps that say so save the "
        "attempt.",
        RuntimeWarning,
        stacklevel=2,
    )
    return True


def free_memory() -> None:
    """Let go of what a failed pass held; only to be called once its error is gone, which holds its tensors."""
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def in_halves(function: Callable[[Any], Any], batch: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (part, function(part)): the whole batch or, where memory runs out, its halves."""
    waiting = [batch]
    while waiting:
        part = waiting.pop(0)
        try:
            result = function(part)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error) or num_rows(part) < 2 or not is_divisible(part):
                raise
            waiting[:0] = split(part, 2)
        else:
            yield part, result
            continue
        free_memory()


def split(batch: Any, pieces: int) -> list[Any]:
    """Return the rows of a batch in this many pieces of nearly equal size, or in single rows if there are fewer.

    A batch with tensors of another length than its rows stays whole.
    """
    bounds = _bounds(batch, pieces)
    return [batch] if len(bounds) == 2 else [take(batch, range(start, end)) for start, end in pairwise(bounds)]


def _bounds(batch: Any, pieces: int) -> list[int]:
    rows = num_rows(batch)
    pieces = min(pieces, rows) if is_divisible(batch) else 1
    return [round(rows * index / pieces) for index in range(pieces + 1)]


def resized(batch: Any, rows: int) -> Any:
    """Return a batch of this many rows made of the rows of another, over and over."""
    have = num_rows(batch)
    return take(batch, [index % have for index in range(rows)])


def take(batch: Any, rows: range | list[int]) -> Any:
    """Return some rows of every tensor and list in a batch that has a row for each; what is no row stays as it is."""
    total = num_rows(batch)

    def walk(value: Any) -> Any:
        if isinstance(value, Tensor):
            if not value.dim():
                return value
            return value[rows.start : rows.stop] if isinstance(rows, range) else value[torch.tensor(rows)]
        if isinstance(value, Mapping):
            return type(value)({name: walk(item) for name, item in value.items()})  # type: ignore[call-arg]
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(walk, value))
        if isinstance(value, list) and len(value) == total and not any(isinstance(item, Tensor) for item in value):
            return [value[index] for index in rows]
        if isinstance(value, list | tuple):
            return type(value)(map(walk, value))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            changed = {one.name: walk(getattr(value, one.name)) for one in dataclasses.fields(value)}
            return dataclasses.replace(value, **changed)
        return value

    return walk(batch)


def is_divisible(batch: Any) -> bool:
    """Whether every tensor in the batch has one row for each of the batch's rows."""
    return len({tensor.shape[0] for tensor in tensors(batch) if tensor.dim()}) == 1


def tensors(value: Any) -> Iterator[Tensor]:
    """Return the tensors of a batch, however they are nested."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from (tensor for item in value.values() for tensor in tensors(item))
    elif isinstance(value, list | tuple):
        yield from (tensor for item in value for tensor in tensors(item))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from (tensor for one in dataclasses.fields(value) for tensor in tensors(getattr(value, one.name)))
