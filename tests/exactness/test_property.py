"""Any combination of settings, broken anywhere, any number of times."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .harness import Breaker, compare
from .settings import OPTIMIZERS, SAMPLERS, SCHEDULES, Settings

HOOKS = ("on_step_end", "on_step_end", "on_eval_start", "on_eval_end", "on_epoch_end", "on_epoch_start")

SETTINGS = st.builds(
    Settings,
    rows=st.integers(10, 26),
    batch_size=st.integers(1, 5),
    accumulation=st.integers(1, 4),
    epochs=st.integers(1, 3),
    drop_last=st.booleans(),
    sampler=st.sampled_from([name for name in SAMPLERS if name != "stream"]),
    noisy=st.booleans(),
    norm=st.booleans(),
    schedule=st.sampled_from(SCHEDULES),
    optimizer=st.sampled_from([name for name in OPTIMIZERS if name != "added group"]),
    precision=st.sampled_from(["fp32", "fp32", "bf16", "fp16"]),
    ema=st.sampled_from([None, 0.5, 0.99]),
    swa=st.booleans(),
    patience=st.sampled_from([0, 0, 1, 3]),
    clip=st.sampled_from([None, 0.1, 1.0]),
    log_every=st.sampled_from([0, 1, 2, 3, "epoch"]),
    eval_every=st.sampled_from([0, 1, 2, 3, "epoch"]),
    save_every=st.sampled_from([1, 2, 3, 5, "epoch"]),
    poison=st.sampled_from([(), (), (2,), (0, 4)]),
    max_steps=st.sampled_from([None, None, 3, 7, 12]),
)
BREAKS = st.lists(
    st.tuples(st.integers(1, 14), st.sampled_from(HOOKS), st.sampled_from(["crash", "SIGTERM", "SIGUSR1"])), max_size=4
)


def check(folder: Path, one: Settings, breaks: list[tuple[int, str, str]]) -> None:
    """Compare; the breaks come in the order of their steps. One that lies behind the run's end never comes."""
    breakers = [Breaker(*each) for each in sorted(breaks)]
    compare(one, folder / "x", breakers)


COMMON = {
    "deadline": None,
    "derandomize": True,
    "database": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}


@settings(max_examples=25, **COMMON)
@given(one=SETTINGS, breaks=BREAKS)
def test_any_combination_broken_anywhere(tmp_path: Path, one: Settings, breaks: list[tuple[int, str, str]]) -> None:
    """Twenty-five combinations out of all, each with up to four breaks."""
    check(tmp_path, one, breaks)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=400, **COMMON)
@given(one=SETTINGS, breaks=BREAKS)
def test_many_combinations_broken_anywhere(tmp_path: Path, one: Settings, breaks: list[tuple[int, str, str]]) -> None:
    """Four hundred combinations."""
    check(tmp_path, one, breaks)
