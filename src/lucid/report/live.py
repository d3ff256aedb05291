"""The terminal as a person sees it: a table at the start, one moving line while it trains, a table at the end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lucid.records import Record, words

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
    """

    def __init__(self, stream: TextIO) -> None:
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
            self._best = f"{text} at step {record.step}"
        self._print(words.line(record), "bold green" if words.is_best(record) else "green")

    def _on_skip(self, record: Record) -> None:
        self._print(words.line(record), "yellow")

    def _on_resume(self, record: Record) -> None:
        self._print(f"resumed from step {record.info.get('from', record.step)}", "bold cyan")
        for entry in record.info.get("refused") or []:
            self._print(words.refused_text(entry), "yellow")
        changes = [change for change in record.info.get("changes") or [] if isinstance(change, dict)]
        if changes:
            table = Table(title="settings that changed", title_justify="left", box=None)
            for name in ("setting", "was", "now", "rule"):
                table.add_column(name)
            for change in changes:
                table.add_row(*(Text(words.exact(change.get(key))) for key in ("setting", "was", "now", "rule")))
            self._console.print(table)
        if "total_steps" in record.info:  # the plan of this process stands in it
            self._on_plan(record)

    def _on_save(self, record: Record) -> None:
        self._shown["saved"] = f"step {record.step}"

    def _on_stop(self, record: Record) -> None:
        self._print(words.line(record), "bold yellow")

    def _on_end(self, record: Record) -> None:
        self.close()
        reached = [(name, words.number(value)) for name, value in record.values.items()]
        self._table(f"ended at step {record.step}", reached + words.pairs(record.info, words.END_LABELS))

    def _on_other(self, record: Record) -> None:
        self._print(words.line(record), "")

    def _table(self, title: str, rows: list[tuple[str, str]]) -> None:
        table = Table(title=Text(title), title_justify="left", title_style="bold", box=None, show_header=False)
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for label, text in rows:
            table.add_row(Text(label), Text(text))
        self._console.print(table)

    def _print(self, text: str, style: str) -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)

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
            done = round(_BAR_WIDTH * min(1.0, self._step / total))
            head.append("━" * done, style="cyan").append("━" * (_BAR_WIDTH - done), style="bright_black").append("  ")
            where += f"/{total:,}  left {words.duration(self._pace.seconds_left(self._step, total))}"
        lines = [head.append(where)]
        if self._shown:
            lines.append(Text("  ".join(f"{name} {text}" for name, text in self._shown.items())))
        if self._last_eval:
            lines.append(Text(f"eval  {self._last_eval}", style="green"))
        if self._best:
            lines.append(Text(f"best  {self._best}", style="bold green"))
        return Text("\n", no_wrap=True, overflow="ellipsis").join(lines)

    def _epoch_of(self, step: int) -> int:
        per_epoch = self._plan.get("steps_per_epoch")
        return max(0, step - 1) // per_epoch + 1 if isinstance(per_epoch, int) and per_epoch > 0 else self._epoch


_SHOWN_VALUES = {"lr": "lr", "grad_norm": "grad norm", "rows_per_second": "rows/s", "skipped_steps": "skipped"}
