"""What the writers of an ejected loop need to know, and how they write."""

from __future__ import annotations

from dataclasses import dataclass

from lucid.build import Built
from lucid.config import TrainConfig
from lucid.tasks import LOSSES


@dataclass
class Choices:
    """What the parts of the loop need to know."""

    built: Built
    in_memory: bool

    @property
    def train(self) -> TrainConfig:
        """Settings of the run."""
        return self.built.config.train

    @property
    def has_eval(self) -> bool:
        """Whether there are rows for validation."""
        return self.built.data.validation is not None

    @property
    def mode(self) -> str:
        """Precision."""
        return self.built.trainer.precision.mode

    @property
    def is_user_step(self) -> bool:
        """Whether the user's `train_step` computes the loss."""
        return self.built.task.train_step is not None

    @property
    def schedule(self) -> str:
        """Name of the schedule."""
        return self.built.config.scheduler.name

    @property
    def needs_best(self) -> bool:
        """Whether evaluations decide something."""
        return self.has_eval


class Lines:
    """Text with its indentation kept for the next line."""

    def __init__(self) -> None:
        """Start empty."""
        self.rows: list[str] = []

    def add(self, depth: int, *rows: str) -> None:
        """Add lines at a depth."""
        self.rows += ["    " * depth + row if row else "" for row in rows]

    def text(self) -> str:
        """Return the text."""
        return "\n".join(self.rows) + "\n"


def metric_of(monitor: str) -> str | None:
    """Return what an ejected `evaluate` calls the monitor; None if it does not compute it."""
    return {"eval/accuracy": "accuracy", "eval/loss": "loss"}.get(monitor)


def count_text(choices: Choices) -> str:
    """Return over how many targets a batch's loss is a mean."""
    loss = choices.built.task.loss
    if loss is LOSSES["cross_entropy"]:
        return "(y != -100).sum()"
    elementwise = [LOSSES[name] for name in ("binary_cross_entropy", "mse", "l1", "huber")]
    return "y.numel()" if loss in elementwise else "len(y)"


def autocast_text(choices: Choices) -> str:
    """Return the line that opens the autocast of a forward pass."""
    dtype = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}[choices.mode]
    return f"with torch.autocast({choices.built.trainer.device.type!r}, dtype={dtype}):"
