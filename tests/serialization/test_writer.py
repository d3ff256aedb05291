"""A save that fails leaves the old file, no litter, and a message that says what and how much."""

from __future__ import annotations

import errno
import io
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lucid.errors import SaveFailedError
from lucid.serialization import load, save, storage, system, verify, writer

OLD, NEW = {"step": 1, "w": torch.zeros(3 << 20)}, {"step": 2, "w": torch.ones(3 << 20)}
CALLS = ("open", "posix_fallocate", "pwrite", "fsync", "replace")


class Faults:
    """Makes the n-th call of one function of `os` fail, and counts all calls."""

    def __init__(self, patch: pytest.MonkeyPatch, name: str, number: int, code: int) -> None:
        self.count, self.real = 0, getattr(os, name)
        self.number, self.code = number, code
        patch.setattr(os, name, self)

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.count += 1
        if self.count == self.number or (self.number == 0):
            raise OSError(self.code, os.strerror(self.code))
        return self.real(*args, **options)


def count_calls(name: str, path: Path) -> int:
    """Return how often a save calls a function of `os`."""
    with pytest.MonkeyPatch.context() as patch:
        faults = Faults(patch, name, -1, 0)
        save(NEW, path)
        return faults.count


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Give a folder with one good file in it."""
    path = tmp_path / "a.lcs"
    save(OLD, path)
    return path


def check_untouched(path: Path) -> None:
    """The old file is whole and alone."""
    assert load(path)["step"] == 1
    assert [item.name for item in path.parent.iterdir()] == [path.name]


def fails_with(code: int, path: Path) -> bool:
    """Save; say whether it failed, and check that the error has its cause and the message its numbers."""
    try:
        save(NEW, path)
    except SaveFailedError as failure:
        error = failure
    else:
        return False
    assert isinstance(error.__cause__, OSError)
    assert error.__cause__.errno == code
    assert "must write" in str(error)
    assert "bytes free" in str(error)
    return True


ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS, errno.EFBIG)


@pytest.mark.parametrize("code", ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize("name", CALLS)
def test_failure_at_each_system_call_leaves_the_old_file(
    name: str, code: int, old: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever call fails, and at whichever of its times, the old file stays; the direct open may fail freely."""
    times = count_calls(name, tmp_path_factory.mktemp("count") / "a.lcs")
    assert times >= 1
    failed = 0
    for number in range(1, times + 1):
        with monkeypatch.context() as patch:
            Faults(patch, name, number, code)
            failed += fails_with(code, old)
        if load(old)["step"] == 2:  # the failure came after the rename, or direct I/O was given up
            save(OLD, old)
        check_untouched(old)
    assert failed >= 1


def test_no_direct_io_is_no_error(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where O_DIRECT, fallocate and folder flushes do not exist, the save goes through the page cache."""
    monkeypatch.setattr(system, "open_direct", lambda path: -1)
    Faults(monkeypatch, "posix_fallocate", 0, errno.EOPNOTSUPP)
    save(NEW, old)
    assert torch.equal(load(old)["w"], NEW["w"])


def test_direct_io_that_is_refused_while_writing_falls_back(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that rejects a direct write gets the same bytes through the page cache."""
    real = os.pwrite
    direct: set[int] = set()
    opened = system.open_direct

    def open_direct(path: str) -> int:
        fd = opened(path)
        direct.add(fd)
        return fd

    def pwrite(fd: int, data: Any, offset: int) -> int:
        if fd in direct:
            raise OSError(errno.EINVAL, "sectors")
        return real(fd, data, offset)

    monkeypatch.setattr(system, "open_direct", open_direct)
    monkeypatch.setattr(os, "pwrite", pwrite)
    save(NEW, old)
    assert len(direct) == 1
    assert torch.equal(load(old)["w"], NEW["w"])


@pytest.mark.parametrize("most", [12288, 1000])
def test_short_writes_are_completed(old: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """The system may write less than asked for; all of it arrives."""
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real(fd, memoryview(data)[:most], offset))
    save(NEW, old)
    assert verify(old).ok
    assert torch.equal(load(old)["w"], NEW["w"])


def test_order_of_system_calls(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reserve, write, flush the file, rename, flush the folder: in this order, nothing after."""
    calls: list[str] = []

    def record(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*args: Any, **options: Any) -> Any:
            if not calls or calls[-1] != name:
                calls.append(name)
            return real(*args, **options)

        return call

    for name in ("posix_fallocate", "pwrite", "fsync", "replace"):
        monkeypatch.setattr(os, name, record(name))
    save(NEW, old)
    assert calls == ["posix_fallocate", "pwrite", "fsync", "replace", "fsync"]


@pytest.mark.parametrize("failures", [1, 2])
def test_retries_make_up_for_passing_failures(failures: int, old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full once or twice is tried again, with growing pauses."""
    pauses: list[float] = []
    monkeypatch.setattr(storage.time, "sleep", pauses.append)
    real = os.posix_fallocate

    def full(fd: int, offset: int, size: int) -> None:
        if len(pauses) < failures:
            raise OSError(errno.ENOSPC, "full")
        real(fd, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", full)
    save(NEW, old, retries=2)
    assert load(old)["step"] == 2
    assert pauses == [0.1, 0.4][:failures]


def test_retries_end_and_the_message_counts_them(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the last try the error says how many there were."""
    monkeypatch.setattr(storage.time, "sleep", lambda seconds: None)
    Faults(monkeypatch, "posix_fallocate", 0, errno.ENOSPC)
    with pytest.raises(
        SaveFailedError, match=r"a\.lcs: saving must write \d+ bytes, got No space left .*\(4 tries\); \d+ bytes free"
    ):
        save(NEW, old, retries=3)
    check_untouched(old)


def test_missing_folder_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot get better fails at once."""
    monkeypatch.setattr(storage.time, "sleep", lambda seconds: pytest.fail("waited"))
    with pytest.raises(SaveFailedError, match="No such file or directory"):
        save(NEW, tmp_path / "none" / "a.lcs", retries=3)


def test_file_size_limit_of_the_system(old: Path) -> None:
    """A process that hits its file-size limit keeps the old file and leaves nothing else."""
    code = (
        "import resource, signal, sys, torch\n"
        "from lucid.serialization import save\n"
        "from lucid.errors import SaveFailedError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "try: save({'w': torch.ones(1 << 20)}, sys.argv[1])\n"
        "except SaveFailedError as error: print(error.__cause__.errno)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(old)], capture_output=True, text=True)
    assert done.stdout.strip() == str(errno.EFBIG), done.stderr[-1000:]
    check_untouched(old)
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_full_disk(tmp_path: Path) -> None:
    """On a real full file system the old file stays and the message tells needed and free bytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(disk)]).returncode:
        pytest.skip("only root can mount a small file system")
    try:
        path = disk / "a.lcs"
        save(OLD, path)  # 12 MiB
        with pytest.raises(SaveFailedError, match="No space left on device"):
            save(NEW, path)
        check_untouched(path)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_read_only_file_system(tmp_path: Path) -> None:
    """A folder on a read-only disk gives the error of the system and stays as it is."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(disk)]).returncode:
        pytest.skip("only root can mount a file system")
    try:
        path = disk / "a.lcs"
        save(OLD, path)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(SaveFailedError, match="Read-only file system"):
            save(NEW, path)
        check_untouched(path)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_mode_of_the_file_follows_the_umask(tmp_path: Path) -> None:
    """Others may read a checkpoint if the umask lets them."""
    before = os.umask(0o027)
    try:
        save(NEW, tmp_path / "a.lcs")
    finally:
        os.umask(before)
    assert (tmp_path / "a.lcs").stat().st_mode & 0o777 == 0o640


def test_a_pipe_gets_the_same_bytes_as_a_file(old: Path) -> None:
    """Writing needs no seeking: a stream has the bytes of the file."""

    class Pipe(io.RawIOBase):
        """Takes bytes and cannot seek."""

        def __init__(self) -> None:
            self.got = bytearray()

        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            self.got += data
            return len(data)

    pipe = Pipe()
    save(OLD, pipe)  # type: ignore[arg-type]
    assert bytes(pipe.got) == old.read_bytes()


def test_number_of_threads_does_not_change_the_bytes(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread or eight, direct or through the page cache: the same file."""
    for threads in (1, 8):
        monkeypatch.setattr(writer, "THREADS", threads)
        monkeypatch.setattr(writer, "SHARE", 1 << 20)
        save(OLD, old.with_name("b.lcs"))
        assert old.with_name("b.lcs").read_bytes() == old.read_bytes()


def test_error_in_one_thread_stops_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After one failed write of 64 blocks the other threads begin at most one block more each."""
    faults = Faults(monkeypatch, "pwrite", 2, errno.EIO)
    with pytest.raises(SaveFailedError):
        save({"w": torch.ones(16 << 20)}, tmp_path / "a.lcs")
    assert faults.count <= 2 + 2 * writer.THREADS
