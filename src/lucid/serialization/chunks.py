"""The data region of an open file: read ranges of it into memory and verify the checksum of every chunk touched."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

import xxhash

from lucid.errors import ChecksumError
from lucid.serialization import layout, memory
from lucid.serialization.handle import Handle
from lucid.serialization.writer import run_threads

UNIT = memory.BLOCK  # bytes read by one call, unless a chunk is larger
PIECES = 64  # a unit that falls into more tensors than that goes through a scratch buffer
THREADS = 2
SHARE = 16  # units for each thread; with less of them a second one costs more than it brings

Range = tuple[int, int, int]  # start and stop in the data, address in memory


class Chunks:
    """Reads and verifies. `table` has the checksum of each chunk."""

    def __init__(
        self, handle: Handle, footer: layout.Footer, table: Sequence[int], blocks: Iterable[layout.Block]
    ) -> None:
        self.size = footer.manifest_start - footer.data_start
        self._handle, self._base, self._chunk = handle, footer.data_start, footer.chunk
        self._table, self._blocks = table, blocks

    def fill(self, wanted: list[Range]) -> None:
        """Read ranges, sorted by their start, and verify every chunk they touch.

        Raises:
            ChecksumError: names the chunks and the tensors in them.
        """
        units = self._units(wanted)
        if not units:
            return
        starts = [start for start, _, _ in wanted]
        threads = max(1, min(THREADS, len(units) // SHARE)) if self._handle.parallel else 1
        share = -(-len(units) // threads)  # one contiguous part for each: dealing out in turn breaks readahead
        parts = [units[at : at + share] for at in range(0, len(units), share)]
        bad: list[int] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                with memory.scratch(min(max(UNIT, self._chunk), self.size)) as scratch:
                    for low, high in parts.pop():
                        bad.extend(self._unit(low, high, wanted, starts, scratch))
            except BaseException as error:
                errors.append(error)

        run_threads(work, len(parts))
        while parts and not errors:
            work()  # a thread could not be started
        if errors:
            raise errors[0]
        if bad:
            raise ChecksumError(self._explain(sorted(bad)))

    def verify(self) -> None:
        """Read all data; raise `ChecksumError` if a chunk is wrong."""
        bad = self.bad()
        if bad:
            raise ChecksumError(self._explain(bad))

    def bad(self) -> list[int]:
        """Read all data and return the chunks whose checksum is wrong."""
        step = max(UNIT, self._chunk)
        found: list[int] = []
        with memory.scratch(min(step, self.size)) as scratch:
            for low in range(0, self.size, step):
                view = scratch.view[: min(step, self.size - low)]
                self._handle.read([view], self._base + low)
                found += self._check(low, [view])
        return found

    def names(self, chunks: Iterable[int]) -> list[str]:
        """Return the names of the tensors that lie in these chunks."""
        size, numbers = self._chunk, set(chunks)
        return [
            block.name
            for block in self._blocks
            if block.stop > block.start and not numbers.isdisjoint(range(block.start // size, -(-block.stop // size)))
        ]

    def _explain(self, bad: list[int]) -> str:
        names = self.names(bad)
        shown = ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        return (
            f"{self._handle.where}: bytes changed since they were written, in {len(bad)} chunk(s) of {self._chunk} "
            f"bytes ({', '.join(map(str, bad[:8]))}); tensors hit: {shown}. Take another checkpoint."
        )

    def _units(self, wanted: list[Range]) -> list[tuple[int, int]]:
        """Return the ranges to read: whole chunks, about 1 MiB together."""
        chunk = self._chunk
        step = max(UNIT // chunk, 1) * chunk
        units: list[tuple[int, int]] = []
        at = 0  # everything before is in a unit already
        for start, stop, _ in wanted:
            at = max(at, start - start % chunk)
            while at < stop:
                high = min(at + chunk, self.size)
                if units and units[-1][1] == at and at - units[-1][0] < step:
                    units[-1] = (units[-1][0], high)
                else:
                    units.append((at, high))
                at += chunk
        return units

    def _unit(self, low: int, high: int, wanted: list[Range], starts: list[int], scratch: memory.Buffer) -> list[int]:
        """Read one unit to where its bytes belong; returns its bad chunks."""
        pieces: list[Range] = []
        at = max(bisect_right(starts, low) - 1, 0)
        while at < len(wanted) and wanted[at][0] < high:
            start, stop, address = wanted[at]
            first, last = max(start, low), min(stop, high)
            if last > first:
                pieces.append((first, last, address + first - start))
            at += 1
        if len(pieces) > PIECES:
            view = scratch.view[: high - low]
            self._handle.read([view], self._base + low)
            for first, last, address in pieces:
                memory.copy(address, scratch.address + first - low, last - first)
            return self._check(low, [view])
        views: list[memoryview] = []
        end = low
        for first, last, address in (*pieces, (high, high, 0)):
            if first > end:  # bytes that nobody asked for, but which the checksum covers
                views.append(scratch.view[end - low : first - low])
            if last > first:
                views.append(memory.view(address, last - first))
            end = last
        self._handle.read(views, self._base + low)
        return self._check(low, views)

    def _check(self, low: int, views: Iterable[memoryview]) -> list[int]:
        """Return the chunks, from byte `low` on, whose checksum is wrong; `views` are their bytes in order."""
        number, room, bad = low // self._chunk, self._chunk, []
        state = xxhash.xxh3_64()
        for rest in views:
            while len(rest):
                part, rest = rest[:room], rest[room:]
                state.update(part)
                room -= len(part)
                if not room:
                    if state.intdigest() != self._table[number]:
                        bad.append(number)
                    number, room, state = number + 1, self._chunk, xxhash.xxh3_64()
        if room < self._chunk and state.intdigest() != self._table[number]:
            bad.append(number)
        return bad
