"""An evaluation counts its own rows alone."""

from __future__ import annotations

import gc
import multiprocessing
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lucid
from lucid.evaluation import Interrupted


class Seen:
    """A metric object: how many rows it was shown."""

    def __init__(self) -> None:
        self.rows = 0

    def reset(self) -> None:
        self.rows = 0

    def update(self, output: torch.Tensor, target: torch.Tensor) -> None:
        self.rows += len(target)

    def compute(self) -> float:
        return float(self.rows)


def loader(rows: int, **options: Any) -> DataLoader[tuple[torch.Tensor, ...]]:
    """Rows of two numbers, with a target."""
    return DataLoader(TensorDataset(torch.randn(rows, 2), torch.randn(rows, 1)), batch_size=2, **options)


def test_metric_object_begins_anew_with_each_evaluation_of_a_run() -> None:
    """Three epochs, six rows each; and as often when the run's trainer is asked afterwards."""
    model, seen = nn.Linear(2, 1), list[float]()

    class Keep(lucid.Callback):
        def on_eval_end(self, state: object, metrics: dict[str, float] | None) -> None:
            seen.append((metrics or {})["eval/seen"])

    trainer = lucid.Trainer(
        model, torch.optim.SGD(model.parameters(), lr=0.1), nn.functional.mse_loss, metrics={"seen": Seen()},
        callbacks=[Keep()], config=lucid.TrainConfig(epochs=3), reports=(),
    )  # fmt: skip
    trainer.fit(loader(4), loader(6))
    assert seen == [6, 6, 6]
    assert trainer.evaluate(loader(5))["eval/seen"] == 5


def test_metric_object_forgets_an_evaluation_that_was_left() -> None:
    """The rows of its first batch are not counted twice."""
    model, metric, asked = nn.Linear(2, 1), Seen(), iter([False, True])
    with pytest.raises(Interrupted):
        lucid.evaluate(model, loader(6), {"seen": metric}, should_stop=lambda: next(asked))
    assert metric.rows == 2
    assert lucid.evaluate(model, loader(6), {"seen": metric}) == {"eval/seen": 6}


def test_workers_of_the_evaluation_end_with_the_run() -> None:
    """Also those that stay between evaluations, and without the garbage collector's help."""
    model = nn.Linear(2, 1)
    trainer = lucid.Trainer(
        model, torch.optim.SGD(model.parameters(), lr=0.1), nn.functional.mse_loss,
        config=lucid.TrainConfig(epochs=2), reports=(),
    )  # fmt: skip
    gc.disable()
    try:
        trainer.fit(loader(4), loader(6, num_workers=1, persistent_workers=True))
        assert multiprocessing.active_children() == []
    finally:
        gc.enable()
