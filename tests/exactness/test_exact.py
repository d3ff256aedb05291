"""A run that was broken leaves behind the same bits as one that was not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lucid import Callback
from lucid.signals import Stopped

from .harness import Breaker, compare, records
from .settings import OPTIMIZERS, SAMPLERS, SCHEDULES, Built, Settings


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_sampler_goes_on_where_it_was(tmp_path: Path, sampler: str) -> None:
    """Rows come in the same order whatever picks them, after breaks in mid-epoch and in a later epoch."""
    steps = 12 if sampler == "stream" else None
    compare(
        Settings(sampler=sampler, accumulation=2, max_steps=steps),
        tmp_path / "x",
        [Breaker(2), Breaker(5, how="SIGTERM")],
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_goes_on_where_it_was(tmp_path: Path, schedule: str) -> None:
    """The learning rate of each update is that of the unbroken run, and the schedule ends in the same state."""
    compare(Settings(schedule=schedule, noisy=False), tmp_path / "x", [Breaker(4), Breaker(9, how="SIGTERM")])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_goes_on_where_it_was(tmp_path: Path, optimizer: str) -> None:
    """Weights and optimizer state are equal, dtypes included."""
    compare(Settings(optimizer=optimizer, schedule="step"), tmp_path / "x", [Breaker(3), Breaker(6, how="SIGUSR1")])


EXTRAS = {
    "short last window": Settings(accumulation=4),
    "dropped rows": Settings(drop_last=True, accumulation=2),
    "averaged weights": Settings(ema=0.8, eval_every=2),
    "SWA": Settings(swa=True, schedule="swa"),
    "fp16": Settings(precision="fp16", optimizer="sgd", schedule="cosine", poison=(3,)),
    "bf16": Settings(precision="bf16"),
    "skipped steps": Settings(poison=(3, 11), schedule="step"),
    "skipped in a window": Settings(poison=(3,), accumulation=3, ema=0.9),
    "early stop": Settings(patience=2, epochs=9, eval_every=1, optimizer="sgd"),
    "clip off": Settings(clip=None, optimizer="two"),
    "by epoch": Settings(log_every="epoch", eval_every="epoch", save_every="epoch"),
    "rare": Settings(log_every=100, eval_every=0, save_every=4, accumulation=2),
    "a limit of steps": Settings(max_steps=13, epochs=10, schedule="one-cycle"),
}


@pytest.mark.parametrize("name", EXTRAS)
def test_every_other_setting_goes_on_where_it_was(tmp_path: Path, name: str) -> None:
    """Two crashes and a signal change nothing, whatever else the run does."""
    breakers = [Breaker(3), Breaker(5, how="SIGTERM"), Breaker(8)]
    compare(EXTRAS[name], tmp_path / "x", breakers)


def test_a_break_right_after_a_skipped_step(tmp_path: Path) -> None:
    """The step that was left out is counted once, and its record stands once."""
    settings = Settings(poison=(3,), accumulation=1, noisy=False)
    whole = compare(settings, tmp_path / "x", [])
    skipped = [step for kind, step, *_ in whole["records"] if kind == "skip"]
    assert len(skipped) == 3
    for step in skipped:
        for how in ("crash", "SIGTERM"):
            again = compare(settings, tmp_path / "x", [Breaker(step, how=how)])
            assert [s for kind, s, *_ in again["records"] if kind == "skip"] == skipped


@pytest.mark.parametrize("hook", ["on_step_end", "on_eval_start", "on_eval_end", "on_epoch_end", "on_epoch_start"])
@pytest.mark.parametrize("how", ["crash", "SIGTERM"])
def test_a_break_in_every_hook(tmp_path: Path, hook: str, how: str) -> None:
    """Wherever in a step the break comes, every hook is called once for it in the end, in the same order."""
    settings = Settings(rows=12, eval_every=2, accumulation=2, ema=0.9)
    compare(settings, tmp_path / "x", [Breaker(2, hook, how), Breaker(4, hook, how)])


def test_a_signal_in_the_step_that_stops_early(tmp_path: Path) -> None:
    """The run ends after the resume as it would have without the signal: the evaluation is done, then it is over."""
    settings = Settings(patience=2, epochs=9, eval_every=1, optimizer="sgd")
    whole = compare(settings, tmp_path / "x", [])
    last = whole["records"][-1][1]
    assert last < 9 * 8
    for hook in ("on_step_end", "on_eval_start", "on_eval_end"):
        compare(settings, tmp_path / "x", [Breaker(last, hook, "SIGTERM")])


class Enough(Callback):
    """Asks for the end of the run in step 5."""

    def on_step_end(self, state: Any) -> None:
        if state.step == 5:
            state.request_stop("enough")


def test_a_signal_in_the_step_whose_end_was_asked_for(tmp_path: Path) -> None:
    """The wish outlives the break: the resume evaluates step 5 and makes no step 6."""
    settings = Settings(eval_every=5)
    Built(settings, tmp_path / "whole", (Enough(),)).fit()
    with pytest.raises(Stopped):
        Built(settings, tmp_path / "broken", (Enough(), Breaker(5, how="SIGTERM"))).fit()
    again = Built(settings, tmp_path / "broken", (Enough(),))
    result = again.fit()
    assert (result.step, result.stopped) == (5, "enough")
    assert records(tmp_path / "broken") == records(tmp_path / "whole")
