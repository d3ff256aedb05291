"""The rows of one epoch, cut into batches by arithmetic."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Order:
    """The rows of one epoch, batch by batch.

    Args:
        rows: row numbers (or whatever keys the sampler gives) of the epoch, one after another.
        batch_size: rows per batch; None: every key is a batch of its own, as with `batch_size=None`.
        drop_last: leave out a short last batch.
        bounds: ends of the batches in `rows`, for a batch sampler whose batches differ in size.
        unique: no row comes twice, so that nobody has to look.
    """

    def __init__(
        self,
        rows: Tensor | range | list[Any],
        batch_size: int | None = None,
        drop_last: bool = False,
        bounds: list[int] | None = None,
        unique: bool = False,
    ) -> None:
        self.rows = rows
        self.batch_size = batch_size
        self._bounds = bounds
        if bounds is not None:
            self.num_batches = len(bounds) - 1
        elif batch_size is None:
            self.num_batches = len(rows)
        else:
            self.num_batches = len(rows) // batch_size if drop_last else -(-len(rows) // batch_size)
        self._repeats = None if unique else count_repeats(rows)

    def span(self, batch: int) -> tuple[int, int]:
        """Return where a batch begins and ends in `rows`."""
        if self._bounds is not None:
            return self._bounds[batch], self._bounds[batch + 1]
        size = self.batch_size or 1
        return batch * size, min(batch * size + size, len(self.rows))

    def keys(self, batch: int) -> list[Any]:
        """Return the row numbers of one batch."""
        first, end = self.span(batch)
        part = self.rows[first:end]
        return part.tolist() if isinstance(part, Tensor) else list(part)

    def repeats(self, batch: int) -> list[int] | None:
        """Return how often each row of the batch came before in this epoch; None if no row comes twice in it."""
        if self._repeats is None:
            return None
        first, end = self.span(batch)
        return self._repeats[first:end].tolist()


def count_repeats(rows: Tensor | range | list[Any]) -> Tensor | None:
    """Return, for each place, how often its row came at an earlier place; None if no row comes twice.

    Example:
        >>> count_repeats([5, 7, 5, 5]).tolist()
        [0, 0, 1, 2]
    """
    if isinstance(rows, range):
        return None
    if isinstance(rows, list):
        return _count_repeated_keys(rows)
    values, places = torch.sort(rows, stable=True)
    again = torch.zeros_like(values, dtype=torch.bool)
    again[1:] = values[1:] == values[:-1]
    if not again.any():
        return None
    number = torch.arange(len(values))
    start = torch.where(again, torch.zeros_like(number), number).cummax(0).values
    return torch.empty_like(number).scatter_(0, places, number - start)


def _count_repeated_keys(rows: list[Any]) -> Tensor | None:
    seen: dict[str, int] = {}
    counts = []
    for key in rows:
        name = repr(key)
        counts.append(seen.get(name, 0))
        seen[name] = counts[-1] + 1
    return torch.tensor(counts) if len(seen) < len(rows) else None


def pack(keys: list[Any]) -> Tensor | list[Any]:
    """Return row numbers as a tensor, 8 bytes each; other keys stay the list that they are."""
    if all(type(key) is int for key in keys):
        return torch.tensor(keys, dtype=torch.int64)
    if all(_is_whole(key) for key in keys):
        return torch.tensor([int(key) for key in keys], dtype=torch.int64)
    return keys


def _is_whole(key: Any) -> bool:
    if isinstance(key, Tensor):
        return key.ndim == 0 and not key.is_floating_point() and key.dtype != torch.bool
    return isinstance(key, int | np.integer) and not isinstance(key, bool)


def length_of(thing: object) -> int | None:
    """Return `len(thing)`, or None where it has no length."""
    try:
        return len(thing) if isinstance(thing, Sized) else None
    except (TypeError, NotImplementedError):
        return None


def vars_of(thing: Any) -> dict[str, Any]:
    """Return the attributes of an object, {} for one that keeps them elsewhere."""
    attributes: dict[str, Any] = getattr(thing, "__dict__", {})
    return attributes


def layers_of(dataset: Any) -> list[Any]:
    """Return the data set and the data sets that it wraps."""
    layers: list[Any] = []
    while dataset is not None and len(layers) < 16:
        layers.append(dataset)
        dataset = getattr(dataset, "dataset", None)
    return layers
