"""Put one finished file under its name, whole or not at all: on a disk, through fsspec, into an open file."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

from lucid.errors import ConfigError, LucidError, SaveFailedError
from lucid.serialization import system
from lucid.serialization.plan import Plan
from lucid.serialization.sources import Data
from lucid.serialization.writer import write_file, write_stream

Target = str | os.PathLike[str] | BinaryIO
FIRST_PAUSE = 0.1  # seconds before the second try; four times as long before each further one


def is_url(path: object) -> bool:
    """Say whether a path is a URL for fsspec, such as `s3://bucket/run`."""
    return isinstance(path, str) and "://" in path


def file_system(url: str, **options: Any) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, made with `options`, and the path in it.

    Raises:
        ConfigError: fsspec, or its package for this kind of URL, is not installed.
    """
    try:
        import fsspec  # type: ignore[import-untyped]
    except ImportError:
        raise ConfigError(f"{url}: install fsspec and its package for this kind of storage to write there.") from None
    try:
        return cast(tuple[Any, str], fsspec.core.url_to_fs(url, **options))
    except (ImportError, ValueError) as error:
        raise ConfigError(f"{url}: {error}") from error


def write_to(target: Target, plan: Plan, data: Data, *, retries: int = 0) -> int:
    """Write a plan to a path, a URL or an open file; returns the bytes written.

    Raises:
        SaveFailedError: it failed `retries` + 1 times; nothing of it is left behind.
    """
    if is_url(target):
        _try(lambda: _write_url(cast(str, target), plan, data), str(target), plan.file_size, retries)
    elif isinstance(target, str | os.PathLike):
        path = Path(target)
        _try(lambda: _write_path(path, plan, data), str(path), plan.file_size, retries)
    else:
        write_stream(plan, data, target)
    return plan.file_size


def _try(action: Callable[[], None], where: str, needed: int, retries: int) -> None:
    pause = FIRST_PAUSE
    for left in range(retries, -1, -1):
        try:
            return action()
        except OSError as error:
            if not left or error.errno in _HOPELESS:
                raise SaveFailedError(_explain(error, where, needed, retries - left + 1)) from error
            time.sleep(pause)
            pause *= 4


# Trying again cannot help: no such folder, no permission, a name that is too long or is a folder.
_HOPELESS = {errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EFBIG}


def _explain(error: OSError, where: str, needed: int, tries: int) -> str:
    try:
        free = f"{shutil.disk_usage(Path(where).parent).free} bytes free"
    except OSError:
        free = "free space unknown"
    times = f" ({tries} tries)" if tries > 1 else ""
    return (
        f"{where}: saving must write {needed} bytes, got {error.strerror or error}{times}; {free}. "
        "Older checkpoints are as they were. Make room or save elsewhere."
    )


def temp_name(path: Path) -> Path:
    """Return the name under which a file is written before it is renamed."""
    return path.with_name(f".{path.name}.tmp-{os.getpid()}-{secrets.token_hex(4)}")


def _write_path(path: Path, plan: Plan, data: Data) -> None:
    commit(path, lambda name, fd: write_file(plan, data, name, fd))


def commit(path: Path, write: Callable[[str, int], None]) -> None:
    """Let `write(name, fd)` make a file beside `path`, rename it to `path` and flush the folder."""
    temp = temp_name(path)
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | system.BINARY, 0o666)
    try:
        try:
            write(str(temp), fd)
        finally:
            os.close(fd)
        os.replace(temp, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temp)
        raise
    system.flush_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a small text file atomically and durably."""

    def write(name: str, fd: int) -> None:
        os.write(fd, text.encode())
        system.flush(fd)

    commit(path, write)


def _write_url(url: str, plan: Plan, data: Data) -> None:
    system, path = file_system(url, skip_instance_cache=True)  # a transaction belongs to one writer
    try:
        with system.transaction:  # the object appears when this ends, whole or not at all
            file = system.open(path, "wb")
            write_stream(plan, data, file)
            file.close()
    except (OSError, LucidError, MemoryError):
        raise
    except Exception as error:  # every storage has its own; what failed is one and the same to retries and policy
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}") from error
