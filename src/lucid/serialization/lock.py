"""One writer for each folder: a lock that ends with its process, however that ends."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from pathlib import Path

from lucid.errors import StoreBusyError
from lucid.serialization.system import BINARY

NAME = ".lock"
# POSIX record locks know processes, not objects, and are not inherited by a fork: a loader's worker that outlives a
# killed run does not keep its folder locked. Within one process this table does their part.
_held: set[tuple[int, str]] = set()


class FolderLock:
    """Holds `folder/.lock`, which names the process that has it.

    Raises:
        StoreBusyError: another live process, or another store of this one, has the folder.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._key = (os.getpid(), str(folder.resolve()))
        self._fd = -1
        if self._key in _held:
            raise StoreBusyError(
                f"{folder} must have one writer, but this process has it open already. Close that store."
            )
        try:
            import fcntl

            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | BINARY, 0o666)
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # no such locks on this system
            pass
        except OSError as error:
            owner = self._owner()
            self._close()
            if error.errno in (errno.EAGAIN, errno.EACCES) and owner:
                raise StoreBusyError(
                    f"{folder} must have one writer, but {owner} writes there. Wait for it, or end it."
                ) from None
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        _held.add(self._key)

    @property
    def held(self) -> bool:
        """Whether the system gave a lock; on a read-only folder or some network disks there is none."""
        return self._fd >= 0

    def release(self) -> None:
        """Let others have the folder."""
        _held.discard(self._key)
        self._close()

    def _owner(self) -> str:
        if self._fd < 0:
            return ""  # the folder cannot be written at all; saving says so
        with contextlib.suppress(OSError):
            return os.pread(self._fd, 200, 0).decode(errors="replace") or "another process"
        return "another process"

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
