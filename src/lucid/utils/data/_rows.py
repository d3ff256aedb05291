"""Reading one batch of rows, in this process or in a worker, with every random stream seeded by the row.

A `Ticket` says which rows; `RowReader` turns it into a batch. Seeds are derived from (seed, epoch, row), so it does
not matter which process reads a row, or what was read before it.
"""

from __future__ import annotations

import pickle
import random
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import StackDataset, Subset, TensorDataset, default_collate, default_convert

from lucid import rng
from lucid.errors import DataError

from ._gather import ArrayDataset
from ._generators import OwnGenerators
from ._order import layers_of

_LOW = 2**32 - 1  # NumPy's global generator takes 32 bits
_ALL = 2**64 - 1


class Ticket(NamedTuple):
    """Which rows to read."""

    epoch: int
    batch: int
    keys: list[Any]
    repeats: list[int] | None
    """How often each row came before in this epoch; None: never."""


class Failure(NamedTuple):
    """An error of the user's code on its way from a worker."""

    message: str
    error: bytes | None
    trace: str


class RowReader:
    """A map-style data set whose indices are tickets and whose items are whole batches.

    Args:
        dataset: the user's data set; it is neither changed nor copied here.
        collate_fn: makes a batch out of a list of rows, or out of one item if `single`.
        seed: what the seeds of rows are derived from.
        single: the loader has `batch_size=None`: one key gives one batch.
        tell_epoch: call `set_epoch` of the data set, or of the one that it wraps, once per epoch and process.
    """

    def __init__(
        self, dataset: Any, collate_fn: Callable[[Any], Any], seed: int, single: bool, tell_epoch: bool = True
    ) -> None:
        self.dataset = dataset
        self.collate_fn = collate_fn
        self.seed = seed
        self.single = single
        self.tell_epoch = tell_epoch
        self._at_once = not single and reads_at_once(dataset)
        self._rows_draw = not is_inert(dataset)
        self._seed_collate = collate_fn not in (default_collate, default_convert)
        self._epoch: int | None = None
        self._row_seed = self._collate_seed = 0
        self._own: OwnGenerators | None = None

    def __getitem__(self, ticket: Ticket) -> Any:
        """Return the batch, or a `Failure` where the user's code raised."""
        try:
            return self.read(ticket)
        except DataError as error:
            return pack_failure(error)

    @property
    def runs_user_code(self) -> bool:
        """Whether a batch is more than looking up rows and torch's own collating."""
        return self._rows_draw or self._seed_collate

    @contextmanager
    def own_generators(self) -> Iterator[None]:
        """Give the data set's own generators back as they were: in this process the data set is the user's object."""
        own = self._owned()
        before = own.capture()
        try:
            yield
        finally:
            own.restore(before)

    def _owned(self) -> OwnGenerators:
        if self._own is None:
            self._own = OwnGenerators([self.dataset, self.collate_fn])
        return self._own

    def read(self, ticket: Ticket) -> Any:
        """Return the batch of a ticket. Moves the global random streams.

        Raises:
            DataError: if the data set or `collate_fn` raised; names the row, and the error is its cause.
        """
        if ticket.epoch != self._epoch:
            self._begin(ticket.epoch)
        items = self._read_at_once(ticket) if self._at_once else self._read_rows(ticket)
        if self._seed_collate:
            self._seed(self._collate_seed, ticket, 0)
        try:
            return self.collate_fn(items[0] if self.single else items)
        except Exception as error:
            raise DataError(f"collate_fn failed on {_place(ticket)}: {_text(error)}") from error

    def _begin(self, epoch: int) -> None:
        self._epoch = epoch
        self._row_seed = rng.derive(self.seed, "row", epoch)
        self._collate_seed = rng.derive(self.seed, "collate", epoch)
        listeners = [one for one in layers_of(self.dataset) if callable(getattr(one, "set_epoch", None))]
        if self.tell_epoch and listeners:
            listeners[0].set_epoch(epoch)

    def _seed(self, base: int, ticket: Ticket, number: int) -> None:
        """Seed every stream by what a row is called: its key, and which time it comes in this epoch."""
        seed = _mix(base, ticket.keys[number], ticket.repeats[number] if ticket.repeats else 0)
        seed_streams(seed)
        own = self._own or self._owned()
        if own.found:
            own.seed(seed)

    def _read_rows(self, ticket: Ticket) -> list[Any]:
        items = []
        for number, key in enumerate(ticket.keys):
            if self._rows_draw:
                self._seed(self._row_seed, ticket, number)
            try:
                items.append(self.dataset[key])
            except Exception as error:
                name = type(self.dataset).__name__
                raise DataError(f"row {key!r} of {name} failed, in {_place(ticket)}: {_text(error)}") from error
        return items

    def _read_at_once(self, ticket: Ticket) -> list[Any]:
        self._seed(self._row_seed, ticket, 0)
        try:
            items: list[Any] = self.dataset.__getitems__(ticket.keys)
        except Exception as error:
            name = type(self.dataset).__name__
            raise DataError(f"{name}.__getitems__ failed on {_place(ticket)}: {_text(error)}") from error
        return items


def seed_streams(seed: int) -> None:
    """Seed the CPU streams that a data set may draw from: torch, NumPy's global one and `random`."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed & _LOW)
    random.seed(seed)


def is_inert(dataset: Any) -> bool:
    """Whether looking up a row is known to run nobody's code, so that there is nothing to seed."""
    if type(dataset) is Subset:
        return is_inert(dataset.dataset)
    return type(dataset) in (list, tuple, range, TensorDataset, ArrayDataset)


def reads_at_once(dataset: Any) -> bool:
    """Whether a batch is read by the data set's own `__getitems__`, not row by row.

    torch's containers pass a list on row by row unless what they hold reads at once.
    """
    if type(dataset) is Subset:
        return reads_at_once(dataset.dataset)
    if type(dataset) is StackDataset:
        inner = dataset.datasets
        return any(reads_at_once(one) for one in (inner.values() if isinstance(inner, dict) else inner))
    return callable(getattr(dataset, "__getitems__", None))


def unwrap(batch: Any) -> Any:
    """Return the batch, or raise the error that came in its place.

    Raises:
        DataError: with the user's error, as it was raised in the worker, as its cause.
    """
    if not isinstance(batch, Failure):
        return batch
    cause: BaseException
    try:
        cause = pickle.loads(batch.error) if batch.error else RuntimeError(batch.message)
    except Exception:
        cause = RuntimeError(batch.message)
    cause.__cause__ = WorkerTracebackError(batch.trace)
    raise DataError(batch.message) from cause


class WorkerTracebackError(Exception):
    """The traceback of an error in a worker process, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def pack_failure(error: DataError) -> Failure:
    """Return what carries an error, with its cause and traceback, out of a worker."""
    cause = error.__cause__ or error
    trace = "".join(traceback.format_exception(cause))
    try:
        packed: bytes | None = pickle.dumps(cause)
        pickle.loads(packed or b"")
    except Exception:
        packed = None
    return Failure(str(error), packed, trace)


def _mix(base: int, key: Any, again: int) -> int:
    """Return the seed of a row; row numbers take the finalizer of splitmix64, ten times as fast as a digest.

    Source: Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators", mix64variant13.
    """
    if type(key) is not int or again:
        return rng.derive(base, key if type(key) is int else repr(key), again)
    mixed = (base + (key + 1) * 0x9E3779B97F4A7C15) & _ALL
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _ALL
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _ALL
    return mixed ^ (mixed >> 31)


def _place(ticket: Ticket) -> str:
    keys = ", ".join(map(repr, ticket.keys[:8])) + (", ..." if len(ticket.keys) > 8 else "")
    return f"batch {ticket.batch} of epoch {ticket.epoch} (rows {keys})"


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
