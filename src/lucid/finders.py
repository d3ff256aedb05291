"""Find a learning rate, or the largest batch that fits, and leave no trace.

keep weights, buffers, gradients, optimizers, scaler, modes and random streams
train on copies of the settings, never on the run's folder
put everything back, also after an error
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from lucid import pieces, rng
from lucid.errors import ConfigError, DataError
from lucid.loop import Step
from lucid.state import TrainState
from lucid.step import TrainStep, update
from lucid.trainer import Trainer
from lucid.utils.data import Feed
from lucid.windows import Progress, Window, num_rows, windows

_SMOOTHING = 0.9  # of the loss curve, as in Smith's experiments
_DIVERGED = 4.0  # times the lowest smoothed loss


@dataclass(frozen=True, slots=True)
class LrFind:
    """The loss over the learning rate."""

    lrs: list[float]
    losses: list[float]
    """Smoothed loss of the step with each rate."""
    suggestion: float | None
    """The rate where the loss falls most steeply; None if it never falls."""

    def describe(self) -> str:
        """Return the result in words."""
        tried = f"tried {self.lrs[0]:.2g} to {self.lrs[-1]:.2g} in {len(self.lrs)} steps"
        if self.suggestion is None:
            return f"{tried}: the loss never fell. Look at the loss and the data."
        return f"{tried}: the loss falls most steeply at {self.suggestion:.2g}"


@dataclass(frozen=True, slots=True)
class BatchSizeFind:
    """The largest micro-batch that fits."""

    batch_size: int
    gradient_accumulation_steps: int
    """Micro-batches per step that keep the rows per step of the trainer's settings."""
    tried: dict[int, bool]
    """Rows -> whether a step with them fitted."""

    def describe(self) -> str:
        """Return the result in words."""
        return (
            f"{self.batch_size} rows fit; for the same rows per step take batch_size={self.batch_size}, "
            f"gradient_accumulation_steps={self.gradient_accumulation_steps}"
        )


def lr_find(
    trainer: Trainer, train_loader: Any, *, min_lr: float = 1e-7, max_lr: float = 10.0, num_steps: int = 100
) -> LrFind:
    """Return the loss of steps with a learning rate that grows from `min_lr` to `max_lr`, and a suggestion.

    It stops early when the loss is NaN or four times its lowest. The rates of several parameter groups keep their
    ratio; the rate is that of the first. Model, optimizers, random streams and loader are the same afterwards.

    Args:
        trainer: before, after or between runs.
        train_loader: gives the batches, as for `fit`.
        min_lr: first rate.
        max_lr: last rate.
        num_steps: optimizer steps.

    Raises:
        ConfigError: for rates or a number of steps that cannot work.

    Source: Smith 2017, arXiv:1506.01186, section 3.3; steepest fall instead of reading the plot by eye.
    """
    if not 0 < min_lr < max_lr or num_steps < 2:
        raise ConfigError(
            f"lr_find needs 0 < min_lr < max_lr and num_steps of at least 2, got {min_lr}, {max_lr}, {num_steps}."
        )
    lrs: list[float] = []
    losses: list[float] = []
    average = 0.0
    with _untouched(trainer) as (state, step):
        ratios = _lr_ratios(state)
        for index, window in zip(range(num_steps), _windows(trainer, train_loader), strict=False):
            lr = min_lr * (max_lr / min_lr) ** (index / (num_steps - 1))
            for group, ratio in ratios:
                _set_lr(group, lr * ratio)
            loss = float(step(state, window).loss)
            _drop_gradients(state.model)
            average = _SMOOTHING * average + (1 - _SMOOTHING) * loss
            smooth = average / (1 - _SMOOTHING ** (index + 1))
            if not math.isfinite(smooth) or (losses and smooth > _DIVERGED * min(losses) > 0):
                break
            lrs.append(lr)
            losses.append(smooth)
    return LrFind(lrs, losses, _steepest(lrs, losses))


def batch_size_find(trainer: Trainer, train_loader: Any, *, max_batch_size: int = 8192) -> BatchSizeFind:
    """Return the largest micro-batch of which whole steps fit into memory, to the last row.

    Batches are made of the rows of the loader's first batch, over and over; for rows of unequal length give a loader
    that begins with the longest. Doubles until memory runs out, then halves the gap. What a trial held is freed before
    the next. Model, optimizers, random streams and loader are the same afterwards.

    Args:
        trainer: before, after or between runs.
        train_loader: gives the batch, as for `fit`.
        max_batch_size: largest to try.

    Raises:
        ConfigError: if `max_batch_size` is below 1.
        DataError: if the rows of the batch cannot be told apart.
        torch.OutOfMemoryError: if not even one row fits.
    """
    if max_batch_size < 1:
        raise ConfigError(f"batch_size_find needs a max_batch_size of at least 1, got {max_batch_size}.")
    with _untouched(trainer) as (state, step):
        batch = next(_windows(trainer, train_loader)).batches[0]
        if not pieces.is_divisible(batch):
            raise DataError("batch_size_find needs batches whose tensors all have one row for each row of the batch.")
        tried: dict[int, bool] = {}
        fits, size = 0, min(2, max_batch_size)  # one row alone is no batch for BatchNorm: only where two do not fit
        while size <= max_batch_size and _fits(state, step, batch, size, tried):
            fits, size = size, min(2 * size, max_batch_size) if size < max_batch_size else max_batch_size + 1
        if not fits and size > 1 and _fits(state, step, batch, 1, tried):
            fits = 1
        if not fits:
            raise torch.OutOfMemoryError("not even one row fits into memory.")
        above = min([n for n, ok in tried.items() if not ok], default=fits + 1)
        while above - fits > 1:
            middle = (fits + above) // 2
            if _fits(state, step, batch, middle, tried):
                fits = middle
            else:
                above = middle
    wanted = num_rows(batch) * trainer.config.gradient_accumulation_steps
    accumulation = -(-wanted // fits)
    return BatchSizeFind(min(fits, -(-wanted // accumulation)), accumulation, tried)


def _fits(state: TrainState, step: Any, batch: Any, rows: int, tried: dict[int, bool]) -> bool:
    """Whether two steps with so many rows go through: the first makes the optimizer's own state."""
    window = Window([pieces.resized(batch, rows)], 0, 0, True)
    try:
        for _ in range(2):
            if isinstance(step, TrainStep):  # without its second try in smaller pieces
                update(state, step.gradients(state, window))
            else:
                step(state, window)
            _drop_gradients(state.model)
        tried[rows] = True
    except (RuntimeError, MemoryError) as error:
        if not pieces.is_out_of_memory(error):
            raise
        tried[rows] = False
    _drop_gradients(state.model)
    if not tried[rows]:
        pieces.free_memory()
    return tried[rows]


@contextmanager
def _untouched(trainer: Trainer) -> Iterator[tuple[TrainState, Step]]:
    """Give a state to train on, and put back whatever training changes."""
    model = trainer.model.to(trainer.device)
    kept = _Tensors(model)
    modes = [(module, module.training) for module in model.modules()]
    optimizers = [copy.deepcopy(optimizer.state_dict()) for optimizer in trainer.optimizers]
    scaler = copy.deepcopy(trainer.precision.state_dict())
    forward = copy.copy(trainer.forward.__dict__)
    with rng.fork(trainer.config.seed):
        try:
            _drop_gradients(model.train())
            config = replace(trainer.config, spike_factor=None)
            state = TrainState(model, trainer.optimizers, (), trainer.precision, config, trainer.device)
            step = trainer.step()
            yield state, getattr(step, "plain", step)  # what is tried here is not worth compiling
        finally:
            kept.put_back()
            for module, mode in modes:
                module.training = mode
            for optimizer, saved in zip(trainer.optimizers, optimizers, strict=True):
                optimizer.load_state_dict(saved)
            trainer.precision.load_state_dict(scaler)
            trainer.forward.__dict__.update(forward)


class _Tensors:
    """Parameters, gradients and buffers of a model as they are, those that `state_dict` leaves out included."""

    def __init__(self, model: nn.Module) -> None:
        self._parameters = [(p, p.detach().clone(), p.grad) for p in model.parameters()]
        self._buffers = [
            (module, name, buffer, buffer.clone())
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]

    @torch.no_grad()
    def put_back(self) -> None:
        """Make them what they were; the tensors are the same objects."""
        for parameter, value, gradient in self._parameters:
            parameter.copy_(value)
            parameter.grad = gradient
        for module, name, buffer, value in self._buffers:
            module._buffers[name] = buffer.copy_(value)


def _windows(trainer: Trainer, loader: Any) -> Iterator[Window]:
    """Yield windows of the loader without end."""
    feed = loader if isinstance(loader, Feed) else Feed(loader, seed=trainer.config.seed, device=trainer.device)
    try:
        yield from windows(feed, Progress(), trainer.config.gradient_accumulation_steps)
    finally:
        if feed is not loader:
            feed.close()


def _lr_ratios(state: TrainState) -> list[tuple[dict[str, Any], float]]:
    """Return every parameter group with its rate over that of the first one."""
    groups = [group for optimizer in state.optimizers for group in optimizer.param_groups]
    first = float(groups[0]["lr"])
    return [(group, float(group["lr"]) / first if first else 1.0) for group in groups]


def _set_lr(group: dict[str, Any], lr: float) -> None:
    given = group["lr"]
    group["lr"] = torch.full_like(given, lr) if isinstance(given, torch.Tensor) else lr


def _drop_gradients(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = None


def _steepest(lrs: list[float], losses: list[float]) -> float | None:
    """Return the rate at which the loss falls fastest over the logarithm of the rate.

    Over a tenth of the curve, and not in its first steps, where the smoothed loss is that of a few batches.
    """
    reach, start = max(1, len(losses) // 20), min(10, len(losses) // 5)
    falls = {
        index: losses[index - reach] - losses[index + reach]
        for index in range(start + reach, len(losses) - reach)
    }  # fmt: skip
    if not falls:
        return None
    steepest = max(falls, key=lambda index: falls[index])
    return lrs[steepest] if falls[steepest] > 1e-3 * abs(losses[steepest]) else None
