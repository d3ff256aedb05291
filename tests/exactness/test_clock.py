"""One step axis: everything that happens, happens once, on the step that the plan says."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lucid
from lucid.records import read_records

from .harness import Breaker, Crash
from .settings import Built, Settings

TEN = Settings(
    rows=10,
    batch_size=1,
    accumulation=4,
    epochs=3,
    norm=False,
    log_every=2,
    eval_every=2,
    save_every=4,
    schedule="step",
)


@pytest.mark.parametrize(("broken", "resumed"), [(None, []), (3, []), (5, [4]), (7, [4])])
def test_each_record_once_on_its_step(tmp_path: Path, broken: int | None, resumed: list[int]) -> None:
    """10 batches in windows of 4 for 3 epochs: 9 updates; the last is logged, evaluated and saved."""
    if broken is not None:  # in step 3 before there is a checkpoint, in step 7 with records after the last one
        with pytest.raises(Crash):
            Built(TEN, tmp_path, (Breaker(broken),)).fit()
    Built(TEN, tmp_path).fit()
    steps: dict[str, list[int]] = {}
    for record in read_records(tmp_path / "records.jsonl"):
        steps.setdefault(record.kind, []).append(record.step)
    assert steps["log"] == [2, 4, 6, 8, 9]
    assert steps["eval"] == [2, 4, 6, 8, 9]
    assert steps["save"] == [4, 8, 9]
    assert steps["plan"] == [0]
    assert steps.get("resume", []) == resumed


def test_the_logged_loss_is_the_mean_since_the_last_record(tmp_path: Path) -> None:
    """With weights that do not move, it is the mean over the very rows of those steps, also over a break."""
    rows = TensorDataset(torch.arange(10.0).reshape(10, 1), torch.zeros(10, 1))
    seen: list[float] = []

    def step(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        seen.append(float(batch[0]))
        return (model(batch[0]) - batch[1]).square().mean()

    def trainer(*callbacks: object) -> lucid.Trainer:
        model = nn.Linear(1, 1)
        nn.init.ones_(model.weight)
        nn.init.zeros_(model.bias)
        config = lucid.TrainConfig(epochs=3, gradient_accumulation_steps=4, log_every=2, save_every=1, device="cpu")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        return lucid.Trainer(
            model, optimizer, train_step=step, callbacks=callbacks, config=config, run_dir=tmp_path, reports=()
        )

    with pytest.raises(Crash):
        trainer(Breaker(6)).fit(DataLoader(rows, 1, shuffle=True))
    del seen[18:]  # the sixth step's micro-batches come again; the fifth waits in the checkpoint for its record
    trainer().fit(DataLoader(rows, 1, shuffle=True))
    logged = [r for r in read_records(tmp_path / "records.jsonl") if r.kind == "log"]
    ends = {2: (0, 8), 4: (8, 14), 6: (14, 20), 8: (20, 28), 9: (28, 30)}
    for record in logged:
        first, last = ends[record.step]
        assert math.isclose(record.values["train/loss"], sum(x * x for x in seen[first:last]) / (last - first))


def test_a_checkpoint_gives_its_metric_again(tmp_path: Path) -> None:
    """Evaluating the weights of the last checkpoint gives the value that stands in it."""
    built = Built(TEN, tmp_path)
    result = built.fit()
    again = Built(TEN, tmp_path)
    assert again.fit().stopped == "finished"
    assert again.trainer.evaluate(again.eval_loader)["eval/loss"] == result.metrics["eval/loss"]


def test_a_run_shorter_than_every_interval_has_its_last_record(tmp_path: Path) -> None:
    """3 updates with intervals of 20: one log, one evaluation, one checkpoint, all on step 3."""
    one = Settings(rows=9, batch_size=3, epochs=1, log_every=20, eval_every=20, save_every=20)
    Built(one, tmp_path).fit()
    kinds = [(r.kind, r.step) for r in read_records(tmp_path / "records.jsonl")]
    assert kinds == [("plan", 0), ("log", 3), ("eval", 3), ("save", 3), ("end", 3)]
