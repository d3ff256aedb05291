"""Evaluation that leaves no trace: random streams, module modes and grad mode are what they were."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from lucid import rng
from lucid.amp import Precision
from lucid.errors import ConfigError, DataError
from lucid.loss_rules import Count
from lucid.losses import Loss, Output, Supervised
from lucid.metrics import MetricSet
from lucid.pieces import in_halves
from lucid.utils.data import Feed
from lucid.windows import num_rows


class Interrupted(Exception):  # noqa: N818  # not an error: the run goes on later
    """The evaluation was left early because the run has to stop."""


def evaluate(
    model: nn.Module,
    loader: Any,
    metrics: Mapping[str, Any] | None = None,
    *,
    loss: Callable[[Any, Any], torch.Tensor] | None = None,
    eval_step: Callable[[nn.Module, Any], Output] | None = None,
    precision: Precision | None = None,
    device: torch.device | str | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> dict[str, float]:
    """Return the metrics of a model on all rows of a loader, each row counted once.

    Values are sums over counts, so a short last batch weighs what it holds. The model, the global random streams and
    the grad mode are the same afterwards, also after an error: a run trains the same with and without evaluations.

    Args:
        model: in any mode; evaluated in eval mode, every module's own mode is put back.
        loader: a DataLoader, or the `Feed` of one.
        metrics: name to a torchmetrics object or a callable of (output, target); see `lucid.metrics`. An object is
            reset first, and holds these rows afterwards.
        loss: takes (output, target); gives "eval/loss". None: only what the model itself computes.
        eval_step: replaces the forward of a batch; returns what `Output` holds.
        precision: autocast used in training, so that evaluation sees the same numerics. None: fp32.
        device: where the model is. None: the device of its first parameter.
        should_stop: asked before each batch.

    Returns:
        "eval/<name>" for each metric, and "eval/loss" where there is a loss.

    Raises:
        ConfigError: if a metric is named "loss", which is the loss's own name.
        DataError: if the loader yields nothing.
        Interrupted: if `should_stop` said so.

    Example:
        >>> rows = torch.utils.data.TensorDataset(torch.eye(4), torch.zeros(4, 1))
        >>> evaluate(nn.Linear(4, 1), torch.utils.data.DataLoader(rows), loss=nn.functional.mse_loss).keys()
        dict_keys(['eval/loss'])
    """
    step = eval_step or Supervised(loss).evaluate
    precision = precision or Precision("fp32")
    if not isinstance(loader, Feed):
        loader = Feed(loader, seed=0, device=_device(model, device), role="eval")
    if "loss" in (metrics or {}):
        raise ConfigError('a metric must not be named "loss": "eval/loss" is the loss. Give it another name.')
    meters = MetricSet(metrics or {})
    meters.reset()  # an object may hold the evaluation before, or part of one that was left

    def forward(batch: Any) -> Output:
        with precision.autocast():
            return step(model, batch)

    totals: dict[str, tuple[torch.Tensor, Count]] = {}
    with untouched(model):
        empty = True
        for batch in loader.batches(0):
            if should_stop is not None and should_stop():
                raise Interrupted
            empty = False
            for part, result in in_halves(forward, batch):
                if result.loss is not None:
                    _add(totals, result.loss, num_rows(part))
                if result.output is not None:
                    meters.update(result.output, result.target)
        if empty:
            raise DataError("the evaluation data has no batch: check the loader's data set and sampler.")
        values = {f"eval/{name}": value for name, value in meters.compute().items()}
    if totals:
        values = {"eval/loss": float(sum(total / count for total, count in totals.values())), **values}
    return values


def _add(totals: dict[str, tuple[torch.Tensor, Count]], loss: Loss, rows: int) -> None:
    """Add a batch to the sum and the count of each mean that the loss is made of; most are one."""
    for name, term in (loss.terms or {"": loss}).items():
        number = term.num_targets(rows)
        share = torch.where(torch.as_tensor(number) > 0, term.value.double() * number, 0.0)
        total, count = totals.get(name, (torch.zeros_like(share), 0))
        totals[name] = (total + share, count + number)


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Inside: eval mode, no gradients, random streams of its own. Afterwards: everything as it was."""
    modes = [(module, module.training) for module in model.modules()]
    with rng.fork(seed=0), torch.no_grad():
        model.eval()
        try:
            yield
        finally:
            for module, mode in modes:
                module.training = mode


def _device(model: nn.Module, device: torch.device | str | None) -> torch.device:
    if device is not None:
        return torch.device(device)
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device
