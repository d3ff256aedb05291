"""Bring a plan to the disk: blocks of data by several threads past the page cache, checksums on the way."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import threading
from collections.abc import Callable
from typing import BinaryIO

import xxhash

from lucid.serialization import layout, memory, system
from lucid.serialization.plan import Plan
from lucid.serialization.sources import Data

BLOCK = memory.BLOCK
THREADS = 4  # at most: while some wait for the disk the others copy and hash
SHARE = 16 << 20  # bytes for each thread; a smaller state is not worth a second one
DIRECT_FROM = 1 << 20  # below that the page cache is as fast


def write_file(plan: Plan, data: Data, path: str, fd: int) -> None:
    """Write all of a plan into the new file `fd`, whose name is `path`, and flush it to the disk."""
    system.reserve(fd, plan.file_size)
    write_at(fd, memoryview(plan.header), 0)
    direct = system.open_direct(path) if plan.data_size >= DIRECT_FROM else -1
    try:
        table = _Blocks(plan, data, fd, direct).run()
    finally:
        if direct >= 0:
            os.close(direct)
    write_at(fd, memoryview(tail(plan, table)), len(plan.header) + plan.data_size)
    system.flush(fd)


def write_stream(plan: Plan, data: Data, file: BinaryIO) -> None:
    """Write all of a plan to an open binary file, from its position on, front to back."""
    table: list[int] = []
    file.write(plan.header)
    with memory.scratch(BLOCK) as scratch:
        for low in range(0, plan.data_size, BLOCK):
            view = data.view(low, min(low + BLOCK, plan.data_size), scratch)
            table += hashes(view)
            file.write(view)
    file.write(tail(plan, table))


def hashes(view: memoryview) -> list[int]:
    """Return the checksum of each chunk of a block."""
    return [xxhash.xxh3_64_intdigest(view[at : at + layout.CHUNK]) for at in range(0, len(view), layout.CHUNK)]


def tail(plan: Plan, table: list[int]) -> bytes:
    """Return manifest, table and footer."""
    raw = plan.manifest + struct.pack(f"<{len(table)}Q", *table)
    start = len(plan.header) + plan.data_size
    footer = layout.Footer(
        size=plan.file_size,
        data_start=len(plan.header),
        manifest_start=start,
        manifest_size=len(plan.manifest),
        table_start=start + len(plan.manifest),
        chunks=len(table),
        head_hash=xxhash.xxh3_64_intdigest(plan.header),
        tail_hash=xxhash.xxh3_64_intdigest(raw),
    )
    return raw + footer.pack()


class _Blocks:
    """The data region of one file, dealt out to threads block by block."""

    def __init__(self, plan: Plan, data: Data, fd: int, direct: int) -> None:
        self._plan, self._data = plan, data
        self._fd, self._direct = fd, direct
        self._table = [0] * plan.chunks
        self._lock = threading.Lock()
        self._next = 0
        self._error: BaseException | None = None

    def run(self) -> list[int]:
        """Write all blocks and return their checksums."""
        run_threads(self._work, max(1, min(THREADS, self._plan.data_size // SHARE)))
        if self._error is not None:
            raise self._error
        return self._table

    def _take(self) -> int:
        with self._lock:
            low, self._next = self._next, self._next + BLOCK
            return low if self._error is None else self._plan.data_size

    def _work(self) -> None:
        try:
            with memory.scratch(BLOCK) as scratch:
                while (low := self._take()) < self._plan.data_size:
                    self._write(low, self._data.view(low, min(low + BLOCK, self._plan.data_size), scratch))
        except BaseException as error:  # handed to the thread that asked for the save
            self._error = self._error or error

    def _write(self, low: int, view: memoryview) -> None:
        sums = hashes(view)
        first = low // layout.CHUNK
        self._table[first : first + len(sums)] = sums
        offset = len(self._plan.header) + low
        done = 0
        if self._direct >= 0:
            done = self._write_direct(view[: len(view) - len(view) % layout.PAGE], offset)
        write_at(self._fd, view[done:], offset + done)

    def _write_direct(self, view: memoryview, offset: int) -> int:
        """Write whole pages past the page cache; returns how many bytes went that way."""
        done = 0
        while done < len(view):
            try:
                wrote = system.write_some(self._direct, view[done:], offset + done)
            except OSError as error:
                if error.errno == errno.EINVAL:  # larger sectors, an odd number of bytes written, a change of mind
                    return done
                raise
            done += wrote
        return done


def run_threads(work: Callable[[], None], count: int) -> None:
    """Run `work` in `count` threads, this one among them. `work` must not raise."""
    threads = []
    for _ in range(count - 1):
        thread = threading.Thread(target=work, daemon=True)
        with contextlib.suppress(RuntimeError):  # no new threads while the interpreter ends: this one does it all
            thread.start()
            threads.append(thread)
    work()
    for thread in threads:
        thread.join()


def write_at(fd: int, view: memoryview, offset: int) -> None:
    """Write all of `view` at `offset`."""
    while len(view):
        wrote = system.write_some(fd, view, offset)
        view, offset = view[wrote:], offset + wrote
