"""The terminal shows one line per record, or tables and a moving line, and a tick costs next to nothing."""

from __future__ import annotations

import io
import itertools
import math
import time

import pytest
from rich.live import Live

from lucid.errors import ConfigError
from lucid.records import Record
from lucid.report import ConsoleReport
from lucid.report.live import LiveReport, Pace, Smooth

_RECORDS = [
    Record(
        "plan", 0, 0, 0.0, info={"name": "digits", "model": "MLP", "total_steps": 200, "pid": 3, "extra_key": [1, 2]}
    ),
    Record("log", 10, 1, 0.0, {"train/loss": 0.5, "train/lr": 1e-3}),
    Record("eval", 120, 3, 0.0, {"eval/loss": 0.1234, "eval/accuracy": 0.9812}, {"best": True}),
    Record("save", 120, 3, 0.0, {"bytes": 1_500_000}, {"path": "checkpoints/step-00000120.lcs"}),
    Record("skip", 130, 3, 0.0, info={"reason": "loss is nan", "parameter": "fc.weight", "rows": list(range(20))}),
    Record(
        "resume", 140, 3, 0.0, info={"from": 140, "changes": [{"setting": "lr", "was": 1, "now": 2, "rule": "goes on"}]}
    ),
    Record("stop", 150, 3, 0.0, info={"reason": "SIGTERM"}),
    Record("end", 150, 3, 0.0, {"eval/loss": 0.1}, {"checkpoint": "a.lcs", "next": "lucid ui runs"}),
]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_mode_writes_one_line_per_record() -> None:
    """Output to a file has exactly one line for each record, and these lines."""
    out = io.StringIO()
    report = ConsoleReport("auto", out)
    for record in _RECORDS:
        report.write(record)
        report.tick(record.step)
    report.close()
    assert out.getvalue().splitlines() == [
        "plan  run: digits  model: MLP  total steps: 200  extra key: 1, 2",
        "epoch 1  step 10  train/loss 0.5  train/lr 0.001",
        "epoch 3  step 120  eval/loss 0.1234  eval/accuracy 0.9812  *best",
        "save  step 120  checkpoints/step-00000120.lcs  1.5 MB",
        "skip  step 130  loss is nan  parameter fc.weight  rows 0, 1, 2, 3, 4, 5, 6, 7 and 12 more",
        "resume  from step 140; lr: 1 -> 2 (goes on)",
        "stop  step 150  SIGTERM",
        "end  step 150  eval/loss 0.1  checkpoint: a.lcs  next: lucid ui runs",
    ]


def test_line_breaks_in_a_record_do_not_make_lines() -> None:
    """A note with line breaks stays one line."""
    out = io.StringIO()
    ConsoleReport("plain", out).write(Record("plan", 0, info={"notes": ["a\nb\r\nc"]}))
    assert out.getvalue().count("\n") == 1
    assert "\r" not in out.getvalue()


def test_json_mode_writes_the_lines_of_the_file() -> None:
    """Another program reads the terminal as it reads the file."""
    out = io.StringIO()
    report = ConsoleReport("json", out)
    for record in _RECORDS:
        report.write(record)
    assert out.getvalue() == "".join(record.to_line() for record in _RECORDS)


def test_quiet_mode_writes_nothing() -> None:
    """Quiet is quiet."""
    out = io.StringIO()
    report = ConsoleReport("quiet", out)
    for record in _RECORDS:
        report.write(record)
    report.close()
    assert out.getvalue() == ""


def test_unknown_mode_names_the_nearest() -> None:
    """A misspelt mode is an error with a proposal."""
    with pytest.raises(ConfigError, match=r"must be one of 'auto', .* got 'plane'\. Did you mean 'plain'\?"):
        ConsoleReport("plane")  # type: ignore[arg-type]


def test_terminal_gets_tables_and_a_moving_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that a person needs to know is on the screen at some time."""
    clock = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    out = _Terminal()
    report = ConsoleReport("auto", out)
    assert report.mode == "rich"
    for record in _RECORDS:
        report.write(record)
    report.close()
    text = out.getvalue()
    for part in ("digits", "MLP", "step 120/200", "loss 0.5", "eval/accuracy 0.9812", "*best", "fc.weight",
                 "resumed from step 140", "goes on", "SIGTERM", "a.lcs", "lucid ui runs"):  # fmt: skip
        assert part in text, part


def test_markup_in_names_is_shown_as_it_is() -> None:
    """Square brackets in a name are text, not colour, and never an error."""
    out = _Terminal()
    report = ConsoleReport("rich", out)
    report.write(Record("plan", 0, info={"name": "[/red]run", "model": "[bold]x[/]"}))
    report.write(Record("eval", 1, values={"eval/[/]": 1.0}))
    report.write(Record("odd", 2, info={"a": "[/b]"}))
    report.write(Record("end", 2, info={"next": "[/c]"}))
    text = out.getvalue()
    assert all(part in text for part in ("[/red]run", "[bold]x[/]", "eval/[/] 1", "[/b]", "[/c]"))


def test_ticks_within_a_tenth_of_a_second_draw_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand steps in an instant give one drawing."""
    draws, clock = [0], [100.0]
    monkeypatch.setattr(Live, "update", lambda *_args, **_more: draws.__setitem__(0, draws[0] + 1))
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    report = LiveReport(_Terminal())
    for step in range(10_000):
        report.tick(step)
    assert draws == [1]
    clock[0] += 0.2
    report.tick(10_000)
    report.close()
    assert draws == [2]


def test_time_left_counts_only_the_steps_of_this_process() -> None:
    """A run resumed at step 900 of 1000 that does a step per second has 90 seconds left at step 910."""
    clock = [5000.0]
    pace = Pace(lambda: clock[0])
    assert math.isnan(pace.seconds_left(900, 1000))
    for step in range(901, 911):
        clock[0] += 1.0
        pace.seen(step)
    assert pace.seconds_left(910, 1000) == 90.0


def test_smoothed_loss_is_right_from_the_first_value_and_forgets_nan() -> None:
    """A constant stays itself; a NaN shows at its own step only."""
    smooth = Smooth()
    assert smooth.add(2.0) == pytest.approx(2.0)
    assert math.isnan(smooth.add(math.nan))
    assert smooth.add(2.0) == pytest.approx(2.0)
