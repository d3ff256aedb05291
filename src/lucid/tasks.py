"""What a task means: its loss, its metrics, and how outputs become answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional as F

from lucid import metrics
from lucid.config.names import import_object
from lucid.errors import ConfigError, nearest

Loss = Callable[[Any, Any], torch.Tensor]


@dataclass(frozen=True)
class Task:
    """How a model is trained and judged."""

    name: str
    loss: Loss | None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    train_step: Callable[..., Any] | None = None
    eval_step: Callable[..., Any] | None = None


def next_token_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of output: (B, T, V) against target: (B, T)."""
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


def next_token_accuracy(output: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return how many tokens were right, and of how many."""
    return (output.argmax(-1) == target).sum(), target.numel()


def label_accuracy(output: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return how many labels were right, and of how many: output above 0 says yes."""
    return ((output > 0) == (target > 0.5)).sum(), target.numel()


class InOwnUnit:
    """Mean absolute error of a regression in the target's own unit, undoing its scaling."""

    def __init__(self, std: list[float]) -> None:
        """Keep the standard deviations that the targets were divided by."""
        self.std = torch.tensor(std)

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Return the sum of absolute errors and their number."""
        return ((output - target).abs() * self.std.to(output.device)).double().sum(), target.numel()


LOSSES: dict[str, Loss] = {
    "cross_entropy": F.cross_entropy,
    "binary_cross_entropy": F.binary_cross_entropy_with_logits,
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "huber": F.huber_loss,
    "next_token": next_token_loss,
}
TASKS: dict[str, str] = {
    "classification": "cross_entropy",
    "multilabel": "binary_cross_entropy",
    "regression": "mse",
    "language-modelling": "next_token",
}
"""Each task and its own loss."""

_TARGETS = {
    "classification": "class numbers",
    "multilabel": "zeros and ones",
    "regression": "numbers",
    "language-modelling": "tokens",
}
_LIKE = {"l1": "regression", "huber": "regression"} | {loss: task for task, loss in TASKS.items()}
"""Each loss and the task whose targets it takes."""
_ALSO = {"multilabel": {"regression", "classification"}, "language-modelling": {"classification"}}
"""Data of a task, and the other tasks whose losses take their targets."""


def make_task(name: str, loss: str, data_task: str, transform_state: Mapping[str, Any]) -> Task:
    """Return what a configuration's `task` and `loss` mean.

    Args:
        name: a task, `auto` for the data's own, or `my_module:train_step`; an `eval_step` beside it is used too.
        loss: a loss, `auto` for the task's own, or `my_module:function`.
        data_task: the data's own task.
        transform_state: of the data; has the scale of a regression target.

    Raises:
        ConfigError: an unknown name, or a loss that cannot take the targets of the data.
    """
    if ":" in name:
        step = import_object(name, "task")
        return Task(name, None, train_step=step, eval_step=_beside(name))
    kind = data_task if name == "auto" else name
    if kind not in TASKS:
        known = ", ".join(["auto", *TASKS, "my_module:train_step"])
        raise ConfigError(f"task = {name!r} is not known.{nearest(name, TASKS)} Known: {known}.")
    what, loss = (f"task = {name!r}", TASKS[kind]) if loss == "auto" else (f"loss = {loss!r}", loss)
    found = _loss(loss)
    _check_targets(what, _LIKE.get(loss), data_task, transform_state)
    return Task(kind, found, _metrics(kind, transform_state))


def _check_targets(what: str, wanted: str | None, data_task: str, transform_state: Mapping[str, Any]) -> None:
    """Raise `ConfigError` where the targets are surely not those of a loss; `wanted` is None for the user's own.

    Data of the user's own are called regression wherever their targets are neither classes nor tokens, so only
    targets that were scaled are surely numbers.
    """
    if wanted in (None, data_task) or wanted in _ALSO.get(data_task, ()):
        return
    if data_task == "regression" and "target_scaler" not in transform_state:
        return
    cure = f"; where a table or arrays were taken for the wrong kind, set data.options.task = {wanted!r}"
    raise ConfigError(
        f"{what} takes targets that are {_TARGETS[str(wanted)]}, those of the data are {_TARGETS[data_task]} (its task "
        f"is {data_task!r}). Leave it out{'' if 'language-modelling' in (wanted, data_task) else cure}."
    )


def _beside(name: str) -> Callable[..., Any] | None:
    import importlib

    found: Callable[..., Any] | None = getattr(importlib.import_module(name.partition(":")[0]), "eval_step", None)
    return found


def _loss(name: str) -> Loss:
    if name in LOSSES:
        return LOSSES[name]
    if ":" not in name:
        known = ", ".join(["auto", *LOSSES, "my_module:function"])
        raise ConfigError(f"loss = {name!r} is not known.{nearest(name, LOSSES)} Known: {known}.")
    found: Loss = import_object(name, "loss")
    return found


def _metrics(kind: str, state: Mapping[str, Any]) -> dict[str, Any]:
    if kind == "classification":
        return {"accuracy": metrics.accuracy}
    if kind == "multilabel":
        return {"accuracy": label_accuracy}
    if kind == "language-modelling":
        return {"accuracy": next_token_accuracy}
    scaler = state.get("target_scaler")
    return {"mae": InOwnUnit(scaler["std"]) if scaler else metrics.mean_absolute_error, "r2": metrics.R2()}
