"""Data sets that say what was read of them."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from lucid.utils.data import Feed


def draws() -> list[float]:
    """Return one number from each global stream."""
    return [torch.rand(()).item(), float(np.random.rand()), random.random()]


class Noisy(Dataset[torch.Tensor]):
    """Rows that carry their number and one draw from each global stream, and count how often they are read."""

    def __init__(self, rows: int = 11) -> None:
        self.rows = rows
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> torch.Tensor:
        self.read.append(row)
        return torch.tensor([float(row), *draws()], dtype=torch.float64)


class Stream(IterableDataset[torch.Tensor]):
    """Rows 0 to n - 1 with draws; shared among workers, and with a position of its own if `stateful`."""

    def __init__(self, rows: int = 23, shares: bool = True) -> None:
        self.rows = rows
        self.shares = shares
        self.at = 0
        self.rng = np.random.default_rng(0)

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info() if self.shares else None
        number, count = (info.id, info.num_workers) if info else (0, 1)
        while self.at * count + number < self.rows:
            self.at += 1
            yield torch.tensor([float((self.at - 1) * count + number), *draws(), self.rng.random()])
        self.at = 0


class StatefulStream(Stream):
    """A stream that can say where it stands."""

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def ambient() -> tuple[object, ...]:
    """Return the state of the global streams, to be compared."""
    return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()


def epoch(feed: Feed, number: int = 1, start: int = 0) -> torch.Tensor:
    """Return the rows of an epoch, one after another."""
    return torch.cat(list(feed.batches(number, start)))


def order(feed: Feed, number: int = 0) -> list[object]:
    """Return the row numbers of an epoch."""
    return [row for batch in range(feed.num_batches(number) or 0) for row in feed.rows(number, batch)]
