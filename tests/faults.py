"""Models that go wrong at a row of their choice, a trainer of them, and what a run left."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import lucid

ROWS = 32


class PassOn(torch.autograd.Function):
    """Passes on its input; what is made of it has a backward pass of its own."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.clone()


class NanGradient(PassOn):
    """Its gradient is NaN."""

    @staticmethod
    def backward(context: Any, grad: Tensor) -> Tensor:
        return grad * math.nan


class Faulty(nn.Module):
    """A regression whose row numbers come in as the last column; `fault` is applied where one of `rows` is seen."""

    def __init__(self, rows: tuple[int, ...] = (), fault: str = "nan loss") -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)
        self.rows, self.fault, self.seen = rows, fault, []  # type: ignore[var-annotated]

    def forward(self, x: Tensor) -> Tensor:
        x, rows = x[:, :3], x[:, 3].int().tolist()
        if self.training:
            self.seen.append(rows)
        bad = self.training and any(row in self.rows for row in rows)
        if bad and self.fault == "nan loss":
            x = x * math.nan
        hidden = self.norm(self.first(x))
        if bad and self.fault == "nan gradient":
            hidden = NanGradient.apply(hidden)
        if bad and self.fault == "spike":
            hidden = hidden * 1e3
        return self.last(torch.tanh(hidden) if self.fault != "spike" else hidden)


def loader(batch_size: int = 4) -> DataLoader[Any]:
    """Return rows whose last input is the row's number, in order."""
    generator = torch.Generator().manual_seed(1)
    x = torch.cat([torch.randn(ROWS, 3, generator=generator), torch.arange(ROWS).float().view(-1, 1)], 1)
    return DataLoader(TensorDataset(x, x[:, :3].sum(1, keepdim=True)), batch_size=batch_size)


def make(rows: tuple[int, ...] = (), fault: str = "nan loss", optimizer: Any = None, **options: Any) -> lucid.Trainer:
    """Return a silent trainer of a faulty model."""
    torch.manual_seed(0)
    model = Faulty(rows, fault)
    names = ("run_dir", "callbacks", "train_step", "scheduler")
    given = {name: options.pop(name) for name in names if name in options}
    settings = {"epochs": 1, "device": "cpu", "log_every": 1, "save_every": 2, "precision": "fp32", **options}
    made = (optimizer or (lambda p: torch.optim.AdamW(p, lr=0.01)))(model.parameters())
    given.setdefault("loss", None if "train_step" in given else F.mse_loss)
    return lucid.Trainer(model, made, config=lucid.TrainConfig(**settings), reports=(), **given)


def weights(trainer: lucid.Trainer) -> list[Tensor]:
    """Return copies of weights and buffers."""
    return [value.clone() for value in trainer.model.state_dict().values()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    """Whether all tensors have the same bits."""
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def records(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    """Return a run's records of some kinds."""
    lines = (json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines())
    return [record for record in lines if record["kind"] in kinds]


class Look(lucid.Callback):
    """Keeps weights, optimizer state and learning rate after each step."""

    def __init__(self) -> None:
        self.trace: list[tuple[list[Tensor], str, float]] = []

    def on_step_end(self, state: Any) -> None:
        optimizers = str([optimizer.state_dict() for optimizer in state.optimizers])
        self.trace.append(([v.clone() for v in state.model.state_dict().values()], optimizers, state.lr()))
