"""One failing tracker is named once; the run and the records go on."""

from __future__ import annotations

import pytest

from lucid.protocols import Report
from lucid.records import Record
from lucid.report import ConsoleReport, JsonlReport, Reports


class _Memory:
    required = False

    def __init__(self, fails: bool = False) -> None:
        self.calls: list[str] = []
        self.fails = fails

    def _note(self, name: str) -> None:
        self.calls.append(name)
        if self.fails:
            raise OSError("server gone")

    def write(self, record: Record) -> None:
        self._note(f"write {record.step}")

    def rewind(self, step: int) -> None:
        self._note(f"rewind {step}")

    def tick(self, step: int) -> None:
        self.calls.append(f"tick {step}")

    def close(self) -> None:
        self._note("close")


def test_reports_hand_every_call_to_all() -> None:
    """Each call arrives at each report, in order."""
    first, second = _Memory(), _Memory()
    reports = Reports([first, second])
    reports.write(Record("log", 1))
    reports.tick(2)
    reports.rewind(0)
    reports.close()
    assert first.calls == second.calls == ["write 1", "tick 2", "rewind 0", "close"]


def test_failing_tracker_is_told_once_and_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """The others get every record; stderr has one line."""
    bad, good = _Memory(fails=True), _Memory()
    reports = Reports([bad, good])
    for step in (1, 2):
        reports.write(Record("log", step))
        reports.tick(step)
    reports.close()
    assert bad.calls == ["write 1"]
    assert good.calls == ["write 1", "tick 1", "write 2", "tick 2", "close"]
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    assert "_Memory failed" in text
    assert "OSError: server gone" in text


def test_display_that_fails_in_a_tick_does_not_stop_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    """A terminal that went away costs the display, nothing else."""

    class Gone(_Memory):
        def tick(self, step: int) -> None:
            raise BrokenPipeError("no terminal")

    good = _Memory()
    reports = Reports([Gone(), good])
    reports.tick(1)
    reports.tick(2)
    assert good.calls == ["tick 1", "tick 2"]
    assert capsys.readouterr().err.count("Gone failed") == 1


def test_required_report_that_fails_stops_the_run() -> None:
    """A run without its records is not worth going on with; the others are still closed."""
    bad, good = _Memory(fails=True), _Memory()
    bad.required = True
    reports = Reports([bad, good])
    with pytest.raises(OSError, match="server gone"):
        reports.write(Record("log", 1))
    with pytest.raises(OSError, match="server gone"):
        reports.close()
    assert good.calls == ["close"]


def test_records_file_is_required() -> None:
    """The fan-out takes this from the class."""
    assert JsonlReport.required
    assert not getattr(ConsoleReport("quiet"), "required", False)


def test_reports_that_draw_no_progress_are_not_called_every_step() -> None:
    """The cost of a step is that of the reports that show it."""
    assert Reports([ConsoleReport("plain"), ConsoleReport("quiet")])._listening == []


@pytest.mark.parametrize("report", [Reports(), ConsoleReport("quiet"), ConsoleReport("plain")])
def test_every_report_fits_the_protocol(report: object) -> None:
    """A report has the four methods."""
    assert isinstance(report, Report)
