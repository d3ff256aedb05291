"""Best, patience and NaN: over breaks, in both directions, in the log and in the store."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import lucid
from lucid.errors import ConfigError
from lucid.state import Best

NAN = math.nan


class Script:
    """A metric that gives the values of a list, one for each evaluation."""

    def __init__(self, values: list[float]) -> None:
        self.values = values
        self.number = 0

    def reset(self) -> None:
        """Begin an evaluation."""

    def update(self, output: Any, target: Any) -> None:
        """Take a batch."""

    def compute(self) -> torch.Tensor:
        """Return the value of this evaluation."""
        self.number += 1
        return torch.tensor(self.values[self.number - 1], dtype=torch.float64)


def run(values: list[float], folder: Path | None = None, stop: int = 0, done: int = 0, **settings: Any) -> Any:
    """Train with one evaluation per step; `done` evaluations were made before the break. Return (result, trainer)."""
    torch.manual_seed(0)
    model, script = nn.Linear(2, 1), Script(values)
    script.number = done
    x = torch.randn(4, 2)
    data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)
    config = lucid.TrainConfig(**{
        "epochs": len(values), "device": "cpu", "monitor": "eval/score", "mode": "min", "save_every": 1, "keep_last": 1,
        "changes": "accept", **settings,
    })  # fmt: skip

    class Break(lucid.Callback):
        def on_step_end(self, state: Any) -> None:
            if state.step == stop:
                state.request_save()
                state.interrupt = "max_time"

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = lucid.Trainer(
        model, optimizer, loss=F.mse_loss, metrics={"score": script}, config=config, run_dir=folder, reports=(),
        callbacks=[Break()],
        scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, mode=config.mode or "min", factor=0.5, patience=1
        ),
    )  # fmt: skip
    if stop:
        with pytest.raises(SystemExit):
            trainer.fit(data, data)
        return None, trainer
    return trainer.fit(data, data), trainer


SCRIPTS: list[tuple[str, list[float], float, int]] = [
    ("min", [0.5, NAN, 0.4], 0.4, 3),
    ("max", [0.5, NAN, 0.4], 0.5, 1),
    ("min", [NAN, 0.7, NAN, 0.9], 0.7, 2),
    ("max", [NAN, 0.7, NAN, 0.9], 0.9, 4),
    ("min", [math.inf, 3.0, 3.0], 3.0, 2),
    ("max", [-math.inf, NAN, -5.0], -5.0, 3),
]


@pytest.mark.parametrize(("mode", "values", "best", "step"), SCRIPTS)
def test_nan_is_never_best(tmp_path: Path, mode: str, values: list[float], best: float, step: int) -> None:
    """Result, record and the store's own slot agree on the best; NaN stands in its own record as NaN."""
    result, _ = run(values, tmp_path, mode=mode)
    assert (result.best, result.best_step) == (best, step)
    lines = map(json.loads, (tmp_path / "records.jsonl").read_text().splitlines())
    scores = [line["values"]["eval/score"] for line in lines if line["kind"] == "eval"]
    assert [score == "nan" for score in scores] == [math.isnan(value) for value in values]
    kept = {path.name for path in (tmp_path / "checkpoints").glob("step-*.lcs")}
    assert f"step-{step:08d}.lcs" in kept


def test_nan_in_the_training_loss_stands_at_its_own_step(tmp_path: Path) -> None:
    """The log of the step has NaN; its neighbours' means do not."""
    torch.manual_seed(0)
    x = torch.randn(6, 2)
    x[3, 0] = NAN
    model = nn.Linear(2, 1)
    trainer = lucid.Trainer(
        model, torch.optim.SGD(model.parameters(), lr=0.1), loss=F.mse_loss, run_dir=tmp_path, reports=(),
        config=lucid.TrainConfig(epochs=1, device="cpu", log_every=2, save_every=0),
    )  # fmt: skip
    trainer.fit(DataLoader(TensorDataset(x, torch.zeros(6, 1)), batch_size=1))
    lines = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["values"]["train/loss"] for line in lines if line["kind"] == "log"}
    assert all(isinstance(losses[step], float) for step in (2, 4, 6))
    (skip,) = [line for line in lines if line["kind"] == "skip"]
    assert (skip["step"], skip["values"]["train/loss"]) == (4, "nan")


def saves(folder: Path) -> list[int]:
    """The steps at which a run saved."""
    lines = map(json.loads, (folder / "records.jsonl").read_text().splitlines())
    return [line["step"] for line in lines if line["kind"] == "save"]


@pytest.mark.parametrize("every", [0, 3, "epoch"])
def test_a_new_best_is_saved_whatever_save_every_says(tmp_path: Path, every: int | str) -> None:
    """At its own step, once; what is kept is the best and the last. Without slots for the best nothing is added."""
    values = [0.5, 0.4, 0.6, 0.3, 0.7, 0.8]
    due = {0: {6}, 3: {3, 6}, "epoch": set(range(1, 7))}[every]
    run(values, tmp_path / "kept", save_every=every)
    assert saves(tmp_path / "kept") == sorted(due | {1, 2, 4})
    kept = {path.name for path in (tmp_path / "kept/checkpoints").glob("step-*.lcs")}
    assert kept == {"step-00000004.lcs", "step-00000006.lcs"}
    assert (tmp_path / "kept/checkpoints/best").read_text().strip() == "step-00000004.lcs"
    run(values, tmp_path / "none", save_every=every, keep_best=0)
    assert saves(tmp_path / "none") == sorted(due)


def test_a_best_that_a_loop_reports_is_saved(tmp_path: Path) -> None:
    """Also where the user judges in a loop of their own."""
    model = nn.Linear(2, 1)
    config = lucid.TrainConfig(epochs=1, save_every=0, device="cpu", monitor="eval/score", mode="max")
    data = DataLoader(TensorDataset(torch.randn(5, 2)), batch_size=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = lucid.Run(model, optimizer, data, config=config, run_dir=tmp_path, reports=())
    for (x,) in run:
        run.step(model(x).square().mean())
        run.report({"eval/score": [1, 3, 2, 1, 0][run.state.step - 1]})
    assert saves(tmp_path) == [1, 2, 5]


def test_patience_counts_nan_as_no_better() -> None:
    """Three evaluations without a better value end the run; NaN is one of them."""
    result, trainer = run([0.5, 0.6, NAN, 0.7, 0.1, 0.1], patience=3)
    assert result.step == 4
    assert result.stopped == "no better eval/score for 3 evaluations"
    assert trainer.state.best.evals_since == 3


@pytest.mark.parametrize("stop", [1, 2, 3, 4, 5])
def test_best_and_patience_survive_a_break(tmp_path: Path, stop: int) -> None:
    """The broken run ends at the step of the unbroken one with its best, plateau counter and learning rate."""
    values = [0.5, 0.4, 0.6, NAN, 0.7, 0.8, 0.1]
    whole, one = run(values, patience=4)
    run(values, tmp_path, stop, patience=4)
    done = sum(json.loads(line)["kind"] == "eval" for line in (tmp_path / "records.jsonl").read_text().splitlines())
    broken, other = run(values, tmp_path, done=done, patience=4)
    assert (broken.step, broken.best, broken.best_step, broken.stopped) == (whole.step, whole.best, whole.best_step,
                                                                            whole.stopped)  # fmt: skip
    assert other.state.lr() == one.state.lr()
    assert other.state.schedulers[0].num_bad_epochs == one.state.schedulers[0].num_bad_epochs
    assert whole.step == 6


def test_equal_is_not_better() -> None:
    """A value as good as the best leaves the best where it was and counts against patience."""
    best = Best("min")
    assert [best.update(value, step) for step, value in enumerate([2.0, 2.0, 1.0, 1.0])] == [True, False, True, False]
    assert (best.step, best.evals_since) == (2, 1)


def test_a_monitor_that_cannot_be_is_refused_at_set_up() -> None:
    """An unknown name has its nearest match; a monitor without a direction says so."""
    with pytest.raises(ConfigError, match=r"train\.monitor must be one of eval/loss, eval/score, got 'eval/scores'"):
        run([0.5], monitor="eval/scores")
    with pytest.raises(ConfigError, match=r"train\.mode must be"):
        run([0.5], mode=None)
