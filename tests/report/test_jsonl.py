"""The records file survives kills and is cut back to the checkpoint that a run goes on from."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lucid.errors import RecordError
from lucid.records import Record, read_records
from lucid.report import JsonlReport


def _write(path: Path, steps: list[int], kind: str = "log") -> None:
    report = JsonlReport(path)
    for step in steps:
        report.write(Record(kind, step))
    report.close()


def _steps(path: Path) -> list[int]:
    return [record.step for record in read_records(path)]


@pytest.mark.parametrize(("step", "kept"), [(-1, 0), (0, 1), (4, 5), (99, 100), (500, 100)])
def test_rewind_keeps_records_up_to_step(tmp_path: Path, step: int, kept: int) -> None:
    """Everything after the step goes, everything up to it stays, in order."""
    path = tmp_path / "records.jsonl"
    _write(path, list(range(100)))
    before = path.read_bytes()
    report = JsonlReport(path)
    report.rewind(step)
    report.close()
    assert _steps(path) == list(range(kept))
    assert before.startswith(path.read_bytes())


def test_rewind_keeps_all_records_of_the_step(tmp_path: Path) -> None:
    """One step may have several records: all of them stay."""
    path = tmp_path / "records.jsonl"
    report = JsonlReport(path)
    for kind, step in (("log", 4), ("eval", 4), ("save", 4), ("log", 5)):
        report.write(Record(kind, step))
    report.rewind(4)
    report.close()
    assert [record.kind for record in read_records(path)] == ["log", "eval", "save"]


def test_rewind_reads_only_the_tail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Going back a few records in a long file reads a few blocks, not the file."""
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"".join(Record("log", step, 0, 0.0).to_line().encode() for step in range(20_000)))
    report, read = JsonlReport(path), [0]
    os_read = os.read

    def counting(fd: int, count: int) -> bytes:
        read[0] += count
        return os_read(fd, count)

    monkeypatch.setattr(os, "read", counting)
    report.rewind(19_990)
    report.close()
    assert read[0] < path.stat().st_size
    assert len(_steps(path)) == 19_991


@pytest.mark.parametrize("size", [10, 70_000, 200_000])
def test_rewind_over_long_lines(tmp_path: Path, size: int) -> None:
    """Lines longer than a read block are found whole."""
    path = tmp_path / "records.jsonl"
    report = JsonlReport(path)
    for step in range(4):
        report.write(Record("plan", step, info={"text": "x" * size}))
    report.rewind(1)
    report.close()
    assert _steps(path) == [0, 1]


def test_open_cuts_torn_last_line(tmp_path: Path) -> None:
    """What a kill tore off is gone before the next record is written."""
    path = tmp_path / "records.jsonl"
    _write(path, [1, 2])
    with path.open("ab") as file:
        file.write(b'{"kind":"log","st')
    _write(path, [3])
    assert _steps(path) == [1, 2, 3]


def test_open_cuts_zeros_left_by_power_loss(tmp_path: Path) -> None:
    """A file system may grow the file before it has the bytes."""
    path = tmp_path / "records.jsonl"
    _write(path, [1])
    with path.open("ab") as file:
        file.write(bytes(3_000_000))
    _write(path, [2])
    assert _steps(path) == [1, 2]


def test_broken_line_inside_does_not_stop_a_rewind(tmp_path: Path) -> None:
    """A line that is no record neither ends the search nor goes unless what follows it goes too."""
    path = tmp_path / "records.jsonl"
    _write(path, [1, 2])
    with path.open("ab") as file:
        file.write(b"garbage\n")
    report = JsonlReport(path)
    report.rewind(2)
    assert path.read_bytes().count(b"\n") == 3
    report.close()
    _write(path, [3, 4])
    report = JsonlReport(path)
    report.rewind(3)
    assert path.read_bytes().count(b"\n") == 4
    report.rewind(1)
    report.close()
    assert _steps(path) == [1]


def test_record_of_an_earlier_step_is_refused(tmp_path: Path) -> None:
    """A step can have its records only once, also after the file was opened again."""
    path = tmp_path / "records.jsonl"
    _write(path, [5])
    report = JsonlReport(path)
    with pytest.raises(RecordError, match=r"got 'log' of step 4 after step 5 in .*Call rewind\(4\) first"):
        report.write(Record("log", 4))
    report.rewind(4)
    report.write(Record("log", 4))
    report.close()
    assert _steps(path) == [4]


def test_failed_write_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk raises, and the file ends with the last whole record."""
    path = tmp_path / "records.jsonl"
    report = JsonlReport(path)
    report.write(Record("log", 1))
    write = os.write

    def full(fd: int, data: bytes) -> int:
        if len(data) < 20:
            raise OSError(errno.ENOSPC, "no space left")
        return write(fd, data[:-10])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="no space left"):
            report.write(Record("log", 2))
    report.write(Record("log", 3))
    report.close()
    assert path.read_bytes().count(b"\n") == 2
    assert _steps(path) == [1, 3]


_WRITER = """
import sys
from lucid.records import Record
from lucid.report import JsonlReport
report = JsonlReport(sys.argv[1])
step = report._last_step
while True:
    step += 1
    report.write(Record("log", step, info={"text": "x" * (step % 5000)}))
    print(step, flush=True)
"""


def test_kill_at_any_time_loses_no_record_that_was_written(tmp_path: Path) -> None:
    """After kill -9 every record that `write` returned from is in the file, and the next process goes on."""
    path, told = tmp_path / "records.jsonl", -1
    for count in (3, 50, 400):
        writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        for _ in range(count):
            told = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        rest = writer.communicate()[0].split("\n")
        told = int(rest[-2]) if len(rest) > 1 else told
        JsonlReport(path).close()
        steps = _steps(path)
        assert steps == list(range(len(steps)))
        assert steps[-1] >= told


def test_file_name_that_is_no_unicode_is_written(tmp_path: Path) -> None:
    """A path as the system gives it, with bytes that are no UTF-8, comes back the same."""
    path, name = tmp_path / "records.jsonl", b"run-\xff".decode("utf-8", "surrogateescape")
    report = JsonlReport(path)
    report.write(Record("save", 1, info={"path": name}))
    report.close()
    assert read_records(path)[0].info == {"path": name}


class _FullDisk:
    """`os.write` of a disk that is full for some calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
        self.left, write = calls, os.write

        def failing(fd: int, data: bytes) -> int:
            if self.left:
                self.left -= 1
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(fd, data)

        monkeypatch.setattr(os, "write", failing)


def test_records_wait_for_room_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By policy a full disk warns once, and every record is there, in order, once there is room."""
    report = JsonlReport(tmp_path / "records.jsonl", on_error="continue")
    _FullDisk(monkeypatch, calls=3)
    with pytest.warns(RuntimeWarning, match=r"No space left on device; \d+ bytes free") as seen:
        list(map(report.write, [Record("log", step) for step in range(1, 6)]))
    assert len(seen) == 1
    report.close()
    assert [record.step for record in read_records(tmp_path / "records.jsonl")] == [1, 2, 3, 4, 5]


def test_a_full_disk_stops_where_the_policy_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is raised and the file holds whole lines only."""
    report = JsonlReport(tmp_path / "records.jsonl")
    report.write(Record("log", 1))
    _FullDisk(monkeypatch, calls=1)
    with pytest.raises(OSError, match="No space left"):
        report.write(Record("log", 2))
    assert [record.step for record in read_records(tmp_path / "records.jsonl")] == [1]
    report.close()


def test_held_records_are_rewound_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that goes back to step 1 while the disk is full writes step 2 once."""
    report = JsonlReport(tmp_path / "records.jsonl", on_error="continue")
    report.write(Record("log", 1))
    _FullDisk(monkeypatch, calls=1)
    with pytest.warns(RuntimeWarning, match="kept in memory"):
        report.write(Record("log", 2))
    report.rewind(1)
    report.write(Record("log", 2))
    report.close()
    assert [record.step for record in read_records(tmp_path / "records.jsonl")] == [1, 2]


def test_records_that_never_find_room_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing on a full disk says how many records are lost."""
    report = JsonlReport(tmp_path / "records.jsonl", on_error="continue")
    _FullDisk(monkeypatch, calls=9)
    with pytest.warns(RuntimeWarning, match="kept in memory"):
        report.write(Record("log", 1))
    with pytest.warns(RuntimeWarning, match="the last 1 records are lost"):
        report.close()
