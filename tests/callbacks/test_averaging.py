"""Averaged weights are those of the formula, stand in the model only during evaluation, and survive a break."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import lucid
from lucid.callbacks import EMA, SWA
from lucid.callbacks.base import Callbacks
from lucid.errors import ConfigError


class Tied(nn.Module):
    """A small model with one weight under two names, BatchNorm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.norm, self.drop, self.last = nn.BatchNorm1d(3), nn.Dropout(0.2), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(self.norm(self.second(torch.tanh(self.first(x))))))


def rows() -> TensorDataset:
    """Return a small regression."""
    x = torch.randn(32, 3, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, x.sum(1, keepdim=True))


class Watch(lucid.Callback):
    """Keeps the weights after each step, and those that evaluations see."""

    def __init__(self, stop: int = 0) -> None:
        self.steps: list[dict[str, Tensor]] = []
        self.evals: list[dict[str, Tensor]] = []
        self.stop = stop

    def on_step_end(self, state: Any) -> None:
        self.steps.append(weights(state.model))
        if state.step == self.stop:
            state.interrupt = "max_time"

    def on_eval_start(self, state: Any) -> None:
        self.evals.append(weights(state.model))


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of the parameters."""
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def make(average: Any, folder: Path | None = None, stop: int = 0, loss: Any = F.mse_loss, **settings: Any) -> Any:
    """Return (trainer, watch); the watch looks after the average."""
    torch.manual_seed(0)
    model, watch = Tied(), Watch(stop)
    config = lucid.TrainConfig(**{"epochs": 2, "device": "cpu", "eval_every": 3, "save_every": 0, "changes": "accept",
                                  "precision": "fp32", **settings})  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    callbacks = [average, watch] if average is not None else [watch]
    return lucid.Trainer(
        model, optimizer, loss=loss, config=config, run_dir=folder, reports=(), callbacks=callbacks
    ), watch


def fit(trainer: lucid.Trainer) -> Any:
    """Train."""
    return trainer.fit(DataLoader(rows(), batch_size=4, shuffle=True), DataLoader(rows(), batch_size=16))


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether all tensors have the same bits."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


KINDS = {"EMA": lambda: EMA(0.8), "SWA": lambda: SWA(5, every=2)}


@pytest.mark.parametrize("kind", KINDS)
def test_raw_weights_are_those_of_a_run_without(kind: str) -> None:
    """Averaging and its evaluations leave no bit on the training."""
    plain, _ = make(None)
    fit(plain)
    averaged, watch = make(KINDS[kind]())
    fit(averaged)
    assert same(weights(plain.model), weights(averaged.model))
    assert all(torch.equal(a, b) for a, b in zip(plain.model.buffers(), averaged.model.buffers(), strict=True))
    assert not same(watch.evals[-1], watch.steps[-1])


def test_ema_is_the_formula() -> None:
    """average = decay * average + (1 - decay) * weight, from the first weights on; evaluations see it."""
    average = EMA(0.8)
    trainer, watch = make(average)
    expected = weights(trainer.model)
    fit(trainer)
    for number, step in enumerate(watch.steps, 1):
        expected = {name: value.lerp(step[name], 1 - 0.8) for name, value in expected.items()}
        if number in (3, 6, 9):
            assert same(watch.evals[number // 3 - 1], expected)
    assert same(average.average, expected)


def test_swa_is_the_mean() -> None:
    """From step 5 every third step counts, all alike; before it evaluations see the raw weights."""
    average = SWA(5, every=3)
    trainer, watch = make(average)
    fit(trainer)
    counted = [watch.steps[step - 1] for step in range(5, 17, 3)]
    assert average.num_averaged == 4
    for name, value in average.average.items():
        torch.testing.assert_close(value, torch.stack([w[name] for w in counted]).mean(0), rtol=1e-6, atol=1e-6)
    assert same(watch.evals[0], watch.steps[2])


@pytest.mark.parametrize("stop", [1, 6, 7, 11])
@pytest.mark.parametrize("kind", KINDS)
def test_an_average_survives_a_break(tmp_path: Path, kind: str, stop: int) -> None:
    """Average and raw weights of the broken run are those of the unbroken one: it goes on from the raw weights."""
    whole, broken = KINDS[kind](), KINDS[kind]()
    unbroken, _ = make(whole)
    fit(unbroken)
    first, _ = make(KINDS[kind](), tmp_path, stop)
    with pytest.raises(SystemExit):
        fit(first)
    second, _ = make(broken, tmp_path)
    fit(second)
    assert same(weights(second.model), weights(unbroken.model))
    assert same(broken.average, whole.average)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_inside_an_evaluation_puts_the_raw_weights_back(kind: str) -> None:
    """Whatever an evaluation raises, the model has its raw weights and modes again."""
    calls: list[int] = []

    def loss(output: Tensor, target: Tensor) -> Tensor:
        calls.append(1)
        if not torch.is_grad_enabled() and len(calls) > 8:
            raise ValueError("no more")
        return F.mse_loss(output, target)

    trainer, watch = make(KINDS[kind](), loss=loss)
    with pytest.raises(ValueError, match="no more"):
        fit(trainer)
    assert same(weights(trainer.model), watch.steps[-1])
    assert all(module.training for module in trainer.model.modules())


def test_a_step_left_out_does_not_move_the_average() -> None:
    """NaN steps count neither in EMA nor in SWA."""
    calls: list[int] = []

    def loss(output: Tensor, target: Tensor) -> Tensor:
        calls.append(1)
        return F.mse_loss(output, target) * (float("nan") if len(calls) in (3, 4) else 1)

    traces = []
    average = EMA(0.5)

    class Keep(lucid.Callback):
        def on_step_end(self, state: Any) -> None:
            traces.append({name: value.clone() for name, value in average.average.items()})

    trainer, _ = make(average, loss=loss, eval_every=0, epochs=1)
    trainer.callbacks.append(Keep())
    trainer.fit(DataLoader(rows(), batch_size=4))
    assert same(traces[1], traces[2])
    assert same(traces[1], traces[3])
    assert not same(traces[3], traces[4])


def test_the_exported_state_has_tied_weights_under_all_names() -> None:
    """The averaged state loads into a fresh model, gives the evaluation's value, and keeps ties."""
    average = EMA(0.8)
    trainer, watch = make(average)
    result = fit(trainer)
    exported = average.averaged_state(trainer.state)
    assert torch.equal(exported["first.weight"], exported["second.weight"])
    assert torch.equal(exported["first.weight"], watch.evals[-1]["first.weight"])
    fresh = Tied()
    fresh.load_state_dict(exported)
    assert lucid.evaluate(fresh, DataLoader(rows(), batch_size=16), loss=F.mse_loss) == result.metrics


def test_the_best_checkpoint_holds_average_and_raw(tmp_path: Path) -> None:
    """A checkpoint has the raw weights as model and the average beside it; `config.ema_decay` does the same."""
    trainer, _ = make(None, tmp_path, ema_decay=0.8)
    fit(trainer)
    saved = lucid.load(max((tmp_path / "checkpoints").glob("step-*.lcs")))
    assert same({n: saved["model"][n] for n in weights(trainer.model)}, weights(trainer.model))
    assert not torch.equal(saved["callbacks"]["EMA"]["average"]["last.weight"], saved["model"]["last.weight"])


def test_settings_that_cannot_work_are_refused() -> None:
    """A decay of 1 never moves; a mean begins at a step."""
    with pytest.raises(ConfigError, match=r"EMA decay must lie between 0 and 1, got 1"):
        EMA(1)
    with pytest.raises(ConfigError, match=r"SWA start and every must be at least 1, got 0 and 1"):
        SWA(0)


def test_an_evaluation_copies_no_average(monkeypatch: pytest.MonkeyPatch) -> None:
    """It swaps the average in and does not move it; a callback that may change keeps its copy."""

    class Mine(lucid.Callback):
        seen = torch.zeros(2)

        def on_eval_end(self, state: Any, metrics: Any) -> None:
            self.seen = self.seen + 1

        def state_dict(self) -> dict[str, Any]:
            return {"seen": self.seen}

    copied: list[int] = []
    real = Tensor.__deepcopy__

    def counted(tensor: Tensor, memo: Any) -> Any:
        copied.append(tensor.numel())
        return real(tensor, memo)

    monkeypatch.setattr(Tensor, "__deepcopy__", counted)
    callbacks = Callbacks([EMA(0.9), Mine()])
    state: Any = SimpleNamespace(model=Tied())
    callbacks.on_train_start(state)
    with callbacks.undone_unless(lambda: False):
        callbacks.on_eval_start(state)
        callbacks.on_eval_end(state, None)
    assert copied == [2]
    assert callbacks.state_dict()["Mine"]["seen"].tolist() == [0, 0]
    assert callbacks.state_dict()["EMA"]["average"].keys() == weights(state.model).keys()
