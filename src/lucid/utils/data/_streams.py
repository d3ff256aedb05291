"""Batches of a stream: something that can only be read from its beginning, or from a state that it gave itself.

- `StreamSource`: positions, that is start, resume, refuse, skip
- `_Here`: passes over a loader that is read in this process
- `_stream_workers.py`: passes over an IterableDataset that workers read
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, Protocol

import torch
from torch.utils.data import IterableDataset

from lucid import rng
from lucid.errors import DataError, ResumeError

from ._generators import OwnGenerators, pack_states, unpack_states
from ._order import length_of, vars_of
from ._stream_workers import StreamWorkers, has_lossy_buffer, is_stateful

_log = logging.getLogger("lucid.data")
_TELL_EVERY = 1000  # skipped batches between two log lines
_PIPES: Any = getattr(torch.utils.data, "IterDataPipe", ())  # on its way out of torch


class _Opener(Protocol):
    """Opens passes over a stream."""

    is_stateful: bool

    def open(self, epoch: int, state: dict[str, Any] | None) -> Iterator[Any]:
        """Return the batches of an epoch, from the state if there is one."""

    def state(self) -> dict[str, Any] | None:
        """Return the state after the batch handed out last."""

    def close(self) -> None:
        """Stop what runs."""


class StreamSource:
    """Host batches of a stream.

    Args:
        loader: any iterable of batches.
        seed: what the randomness of a pass is derived from.
        on_stream: "refuse" raises where a position cannot be reached exactly; "skip" reads up to it and discards.
    """

    may_run_ahead = False  # the stream's state must be that of the batch handed out last
    has_state = True
    gather = None

    def __init__(self, loader: Any, seed: int, on_stream: Literal["refuse", "skip"]) -> None:
        self.loader = loader
        self._on_stream = on_stream
        self._opener: _Opener = StreamWorkers(loader, seed) if _has_workers(loader) else _Here(loader, seed)
        self._name = type(getattr(loader, "dataset", loader)).__name__
        self._loaded: dict[str, Any] = {}
        self._at: tuple[int, int] | None = None

    def num_batches(self, epoch: int) -> int | None:
        """Return the length that the loader claims; None if it claims none, or several workers make it a guess."""
        dataset = getattr(self.loader, "dataset", None)
        if isinstance(dataset, IterableDataset) and (length_of(dataset) is None or self.loader.num_workers > 1):
            return None
        return length_of(self.loader)

    def batches(self, epoch: int, start: int) -> Iterator[Any]:
        """Yield the batches of an epoch from `start` on.

        Raises:
            ResumeError: if `start` cannot be reached as asked.
            DataError: if the stream ends before `start`, gives nothing, or can be read only once and was.
        """
        loaded, self._loaded = self._loaded, {}
        exact = start > 0 and loaded.get("stream") and (loaded["epoch"], loaded["batch"]) == (epoch, start)
        if start > 0 and not exact and self._on_stream == "refuse":
            raise ResumeError(
                f"batch {start} of epoch {epoch} cannot be reached: {self._why_not()} "
                'Or give Feed(loader, on_stream="skip") for the loader: it reads and discards the batches before.'
            )
        self._at = (epoch, start)
        batches = self._opener.open(epoch, loaded["stream"] if exact else None)
        return self._count(batches, epoch, start, skip=not exact)

    def _count(self, batches: Iterator[Any], epoch: int, start: int, skip: bool) -> Iterator[Any]:
        for done in range(start if skip else 0):
            if done % _TELL_EVERY == 0:
                _log.info("skipping %d of %d batches of epoch %d", done, start, epoch)
            try:
                next(batches)
            except StopIteration:
                raise DataError(f"epoch {epoch} must reach batch {start}, its stream ended after {done}.") from None
        at = start
        for batch in batches:
            at += 1
            self._at = (epoch, at)
            yield batch
        if at == 0:
            raise DataError(
                f"{self._name} must give at least one batch, it gave none in epoch {epoch}. "
                "Is its source empty, or was it read to its end before?"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the position and, where the stream has one, its own state."""
        if self._at is None:
            return self._loaded
        return {"epoch": self._at[0], "batch": self._at[1], "stream": self._opener.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state; it is used by the next `batches`, if that asks for this very position."""
        self._loaded = state
        self._at = None

    def notes(self) -> list[str]:
        """Return what cannot be resumed exactly, and where an epoch ends: to look further would leave a trace."""
        told = self.num_batches(0)
        length = f"an epoch of {self._name} ends after the {told} batches of its length, even where it would give more"
        return [*([] if self._opener.is_stateful else [self._why_not()]), *([] if told is None else [length])]

    def _why_not(self) -> str:
        name = self._name
        if self._opener.is_stateful:
            return f"the checkpoint has no state of the stream {name} for it."
        if has_lossy_buffer(getattr(self.loader, "dataset", self.loader)):
            return (
                f"{name} shuffles through a buffer whose content is not in its state: rows would be lost and others "
                "come twice. Shuffle its shards alone, or use a map-style data set."
            )
        return (
            f"{name} is a stream without a position of its own. "
            "Give it state_dict() and load_state_dict(), or use a map-style data set."
        )

    def close(self) -> None:
        """Stop the workers."""
        self._opener.close()


class _Here:
    """Opens passes over a loader in this process.

    While its code runs it has global streams of its own, seeded for the epoch, so the ambient ones do not move.
    """

    def __init__(self, loader: Any, seed: int) -> None:
        self._loader = loader
        self._seed = seed
        self._holder = _stateful(loader)
        self._streams = _Streams(OwnGenerators([loader]))
        self._used = False
        self._iterator: Any = None
        self._first: dict[str, Any] = {}
        self.is_stateful = self._holder is not None

    def open(self, epoch: int, state: dict[str, Any] | None) -> Iterator[Any]:
        loader = self._loader
        if state is not None and state["ended"]:
            return iter(())
        self._watch(epoch)
        self._streams.seed(rng.derive(self._seed, "stream", epoch))
        with self._streams.active():
            _tell_epoch(loader, epoch)
            if state is not None:
                self._holder.load_state_dict(copy.deepcopy(state["source"]))
            iterator = iter(loader)
        if state is not None:
            self._streams.state = state["rng"], unpack_states(state["own"])
        if iterator is loader and self._used:
            raise DataError(
                f"a {type(loader).__name__} can be read only once, and epoch {epoch} needs it again. "
                "Give a list, a DataLoader, or an object whose __iter__ starts anew."
            )
        self._used = True
        self._iterator = iterator
        return self._read(iterator, epoch)

    def _watch(self, epoch: int) -> None:
        """Say once if the stream carries something over a border of epochs: a run resumed there begins without it."""
        dataset = getattr(self._loader, "dataset", self._loader)
        now = {name: value for name, value in vars_of(dataset).items() if isinstance(value, int | float | str)}
        changed = [name for name, value in now.items() if self._first.setdefault(name, value) != value]
        if changed and not callable(getattr(dataset, "set_epoch", None)):
            _log.warning(
                "%s.%s is another value at the start of epoch %d than before: if rows depend on it, a run resumed "
                "there is not the same. Give the data set a set_epoch(epoch) and take it from that.",
                type(dataset).__name__,
                changed[0],
                epoch,
            )
            self._first = now

    def _read(self, iterator: Iterator[Any], epoch: int) -> Iterator[Any]:
        while True:
            with self._streams.active():
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
                except Exception as error:
                    name = type(getattr(self._loader, "dataset", self._loader)).__name__
                    raise DataError(f"{name} failed in epoch {epoch}: {type(error).__name__}: {error}") from error
            yield batch

    def state(self) -> dict[str, Any] | None:
        if self._holder is None:
            return None
        source = copy.deepcopy(self._holder.state_dict())
        ambient, own = self._streams.state
        return {"source": source, "rng": ambient, "own": pack_states(own), "ended": self._ended()}

    def _ended(self) -> bool:
        """Whether the last batch was short: torch's iterator then knows that its data set is at its end."""
        return bool(getattr(getattr(self._iterator, "_dataset_fetcher", None), "ended", False))

    def close(self) -> None:
        """Nothing to stop."""


class _Streams:
    """Random streams of a loader's own, in place of those that are there while its code does not run.

    Args:
        own: generators that the loader holds; they too are given back as they were.
    """

    def __init__(self, own: OwnGenerators) -> None:
        self._own = own
        self.state: tuple[dict[str, Any], list[Any]] = ({}, [])

    def seed(self, seed: int) -> None:
        """Begin where this seed begins."""
        before = self._capture()
        rng.seed_all(seed)
        self._own.seed(seed)
        self.state = self._capture()
        self._restore(before)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Inside, every draw comes from these streams."""
        before = self._capture()
        self._restore(self.state)
        try:
            yield
        finally:
            self.state = self._capture()
            self._restore(before)

    def _capture(self) -> tuple[dict[str, Any], list[Any]]:
        return rng.capture(), self._own.capture()

    def _restore(self, state: tuple[dict[str, Any], list[Any]]) -> None:
        rng.restore(state[0])
        self._own.restore(state[1])


def _has_workers(loader: Any) -> bool:
    """Whether this is torch's own loader with workers over an IterableDataset, to be run under our seeds and states."""
    if type(loader).__iter__ is not torch.utils.data.DataLoader.__iter__ or isinstance(loader.dataset, _PIPES):
        return False
    return loader.num_workers > 0 and isinstance(loader.dataset, IterableDataset)


def _stateful(loader: Any) -> Any:
    """Return what holds the position: the loader, or else its data set; None if nobody does."""
    dataset = getattr(loader, "dataset", None)
    if has_lossy_buffer(dataset):
        return None
    return next((one for one in (loader, dataset) if is_stateful(one)), None)


def _tell_epoch(loader: Any, epoch: int) -> None:
    for one in (loader, getattr(loader, "dataset", None)):
        tell = getattr(one, "set_epoch", None)
        if callable(tell):
            tell(epoch)
            return
