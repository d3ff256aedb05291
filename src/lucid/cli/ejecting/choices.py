"""What the writers of an ejected loop need to know, and how they write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lucid import models
from lucid.build import Built
from lucid.cli.ejecting.data import Loading
from lucid.config import TrainConfig
from lucid.errors import ConfigError
from lucid.rng import fork
from lucid.tasks import LOSSES


class Choices:
    """What the parts of the loop need to know.

    Args:
        built: the run.
        loading: how its data are loaded.
    """

    def __init__(self, built: Built, loading: Loading) -> None:
        """Look at what a `train_step` of the user's returns: one batch goes through it."""
        self.built, self.loading = built, loading
        self.step_form = self.eval_form = ""
        if self.is_user_step:
            self.step_form = _form(built, built.task.train_step, built.train_loader)
            self.eval_form = self.step_form
            if built.task.eval_step and self.has_rows_to_judge:
                self.eval_form = _form(built, built.task.eval_step, built.validation_loader)

    @property
    def train(self) -> TrainConfig:
        """Settings of the run."""
        return self.built.config.train

    @property
    def has_rows_to_judge(self) -> bool:
        """Whether there are rows for validation."""
        return self.built.data.validation is not None

    @property
    def has_eval(self) -> bool:
        """Whether evaluations give a value."""
        return self.has_rows_to_judge and self.eval_form != "output"

    @property
    def has_test(self) -> bool:
        """Whether there are rows to judge the best weights on at the end."""
        return self.has_eval and self.built.data.test is not None

    @property
    def mode(self) -> str:
        """Precision."""
        return self.built.trainer.precision.mode

    @property
    def is_user_step(self) -> bool:
        """Whether the user's `train_step` computes the loss."""
        return self.built.task.train_step is not None

    @property
    def is_all_ours(self) -> bool:
        """Whether nothing draws random numbers but the layers of a model of ours."""
        config = self.built.config
        names = (config.optimizer.name, config.scheduler.name, config.loss, config.task)
        return (
            self.loading.draws != "all" and config.model.name in models.OURS and not any(":" in name for name in names)
        )

    @property
    def has_mixed_modes(self) -> bool:
        """Whether parts of the model are kept in eval mode while it trains, such as frozen norms."""
        model = self.built.model
        return model.training and not all(module.training for module in model.modules())

    @property
    def schedule(self) -> str:
        """Name of the schedule."""
        return self.built.config.scheduler.name

    @property
    def monitor(self) -> str:
        """What decides which weights are best, as the ejected `evaluate` calls it."""
        return (self.train.monitor or "eval/loss").removeprefix("eval/")

    @property
    def metric(self) -> str | None:
        """What an evaluation gives beside the loss: what decides, else the first metric of the task."""
        names = list(self.built.task.metrics)
        return self.monitor if self.monitor in names else names[0] if names else None


@dataclass
class _Result:
    """What a user's step gave for one batch."""

    value: Any

    def form(self, name: str, may_be_output: bool) -> str:
        from torch import Tensor

        from lucid.losses import _is_sum_and_count

        value = self.value
        if isinstance(value, Tensor):
            return "mean"
        if _is_sum_and_count(value):
            return "sum"
        if isinstance(value, tuple) and len(value) == 2 and may_be_output:
            return "output"
        if isinstance(value, dict) and isinstance(value.get("loss"), Tensor):
            return "loss"
        means = isinstance(value, dict) and value and all(isinstance(one, Tensor) for one in value.values())
        if means and "loss" not in value:
            return "parts"
        raise ConfigError(
            f"lucid eject can write a {name} that returns a mean loss, (sum, count), or a dictionary of means; it "
            f"returned {type(value).__name__}. Let it return one of these."
        )


def _form(built: Built, step: Any, loader: Any) -> str:
    """Return the form of what a user's step returns: mean, sum (and count), loss (in a dictionary), parts, output."""
    from lucid.utils.data import Feed

    device = built.trainer.device
    with fork(seed=0), built.trainer.precision.autocast():
        batch = next(iter(Feed(loader, seed=0, device=device, role="eval").batches(0)))
        result = _Result(step(built.model.to(device), batch))
    return result.form(getattr(step, "__name__", "train_step"), step is built.task.eval_step)


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


def user_step(form: str, call: str) -> list[str]:
    """Return the lines that bring what a user's step returns to `loss`, and to `count` where it says one."""
    if form == "sum":
        return [f"total, count = {call}", "loss = total / count"]
    return [f"loss = {call}" if form == "mean" else f'loss = {call}["loss"]' if form == "loss" else
            f"loss = sum({call}.values())"]  # fmt: skip


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
    return f'with torch.autocast("{choices.built.trainer.device.type}", dtype={dtype}):'
