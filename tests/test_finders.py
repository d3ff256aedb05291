"""The finders give a rate and a batch size, and leave no trace on weights, optimizer, streams or loader."""

from __future__ import annotations

import math
import random
import weakref
from typing import Any

import numpy as np
import pytest
import torch
import xxhash
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import lucid
from lucid.bundle import _feed
from lucid.errors import ConfigError, DataError
from lucid.finders import batch_size_find, lr_find


class Net(nn.Module):
    """A small regression with dropout, BatchNorm and a buffer that `state_dict` leaves out; frozen part in eval."""

    def __init__(self, limit: int = 10**9) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)
        self.drop = nn.Dropout(0.1).eval()
        self.register_buffer("calls", torch.zeros(()), persistent=False)
        self.limit, self.sizes, self.alive = limit, [], weakref.WeakSet()  # type: ignore[var-annotated]

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.sizes.append(len(x))
        hidden = self.drop(torch.tanh(self.norm(self.first(x)))) if len(x) > 1 else torch.tanh(self.first(x))
        self.alive.add(hidden)
        if len(x) > self.limit:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self.last(hidden)


def make(limit: int = 10**9, optimizer: Any = torch.optim.AdamW, **settings: Any) -> lucid.Trainer:
    """Return a silent trainer."""
    torch.manual_seed(0)
    model = Net(limit)
    config = lucid.TrainConfig(**{"epochs": 1, "device": "cpu", **settings})
    groups = [{"params": model.first.parameters(), "lr": 0.01}, {"params": [*model.norm.parameters(),
              *model.last.parameters()], "lr": 0.02}]  # fmt: skip
    return lucid.Trainer(model, optimizer(groups, lr=0.01), loss=F.mse_loss, config=config, reports=())


def loader(rows: int = 64, **options: Any) -> DataLoader[Any]:
    """Return a shuffled loader with a generator of its own."""
    x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(x, x.sum(1, keepdim=True))
    sampler = RandomSampler(data, generator=torch.Generator().manual_seed(5))
    return DataLoader(data, batch_size=8, sampler=sampler, **options)


def trace(trainer: lucid.Trainer, data: DataLoader[Any]) -> str:
    """Return a digest of everything that a finder could leave behind."""
    digest, model = xxhash.xxh3_128(), trainer.model
    sampler: Any = data.sampler
    _feed(digest, [
        dict(model.named_parameters()), dict(model.named_buffers()), [p.grad for p in model.parameters()],
        [m.training for m in model.modules()], [o.state_dict() for o in trainer.optimizers],
        trainer.precision.state_dict(), trainer.forward._checked, torch.get_rng_state(), random.getstate(),
        list(np.random.get_state()), sampler.generator.get_state(), trainer.run_dir, trainer.config.to_dict(),
    ])  # fmt: skip
    return digest.hexdigest()


FINDERS = {
    "lr": lambda trainer, data: lr_find(trainer, data, num_steps=12),
    "batch size": lambda trainer, data: batch_size_find(trainer, data, max_batch_size=40),
}


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("name", FINDERS)
def test_a_finder_leaves_no_trace(name: str, trained: bool, precision: str) -> None:
    """The digest of the whole state is the same before and after, on a fresh and on a trained model."""
    trainer, data = make(precision=precision), loader()
    if trained:
        trainer.fit(data)
    trainer.model.drop.eval()
    before = trace(trainer, data)
    FINDERS[name](trainer, data)
    assert trace(trainer, data) == before


@pytest.mark.parametrize("name", FINDERS)
def test_training_after_a_finder_has_the_same_bits(name: str) -> None:
    """A run with a finder before it ends with the weights of one without."""
    with_finder, without = make(), make()
    FINDERS[name](with_finder, loader())
    with_finder.fit(loader())
    without.fit(loader())
    assert all(
        torch.equal(a, b) for a, b in zip(with_finder.model.parameters(), without.model.parameters(), strict=True)
    )


def test_an_error_inside_a_finder_leaves_no_trace() -> None:
    """Also when the model raises in the middle everything is put back."""
    trainer, data = make(), loader()
    before = trace(trainer, data)
    trainer.model.register_forward_hook(lambda module, args, output: 1 / 0 if module.calls > 3 else None)
    with pytest.raises(ZeroDivisionError):
        lr_find(trainer, data)
    assert trace(trainer, data) == before


@pytest.mark.parametrize("tensor_lr", [False, True])
def test_the_rates_grow_and_the_suggestion_is_where_the_loss_falls(tensor_lr: bool) -> None:
    """Rates are a geometric row, groups keep their ratio, and the suggestion trains."""
    seen: list[list[float]] = []
    trainer = make(optimizer=torch.optim.SGD)
    if tensor_lr:
        for group in trainer.optimizers[0].param_groups:
            group["lr"] = torch.tensor(group["lr"])
    step = trainer.optimizers[0].step

    def watched(*arguments: Any) -> Any:
        seen.append([float(group["lr"]) for group in trainer.optimizers[0].param_groups])
        return step(*arguments)

    trainer.optimizers[0].step = watched  # type: ignore[method-assign]
    found = lr_find(trainer, loader(), min_lr=1e-5, max_lr=100.0, num_steps=50)
    assert found.lrs[0] == 1e-5
    assert found.lrs[1] / found.lrs[0] == pytest.approx(1e7 ** (1 / 49))
    assert all(second == pytest.approx(2 * first) for first, second in seen)
    assert len(found.lrs) < 50  # it diverged and stopped
    assert found.suggestion is not None
    assert 1e-3 < found.suggestion < 10
    assert "falls most steeply at" in found.describe()


def test_a_loss_that_never_falls_gives_no_suggestion() -> None:
    """A constant target that is met: there is nothing to find, and that is said."""
    trainer = make()
    trainer.forward.loss = lambda output, target: output.sum() * 0 + 3.0  # type: ignore[union-attr]
    found = lr_find(trainer, loader(), num_steps=10)
    assert found.suggestion is None
    assert "never fell" in found.describe()


@pytest.mark.parametrize("limit", [1, 2, 7, 8, 33, 100])
def test_the_largest_batch_is_found_to_the_row(limit: int) -> None:
    """Doubling, then halving the gap: the limit itself, or the maximum asked for."""
    found = batch_size_find(make(limit, gradient_accumulation_steps=4), loader(), max_batch_size=64)
    largest = max(n for n, fits in found.tried.items() if fits)
    assert largest == min(limit, 64)
    assert found.batch_size * found.gradient_accumulation_steps >= 32
    assert found.batch_size <= largest
    assert (found.batch_size, found.gradient_accumulation_steps) == {
        1: (1, 32), 2: (2, 16), 7: (7, 5), 8: (8, 4), 33: (32, 1), 100: (32, 1),
    }[limit]  # fmt: skip


def test_a_model_with_batch_norm_has_a_largest_batch() -> None:
    """It cannot train on one row, which is no lack of memory."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    rows = DataLoader(TensorDataset(torch.randn(8, 3), torch.zeros(8, 1)), batch_size=4)
    trainer = lucid.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), F.mse_loss, reports=())
    assert list(batch_size_find(trainer, rows, max_batch_size=16).tried) == [2, 4, 8, 16]


def test_nothing_of_a_trial_is_held() -> None:
    """After the search no activation of any trial is alive, those of the failed ones included."""
    trainer = make(20)
    batch_size_find(trainer, loader(), max_batch_size=64)
    assert len(trainer.model.sizes) > 8
    assert len(trainer.model.alive) == 0


def test_one_row_that_does_not_fit_says_so() -> None:
    """Not even a batch of one: the error says that, and nothing is changed."""
    trainer, data = make(0), loader()
    before = trace(trainer, data)
    with pytest.raises(torch.OutOfMemoryError, match="not even one row fits"):
        batch_size_find(trainer, data)
    assert trace(trainer, data) == before


def test_arguments_that_cannot_work_are_refused() -> None:
    """Rates the wrong way round, too few steps, no rows, rows that cannot be told apart."""
    trainer = make()
    with pytest.raises(ConfigError, match="0 < min_lr < max_lr"):
        lr_find(trainer, loader(), min_lr=1.0, max_lr=0.1)
    with pytest.raises(ConfigError, match="num_steps of at least 2"):
        lr_find(trainer, loader(), num_steps=1)
    with pytest.raises(ConfigError, match="max_batch_size of at least 1"):
        batch_size_find(trainer, loader(), max_batch_size=0)
    with pytest.raises(DataError, match="one row for each row of the batch"):
        batch_size_find(trainer, [(torch.zeros(4, 3), torch.zeros(5, 1))])


def test_the_finder_stops_at_nan() -> None:
    """A loss of NaN ends the search; what was seen before is returned."""
    trainer = make()
    calls: list[int] = []
    plain = trainer.forward.loss  # type: ignore[union-attr]

    def loss(output: Tensor, target: Tensor) -> Tensor:
        calls.append(1)
        return plain(output, target) * (math.nan if len(calls) == 6 else 1)  # type: ignore[misc]

    trainer.forward.loss = loss  # type: ignore[union-attr]
    assert len(lr_find(trainer, loader(), num_steps=20).lrs) == 5
