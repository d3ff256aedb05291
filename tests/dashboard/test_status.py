"""A run is running while its process holds the records, and never longer."""

from __future__ import annotations

import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lucid.dashboard.status import is_held, status
from lucid.records import Record
from lucid.report import JsonlReport

_HERE = {"starts": [{"host": "elsewhere"}, {"host": platform.node()}]}
_ELSEWHERE = {"starts": [{"host": platform.node()}, {"host": "elsewhere"}]}


def _records(tmp_path: Path) -> Path:
    path = tmp_path / "records.jsonl"
    path.write_text(Record("plan", 0).to_line())
    return path


@pytest.mark.parametrize(("kind", "expected"), [("end", "finished"), ("stop", "interrupted"), ("resume", "died")])
def test_last_record_of_a_life_decides(tmp_path: Path, kind: str, expected: str) -> None:
    """End is finished, stop can go on; a start without either and without a process has died."""
    assert status(_records(tmp_path), Record(kind, 3), _HERE, time.time()) == expected


def test_run_is_running_while_its_file_is_open(tmp_path: Path) -> None:
    """Open is running, closed without an end is died, at once."""
    path = _records(tmp_path)
    report = JsonlReport(path)
    assert status(path, None, _HERE, 0.0) == "running"
    report.close()
    assert status(path, None, _HERE, time.time()) == "died"


def test_killed_process_is_seen_as_died(tmp_path: Path) -> None:
    """The system lets go of the file when the process is killed."""
    path = _records(tmp_path)
    code = (
        "import sys\nfrom lucid.report import JsonlReport\nr = JsonlReport(sys.argv[1])\nprint(1, flush=True)\ninput()"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    writer.stdout.readline()
    assert status(path, None, _HERE, 0.0) == "running"
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    assert status(path, None, _HERE, 0.0) == "died"


@pytest.mark.parametrize(("age", "expected"), [(1.0, "running"), (1000.0, "died")])
@pytest.mark.parametrize("environment", [_ELSEWHERE, None, "broken", {"starts": []}, {"starts": [3]}, {}])
def test_run_of_another_machine_is_judged_by_its_last_line(
    tmp_path: Path, environment: object, age: float, expected: str
) -> None:
    """Where its process cannot be seen, a fresh line counts as life."""
    assert status(_records(tmp_path), None, environment, time.time() - age) == expected


def test_looking_does_not_keep_a_run_from_starting(tmp_path: Path) -> None:
    """After a look the file is free; a run that opens it is seen."""
    path = _records(tmp_path)
    assert is_held(path) is False
    report = JsonlReport(path)
    assert is_held(path) is True
    report.close()
    assert is_held(tmp_path / "none") is None
