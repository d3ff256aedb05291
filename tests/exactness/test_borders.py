"""Epochs: all rows once in each, in orders that differ, whatever broke."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from .harness import Breaker, Crash, compare
from .settings import Built, Settings

FOUR = Settings(rows=16, batch_size=2, epochs=4, sampler="own", eval_every="epoch", log_every=4, save_every=1)


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, True)])
def test_breaks_at_the_border_and_in_the_middle(tmp_path: Path, workers: int, persistent: bool) -> None:
    """After update 8, the end of the first epoch, and after update 12, in the second, every epoch has all 16 rows."""
    one = Settings(**{**{n: getattr(FOUR, n) for n in FOUR.__dataclass_fields__}, "workers": workers,
                      "persistent": persistent})  # fmt: skip
    for breaker in (Breaker(8, "on_epoch_start"), Breaker(9), Breaker(12, how="SIGTERM")):
        whole = compare(one, tmp_path / "x", [breaker])
    orders = [rows_of(whole["log"], 8 * epoch, 8 * epoch + 8) for epoch in range(4)]
    assert all(sorted(order) == list(range(16)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4


def test_the_sampler_is_told_each_epoch_once(tmp_path: Path) -> None:
    """`set_epoch` comes with 0, 1, 2, 3, and after a break in epoch 1 with 1, 2, 3."""
    unbroken = Built(FOUR, tmp_path / "a")
    unbroken.fit()
    assert unbroken.loader.sampler.epochs == [0, 1, 2, 3]
    broken = Built(FOUR, tmp_path / "b", (Breaker(12),))
    with pytest.raises(Crash):
        broken.fit()
    again = Built(FOUR, tmp_path / "b")
    again.fit()
    assert again.loader.sampler.epochs == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_break_at_every_step(tmp_path: Path) -> None:
    """Every one of the 30 steps of three epochs, by a crash and by a signal, with windows of unequal length."""
    one = Settings(rows=28, batch_size=1, accumulation=3, epochs=3, save_every=1, ema=0.9)
    for step in range(1, 31):
        for how in ("crash", "SIGTERM"):
            compare(one, tmp_path / "x", [Breaker(step, how=how)])


def test_many_breaks_in_one_epoch(tmp_path: Path) -> None:
    """Eight breaks in a row, one after each step, leave nothing behind."""
    one = Settings(rows=20, batch_size=2, epochs=1, accumulation=1)
    compare(one, tmp_path / "x", [Breaker(s, how=random.Random(s).choice(["crash", "SIGTERM"])) for s in range(1, 9)])


def rows_of(lines: list[Any], first: int, last: int) -> list[int]:
    """Return the rows of the steps after `first` up to `last`, from a log."""
    found: list[int] = []
    for line in lines:
        step, _, rest = line.partition(" ")
        if rest.startswith("rows") and first < int(step) <= last:
            found += [int(x) for x in rest[rest.index("[") + 1 : rest.index("]")].split(",")]
    return found
