"""A folder of checkpoints: what is kept, what is found, what happens when the disk fails."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from lucid.errors import CheckpointError, ConfigError, SaveFailedError, StoreBusyError, UnsupportedTypeError
from lucid.serialization import Store, load, save, storage, store, system, verify

BOTH = pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "sync"])


def names(folder: Path) -> list[str]:
    """Return the checkpoints in a folder."""
    return sorted(item.name for item in folder.iterdir() if item.name.startswith("step-"))


def save_and_wait(kept: Store, step: int) -> None:
    """Save something and wait until it is durable or failed."""
    kept.save({}, step=step)
    kept.wait()


def flip(path: Path, place: int) -> None:
    """Change one bit of a file."""
    raw = bytearray(path.read_bytes())
    raw[place] ^= 4
    path.write_bytes(raw)


@BOTH
def test_state_is_that_of_the_call(tmp_path: Path, asynchronous: bool) -> None:
    """In-place changes right after `save`, of tensors and of containers, do not reach the file."""
    state: dict[str, Any] = {"w": torch.zeros(4 << 20), "t": torch.zeros(300, 200).t(), "list": [1], "n": 1}
    with Store(tmp_path, run_id="a", asynchronous=asynchronous) as kept:
        for step in range(3):
            state["w"].fill_(step)
            state["t"].fill_(step)
            state["list"][0] = step
            kept.save(state, step=step)
            state["w"].fill_(99)
            state["t"].fill_(99)
            state["list"][0] = 99
        entry = kept.latest()
        assert entry is not None
        loaded = kept.load(entry)
    assert loaded["list"] == [2]
    assert torch.equal(loaded["w"], torch.full((4 << 20,), 2.0))
    assert torch.equal(loaded["t"], torch.full((200, 300), 2.0))


def test_retention_keeps_newest_and_best_by_step_not_by_time(tmp_path: Path) -> None:
    """Values 5, 1, 4, 3, 2 at steps 8, 9, 10, 99, 100 with shuffled file times: 9, 99 and 100 stay."""
    for step, value, time in ((8, 5, 500), (9, 1, 100), (10, 4, 900)):
        with Store(tmp_path, run_id="a", keep_last=2, keep_best=1) as kept:  # the run breaks after each save
            kept.save({}, step=step, value=value)
        os.utime(tmp_path / f"step-{step:08d}.lcs", (time, time))
    with Store(tmp_path, run_id="a", keep_last=2, keep_best=1) as kept:
        for step, value in ((99, 3), (100, 2)):
            kept.save({"step": step}, step=step, value=value)
        assert [(entry.step, entry.value) for entry in kept.entries()] == [(9, 1.0), (99, 3.0), (100, 2.0)]
        assert kept.latest() == kept.entries()[-1]
        assert kept.best() == kept.entries()[0]
    assert (tmp_path / "last").read_text() == "step-00000100.lcs\n"
    assert (tmp_path / "best").read_text() == "step-00000009.lcs\n"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"keep_last": 1, "keep_best": 0}, [6]),
        ({"keep_last": 3, "keep_best": 0}, [4, 5, 6]),
        ({"keep_last": 1, "keep_best": 2, "mode": "max"}, [1, 3, 6]),
        ({"keep_last": 1, "keep_best": 1}, [2, 6]),
        ({"keep_last": 1, "keep_best": 0, "keep_every": 3}, [3, 6]),
        ({"keep_last": 9}, [1, 2, 3, 4, 5, 6]),
    ],
)
def test_retention_rules(tmp_path: Path, options: dict[str, Any], expected: list[int]) -> None:
    """Each rule alone and together; NaN and None are never best, the earlier of equals is."""
    with Store(tmp_path, run_id="a", **options) as kept:
        for step, value in enumerate([7, 1, 7, float("nan"), None, 1], 1):
            kept.save({}, step=step, value=value)
        assert [entry.step for entry in kept.entries()] == expected


def test_pointers_name_files_that_stay(tmp_path: Path) -> None:
    """Without a slot for the best, `best` is the best of those that are kept."""
    with Store(tmp_path, run_id="a", keep_last=2, keep_best=0) as kept:
        for step, value in enumerate([1, 5, 6], 1):
            kept.save({}, step=step, value=value)
    assert (tmp_path / "best").read_text() == "step-00000002.lcs\n"
    assert names(tmp_path) == ["step-00000002.lcs", "step-00000003.lcs"]


def test_nan_is_never_best(tmp_path: Path) -> None:
    """Whatever the order in which NaN comes; it is kept as no value."""
    with Store(tmp_path, run_id="a", keep_last=1, keep_best=2) as kept:
        for step, value in enumerate([float("nan"), 5, float("nan"), 4, float("nan"), 6, float("nan")], 1):
            kept.save({}, step=step, value=value)
        assert [(entry.step, entry.value) for entry in kept.entries()] == [(2, 5.0), (4, 4.0), (7, None)]


def test_retention_against_a_simple_model(tmp_path: Path) -> None:
    """Forty random saves keep what a three-line model of the rules keeps."""
    values = torch.randint(0, 9, (40,)).tolist()
    with Store(tmp_path, run_id="a", keep_last=3, keep_best=2, keep_every=10) as kept:
        alive: dict[int, float] = {}
        for step, value in enumerate(values, 1):
            kept.save({}, step=step, value=value)
            alive[step] = value
            best = sorted(alive, key=lambda s: (alive[s], s))[:2]
            keep = set(sorted(alive)[-3:]) | set(best) | {s for s in alive if s % 10 == 0}
            alive = {s: v for s, v in alive.items() if s in keep}
            assert [entry.step for entry in kept.entries()] == sorted(alive)


def test_other_peoples_files_are_untouched(tmp_path: Path) -> None:
    """Notes, another run's checkpoints and odd names stay as they are, and are never used or overwritten."""
    with Store(tmp_path, run_id="other") as other:
        for step in (10, 5000):
            other.save({"whose": "other"}, step=step)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "step-00000020.lcs").write_text("no checkpoint")
    theirs = {item: item.read_bytes() for item in tmp_path.iterdir() if item.suffix in (".lcs", ".txt")}
    for _ in range(2):
        with Store(tmp_path, run_id="mine", keep_last=2) as kept:
            entry = kept.latest()
            begin = entry.step if entry else 0
            for step in range(begin + 10, 31, 10):
                kept.save({"whose": "mine"}, step=step)
            assert [entry.step for entry in kept.entries()] == [20, 30]
            assert [kept.load(entry)["whose"] for entry in kept.entries()] == ["mine", "mine"]
            assert sorted(path.name for path in kept.foreign) == ["step-00000010.lcs", "step-00005000.lcs"]
            assert [path.name for path, _ in kept.refused] == ["step-00000020.lcs"]
    assert {item: item.read_bytes() for item in theirs} == theirs
    assert "step-00000020-2.lcs" in names(tmp_path)


@pytest.mark.parametrize("damage", ["data", "header", "cut", "empty"])
def test_newest_good_one_is_found_with_a_reason_for_the_others(tmp_path: Path, damage: str) -> None:
    """A damaged newest file is passed over, named, kept, and not written over by a new save of its step."""
    with Store(tmp_path, run_id="a") as kept:
        for step in (1, 2):
            kept.save({"w": torch.full((100,), float(step))}, step=step)
    path = tmp_path / "step-00000002.lcs"
    if damage in ("data", "header"):
        flip(path, 4096 + 50 if damage == "data" else 100)
    else:
        path.write_bytes(path.read_bytes()[: -100 if damage == "cut" else 0])
    broken = path.read_bytes()
    with Store(tmp_path, run_id="a") as kept:
        entry = kept.latest()
        assert entry is not None
        assert entry.step == 1
        assert [(bad, bool(reason), str(bad) in reason) for bad, reason in kept.refused] == [(path, True, False)]
        kept.save({"w": torch.zeros(1)}, step=2)
        newest = kept.latest()
        assert newest is not None
        assert (newest.step, newest.path.name) == (2, "step-00000002-2.lcs")
    assert path.read_bytes() == broken


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    """A run that went back to an earlier step writes over its own later files, one by one."""
    with Store(tmp_path, run_id="a") as kept:
        kept.save({"n": 1}, step=5)
        kept.save({"n": 2}, step=5, value=0.5, meta={"note": "x"})
        (entry,) = kept.entries()
        assert (kept.load(entry)["n"], entry.value, entry.meta) == (2, 0.5, {"note": "x"})


@BOTH
def test_passing_failures_are_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asynchronous: bool) -> None:
    """A disk that is full twice costs two pauses and nothing else."""
    pauses: list[float] = []
    monkeypatch.setattr(storage.time, "sleep", pauses.append)
    real = os.posix_fallocate

    def full(fd: int, offset: int, size: int) -> None:
        if len(pauses) < 2:
            raise OSError(errno.ENOSPC, "full")
        real(fd, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", full)
    with Store(tmp_path, run_id="a", asynchronous=asynchronous, on_error="stop") as kept:
        kept.save({}, step=1)
    assert (names(tmp_path), len(pauses)) == (["step-00000001.lcs"], 2)


class FullDisk:
    """Refuses to reserve space while it is on."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.on = True
        real = os.posix_fallocate

        def reserve(fd: int, offset: int, size: int) -> None:
            if self.on:
                raise OSError(errno.ENOSPC, "No space left on device")
            real(fd, offset, size)

        patch.setattr(os, "posix_fallocate", reserve)
        patch.setattr(storage.time, "sleep", lambda seconds: None)


@BOTH
def test_on_error_continue_warns_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asynchronous: bool
) -> None:
    """The warning has path, needed and free bytes; the old file stays; the next save is tried."""
    with Store(tmp_path, run_id="a", asynchronous=asynchronous) as kept:
        kept.save({"n": 1}, step=1)
        kept.wait()
        disk = FullDisk(monkeypatch)
        message = r"step-00000002\.lcs: saving must write \d+ bytes, got No space.*4 tries.*\d+ bytes free.*goes on"
        with pytest.warns(RuntimeWarning, match=message):
            save_and_wait(kept, 2)
        assert names(tmp_path) == ["step-00000001.lcs"]
        disk.on = False
        kept.save({"n": 3}, step=3)
        kept.wait()
    assert names(tmp_path) == ["step-00000001.lcs", "step-00000003.lcs"]
    assert not list(tmp_path.glob(".step*"))


@BOTH
def test_on_error_stop_raises_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asynchronous: bool) -> None:
    """The error comes up at the next call, with the system's error as its cause, and not a second time."""
    kept = Store(tmp_path, run_id="a", asynchronous=asynchronous, on_error="stop")
    FullDisk(monkeypatch)
    with pytest.raises(SaveFailedError) as caught:
        save_and_wait(kept, 1)
    assert isinstance(caught.value.__cause__, OSError)
    kept.wait()
    kept.close()


def test_failure_in_flight_does_not_hide_the_error_of_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the block ends with an error of its own, that one is raised; the failed save is a warning."""
    FullDisk(monkeypatch)

    def train() -> None:
        with Store(tmp_path, run_id="a", on_error="stop") as kept:
            kept.save({}, step=1)
            _ = 1 / 0

    with pytest.warns(RuntimeWarning, match="No space left"), pytest.raises(ZeroDivisionError):
        train()


def test_failing_delete_only_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old file that cannot be deleted is named; saving goes on."""
    real = os.unlink

    def unlink(path: Any, *args: Any, **options: Any) -> None:
        if str(path).endswith("step-00000001.lcs"):
            raise OSError(errno.EPERM, "Operation not permitted")
        real(path, *args, **options)

    monkeypatch.setattr(os, "unlink", unlink)
    with Store(tmp_path, run_id="a", keep_last=1, on_error="stop") as kept:
        kept.save({}, step=1)
        kept.save({}, step=2)
        with pytest.warns(RuntimeWarning, match=r"step-00000001\.lcs: an old checkpoint could not be deleted"):
            kept.wait()
    assert names(tmp_path) == ["step-00000001.lcs", "step-00000002.lcs"]


def test_no_old_file_goes_before_the_new_one_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Order of a save: rename, flush of the folder, pointers, then the first delete."""
    calls: list[str] = []
    for name in ("replace", "unlink"):
        real = getattr(os, name)

        def call(*args: Any, name: str = name, real: Any = real, **options: Any) -> Any:
            calls.append(f"{name} {Path(args[-1]).name}")
            return real(*args, **options)

        monkeypatch.setattr(os, name, call)
    real_flush = system.flush_folder

    def flush(folder: Path) -> None:
        calls.append("flush")
        real_flush(folder)

    monkeypatch.setattr(system, "flush_folder", flush)
    with Store(tmp_path, run_id="a", keep_last=1) as kept:
        kept.save({}, step=1)
        kept.wait()
        calls.clear()
        kept.save({}, step=2)
    assert calls == [
        "replace step-00000002.lcs", "flush", "replace last", "flush", "unlink step-00000001.lcs",
    ]  # fmt: skip


def test_save_waits_for_the_save_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Back-pressure: while one file is written the next save does not begin, nor does the arena change."""
    gate = threading.Event()
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (gate.wait(20), real(fd))[1])
    weight = torch.zeros(1 << 18)
    with Store(tmp_path, run_id="a", keep_last=5) as kept:
        kept.save({"w": weight}, step=1)
        weight.fill_(2)
        second = threading.Thread(target=kept.save, args=({"w": weight}, 2))
        second.start()
        second.join(0.2)
        assert second.is_alive()
        gate.set()
        second.join()
        assert [float(kept.load(entry)["w"][0]) for entry in kept.entries()] == [0.0, 2.0]


def test_arena_is_used_again_and_grows(tmp_path: Path) -> None:
    """Saves of one size use one block of memory; a larger state gets a larger one."""
    with Store(tmp_path, run_id="a", keep_last=9) as kept:
        arena = kept._arena
        assert arena is not None
        addresses = []
        for step, size in enumerate((1000, 1000, 500, 2000), 1):
            kept.save({"w": torch.full((size,), float(step))}, step=step)
            kept.wait()
            addresses.append(arena._buffer.address)
        assert addresses[0] == addresses[1] == addresses[2]
        assert all(torch.all(kept.load(entry)["w"] == entry.step) for entry in kept.entries())


def test_unsupported_object_fails_at_once_and_hurts_nothing(tmp_path: Path) -> None:
    """The error comes from `save` itself, with the path; earlier checkpoints and later saves are fine."""
    with Store(tmp_path, run_id="a") as kept:
        kept.save({"n": 1}, step=1)
        with pytest.raises(UnsupportedTypeError, match=r"^callbacks/mine"):
            kept.save({"callbacks": {"mine": object()}}, step=2)
        kept.save({"n": 3}, step=3)
        assert [entry.step for entry in kept.entries()] == [1, 3]


def test_second_process_is_refused(tmp_path: Path) -> None:
    """Another process is told who writes; once the first is gone, even by kill, the folder is free."""
    code = (
        "import sys, time\nfrom lucid.serialization import Store\n"
        "s = Store(sys.argv[1], run_id='b')\nprint('open', flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(StoreBusyError, match=rf"process {other.pid} on .* writes there"):
            Store(tmp_path, run_id="a")
        other.kill()
    Store(tmp_path, run_id="a").close()


def test_second_store_of_one_process_is_refused(tmp_path: Path) -> None:
    """The same folder cannot be open twice; closing frees it."""
    with Store(tmp_path, run_id="a"), pytest.raises(StoreBusyError, match="this process has it open"):
        Store(tmp_path / ".." / tmp_path.name, run_id="a")
    Store(tmp_path, run_id="a").close()


def test_forked_child_that_outlives_the_run_does_not_keep_the_folder(tmp_path: Path) -> None:
    """A loader's worker that is left over after a kill holds no lock."""
    code = (
        "import os, sys, time\nfrom lucid.serialization import Store\ns = Store(sys.argv[1], run_id='b')\n"
        "if not os.fork():\n    print(os.getpid(), flush=True)\n    time.sleep(60)\nos.kill(os.getpid(), 9)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        child = int(other.stdout.readline())
        other.wait()
        try:
            Store(tmp_path, run_id="a").close()
        finally:
            os.kill(child, 9)


def test_leftovers_of_dead_writers_are_removed(tmp_path: Path) -> None:
    """Temporary files of checkpoints and pointers go; other hidden files stay."""
    for name in (".step-00000007.lcs.tmp-1-0123abcd", ".last.tmp-99-0123abcd", ".mine.tmp-1-0123abcd", ".step-x.lcs"):
        (tmp_path / name).write_text("x")
    Store(tmp_path, run_id="a").close()
    assert sorted(item.name for item in tmp_path.iterdir()) == [".lock", ".mine.tmp-1-0123abcd", ".step-x.lcs"]


def test_read_only_folder_can_be_read(tmp_path: Path) -> None:
    """A store on a read-only disk finds and loads; a save fails by policy."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)]).returncode:
        pytest.skip("only root can mount a file system")
    try:
        with Store(disk, run_id="a") as kept:
            kept.save({"n": 1}, step=1)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with Store(disk, run_id="a", retries=0) as kept:
            entry = kept.latest()
            assert entry is not None
            assert kept.load(entry) == {"n": 1}
            with pytest.warns(RuntimeWarning, match="Read-only file system"):
                save_and_wait(kept, 2)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_interpreter_that_ends_finishes_the_write(tmp_path: Path) -> None:
    """A script that ends right after `save`, without `close`, leaves a whole checkpoint."""
    code = (
        "import sys, torch\nfrom lucid.serialization import Store\n"
        "Store(sys.argv[1], run_id='a').save({'w': torch.ones(8 << 20)}, step=1)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert verify(tmp_path).ok
    assert torch.equal(load(tmp_path / "step-00000001.lcs")["w"], torch.ones(8 << 20))


def test_nothing_forks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process is made by saving."""
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("forked"))
    with Store(tmp_path, run_id="a") as kept:
        kept.save({"w": torch.ones(3 << 20)}, step=1)
    assert names(tmp_path) == ["step-00000001.lcs"]


def test_load_into_and_parts(tmp_path: Path) -> None:
    """A store reads into live tensors and by path."""
    with Store(tmp_path, run_id="a") as kept:
        kept.save({"model": {"w": torch.ones(3)}, "step": 4}, step=4)
        entry = kept.latest()
        assert entry is not None
        live = {"model": {"w": torch.zeros(3)}}
        assert kept.load_into(entry, live)["step"] == 4
        assert torch.equal(live["model"]["w"], torch.ones(3))
        assert kept.load(entry, select="step") == 4


def test_closed_store_says_so(tmp_path: Path) -> None:
    """Saving after `close` is an error, closing twice is none."""
    kept = Store(tmp_path, run_id="a")
    kept.close()
    kept.close()
    with pytest.raises(CheckpointError, match="the store is closed"):
        kept.save({}, step=1)


@pytest.mark.parametrize(
    "options",
    [{"keep_last": 0}, {"keep_every": -1}, {"retries": -1}, {"mode": "best"}, {"on_error": "ignore"}],
    ids=str,
)
def test_wrong_options_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    """Before the folder is made."""
    with pytest.raises(ConfigError):
        Store(tmp_path / "new", run_id="a", **options)
    assert not (tmp_path / "new").exists()


def test_each_file_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention over many kept files does not read them again at every save."""
    opened: list[str] = []
    from lucid.serialization import catalog

    real = catalog.Reader

    def reader(source: Any) -> Any:
        opened.append(Path(source).name)
        return real(source)

    monkeypatch.setattr(catalog, "Reader", reader)
    with Store(tmp_path, run_id="a", keep_last=50) as kept:
        for step in range(20):
            kept.save({}, step=step)
    assert len(opened) == 20


def test_store_over_a_url(tmp_path: Path) -> None:
    """Memory and local storage through fsspec: saved, found, kept, deleted, read into live tensors."""
    for url in ("memory://run", f"file://{tmp_path}/run"):
        for begin in (1, 4):
            with Store(url, run_id="a", keep_last=2) as kept:
                for step in range(begin, begin + 3):
                    kept.save({"w": torch.full((1000,), float(step))}, step=step, value=step)
                assert [entry.step for entry in kept.entries()] == [1, begin + 1, begin + 2]
                entry = kept.latest()
                assert entry is not None
                live = {"w": torch.zeros(1000)}
                kept.load_into(entry, live)
                assert live["w"][0] == begin + 2


def test_errors_of_a_storage_follow_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A storage's own kind of error is retried and, if it stays, ends no run that is to go on."""
    tries: list[int] = []

    def broken(*args: Any) -> None:
        tries.append(1)
        raise RuntimeError("503 of the bucket")

    monkeypatch.setattr(storage, "write_stream", broken)
    monkeypatch.setattr(storage, "FIRST_PAUSE", 0.0)
    with Store("memory://bucket", run_id="a", retries=2) as kept:
        kept.save({}, step=1)
        with pytest.warns(RuntimeWarning, match=r"RuntimeError: 503 of the bucket \(3 tries\).*Training goes on"):
            kept.wait()
    assert len(tries) == 3


def test_failed_upload_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An upload that fails half way does not appear; the object before stays."""
    save({"n": 1}, "memory://one/a.lcs")

    def broken(*args: Any) -> None:
        args[2].write(b"half of it")
        raise OSError(errno.EIO, "lost connection")

    monkeypatch.setattr(storage, "write_stream", broken)
    with pytest.raises(SaveFailedError, match="lost connection"):
        save({"n": 2}, "memory://one/a.lcs")
    assert load("memory://one/a.lcs") == {"n": 1}


def test_no_warning_in_ordinary_use(tmp_path: Path) -> None:
    """A run without trouble warns of nothing."""
    with warnings.catch_warnings(), Store(tmp_path, run_id="a") as kept:
        warnings.simplefilter("error")
        kept.save({"w": torch.ones(3)}, step=1, value=1.0)
        kept.wait()
    assert store.Entry is not None
