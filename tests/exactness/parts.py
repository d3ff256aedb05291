"""What exact runs are made of: data whose rows draw from every stream, a model that tells which rows came, a log."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import BatchSampler, Dataset, IterableDataset, Sampler

from lucid import Callback, rng

FEATURES = 6


class Rows(Dataset[Any]):
    """Rows of `((features, row number), target)`, with noise from torch, NumPy and `random` if `noisy`."""

    def __init__(self, size: int, noisy: bool = True) -> None:
        generator = torch.Generator().manual_seed(1234)
        self.x = torch.randn(size, FEATURES, generator=generator)
        self.y = torch.randint(0, 3, (size,), generator=generator)
        self.noisy = noisy

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> Any:
        x = self.x[row]
        if self.noisy:
            x = x + 0.1 * torch.randn(FEATURES) + float(np.random.rand()) * 0.1 + random.random() * 0.1
        return (x, row), self.y[row]


class Stream(IterableDataset[Any]):
    """A stream of the same rows that knows its position."""

    def __init__(self, size: int) -> None:
        self.rows, self.at, self.reads = Rows(size), 0, 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < len(self.rows):
            self.at += 1
            self.reads += 1
            yield self.rows[self.at - 1]
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Backwards(Sampler[int]):
    """Somebody's own sampler: a draw of its own decides where each epoch begins; told the epoch."""

    def __init__(self, size: int) -> None:
        self.size, self.epochs = size, []  # type: tuple[int, list[int]]

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        start = random.randrange(self.size) + int(torch.randint(self.size, ())) + np.random.randint(self.size)
        return iter([(start - i) % self.size for i in range(self.size)])


class Ragged(BatchSampler):
    """Batches of 1, 2, 3, 1, 2, 3, ... rows in a drawn order."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[list[int]]:
        order, width = torch.randperm(self.size).tolist(), 1
        while order:
            yield order[:width]
            order, width = order[width:], width % 3 + 1

    def __len__(self) -> int:
        return len(list(iter_sizes(self.size)))


def iter_sizes(size: int) -> Iterator[int]:
    width = 1
    while size > 0:
        yield min(width, size)
        size, width = size - width, width % 3 + 1


class Net(nn.Module):
    """Dropout, batch norm, and noise from all three streams in the forward pass; tells the log which rows it saw."""

    def __init__(self, norm: bool = True, dropout: float = 0.3) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(FEATURES, 8), nn.BatchNorm1d(8) if norm else nn.Identity(), nn.ReLU(), nn.Dropout(dropout)
        )
        self.head = nn.Linear(8, 3)
        self.seen: list[int] = []
        self.poison: set[int] = set()
        self.steps = 0

    def forward(self, inputs: Any) -> torch.Tensor:
        x, rows = inputs
        if self.training:
            self.seen += rows.tolist()
            if len(x) == 1 and isinstance(self.body[1], nn.BatchNorm1d):
                x = torch.cat([x, x + 1])
                return self.head(self.body(x) + 0.01 * random.random() + 0.01 * float(np.random.rand()))[:1]
            x = x + 0.01 * random.random() + 0.01 * float(np.random.rand())
            if self.poison & set(rows.tolist()):
                x = x * float("nan")
        return self.head(self.body(x))


class Log(Callback):
    """What happened, in order; part of the run's own state, so a resume takes it back to the checkpoint."""

    def __init__(self, net: Net) -> None:
        self.net, self.lines = net, []  # type: tuple[Net, list[str]]

    def _add(self, what: str, state: Any) -> None:
        self.lines.append(f"{state.step} {what}")

    def on_epoch_start(self, state: Any) -> None:
        self._add("on_epoch_start", state)

    def on_step_end(self, state: Any) -> None:
        rates = [group["lr"] for optimizer in state.optimizers for group in optimizer.param_groups]
        grads = digest([p.grad for p in state.parameters()])
        self._add(f"rows {self.net.seen} lr {rates} grads {grads} weights {digest(state.model.state_dict())}", state)
        self._add(f"rng {digest(rng.capture())} skipped {state.progress.skipped}", state)
        self.net.seen = []

    def on_eval_start(self, state: Any) -> None:
        torch.rand(3)  # a callback that draws must leave no trace in training
        self._add("on_eval_start", state)

    def on_eval_end(self, state: Any, metrics: Any) -> None:
        self._add(f"on_eval_end {metrics} best {state.best}", state)

    def on_record(self, state: Any, record: Any) -> None:
        self._add(f"on_record {record.kind}", state)

    def on_epoch_end(self, state: Any) -> None:
        self._add("on_epoch_end", state)

    def state_dict(self) -> dict[str, Any]:
        return {"lines": list(self.lines)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.lines = list(state["lines"])


def digest(value: Any) -> str:
    """Return a hash over every bit, dtype and name of a nested value."""
    found = hashlib.blake2b(digest_size=8)
    _feed(found, value)
    return found.hexdigest()


def _feed(found: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        dense = value.detach().contiguous()
        found.update(f"{dense.dtype}{tuple(dense.shape)}".encode())
        found.update(dense.flatten().view(torch.uint8).numpy().tobytes())
    elif isinstance(value, np.ndarray):
        found.update(value.tobytes())
    elif isinstance(value, dict):
        for name, item in value.items():
            found.update(str(name).encode())
            _feed(found, item)
    elif isinstance(value, list | tuple):
        for item in value:
            _feed(found, item)
    else:
        found.update(repr(value).encode())
