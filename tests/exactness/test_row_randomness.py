"""Randomness belongs to the row: (seed, epoch, row) decide what a row draws, nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from lucid import rng
from lucid.utils.data import Feed

from .parts import Rows


def drawn(workers: int, seed: int = 3, start: int = 0, ambient: int = 0) -> dict[tuple[int, int], bytes]:
    """Return the bytes of each (epoch, row) as the loader gives them in two epochs."""
    loader = DataLoader(Rows(12), 3, shuffle=True, num_workers=workers)
    feed, found = Feed(loader, seed=seed), {}
    with rng.fork(ambient):
        for epoch in range(2):
            for (x, rows), _ in feed.batches(epoch, start if epoch == 0 else 0):
                for one, row in zip(x, rows.tolist(), strict=True):
                    found[epoch, row] = one.numpy().tobytes()
    feed.close()
    return found


def test_rows_and_epochs_differ() -> None:
    """Twelve rows in two epochs draw twenty-four different noises."""
    clean = Rows(12, noisy=False)
    noise = [
        torch.frombuffer(bytearray(value), dtype=torch.float32) - clean[row][0][0]
        for (_, row), value in drawn(0).items()
    ]
    assert len({one.numpy().tobytes() for one in noise}) == 24


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [0, 2, 4])
def test_equal_for_every_number_of_workers_and_ambient_state(workers: int) -> None:
    """Two runs with one seed draw the same, whatever the process drew before."""
    assert drawn(workers, ambient=99) == drawn(0)


@pytest.mark.parametrize("workers", [0, 2])
def test_equal_from_the_middle_of_an_epoch(workers: int) -> None:
    """The rows of the last two batches are the same if the first two are never read."""
    part, whole = drawn(workers, start=2), drawn(0)
    assert len([key for key in part if key[0] == 0]) == 6
    assert all(whole[key] == value for key, value in part.items())


def test_another_seed_draws_otherwise() -> None:
    """No row of another seed is equal."""
    one, other = drawn(0), drawn(0, seed=4)
    assert not any(one[key] == other[key] for key in one)


def test_validation_rows_do_not_move_training(tmp_path: Any) -> None:
    """Reading an evaluation feed in the middle of training leaves every ambient stream as it was."""
    before = rng.capture()
    for _ in Feed(DataLoader(Rows(5), 2, shuffle=True), seed=0, role="eval").batches(0):
        pass
    after = rng.capture()
    assert torch.equal(before["torch"], after["torch"])
    assert before["python"] == after["python"]
    assert (before["numpy"][1] == after["numpy"][1]).all()
