"""The terminal shows one line per record, or tables and a moving line, and a tick costs next to nothing."""

from __future__ import annotations

import io
import itertools
import math
import re
import time

import pytest
from rich.live import Live

from lucid.errors import ConfigError
from lucid.records import Record
from lucid.report import ConsoleReport
from lucid.report.console import Mode
from lucid.report.live import LiveReport, Pace, Smooth, folded

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
        "stop  step 150  interrupted: SIGTERM",
        "end  step 150  finished  eval/loss 0.1  checkpoint: a.lcs  next: lucid ui runs",
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


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_words_stay_whole_at_any_width(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No name is parted from its number, no line is cut, and none is wider than the terminal."""
    monkeypatch.setenv("COLUMNS", str(width))
    out = _Terminal()
    report = LiveReport(out)
    values = {"train/loss": 0.5123, "train/lr": 1e-3, "train/grad_norm": 0.123, "train/rows_per_second": 12345.6}
    report.write(Record("plan", 0, info={"total_steps": 20_000, "steps_per_epoch": 500}))
    report.write(Record("log", 12_345, 25, values=values))
    report.write(Record("save", 12_000, 25))
    report.write(Record("eval", 12_345, 25, values={"eval/loss": 0.1234, "eval/accuracy": 0.9812}, info={"best": True}))
    moving = report._lines().plain
    report.close()
    still = [line for line in re.sub(r"\x1b[^a-zA-Z]*[a-zA-Z]", "", out.getvalue()).splitlines() if "eval/" in line]
    for line in [*moving.splitlines(), *still]:
        assert len(line.rstrip()) <= width, line
    for part in ("step 12,345/20,000", "loss 0.5123 (0.5123 now)", "grad norm 0.123", "rows/s 12,345.6",
                 "saved step 12000", "accuracy 0.9812", "at step 12,345"):  # fmt: skip
        assert part in moving, part
    assert moving.count("━") == min(24, max(0, width - 38))


def test_lines_fold_between_parts() -> None:
    """What does not fit goes to the next line whole."""
    assert folded(["eval/loss 0.1", "eval/accuracy 0.9", "*best"], 40) == ["eval/loss 0.1  eval/accuracy 0.9  *best"]
    assert folded(["eval/loss 0.1", "eval/accuracy 0.9", "*best"], 36) == [
        "eval/loss 0.1  eval/accuracy 0.9",
        "  *best",
    ]


def test_long_changed_settings_fit_eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two long lists only what went and what came is shown, and the rule below it."""
    monkeypatch.setenv("COLUMNS", "80")
    names = [f"model.layer{number}.attention.weight" for number in range(40)]
    change = {"setting": "optimizer.param_names", "was": names, "now": [*names[1:], "head.bias"], "rule": "refused"}
    out = _Terminal()
    LiveReport(out)._on_resume(Record("resume", 140, info={"from": 140, "changes": [change]}))
    lines = re.sub(r"\x1b[^a-zA-Z]*[a-zA-Z]", "", out.getvalue()).splitlines()
    assert [line.split() for line in lines[2:]] == [
        ["optimizer.param_names", "without", "model.layer0.attention.weight,", "with", "head.bias"],
        ["refused"],
    ]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("mode", "said"), [("plain", "is finished\n"), ("rich", "is finished\n"), ("json", ""), ("quiet", "")]
)
def test_sentence_that_is_no_record_is_for_people(mode: Mode, said: str) -> None:
    """Programs that read records do not get it."""
    out = io.StringIO()
    ConsoleReport(mode, out).tell("is finished")
    assert out.getvalue() == said


def test_long_sentence_breaks_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """No word is cut at the edge of the terminal."""
    monkeypatch.setenv("COLUMNS", "40")
    out = _Terminal()
    ConsoleReport("rich", out).tell("nothing was trained. " * 8)
    lines = re.sub(r"\x1b[^a-zA-Z]*[a-zA-Z]", "", out.getvalue()).splitlines()
    assert {word for line in lines for word in line.split()} == {"nothing", "was", "trained."}


@pytest.mark.parametrize("record", [Record("end", 8, values={"eval/loss": 0.25}), Record("stop", 8)])
def test_end_is_left_to_who_says_it_better(record: Record) -> None:
    """With ending=False a terminal shows nothing of it; lines per record stay complete."""
    for mode, lines in (("rich", 0), ("plain", 1)):
        out = io.StringIO()
        ConsoleReport(mode, out, ending=False).write(record)  # type: ignore[arg-type]
        assert len(out.getvalue().splitlines()) == lines
    out = io.StringIO()
    ConsoleReport("rich", out).write(record)
    assert "step 8" in out.getvalue()
