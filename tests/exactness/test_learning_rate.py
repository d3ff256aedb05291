"""The learning rate of every update is that of the unbroken run, wherever the break is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

import lucid
from lucid import Callback

from .harness import Breaker, Crash


class Rates(Callback):
    """The learning rate that each update used; a schedule has already moved on when the hook is called."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.used: list[float] = []
        optimizer.register_step_pre_hook(lambda opt, args, kwargs: self.used.append(opt.param_groups[0]["lr"]))

    def state_dict(self) -> dict[str, Any]:
        return {"used": list(self.used)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.used[:] = state["used"]


SCRIPT = [1.0, 0.9, 0.95, 0.95, 0.95, 0.94, 0.96, 0.97, 0.99, 0.99]


def warmup_cosine(optimizer: Any, warmup: int) -> Any:
    parts = [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=warmup)] if warmup else []
    parts.append(lr_scheduler.CosineAnnealingLR(optimizer, 20 - warmup))
    return lr_scheduler.SequentialLR(optimizer, parts, [warmup]) if warmup else parts[0]


def play(run_dir: Path, kind: str, breaker: Breaker | None) -> tuple[list[float], Any]:
    """Run 20 updates in 10 epochs, evaluated every 4; return the rates used and the schedule's state."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rates = Rates(optimizer)
    schedule: Any = {
        "warm-up": lambda: warmup_cosine(optimizer, 5),
        "no warm-up": lambda: warmup_cosine(optimizer, 0),
        "plateau": lambda: lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, factor=0.5),
    }[kind]()
    state: Any = []

    def scripted(output: Any, target: Any) -> float:
        return SCRIPT[state[0].step // 4 - 1]

    class Peek(Callback):
        def on_train_start(self, run: Any) -> None:
            state[:] = [run]

    config = lucid.TrainConfig(
        epochs=10, eval_every=4, save_every=1, log_every=0, monitor="eval/scripted", mode="min", device="cpu"
    )
    rows = TensorDataset(torch.randn(4, 2), torch.randn(4, 1))
    trainer = lucid.Trainer(
        model, optimizer, nn.functional.mse_loss, schedule, {"scripted": scripted},
        callbacks=[Peek(), rates, *([breaker] if breaker else [])], config=config, run_dir=run_dir, reports=(),
    )  # fmt: skip
    try:
        trainer.fit(DataLoader(rows, 2), DataLoader(rows, 4))
    except Crash:
        return play(run_dir, kind, None)
    except SystemExit:
        return play(run_dir, kind, None)
    return rates.used, schedule.state_dict()


@pytest.mark.parametrize("kind", ["warm-up", "no warm-up", "plateau"])
def test_a_break_at_every_step_keeps_the_trace(tmp_path: Path, kind: str) -> None:
    """Twenty breaks, one a run; the plateau's counter of bad evaluations goes on where it was."""
    whole = play(tmp_path / "whole", kind, None)
    assert len(whole[0]) == 20
    assert len(set(whole[0])) >= 2
    for step in range(1, 21):
        how = "crash" if step % 2 else "SIGTERM"
        assert play(tmp_path / str(step), kind, Breaker(step, how=how)) == whole, step
