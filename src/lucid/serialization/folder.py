"""A place for many checkpoints: a folder on a disk, or one behind an fsspec URL. Both offer the same few calls."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any, Protocol

from lucid.serialization.handle import Source
from lucid.serialization.lock import FolderLock
from lucid.serialization.plan import Plan
from lucid.serialization.sources import Data
from lucid.serialization.storage import file_system, is_url, write_text, write_to

_LEFTOVER = re.compile(r"\.(step-\d+(-\d+)?\.lcs|last|best)\.tmp-(\d+)-[0-9a-f]{8}")

Stamp = tuple[Any, ...]


class Folder(Protocol):
    """What a store needs of the place it writes to."""

    path: Path

    def scan(self) -> dict[str, Stamp]:
        """Return the files by name, each with something that differs when the file differs."""

    def source(self, name: str) -> Source:
        """Return what a reader opens."""

    def write(self, name: str, plan: Plan, data: Data, retries: int) -> None:
        """Put a checkpoint there, whole or not at all."""

    def write_text(self, name: str, text: str) -> None:
        """Put a small text there, whole or not at all."""

    def delete(self, name: str) -> None:
        """Delete one file."""

    def close(self) -> None:
        """Let others have the folder."""


def open_folder(where: str | os.PathLike[str]) -> Folder:
    """Return the folder of a path or URL, made if needed, locked where that is possible."""
    return UrlFolder(str(where)) if is_url(where) else LocalFolder(Path(where))


class LocalFolder:
    """A folder on a disk, locked for this process; what dead writers left in it is removed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self._lock = FolderLock(path)
        self._clean()

    def _clean(self) -> None:
        for item in list(os.scandir(self.path)):
            match = _LEFTOVER.fullmatch(item.name)
            # Whoever holds the lock is the only live writer, whatever process has the number by now.
            if match and (self._lock.held or not _alive(int(match[3]))):
                with contextlib.suppress(OSError):
                    os.unlink(item.path)

    def scan(self) -> dict[str, Stamp]:
        """Return the files by name with inode, size and time of change."""
        found: dict[str, Stamp] = {}
        for item in os.scandir(self.path):
            with contextlib.suppress(OSError):  # gone meanwhile
                status = item.stat()
                found[item.name] = (status.st_ino, status.st_size, status.st_mtime_ns)
        return found

    def source(self, name: str) -> Source:
        """Return the path."""
        return self.path / name

    def write(self, name: str, plan: Plan, data: Data, retries: int) -> None:
        """Write beside the target, flush, rename, flush the folder."""
        write_to(self.path / name, plan, data, retries=retries)

    def write_text(self, name: str, text: str) -> None:
        """Write a small text the same way."""
        write_text(self.path / name, text)

    def delete(self, name: str) -> None:
        """Delete one file."""
        os.unlink(self.path / name)

    def close(self) -> None:
        """Release the lock."""
        self._lock.release()


class UrlFolder:
    """A folder behind fsspec. There is no lock: object stores have none."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.path = Path(url)
        self._system, self._root = file_system(self.url)
        self._system.makedirs(self._root, exist_ok=True)

    def scan(self) -> dict[str, Stamp]:
        """Return the files by name with size and what the storage says of their version."""
        self._system.invalidate_cache(self._root)
        found: dict[str, Stamp] = {}
        for item in self._system.ls(self._root, detail=True):
            version = item.get("ETag") or item.get("etag") or item.get("created") or item.get("mtime")
            found[item["name"].rstrip("/").rsplit("/", 1)[-1]] = (item.get("size"), str(version))
        return found

    def source(self, name: str) -> Source:
        """Return the URL."""
        return f"{self.url}/{name}"

    def write(self, name: str, plan: Plan, data: Data, retries: int) -> None:
        """Upload; the storage's own put is the commit."""
        write_to(f"{self.url}/{name}", plan, data, retries=retries)

    def write_text(self, name: str, text: str) -> None:
        """Put a small text."""
        self._system.pipe_file(f"{self._root}/{name}", text.encode())

    def delete(self, name: str) -> None:
        """Delete one object."""
        self._system.rm_file(f"{self._root}/{name}")

    def close(self) -> None:
        """Nothing to let go of."""


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
