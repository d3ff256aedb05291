"""The terminal as a person sees it: a table at the start, one moving line while it trains, a table at the end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lucid.records import Record, words
from lucid.records.outcome import outcome

_REDRAW_SECONDS = 0.1
_SMOOTHING = 0.8
_BAR_WIDTH = 24


class Pace:
    """Time left, from the steps of this process alone, so that it is right after a resume.

    The first step is not counted: it holds compiling, warming up and starting the data workers.

    Args:
        clock: seconds of a clock that never goes back.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._first: tuple[int, float] | None = None

    def seen(self, step: int) -> None:
        """Note that `step` is done."""
        if self._first is None or step < self._first[0]:
            self._first = (step, self._clock())

    def seconds_left(self, step: int, total_steps: int) -> float:
        """Return the seconds until `total_steps`, NaN before the second step of this process."""
        if self._first is None or step <= self._first[0]:
            return math.nan
        per_step = (self._clock() - self._first[1]) / (step - self._first[0])
        return per_step * max(0, total_steps - step)


class Smooth:
    """Mean that forgets, right from its first value; a NaN shows at its own step and does not stay."""

    def __init__(self, keep: float = _SMOOTHING) -> None:
        self._keep = keep
        self._sum = self._weight = 0.0

    def add(self, value: float) -> float:
        """Take one value in and return the mean, or the value itself if it is not finite."""
        if not math.isfinite(value):
            return value
        self._sum = self._keep * self._sum + (1 - self._keep) * value
        self._weight = self._keep * self._weight + (1 - self._keep)
        return self._sum / self._weight


class LiveReport:
    """Draws with rich, at most ten times a second and never from a thread of its own.

    Args:
        stream: a terminal.
        ending: say how the run ended. False: the caller says it.
    """

    def __init__(self, stream: TextIO, *, ending: bool = True) -> None:
        self._ending = ending
        self._console = Console(file=stream, highlight=False)
        self._live: Live | None = None
        self._pace = Pace()
        self._loss = Smooth()
        self._next_draw = 0.0
        self._step = self._epoch = 0
        self._plan: dict[str, Any] = {}
        self._shown: dict[str, str] = {}
        self._last_eval = self._best = ""

    def write(self, record: Record) -> None:
        """Show one record."""
        self._step = record.step
        if record.kind in ("log", "eval"):
            self._epoch = record.epoch
        getattr(self, f"_on_{record.kind}", self._on_other)(record)
        if record.kind not in ("plan", "end") and time.perf_counter() >= self._next_draw:
            self._draw()

    def rewind(self, step: int) -> None:
        """Go back to `step`; what is already on the screen stays."""
        self._step = max(0, step)

    def tick(self, step: int) -> None:
        """Redraw if a tenth of a second has gone by."""
        if time.perf_counter() < self._next_draw:
            return
        self._step = step
        self._pace.seen(step)
        self._draw()

    def tell(self, text: str) -> None:
        """Show a sentence that is no record."""
        self._console.print(Text(text, style="bold"))  # between words, where `_print` leaves it to the terminal

    def close(self) -> None:
        """Take the moving line away."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _on_plan(self, record: Record) -> None:
        self._plan = record.info
        title = str(record.info.get("name") or record.info.get("run_dir") or "training")
        self._table(title, words.pairs({k: v for k, v in record.info.items() if k != "name"}, words.PLAN_LABELS))

    def _on_log(self, record: Record) -> None:
        for name, value in record.values.items():
            short = name.removeprefix("train/")
            if short == "loss":
                self._shown["loss"] = f"{words.number(self._loss.add(value))} ({words.number(value)} now)"
            elif short in _SHOWN_VALUES and (value or short != "skipped_steps"):
                self._shown[_SHOWN_VALUES[short]] = words.number(value)

    def _on_eval(self, record: Record) -> None:
        text = "  ".join(f"{name.removeprefix('eval/')} {words.number(value)}" for name, value in record.values.items())
        self._last_eval = text
        if words.is_best(record):
            self._best = f"{text}  at step {record.step:,}"
        self._print(words.line(record), "bold green" if words.is_best(record) else "green")

    def _on_skip(self, record: Record) -> None:
        self._print(words.line(record), "yellow")

    def _on_resume(self, record: Record) -> None:
        self._print(f"resumed from step {record.info.get('from', record.step)}", "bold cyan")
        for entry in record.info.get("refused") or []:
            self._print(words.refused_text(entry), "yellow")
        changes = [change for change in record.info.get("changes") or [] if isinstance(change, dict)]
        if changes:
            rows = [(str(each.get("setting", "?")), _change(each)) for each in changes]
            self._table("settings that changed", rows)
        if "total_steps" in record.info:  # the plan of this process stands in it
            self._on_plan(record)

    def _on_save(self, record: Record) -> None:
        self._shown["saved"] = f"step {record.step}"

    def _on_stop(self, record: Record) -> None:
        if self._ending:
            self._print(words.line(record), "bold yellow")

    def _on_end(self, record: Record) -> None:
        self.close()
        if not self._ending:
            return
        reached = [(name, words.number(value)) for name, value in record.values.items()]
        self._table(f"{outcome(record)} at step {record.step:,}", reached + words.pairs(record.info, words.END_LABELS))

    def _on_other(self, record: Record) -> None:
        self._print(words.line(record), "")

    def _table(self, title: str, rows: list[tuple[str, str]]) -> None:
        self._print(title, "bold")  # as a title of the table it would be no wider than that
        table = Table(box=None, show_header=False)
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for label, text in rows:
            table.add_row(Text(label), Text(text))
        self._console.print(table)

    def _print(self, text: str, style: str) -> None:
        self._console.print(Text("\n".join(folded(text.split("  "), self._console.width)), style=style), soft_wrap=True)

    def _draw(self) -> None:
        self._next_draw = time.perf_counter() + _REDRAW_SECONDS
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(self._lines(), refresh=True)

    def _lines(self) -> Text:
        """Return the moving lines: how far, what the step gave, the last evaluation, the best."""
        total = self._plan.get("total_steps")
        head = Text()
        where = f"epoch {self._epoch_of(self._step)}  step {self._step:,}"
        if isinstance(total, int) and total > 0:
            where += f"/{total:,}  left {words.duration(self._pace.seconds_left(self._step, total))}"
            width = max(0, min(_BAR_WIDTH, self._console.width - len(where) - 2))
            done = round(width * min(1.0, self._step / total))
            head.append("━" * done, style="cyan").append("━" * (width - done), style="bright_black")
            head.append("  " * (width > 0))
        lines = [head.append(where)]
        for parts, style in (
            ([f"{name} {text}" for name, text in self._shown.items()], ""),
            (_named("eval", self._last_eval), "green"),
            (_named("best", self._best), "bold green"),
        ):
            lines += [Text(line, style=style) for line in folded(parts, self._console.width)]
        return Text("\n", no_wrap=True, overflow="ellipsis").join(lines)

    def _epoch_of(self, step: int) -> int:
        per_epoch = self._plan.get("steps_per_epoch")
        return max(0, step - 1) // per_epoch + 1 if isinstance(per_epoch, int) and per_epoch > 0 else self._epoch


def folded(parts: Iterable[str], width: int) -> list[str]:
    """Return parts on as few lines as hold them whole, two spaces apart; lines after the first are indented.

    Example:
        >>> folded(["epoch 1", "loss 0.25", "*best"], 18)
        ['epoch 1  loss 0.25', '  *best']
    """
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 2 + len(part) <= width:
            lines[-1] += f"  {part}"
        else:
            lines.append(f"  {part}" if lines else part)
    return lines


def _named(name: str, text: str) -> list[str]:
    return [name, *text.split("  ")] if text else []


def _change(change: dict[str, Any]) -> str:
    rule = change.get("rule")
    return words.difference(change.get("was"), change.get("now")) + (f"\n{rule}" if rule else "")


_SHOWN_VALUES = {"lr": "lr", "grad_norm": "grad norm", "rows_per_second": "rows/s", "skipped_steps": "skipped"}
