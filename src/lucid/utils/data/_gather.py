"""Data sets that are arrays in memory: whole batches by index, never row by row."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from lucid.errors import DataError

from ._order import Order

_CHUNK = 256  # batches whose index tensors are made in one call


class ArrayDataset(Dataset[tuple[Tensor, ...]]):
    """Rows of NumPy arrays, memory-mapped arrays or tensors of equal length; a row is a tuple of tensors.

    The arrays are not copied: a batch is gathered from them by index, with no work per row.

    Args:
        arrays: `(N, ...)` each, of a numeric type.

    Raises:
        DataError: if there is no array, their lengths differ, or one holds something other than numbers.
    """

    def __init__(self, *arrays: Any) -> None:
        if not arrays:
            raise DataError("ArrayDataset needs at least one array, got none.")
        self.arrays = [array if isinstance(array, Tensor | np.ndarray) else np.asarray(array) for array in arrays]
        for number, array in enumerate(self.arrays):
            if array.ndim == 0:
                raise DataError(f"ArrayDataset: array {number} must have shape (N, ...), got a single value.")
            if isinstance(array, np.ndarray):
                _tensor(array[:1], number)
        lengths = [len(array) for array in self.arrays]
        if len(set(lengths)) > 1:
            raise DataError(f"ArrayDataset: all arrays must have the same number of rows, got {lengths}.")

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, row: int) -> tuple[Tensor, ...]:
        return tuple(one if isinstance(one := array[row], Tensor) else _tensor(np.array(one)) for array in self.arrays)


def _tensor(array: Any, number: int = 0) -> Tensor:
    try:
        return torch.from_numpy(np.array(array))
    except (TypeError, ValueError) as error:
        raise DataError(
            f"ArrayDataset: array {number} must hold numbers that torch knows, got {array.dtype}. Convert it first."
        ) from error


class Gather:
    """Arrays of a data set, and the row of the arrays behind each row of the data set.

    Args:
        arrays: `(N, ...)` each.
        rows: `(M,)` int64, the data set's row -> the arrays' row; None: the same.
    """

    def __init__(self, arrays: list[Any], rows: Tensor | None) -> None:
        self.arrays = arrays
        self.rows = rows

    @property
    def num_rows(self) -> int:
        """Rows of the data set."""
        return len(self.arrays[0] if self.rows is None else self.rows)

    def fit(self, order: Order, epoch: int) -> None:
        """Count rows from the end where a sampler gave them below 0, as looking them up one by one would.

        Raises:
            DataError: for a row that there is not.
        """
        rows, total = order.rows, self.num_rows
        if not len(rows) or (isinstance(rows, range) and 0 <= rows[0] <= rows[-1] < total):
            return
        index = torch.as_tensor(rows)
        wrong = _outside(index, total)
        if wrong is not None:
            batch = next(batch for batch in range(order.num_batches + 1) if order.span(batch)[1] > wrong)
            raise DataError(
                f"row {int(index[wrong])} in batch {batch} of epoch {epoch} must be one of the {total} rows of the "
                "data set, counted from 0: its sampler gave it. Was that made for another data set?"
            )
        if index.min() < 0:
            order.rows = index.where(index >= 0, index + total)

    def batches(self, order: Order, start: int) -> Iterator[list[Tensor]]:
        """Yield the batches of an order from `start` on, each a list of tensors as torch's `default_collate` gives."""
        in_sequence = isinstance(order.rows, range) and self.rows is None
        return self._slices(order, start) if in_sequence else self._selections(order, start)

    def _slices(self, order: Order, start: int) -> Iterator[list[Tensor]]:
        """Rows in sequence. One frame per batch: on a small model the loop around it is what costs."""
        size = order.batch_size or 1
        end = min(order.num_batches * size, len(order.rows))
        tensors = all(isinstance(array, Tensor) for array in self.arrays)
        copied: Callable[[Any], Tensor] = torch.Tensor.clone if tensors else _copy
        for first in range(start * size, end, size):
            part = slice(first, min(first + size, end))
            yield list(map(copied, map(operator.getitem, self.arrays, itertools.repeat(part))))

    def _selections(self, order: Order, start: int) -> Iterator[list[Tensor]]:
        take = [_taker(array) for array in self.arrays]
        if len(take) == 2:  # the usual pair, without a loop per batch
            first, second = take
            for chunk in self._indices(order, start):
                for index in chunk:
                    yield [first(index), second(index)]
            return
        for chunk in self._indices(order, start):
            for index in chunk:
                yield [one(index) for one in take]

    def _indices(self, order: Order, start: int) -> Iterator[Sequence[Tensor]]:
        """Yield the index tensors of the batches, some hundred at a time: making them one by one costs more."""
        for first in range(start, order.num_batches, _CHUNK):
            last = min(first + _CHUNK, order.num_batches) - 1
            begin, end = order.span(first)[0], order.span(last)[1]
            rows = order.rows[begin:end]
            index = torch.arange(rows.start, rows.stop) if isinstance(rows, range) else torch.as_tensor(rows)
            if self.rows is not None:
                index = self.rows[index]
            if order.batch_size is not None:
                yield torch.split(index, order.batch_size)
            else:
                yield torch.split(index, [b - a for a, b in map(order.span, range(first, last + 1))])


def _outside(index: Tensor, total: int) -> int | None:
    """Return the place of the first row that there is not, or None."""
    if not len(index):
        return None
    low, high = index.aminmax()
    if low >= -total and high < total:
        return None
    return int(((index < -total) | (index >= total)).nonzero()[0])


def _copy(part: Any) -> Tensor:
    return part.clone() if isinstance(part, Tensor) else torch.from_numpy(np.array(part))


def _taker(array: Any) -> Any:
    if isinstance(array, np.ndarray):
        return lambda index: torch.from_numpy(array[index.numpy()])
    if array.device.type == "cpu":
        return functools.partial(array.index_select, 0)
    return lambda index: array.index_select(0, index.to(array.device))


def gather_of(dataset: Any) -> Gather | None:
    """Return how to gather from a data set, or None if its rows must be asked for one by one."""
    if type(dataset) is TensorDataset:
        return Gather(list(dataset.tensors), None)
    if type(dataset) is ArrayDataset:
        return Gather(dataset.arrays, None)
    if type(dataset) is Subset:
        inner = gather_of(dataset.dataset)
        if inner is None:
            return None
        rows, total = torch.as_tensor(dataset.indices, dtype=torch.int64), inner.num_rows
        wrong = _outside(rows, total)
        if wrong is not None:
            raise DataError(
                f"index {int(rows[wrong])} at place {wrong} of a Subset must be one of the {total} rows of what it is "
                "a subset of, counted from 0."
            )
        rows = rows.where(rows >= 0, rows + total)
        return Gather(inner.arrays, rows if inner.rows is None else inner.rows[rows])
    return None
