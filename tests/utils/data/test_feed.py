"""`Feed` over map-style loaders: order, position, randomness of rows."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from lucid.utils.data import DataLoader, Dataset, Feed


class Noisy(Dataset):
    """Rows that carry their number and one draw from each global stream."""

    def __init__(self, rows: int = 11) -> None:
        self.rows = rows
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> torch.Tensor:
        self.read.append(row)
        draws = [torch.rand(()).item(), np.random.rand(), random.random()]
        return torch.tensor([float(row), *draws], dtype=torch.float64)


def epoch(feed: Feed, number: int = 1, start: int = 0) -> torch.Tensor:
    """Return the rows of an epoch, one after another."""
    return torch.cat(list(feed.batches(number, start)))


@pytest.mark.parametrize("options", [{"num_workers": 1}, {"num_workers": 2, "persistent_workers": True}])
def test_rows_draw_the_same_with_workers_as_without(options: dict) -> None:
    """Augmentation is a function of (seed, epoch, row), whatever process reads the row."""
    here = Feed(DataLoader(Noisy(), 3, shuffle=True), seed=5)
    away = Feed(DataLoader(Noisy(), 3, shuffle=True, **options), seed=5)
    for number in (0, 1):
        assert torch.equal(epoch(here, number), epoch(away, number))
    assert torch.equal(epoch(here, 1, 2), epoch(away, 1, 2))
    away.close()


def test_batches_from_late_start_reads_no_row_before_it() -> None:
    """At step 900 of 1000 only the rows of the batches asked for are read."""
    rows = Noisy(2000)
    feed = Feed(DataLoader(rows, 2, shuffle=True))
    stream = feed.batches(0, 900)
    next(stream)
    assert rows.read == feed.rows(0, 900)


def test_reading_leaves_the_ambient_streams_alone() -> None:
    """Dropout's stream does not move when rows draw."""
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    epoch(Feed(DataLoader(Noisy(), 3, shuffle=True)))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), np.random.get_state()[1].tolist())
