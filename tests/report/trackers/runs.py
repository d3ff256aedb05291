"""One broken run for all trackers: steps 1 to 6, killed, resumed from step 4, to step 8."""

from __future__ import annotations

import math
import time
from pathlib import Path

from lucid.records import Record
from lucid.report.trackers import Tracker, make

LOSS = "train/loss"


def plan() -> Record:
    """The first record."""
    return Record("plan", 0, 1, 100.0, info={"model": "MLP", "total_steps": 8})


def log(step: int) -> Record:
    """The record of a step; step 3 has a NaN."""
    return Record("log", step, 1, 100.0 + step, {LOSS: math.nan if step == 3 else 1 / step, "train/lr": 0.5})


def broken_run(name: str, folder: Path, pause: float = 0.0, **options: object) -> None:
    """Send a run that breaks and goes on to a tracker; the first process never closes it in order."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text("[train]\nseed = 7\n")
    first: Tracker = make(name, folder, **options)
    first.rewind(-1)
    first.write(plan())
    for step in range(1, 7):
        first.write(log(step))
    first.close()
    time.sleep(pause)
    second: Tracker = make(name, folder, **options)
    second.rewind(4)
    changes = [{"setting": "train.epochs", "was": 1, "now": 2, "rule": "takes effect"}]
    second.write(Record("resume", 4, 1, 200.0, info={"changes": changes, "total_steps": 8}))
    for step in range(5, 9):
        second.write(log(step))
    second.write(Record("eval", 8, 1, 208.5, {"eval/loss": 0.25}, {"best": True}))
    second.write(Record("end", 8, 1, 209.0, info={"reason": "finished"}))
    second.close()
