"""One open file to read from: a path, a URL of fsspec, or a seekable binary file that the caller opened."""

from __future__ import annotations

import os
import stat
from typing import Any, BinaryIO, cast

from lucid.errors import FormatError, TruncatedError
from lucid.serialization.storage import file_system, is_url
from lucid.serialization.system import BINARY

Source = str | os.PathLike[str] | BinaryIO


class Handle:
    """Reads at any place. `parallel` says whether several threads may do so at once."""

    def __init__(self, source: Source) -> None:
        self.where = str(source) if isinstance(source, str | os.PathLike) else str(getattr(source, "name", "the file"))
        self._fd = -1
        self._file: Any = None
        self._ours = False
        if is_url(source):
            system, path = file_system(cast(str, source))
            self._file, self._ours = system.open(path, "rb"), True
        elif isinstance(source, str | os.PathLike):
            self._fd = _open_regular(source)
            if not hasattr(os, "preadv"):  # Windows: one position for all threads
                self._file, self._fd, self._ours = os.fdopen(self._fd, "rb"), -1, True
        else:
            self._file = source
        self.parallel = self._fd >= 0
        self.size = os.fstat(self._fd).st_size if self.parallel else self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Close what this handle opened."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._ours:
            self._file.close()

    def bytes(self, start: int, stop: int) -> bytes:
        """Return bytes [start, stop)."""
        raw = bytearray(stop - start)
        self.read([memoryview(raw)], start)
        return bytes(raw)

    def read(self, views: list[memoryview], offset: int) -> None:
        """Fill all views, one after the other, with the bytes from `offset` on.

        Raises:
            TruncatedError: the file ends before.
        """
        if self._file is not None:
            self._file.seek(offset)
        while views:
            got = os.preadv(self._fd, views, offset) if self._file is None else _read_some(self._file, views[0])
            if not got:
                raise TruncatedError(f"{self.where} ended at byte {offset} while it was read: something cut it short.")
            offset += got
            while views and got >= len(views[0]):
                got -= len(views[0])
                views = views[1:]
            if got:
                views = [views[0][got:], *views[1:]]


def _read_some(file: Any, view: memoryview) -> int:
    into = getattr(file, "readinto", None)
    if into is not None:
        return int(into(view) or 0)
    data = file.read(len(view))
    view[: len(data)] = data
    return len(data)


def _open_regular(path: str | os.PathLike[str]) -> int:
    # Non-blocking, so that a named pipe is refused and not waited for.
    fd = os.open(path, os.O_RDONLY | BINARY | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FormatError(f"{path} must be a regular file: a checkpoint is read at many places of it.")
    return fd
