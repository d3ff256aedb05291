"""The whole check: which short runs are made, and which sections they answer."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lucid.check import inspection, planning, resuming
from lucid.check.child import Failed, call, choose_start
from lucid.check.report import Report, Section
from lucid.check.script import Order, Script, play
from lucid.errors import ConfigError


@dataclass(frozen=True, slots=True)
class _Runs:
    """Plays short runs in new processes, each with its own streams and hash seed."""

    factory: Callable[[], Any]
    start: str
    folder: str

    def play(self, name: str, steps: int, ambient: int, hash_seed: int, extra: bool = False) -> Script | Failed:
        order = Order(self.factory, str(Path(self.folder) / name), steps, ambient, extra)
        return call(play, order, start=self.start, hash_seed=hash_seed)  # type: ignore[no-any-return]


def check_all(factory: Callable[[], Any], *, steps: int, start: str, run_dir: str | None) -> Report:
    """See `lucid.check.run`."""
    if start not in ("auto", "spawn", "fork"):
        raise ConfigError(f'start must be "auto", "spawn" or "fork", got {start!r}.')
    if steps < 2:
        raise ConfigError(f"steps must be at least 2, as the break comes between two, got {steps}.")
    start = choose_start(factory, start)
    report = Report()
    seen = call(inspection.inspect, factory, run_dir, start=start, hash_seed=1)
    if isinstance(seen, Failed):
        report.sections.append(_broken("set-up", "do model, data and settings fit together?", seen))
        return report
    total = seen.total_steps or steps
    steps = min(steps, total)
    with tempfile.TemporaryDirectory(prefix="lucid-check-") as folder:
        runs = _Runs(factory, start, folder)
        whole = runs.play("whole", steps, ambient=1, hash_seed=1)
        if isinstance(whole, Failed):
            report.sections.append(_broken("training", f"do the first {steps} steps run?", whole))
            return report
        planning.finish(seen.plan, whole, seen)
        report.sections += [seen.plan, *_compared(runs, whole, steps, bool(seen.has_eval))]
    report.sections += [seen.rows, seen.accumulation, inspection.faults(seen, whole)]
    return report


def _compared(runs: _Runs, whole: Script, steps: int, has_eval: bool) -> list[Section]:
    """Return the sections that compare runs with the unbroken one."""
    left = max(whole.steps, default=0) // 2
    if left < 1:
        section = Section("resume", "unbroken against broken: the same bits?", skipped="the run has a single step")
        return [section]
    before = runs.play("broken", left, ambient=1, hash_seed=2)
    if isinstance(before, Failed):
        return [_broken("repeatable", f"do the same {left} steps run twice?", before)]
    repeatable = resuming.repeatable(whole, before, lambda: runs.play("again", left, ambient=1, hash_seed=1))
    after = runs.play("broken", steps, ambient=2, hash_seed=3)
    if isinstance(after, Failed):
        resume = resuming.refused(after)
    else:
        resume = resuming.resume(whole, before, after, repeatable.status == "ok")
    neutral = resuming.neutral(
        whole, runs.play("evaluated", steps, ambient=1, hash_seed=1, extra=True) if has_eval else whole, has_eval
    )
    if repeatable.status != "ok" and neutral.status == "fail":
        neutral.findings, neutral.skipped = [], "the run is not repeatable, so there is nothing to compare with"
    return [resume, repeatable, neutral]


def _broken(name: str, question: str, failed: Failed) -> Section:
    section = Section(name, question)
    section.fault(failed.kind, failed.message, "")
    section.facts["traceback"] = failed.trace
    return section
