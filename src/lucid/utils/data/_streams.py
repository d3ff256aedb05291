"""Batches of a stream: something that can only be read from its beginning, or from a state that it gave itself."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from lucid import rng
from lucid.errors import DataError, ResumeError

from ._order import length_of

_log = logging.getLogger("lucid.data")
_TELL_EVERY = 1000  # skipped batches between two log lines


class StreamSource:
    """Host batches of a stream.

    Args:
        loader: any iterable of batches.
        seed: what the randomness of a pass is derived from.
        on_stream: "refuse" raises where a position cannot be reached exactly; "skip" reads up to it and discards.
    """

    runs_user_code_here = True

    def __init__(self, loader: Any, seed: int, on_stream: Literal["refuse", "skip"]) -> None:
        self.loader = loader
        self._seed = seed
        self._on_stream = on_stream
        self._source = _stateful(loader)
        self._loaded: dict[str, Any] | None = None
        self._at: tuple[int, int] | None = None
        self._streams = _Streams()
        self._used = False

    def num_batches(self, epoch: int) -> int | None:
        """Return the length that the loader claims, or None."""
        return length_of(self.loader)

    def batches(self, epoch: int, start: int) -> Iterator[Any]:
        """Yield the batches of an epoch from `start` on.

        Raises:
            ResumeError: if `start` cannot be reached as asked.
            DataError: if the stream ends before `start`, or can be read only once and was.
        """
        iterator, first = self._open(epoch, start)
        for done in range(first, start):
            if done % _TELL_EVERY == 0:
                _log.info("skipping %d of %d batches of epoch %d", done, start, epoch)
            try:
                self._next(iterator)
            except StopIteration:
                raise DataError(
                    f"epoch {epoch} must have {start} batches to go on from there, the stream ended after {done}."
                ) from None
        while True:
            try:
                batch = self._next(iterator)
            except StopIteration:
                return
            start += 1
            self._at = (epoch, start)
            yield batch

    def _open(self, epoch: int, start: int) -> tuple[Iterator[Any], int]:
        """Return an iterator and the number of the batch that it gives first."""
        loaded, self._loaded = self._loaded, None
        self._at = (epoch, start)
        if start > 0 and loaded and loaded["source"] and (loaded["epoch"], loaded["batch"]) == (epoch, start):
            self._streams.state = loaded["rng"]
            with self._streams.active():
                _tell_epoch(self.loader, epoch)
                self._source.load_state_dict(loaded["source"])
                return iter(self.loader), start
        if start > 0 and self._on_stream == "refuse":
            raise ResumeError(
                f"batch {start} of epoch {epoch} cannot be reached: {self._why_not()} "
                'Or pass on_stream="skip" to read and discard the batches before it.'
            )
        self._streams.seed(rng.derive(self._seed, "stream", epoch))
        with self._streams.active():
            _tell_epoch(self.loader, epoch)
            iterator = iter(self.loader)
        if iterator is self.loader and self._used:
            raise DataError(
                f"a {type(self.loader).__name__} can be read only once, and epoch {epoch} needs it again. "
                "Give a list, a DataLoader, or an object whose __iter__ starts anew."
            )
        self._used = True
        return iterator, 0

    def _next(self, iterator: Iterator[Any]) -> Any:
        with self._streams.active():
            return next(iterator)

    def state_dict(self) -> dict[str, Any]:
        """Return the position and, where the stream has one, its own state."""
        if self._at is None:
            return self._loaded or {}
        source = None if self._source is None else copy.deepcopy(self._source.state_dict())
        return {"epoch": self._at[0], "batch": self._at[1], "source": source, "rng": self._streams.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state; it is used by the next `batches` that asks for this very position."""
        self._loaded = state or None
        self._at = None

    def notes(self) -> list[str]:
        """Return what cannot be resumed exactly."""
        return [] if self._source is not None else [self._why_not()]

    def _why_not(self) -> str:
        name = type(getattr(self.loader, "dataset", self.loader)).__name__
        return (
            f"{name} is a stream without a position of its own. "
            "Give it state_dict() and load_state_dict(), or use a map-style data set."
        )

    def close(self) -> None:
        """Nothing to stop."""


class _Streams:
    """Random streams of a stream's own, in place of the ambient ones while its code runs."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}

    def seed(self, seed: int) -> None:
        with rng.fork(seed):
            self.state = rng.capture()

    @contextmanager
    def active(self) -> Iterator[None]:
        ambient = rng.capture()
        rng.restore(self.state)
        try:
            yield
        finally:
            self.state = rng.capture()
            rng.restore(ambient)


def _stateful(loader: Any) -> Any:
    """Return what holds the position: the loader, or else its data set; None if nobody does."""
    for one in (loader, getattr(loader, "dataset", None)):
        if callable(getattr(one, "state_dict", None)) and callable(getattr(one, "load_state_dict", None)):
            return one
    return None


def _tell_epoch(loader: Any, epoch: int) -> None:
    for one in (loader, getattr(loader, "dataset", None)):
        tell = getattr(one, "set_epoch", None)
        if callable(tell):
            tell(epoch)
            return
