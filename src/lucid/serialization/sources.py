"""Where the bytes of a plan come from while they are written: the state's own memory, or a copy of it."""

from __future__ import annotations

import threading
from bisect import bisect_right
from typing import Any, Protocol

from lucid.serialization import memory
from lucid.serialization.plan import Plan


class Data(Protocol):
    """The data region of one file, readable at any place from several threads."""

    def view(self, low: int, high: int, scratch: memory.Buffer) -> memoryview:
        """Return bytes [low, high) of the data; they may lie in `scratch`."""


class TensorData:
    """Reads the state itself: what a save in the calling thread does."""

    def __init__(self, plan: Plan) -> None:
        self._slots, self._starts = plan.slots, plan.starts
        self._lock = threading.Lock()
        self._dense: tuple[int, int, Any] | None = None  # the one slot whose bytes had to be made

    def view(self, low: int, high: int, scratch: memory.Buffer) -> memoryview:
        """Gather bytes [low, high) in `scratch`."""
        at = max(bisect_right(self._starts, low) - 1, 0)
        while at < len(self._slots) and self._starts[at] < high:
            slot, start = self._slots[at], self._starts[at]
            first, last = max(start, low), min(start + slot.size, high)
            if last > first:
                target = scratch.address + first - low
                if slot.address:
                    memory.copy(target, slot.address + first - start, last - first)
                else:
                    self._copy_made(at, first - start, last - first, target)
            at += 1
        return scratch.view[: high - low]

    def _copy_made(self, at: int, offset: int, size: int, target: int) -> None:
        with self._lock:  # at most one such tensor exists at a time
            if self._dense is None or self._dense[0] != at:
                self._dense = None
                self._dense = (at, *self._slots[at].dense())
            memory.copy(target, self._dense[1] + offset, size)


class Arena:
    """A copy of the data region in page-aligned memory that is used again for every save.

    Memory that has been used before is several times faster to write than fresh memory, and direct I/O can take it as
    it is. Its size is that of the state.
    """

    def __init__(self) -> None:
        self._buffer = memory.Buffer(0)

    def take(self, plan: Plan) -> None:
        """Copy the state as it is now. Nothing of the live state is referred to afterwards."""
        if self._buffer.size < plan.data_size:
            self._buffer = memory.Buffer(0)  # let go of the old one first
            self._buffer = memory.Buffer(plan.data_size)
        base = self._buffer.address
        for slot, start in zip(plan.slots, plan.starts, strict=True):
            if slot.size:
                address, owner = (slot.address, None) if slot.address else slot.dense()
                memory.copy(base + start, address, slot.size)
                del owner
        plan.slots, plan.starts = [], []

    def view(self, low: int, high: int, scratch: memory.Buffer) -> memoryview:
        """Return bytes [low, high) of the copy."""
        return self._buffer.view[low:high]
