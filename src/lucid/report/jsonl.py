"""`records.jsonl`: one line per record, handed to the system at once, cut back when a run goes on from a checkpoint."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import warnings
from pathlib import Path
from typing import Literal

from lucid.errors import RecordError
from lucid.records import Record, last_line_end

try:
    import fcntl
except ImportError:  # Windows: the mark that a process is alive is left out
    fcntl = None  # type: ignore[assignment]

_CHUNK_BYTES = 1 << 16
_MOST_HELD = 10_000
_BINARY = getattr(os, "O_BINARY", 0)  # Windows would turn line ends into two characters


class JsonlReport:
    """Appends records to a file.

    Each record is one `write` to the system, so a kill of the process loses none and tears at most the last one.
    While open, the file carries an advisory lock: it tells the dashboard that the process lives.

    Args:
        path: the file; made if absent. A torn last line, left by a kill, is cut off.
        on_error: what a disk that is full or fails does: "stop" raises; "continue" warns once, keeps the records in
            memory and tries again with the next one, up to 10,000 of them.

    Raises:
        OSError: if the file cannot be opened, or not be written and the policy says stop.
    """

    required = True
    tick_is_idle = True

    def __init__(self, path: str | Path, on_error: Literal["stop", "continue"] = "stop") -> None:
        self.path = Path(path)
        self._on_error = on_error
        self._held: list[tuple[int, bytes]] = []  # records that the disk did not take yet, with their steps
        self._has_warned = False
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | _BINARY, 0o644)
        _mark_alive(self._fd)
        size = os.fstat(self._fd).st_size
        end = last_line_end(size, self._read_at)
        if end < size:
            os.ftruncate(self._fd, end)
        self._last_step = self._step_of_last()

    def write(self, record: Record) -> None:
        """Append one record.

        Raises:
            RecordError: if its step lies before that of the last record, or it cannot be written as JSON.
        """
        if record.step < self._last_step:
            raise RecordError(
                f"records must not go back in steps: got {record.kind!r} of step {record.step} after step "
                f"{self._last_step} in {self.path}. Call rewind({record.step}) first."
            )
        data = record.to_line().encode("utf-8", "backslashreplace")  # a lone surrogate becomes its JSON escape
        try:
            self._append(b"".join([*(held for _, held in self._held), data]))
        except OSError as error:
            if self._on_error == "stop" or len(self._held) >= _MOST_HELD:
                raise
            self._held.append((record.step, data))
            self._warn(error)
        else:
            self._held.clear()
        self._last_step = record.step

    def _append(self, data: bytes) -> None:
        """Write all of `data` or, with the error, nothing."""
        before = os.fstat(self._fd).st_size
        try:
            written = os.write(self._fd, data)
            while written < len(data):  # a signal or a nearly full disk; goes on or raises
                written += os.write(self._fd, data[written:])
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, before)  # no half line in front of the next record
            raise

    def _warn(self, error: OSError) -> None:
        if not self._has_warned:
            self._has_warned = True
            free = shutil.disk_usage(self.path.parent).free
            warnings.warn(
                f"{self.path}: records cannot be written: {error.strerror}; {free} bytes free. They are kept in memory "
                "and written as soon as there is room. Training goes on.",
                RuntimeWarning,
                stacklevel=3,
            )

    def rewind(self, step: int) -> None:
        """Drop every record after `step`. Reads backwards from the end, so it costs what it drops.

        One truncation does it: a kill leaves the file either as it was or cut. A broken line is kept
        if the records around it are.
        """
        self._held = [(at, data) for at, data in self._held if at <= step]
        end = at = keep = os.fstat(self._fd).st_size
        while at > 0:
            at, line = self._line_before(at)
            found = _step_of(line)
            if found is not None and found <= step:
                break
            if found is not None or at == 0:
                keep = at
        if keep < end:
            os.ftruncate(self._fd, keep)
        self._last_step = max([self._step_of_last(), *(at for at, _ in self._held)])

    def tick(self, step: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Write what is held, if there is room by now, and close the file; safe to call again."""
        if self._fd < 0:
            return
        try:
            if self._held:
                self._append(b"".join(data for _, data in self._held))
        except OSError as error:
            warnings.warn(
                f"{self.path}: the last {len(self._held)} records are lost: {error.strerror}.",
                RuntimeWarning,
                stacklevel=2,
            )
        finally:
            os.close(self._fd)
            self._fd = -1

    def _step_of_last(self) -> int:
        at, step = os.fstat(self._fd).st_size, None
        while at > 0 and step is None:
            at, line = self._line_before(at)
            step = _step_of(line)
        return -1 if step is None else step

    def _line_before(self, end: int) -> tuple[int, bytes]:
        """Return the start and the bytes of the line that ends at `end`."""
        parts: list[bytes] = []
        at = end - 1  # its own line end
        while at > 0:
            start = max(0, at - _CHUNK_BYTES)
            chunk = self._read_at(start, at - start)
            found = chunk.rfind(b"\n")
            parts.append(chunk[found + 1 :])
            if found >= 0:
                at = start + found + 1
                break
            at = start
        return at, b"".join(reversed(parts))

    def _read_at(self, offset: int, count: int) -> bytes:
        os.lseek(self._fd, offset, os.SEEK_SET)  # writes go to the end wherever this points
        return os.read(self._fd, count)


def _step_of(line: bytes) -> int | None:
    try:
        return Record.from_line(line).step
    except RecordError:
        return None


def _mark_alive(fd: int) -> None:
    """Hold an advisory lock until the process ends. A reader that looks at it holds it for an instant: try again."""
    if fcntl is None:
        return
    for _ in range(20):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.01)
        except OSError:
            return  # a file system without locks
        else:
            return
