"""Lucid: the trainer, and a hand-written loop over a run."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from tasks import MAX_NORM, WARMUP, Task, Timed

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


def trainer(task: Task, default: bool = False, **settings: Any) -> torch.nn.Module:
    """`Trainer.fit`, nothing but the loop; with `default` also console, records and checkpoints of each epoch."""
    parts = _parts(task, **settings)
    with tempfile.TemporaryDirectory() as folder:
        options = {"run_dir": folder} if default else {"reports": ()}
        lucid.Trainer(**parts, loss=task.loss, **options).fit(task.own_loader())
    return parts["model"]


class Unmarked(torch.nn.Module):
    """A case's model without the mark in its forward, which a compiler would have to leave its graph for."""

    def __init__(self, inner: Timed) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        return self.inner.compute(x)


class Marking(lucid.Callback):
    """Marks each step at its end, and notes the losses where they are checked."""

    def on_step_end(self, state: Any) -> None:
        Timed.marks.note()
        if Timed.marks.losses is not None:
            Timed.marks.losses.append(state.meters.losses[-1].item())


def trainer_compile(task: Task, **settings: Any) -> torch.nn.Module:
    """`Trainer.fit` with `compile=true`."""
    parts = _parts(task, compile=True, **settings)
    parts["model"] = Unmarked(parts["model"])

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(output, target.flatten())

    lucid.Trainer(**parts, loss=loss, callbacks=[Marking()], reports=()).fit(task.own_loader())
    return parts["model"]


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
