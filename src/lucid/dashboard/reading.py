"""One run, read as it grows: only what was added since the last look is read and parsed."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lucid.errors import RecordError
from lucid.records import Record, last_line_end, tail, words
from lucid.records.curves import Curves
from lucid.records.record import Tail

_PIECE_BYTES = 1 << 20
_MARK_BYTES = 128
_HEAD_BYTES = 1 << 15
_END_BYTES = 1 << 14
_BEST_BYTES = 1 << 22
_EVAL, _IS_BEST = b'{"kind":"eval",', b'"info":{"best":true}}'
_MAX_EVENTS = 5000
_MAX_READERS = 64


class Reader:
    """Everything known of one run's records, kept in memory as columns.

    Args:
        path: of the records.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self.curves = Curves()
        self.events: list[Record] = []
        self.evals: list[Record] = []
        self.plan: dict[str, Any] = {}
        self.last: Record | None = None
        self.num_records = self.num_broken = 0
        self.offset = self.size = 0
        self.is_complete = False
        self.generation = secrets.token_hex(4)  # unlike that of any other reading, also of another server
        self._mark = b""

    @property
    def version(self) -> str:
        """Changes whenever something was read, or the file was cut back."""
        return f"{self.generation}-{self.offset}-{self.curves.num_rows}"

    def rows_at(self, version: str) -> int:
        """Return how many rows the curves had at a version; 0 if that is none of this reading."""
        parts = version.split("-")
        known = len(parts) == 3 and parts[0] == self.generation and parts[2].isdecimal() and len(parts[2]) < 16
        return min(int(parts[2]), self.curves.num_rows) if known else 0

    @property
    def progress(self) -> float:
        """Share of the file that is read, from 0 to 1."""
        return 1.0 if self.is_complete or self.size <= 0 else min(1.0, self.offset / self.size)

    def update(self, budget_seconds: float) -> None:
        """Read what is new, for about `budget_seconds`; the rest waits for the next call.

        A file that was cut back, because its run went on from an earlier checkpoint, is read anew.
        """
        until = time.monotonic() + budget_seconds
        with self.lock:
            try:
                self.size = self.path.stat().st_size
                if self._was_cut():
                    self._reset()
                    self.size = self.path.stat().st_size
                self.is_complete = False
                while not self.is_complete:
                    before = self.offset
                    self._take(tail(self.path, self.offset, _PIECE_BYTES))
                    # a torn last line is never read, so the place, not the size, says when all is read
                    self.is_complete = self.offset in (before, self.size)
                    if time.monotonic() > until:
                        break
                self._mark = self._bytes_before(self.offset)
            except FileNotFoundError:
                self._reset()

    def _take(self, found: Tail) -> None:
        self.offset = found.offset
        self.num_broken += len(found.broken)
        self.num_records += len(found.records)
        for record in found.records:
            self.curves.add(record)
            self.last = record
            if record.kind == "plan" or "total_steps" in record.info:
                self.plan = record.info
            if record.kind == "eval":
                self.evals.append(record)
            elif record.kind != "log":
                self.events.append(record)
        del self.events[:-_MAX_EVENTS], self.evals[:-_MAX_EVENTS]

    def _was_cut(self) -> bool:
        """Return whether the bytes before our place are gone or other ones: the file was cut back."""
        return self._bytes_before(self.offset) != self._mark

    def _bytes_before(self, offset: int) -> bytes:
        count = min(_MARK_BYTES, offset)
        with self.path.open("rb") as file:
            file.seek(offset - count)
            return file.read(count)


class Readers:
    """The readers of the runs that were looked at last."""

    def __init__(self) -> None:
        self._readers: OrderedDict[Path, Reader] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: Path) -> Reader:
        """Return the reader of a file, a new one if it is not known."""
        with self._lock:
            reader = self._readers.pop(path, None) or Reader(path)
            self._readers[path] = reader
            while len(self._readers) > _MAX_READERS:
                self._readers.popitem(last=False)
            return reader


@dataclass(slots=True)
class Glance:
    """What the beginning and the end of a file tell: enough for the list of runs, at the same cost for any length."""

    plan: dict[str, Any] = field(default_factory=dict)
    started: float | None = None
    records: list[Record] = field(default_factory=list)
    best: Record | None = None
    size: int = 0
    changed: float = 0.0


def glance(path: Path) -> Glance:
    """Read the first and the last few kilobytes of a run's records."""
    facts = path.stat()
    seen = Glance(size=facts.st_size, changed=facts.st_mtime)
    head = tail(path, 0, 1).records
    if head:
        seen.started = head[0].time
        seen.plan = head[0].info
    start = max(0, facts.st_size - _END_BYTES)
    with path.open("rb") as file:
        start = _line_start(file, start)
    seen.records = tail(path, start).records
    for record in seen.records:
        if record.kind == "plan" or "total_steps" in record.info:
            seen.plan = record.info
    seen.best = next((each for each in reversed(seen.records) if each.kind == "eval" and words.is_best(each)), None)
    if seen.best is None:
        seen.best = _best_before(path, start)
    return seen


def _best_before(path: Path, end: int) -> Record | None:
    """Return the newest evaluation that was the best, among the last megabytes before `end`; parses no other line."""
    with path.open("rb") as file:
        file.seek(max(0, end - _BEST_BYTES))
        lines = file.read(min(end, _BEST_BYTES)).splitlines()
    for line in reversed(lines):
        if line.startswith(_EVAL) and line.endswith(_IS_BEST):
            with contextlib.suppress(RecordError):
                return Record.from_line(line)
    return None


def log_lines(path: Path, before: int | None, count: int) -> tuple[list[Record], int]:
    """Return about the last `count` records that end at or before byte `before`, and where they start.

    Args:
        path: of the records.
        before: None for the end of the file.
        count: of records.
    """
    end = path.stat().st_size if before is None else min(before, path.stat().st_size)
    start = end
    records: list[Record] = []
    with path.open("rb") as file:
        while start > 0 and len(records) < count:
            start = _line_start(file, max(0, start - _HEAD_BYTES))
            records = _between(path, start, end)
    return records, start


def _between(path: Path, start: int, end: int) -> list[Record]:
    return tail(path, start, max(1, end - start)).records if end > start else []


def _line_start(file: Any, offset: int) -> int:
    """Return the start of the line that the byte at `offset` belongs to."""

    def read_at(at: int, count: int) -> bytes:
        file.seek(at)
        return bytes(file.read(count))

    return last_line_end(offset, read_at)
