"""What every entrant trains: the same model, data, order of rows, optimizer settings, schedule and clipping.

A model notes the time at which each forward begins. Time per step is the difference between two of those, so it needs
no hook in anybody's loop, and what a library does before the first step and after the last is left out.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Sampler, TensorDataset

LR, BETAS, EPS, WEIGHT_DECAY, MAX_NORM, WARMUP = 3e-4, (0.9, 0.999), 1e-8, 0.01, 1.0, 10


@dataclass
class Marks:
    """Wall and CPU time at the beginning of each forward, and losses where they are checked."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    losses: list[float] | None = None

    def note(self) -> None:
        """Note that a forward begins."""
        self.wall.append(time.perf_counter())
        self.cpu.append(time.process_time())


class Timed(nn.Module):
    """A model that notes when it is called; `marks` is set by the task."""

    marks = Marks()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, `(rows, classes)`."""
        if self.training:
            Timed.marks.note()
        return self.compute(x)

    def compute(self, x: Tensor) -> Tensor:
        """Do the work of `forward`."""
        raise NotImplementedError


class MLP(Timed):
    """64-128-10."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(64, 128), nn.Linear(128, 10)

    def compute(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.hidden(x)))


class CNN(Timed):
    """Two convolutions and a linear layer, for one 28x28 channel."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(64 * 49, 10),
        )  # fmt: skip

    def compute(self, x: Tensor) -> Tensor:
        return self.body(x)


class Characters(Timed):
    """Four transformer layers of width 128 over 64 characters; `(rows * 64, 65)` logits."""

    def __init__(self, vocabulary: int = 65, width: int = 128, length: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.place = nn.Parameter(torch.randn(length, width) * 0.02)
        layer = [nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True) for _ in range(4)]
        self.layers, self.head = nn.ModuleList(layer), nn.Linear(width, vocabulary)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def compute(self, x: Tensor) -> Tensor:
        hidden = self.embed(x) + self.place
        for layer in self.layers:
            hidden = layer(hidden, src_mask=self.mask, is_causal=True)
        return self.head(hidden).flatten(0, 1)


class Deep(Timed):
    """74 residual linear layers: 10 million parameters in 148 tensors, so that the optimizer dominates."""

    def __init__(self, width: int = 367, depth: int = 74) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def compute(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + 0.1 * torch.tanh(layer(x))
        return x


class Loss(nn.Module):
    """Cross-entropy; notes the losses where they are checked."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the mean loss; targets of any shape."""
        loss = F.cross_entropy(output, target.flatten())
        if Timed.marks.losses is not None:
            Timed.marks.losses.append(loss.item())
        return loss


class FixedOrder(Sampler[int]):
    """The rows of one epoch after another, in an order known before; who iterates again gets the next epoch."""

    def __init__(self, orders: list[list[int]], first: int = 0) -> None:
        self.orders, self.epoch = orders, first

    def __len__(self) -> int:
        return len(self.orders[0])

    def __iter__(self) -> Any:
        order = self.orders[self.epoch % len(self.orders)]
        self.epoch += 1
        return iter(order)


@dataclass
class Task:
    """One case: everything an entrant needs to train it for a number of epochs."""

    name: str
    x: Tensor
    y: Tensor
    batch_size: int
    epochs: int
    make: Any

    @property
    def steps_per_epoch(self) -> int:
        """Steps in an epoch; batches are all full."""
        return len(self.x) // self.batch_size

    @property
    def steps(self) -> int:
        """Steps in all."""
        return self.epochs * self.steps_per_epoch

    def model(self) -> Timed:
        """Return a fresh model, always with the same weights."""
        torch.manual_seed(1)
        return self.make()

    loss = Loss()

    @cached_property
    def orders(self) -> list[Tensor]:
        """Rows of each epoch: those of Lucid, so that it may use its own sampler and the others a fixed one."""
        from lucid.utils.data import Feed

        feed = Feed(self.own_loader(), seed=0, device="cpu", role="train")
        return [
            torch.tensor([row for batch in range(self.steps_per_epoch) for row in feed.rows(epoch, batch)])
            for epoch in range(self.epochs)
        ]

    @cached_property
    def lists(self) -> list[list[int]]:
        """The same as lists, as a sampler gives them."""
        return [order.tolist() for order in self.orders]

    def dataset(self) -> TensorDataset:
        """Return the rows as a data set."""
        return TensorDataset(self.x, self.y)

    def own_loader(self) -> DataLoader[Any]:
        """Return the loader as a user of Lucid writes it."""
        return DataLoader(self.dataset(), batch_size=self.batch_size, shuffle=True, drop_last=True)

    def loader(self, first: int = 0) -> DataLoader[Any]:
        """Return the usual loader, in the fixed order; `first` is the epoch that it begins with."""
        return DataLoader(self.dataset(), batch_size=self.batch_size, sampler=FixedOrder(self.lists, first))

    def factor(self, step: int) -> float:
        """Return the factor on the learning rate: warm-up, then half a cosine."""
        if step < WARMUP:
            return 0.01 + 0.99 * step / WARMUP
        share = min((step - WARMUP) / max(self.steps - WARMUP, 1), 1.0)
        return (1 + math.cos(math.pi * share)) / 2

    def optimizer(self, model: nn.Module, kind: Any = torch.optim.AdamW, **options: Any) -> torch.optim.Optimizer:
        """Return the optimizer, torch's default kernel unless `options` say otherwise."""
        return kind(model.parameters(), lr=LR, betas=BETAS, eps=EPS, weight_decay=WEIGHT_DECAY, **options)

    def scheduler(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        """Return the schedule as most people write it."""
        return torch.optim.lr_scheduler.LambdaLR(optimizer, self.factor)


def digits(epochs: int = 16) -> Task:
    """Tiny MLP on scikit-learn's digits: nothing but overhead."""
    from lucid.datasets.digits import load_digits  # reads the file without importing scikit-learn

    x, y = load_digits()
    x, y = x[:1792].flatten(1), y[:1792]
    return Task("digits", x, y, 64, epochs, MLP)


def images(epochs: int = 2) -> Task:
    """Small CNN on 28x28 images: the work dominates."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1280, 1, 28, 28, generator=generator)
    return Task("images", x, torch.randint(10, (1280,), generator=generator), 128, epochs, CNN)


def characters(epochs: int = 2) -> Task:
    """Four-layer transformer on characters."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(65, (192, 65), generator=generator)
    return Task("characters", x[:, :-1].contiguous(), x[:, 1:].contiguous(), 32, epochs, Characters)


def tensors(epochs: int = 3) -> Task:
    """10 million parameters in 148 tensors: the optimizer dominates."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 367, generator=generator)
    return Task("tensors", x, torch.randint(367, (32,), generator=generator), 4, epochs, Deep)


TASKS = {"digits": digits, "images": images, "characters": characters, "tensors": tensors}
