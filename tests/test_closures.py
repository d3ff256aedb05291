"""LBFGS: the window is one function of the weights, skips change nothing, and a resume gives the same bits."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import lucid
from lucid.errors import ConfigError, PrecisionError


class Net(nn.Module):
    """A small regression with dropout and BatchNorm; counts its calls and may give NaN from a call on."""

    def __init__(self, bad_rows: float = math.inf) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)
        self.drop, self.bad_rows, self.calls = nn.Dropout(0.2), bad_rows, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        x = x * math.nan if self.training and bool((x[:, 0] > self.bad_rows).any()) else x
        return self.last(self.drop(torch.tanh(self.norm(self.first(x)))))


def loader(rows: int = 24, batch_size: int = 4) -> DataLoader[Any]:
    """Return a shuffled regression."""
    x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=batch_size, shuffle=True)


def make(model: nn.Module | None = None, search: str | None = "strong_wolfe", **options: Any) -> lucid.Trainer:
    """Return a silent trainer with LBFGS."""
    torch.manual_seed(0)
    model = Net() if model is None else model
    names = ("run_dir", "callbacks", "scheduler")
    given = {name: options.pop(name) for name in names if name in options}
    config = lucid.TrainConfig(**{"epochs": 2, "device": "cpu", "gradient_accumulation_steps": 2, "save_every": 1,
                                  "precision": "fp32", **options})  # fmt: skip
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, history_size=3, line_search_fn=search)
    return lucid.Trainer(model, optimizer, loss=F.mse_loss, config=config, reports=(), **given)


def bits(trainer: lucid.Trainer) -> list[Tensor]:
    """Return copies of weights and buffers."""
    return [value.clone() for value in trainer.model.state_dict().values()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    """Whether all are bit-equal."""
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("search", ["strong_wolfe", None])
def test_a_step_is_lbfgs_on_the_big_batch(search: str | None) -> None:
    """One step over a window of micro-batches is torch's LBFGS step on all rows at once, to 1e-5."""
    plain = nn.Linear(3, 1)
    ours = nn.Linear(3, 1)
    ours.load_state_dict(plain.state_dict())
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(1))
    y = x.sum(1, keepdim=True)
    optimizer = torch.optim.LBFGS(plain.parameters(), lr=0.5, max_iter=4, line_search_fn=search)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(plain(x), y)
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)  # type: ignore[arg-type]
    batches = list(zip(x.split([5, 4, 3]), y.split([5, 4, 3]), strict=True))
    config = lucid.TrainConfig(epochs=2, gradient_accumulation_steps=3, device="cpu")
    trainer = lucid.Trainer(
        ours, torch.optim.LBFGS(ours.parameters(), lr=0.5, max_iter=4, line_search_fn=search), loss=F.mse_loss,
        config=config, reports=(),
    )  # fmt: skip
    assert trainer.fit(batches).step == 2
    for one, other in zip(plain.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5)


def test_every_evaluation_of_a_step_draws_the_same_numbers() -> None:
    """With dropout a line search sees one function: its first evaluation, asked for again, has the same value."""
    values: list[float] = []

    class Twice(torch.optim.LBFGS):
        def step(self, closure: Any) -> Any:
            values.extend([float(closure()), float(closure()), float(closure())])

    model = Net()
    trainer = lucid.Trainer(
        model, Twice(model.parameters()), loss=F.mse_loss, config=lucid.TrainConfig(epochs=1, device="cpu"), reports=()
    )
    trainer.fit(loader())
    assert len(values) == 18
    assert all(len(set(values[i : i + 3])) == 1 for i in range(0, 18, 3))
    assert len(set(values)) == 6


@pytest.mark.parametrize("step", range(1, 6))
def test_a_run_broken_at_any_step_has_the_same_bits(tmp_path: Path, step: int) -> None:
    """LBFGS's history is part of the state."""

    class Break(lucid.Callback):
        def on_step_end(self, state: Any) -> None:
            if state.step == step:
                state.interrupt = "max_time"

    unbroken = make()
    unbroken.fit(loader())
    with pytest.raises(SystemExit):
        make(run_dir=tmp_path, callbacks=[Break()]).fit(loader())
    torch.manual_seed(9)
    broken = make(Net(), run_dir=tmp_path, changes="accept")
    broken.fit(loader())
    assert same(bits(broken), bits(unbroken))


def test_a_bad_window_changes_nothing() -> None:
    """NaN at the first evaluation: weights, BatchNorm and history stay, and the optimizer is not asked at all."""
    seen: list[tuple[list[Tensor], str]] = []

    class Watch(lucid.Callback):
        def on_step_end(self, state: Any) -> None:
            states = str(state.optimizers[0].state_dict())
            seen.append(([v.clone() for v in state.model.state_dict().values()], states))

    trainer = make(Net(bad_rows=2.0), callbacks=[Watch()], epochs=3)
    x, y = loader().dataset.tensors  # type: ignore[attr-defined]
    x = x.clamp(max=1.5)
    x[13, 0] = 3.0
    result = trainer.fit(DataLoader(TensorDataset(x, y), batch_size=4))
    assert result.step == 9
    for index in (1, 4, 7):  # windows of 8 rows: row 13 is in the second
        assert same(seen[index - 1][0], seen[index][0])
        assert seen[index - 1][1] == seen[index][1]
    assert not same(seen[0][0], seen[2][0])


def test_weights_that_the_optimizer_ruins_are_taken_back() -> None:
    """A step that ends with NaN weights is undone, history included."""

    class Ruins(torch.optim.LBFGS):
        def step(self, closure: Any) -> Any:
            super().step(closure)
            with torch.no_grad():
                self.param_groups[0]["params"][0].fill_(math.nan)

    model = Net()
    before = [value.clone() for value in model.state_dict().values()]
    config = lucid.TrainConfig(epochs=1, device="cpu", max_skips=9)
    trainer = lucid.Trainer(model, Ruins(model.parameters()), loss=F.mse_loss, config=config, reports=())
    trainer.fit(loader())
    assert same(before, bits(trainer))
    assert trainer.optimizers[0].state_dict()["state"] == {}


def test_schedules_step_with_it() -> None:
    """One schedule step per optimizer step, whatever the number of evaluations."""
    trainer = make(scheduler=lambda optimizer, total: torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=total))
    trainer.fit(loader())
    assert trainer.state.schedulers[0].last_epoch == 6
    assert trainer.model.calls > 12


def test_what_cannot_work_is_refused_at_set_up() -> None:
    """Several optimizers, fp16, a hand-written loop: each says what to do."""
    model = nn.ModuleList([nn.Linear(3, 1), nn.Linear(3, 1)])
    both = [torch.optim.LBFGS(model[0].parameters()), torch.optim.SGD(model[1].parameters(), lr=0.1)]
    with pytest.raises(ConfigError, match=r"LBFGS evaluates the loss itself and must be the only optimizer, got 2"):
        lucid.Trainer(model, both, loss=F.mse_loss)
    with pytest.raises(PrecisionError, match=r"'fp16' does not allow"):
        make(precision="fp16")
    with pytest.raises(ConfigError, match=r"only Trainer\.fit can let it do"):
        lucid.Run(model[0], torch.optim.LBFGS(model[0].parameters()), loader())


def test_the_plan_says_that_nothing_is_clipped(tmp_path: Path) -> None:
    """max_grad_norm does not apply, and the plan record has that note."""
    make(run_dir=tmp_path).fit(loader())
    assert "max_grad_norm does not apply" in (tmp_path / "records.jsonl").read_text().splitlines()[0]
