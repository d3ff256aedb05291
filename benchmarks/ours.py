"""Lucid: the trainer, and a hand-written loop over a run."""

from __future__ import annotations

from typing import Any

import torch
from tasks import MAX_NORM, WARMUP, Task

import lucid
from lucid.optim.schedules import build


def _parts(task: Task, **settings: Any) -> dict[str, Any]:
    model = task.model()
    settings = {"log_every": 50, "epochs": task.epochs, "max_grad_norm": MAX_NORM, "device": "cpu", **settings}
    return {
        "model": model,
        "optimizer": task.optimizer(model, lucid.optim.AdamW),
        "scheduler": lambda optimizer, total: build("warmup_cosine", optimizer, total, warmup_steps=WARMUP),
        "config": lucid.TrainConfig(**settings),
    }


def trainer(task: Task, **settings: Any) -> torch.nn.Module:
    """`Trainer.fit`, nothing but the loop: no console, no folder, no evaluation."""
    parts = _parts(task, **settings)
    lucid.Trainer(**parts, loss=task.loss, reports=()).fit(task.own_loader())
    return parts["model"]


def trainer_compile(task: Task) -> torch.nn.Module:
    """`Trainer.fit` with `compile=true`."""
    return trainer(task, compile=True)


def run(task: Task) -> torch.nn.Module:
    """The loop that the user writes over a `Run`."""
    parts = _parts(task)
    going = lucid.Run(**parts, train_loader=task.own_loader(), reports=())
    model = parts["model"]
    for x, y in going:
        with going.autocast():
            loss = task.loss(model(x), y)
        going.step(loss)
    return model
