"""A run that was broken leaves behind the same bits as one that was not."""

from __future__ import annotations

from pathlib import Path

import pytest

from .harness import Breaker, compare
from .settings import OPTIMIZERS, SAMPLERS, SCHEDULES, Settings


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
