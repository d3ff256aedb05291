"""Workers do not matter: not their number, not whether they stay, not how far they read ahead."""

from __future__ import annotations

from pathlib import Path

import pytest

from .harness import Breaker, compare, left_behind, run
from .settings import Settings

ONE = Settings(rows=14, epochs=2, accumulation=2, eval_every=3, save_every=1)
WORKERS = [(1, False, None), (2, False, 1), (2, True, 4), (4, True, None)]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(("workers", "persistent", "prefetch"), WORKERS)
def test_a_run_with_workers_is_the_run_without(
    tmp_path: Path, workers: int, persistent: bool, prefetch: int | None
) -> None:
    """Rows, noise, weights and records are those of no workers, broken in mid-epoch and at the border of epochs."""
    alone = left_behind(run(ONE, tmp_path / "alone"), tmp_path / "alone")
    many = Settings(**{**vars_of(ONE), "workers": workers, "persistent": persistent, "prefetch": prefetch})
    whole = compare(many, tmp_path / "x", [Breaker(1, how="SIGTERM"), Breaker(3), Breaker(4)])
    assert whole == alone


@pytest.mark.parametrize("sampler", ["weighted", "own", "batch sampler"])
def test_every_sampler_with_workers(tmp_path: Path, sampler: str) -> None:
    """The order comes from the sampler in the main process, whoever reads the rows."""
    one = Settings(**{**vars_of(ONE), "workers": 2, "sampler": sampler, "prefetch": 3})
    compare(one, tmp_path / "x", [Breaker(2)])


def vars_of(one: Settings) -> dict[str, object]:
    """Return the fields of settings."""
    return {name: getattr(one, name) for name in one.__dataclass_fields__}
