"""Windows: the micro-batches of one step, cut from the epochs of a feed. A window never straddles epochs."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch

from lucid.errors import DataError
from lucid.utils.data import Feed


@dataclass(slots=True)
class Progress:
    """Where a run stands. With the seed it is all that the position in the data needs."""

    step: int = 0
    """Steps tried: windows handed to the step, the skipped ones included."""
    epoch: int = 0
    """Epoch of the next micro-batch, from 0."""
    batch: int = 0
    """Micro-batches of that epoch already handed to the step."""
    rows: int = 0
    """Rows trained on since the run began."""
    skipped: int = 0
    """Steps that were left out by the guard or the scaler."""
    skipped_in_row: int = 0
    rollbacks: int = 0
    """Times that the run went back to a checkpoint."""
    omitted: list[list[int]] = field(default_factory=list)
    """Windows that a rollback leaves out for good: [epoch, first micro-batch]."""
    halvings: int = 0
    """Times that micro-batches were halved because memory ran out."""
    evaluated: int = -1
    """Step of the last evaluation."""
    pending: bool = False
    """The run stopped between a step and its evaluation: that is done first on resume."""
    epoch_ended: bool = False
    """Whether the last step was the last of its epoch."""
    finished: bool = False


@dataclass(slots=True)
class Window:
    """The micro-batches of one step."""

    batches: list[Any]
    epoch: int
    start: int
    """Number of the first micro-batch in its epoch."""
    last: bool
    """Whether it is the last window of its epoch."""
    data_state: dict[str, Any] = field(default_factory=dict)
    """State of a streaming data set after this window; empty where position is arithmetic."""
    rows: list[int] = field(init=False)
    """Rows of each micro-batch."""

    def __post_init__(self) -> None:
        self.rows = [num_rows(batch) for batch in self.batches]


def windows(feed: Feed, progress: Progress, size: int, epochs: int | None = None) -> Generator[Window, None, None]:
    """Yield the windows that follow `progress`, epoch after epoch, and never read a row before it.

    Args:
        feed: where micro-batches come from.
        progress: where to begin; only read at the start.
        size: micro-batches per window; the last of an epoch may have fewer.
        epochs: epochs in all. None: without end.

    Raises:
        DataError: if an epoch has no micro-batch.
    """
    epoch, start = progress.epoch, progress.batch
    while epochs is None or epoch < epochs:
        empty = True
        for window in _epoch(feed, epoch, start, size):
            empty = False
            yield window
        if empty and start == 0:
            raise DataError(f"epoch {epoch} of the training data has no batch: check the data set and the sampler.")
        epoch, start = epoch + 1, 0


def _epoch(feed: Feed, epoch: int, start: int, size: int) -> Iterator[Window]:
    total = feed.num_batches(epoch)
    batches = iter(feed.batches(epoch, start))
    if total is None:
        yield from _epoch_of_unknown_length(feed, batches, epoch, start, size)
        return
    while start < total:
        batch_list = list(islice(batches, min(size, total - start)))
        if not batch_list:
            raise DataError(
                f"the training data ended after {start} of {total} batches in epoch {epoch}: "
                "its length must be the number of batches that it gives."
            )
        start += len(batch_list)
        yield Window(batch_list, epoch, start - len(batch_list), start >= total, feed.state_dict())


def _epoch_of_unknown_length(feed: Feed, batches: Iterator[Any], epoch: int, start: int, size: int) -> Iterator[Window]:
    """Look one window ahead to know which is the last; the state handed on is the one before the look."""
    held: Window | None = None
    while batch_list := list(islice(batches, size)):
        if held is not None:
            yield held
        held = Window(batch_list, epoch, start, False, feed.state_dict())
        start += len(batch_list)
    if held is not None:
        held.last = True
        yield held


def num_rows(batch: Any) -> int:
    """Return the number of rows of a micro-batch: the length of its first tensor.

    Args:
        batch: a tensor, or any nesting of tuples, lists and mappings with tensors of shape (rows, ...).

    Raises:
        DataError: if it holds no tensor.
    """
    kind = type(batch)
    if kind is tuple or kind is list:
        first = batch[0]
        if type(first) is torch.Tensor and first.dim():
            return first.shape[0]
    found = _first_tensor(batch)
    if found is None:
        raise DataError(f"a batch must hold at least one tensor, got {kind.__name__}: {batch!r:.200}")
    return found.shape[0] if found.dim() else 1


def _first_tensor(value: Any) -> torch.Tensor | None:
    if isinstance(value, torch.Tensor):
        return value
    if hasattr(value, "values") and callable(value.values):
        value = value.values()
    elif hasattr(value, "__dataclass_fields__"):
        value = [getattr(value, name) for name in value.__dataclass_fields__]
    elif isinstance(value, str | bytes) or not hasattr(value, "__iter__"):
        return None
    return next((found for item in value if (found := _first_tensor(item)) is not None), None)
