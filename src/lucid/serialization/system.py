"""The few calls that differ between systems: positioned writes, flushes, opening past the page cache."""

from __future__ import annotations

import errno
import os
import sys
import threading
from pathlib import Path

from lucid.errors import CheckpointError

BINARY = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_seek = threading.Lock()


def write_some(fd: int, view: memoryview, offset: int) -> int:
    """Write at `offset`; returns how many bytes were written."""
    if hasattr(os, "pwrite"):
        return os.pwrite(fd, view, offset)
    with _seek:  # Windows: one position for all threads
        os.lseek(fd, offset, os.SEEK_SET)
        return os.write(fd, view)


def flush(fd: int) -> None:
    """Bring a file to the disk itself."""
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # fsync stops at the cache of the drive there
    else:
        os.fsync(fd)


def flush_folder(folder: Path) -> None:
    """Make the names in a folder durable, where the system can."""
    if os.name == "nt":
        return
    fd = os.open(folder, os.O_RDONLY | BINARY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):  # folders that cannot be flushed
            raise
    finally:
        os.close(fd)


def reserve(fd: int, size: int) -> None:
    """Reserve the disk space before any work, so that a full disk shows at once."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODEV):
                raise


def open_direct(path: str) -> int:
    """Open a file for writing past the page cache; -1 where there is no such thing."""
    flag = getattr(os, "O_DIRECT", 0)
    if not flag:
        return -1
    try:
        return os.open(path, os.O_WRONLY | BINARY | flag)
    except OSError:
        return -1


def check_byte_order() -> None:
    """Refuse machines whose numbers have their bytes the other way round."""
    if sys.byteorder != "little":
        raise CheckpointError(".lcs files need a little-endian machine, this one is big-endian.")
