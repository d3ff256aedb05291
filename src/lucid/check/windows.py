"""Whether the micro-batches of a step together give the gradient of one big batch, and if not, why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from lucid import rng
from lucid.check.report import Section
from lucid.serialization import unwrap
from lucid.state import TrainState
from lucid.step import TrainStep
from lucid.trainer import Trainer
from lucid.utils.data import Feed
from lucid.windows import Window

_MICRO_BATCHES = 3
_CLOSE = {"fp32": 1e-4, "bf16": 5e-2, "fp16": 2e-2}


def first_batches(feed: Feed) -> list[Any]:
    """Return the first micro-batches of the data."""
    with rng.fork():
        return list(islice(feed.batches(0), _MICRO_BATCHES))


def accumulation(trainer: Trainer, batches: list[Any]) -> Section:
    """Compare the gradient of a window with that of its micro-batches joined."""
    size = trainer.config.gradient_accumulation_steps
    section = Section("accumulation", "do micro-batches give the gradient of the one big batch?")
    try:
        joined = join(batches)
    except (TypeError, ValueError, RuntimeError) as error:
        section.skipped = f"the micro-batches cannot be joined: {error}"
        return section
    if len(batches) < 2:
        section.skipped = "there is a single batch"
        return section
    if _far(trainer, batches, joined) is None:
        return section
    cause = _cause(trainer, batches, joined)
    if cause == "dropout":
        section.note("dropout", "draws other masks for micro-batches than for one big batch; without it they agree.")
    elif size == 1:
        section.note(cause, f"they would not agree ({_TEXTS[cause][0].rstrip('.')}), but a step has one micro-batch.")
    else:
        section.fault(cause, *_TEXTS[cause])
    return section


_TEXTS = {
    "BatchNorm": (
        "normalises each micro-batch by its own statistics, so accumulation is not one big batch.",
        "Take GroupNorm or LayerNorm, or freeze the BatchNorms (eval mode), or use the full batch size.",
    ),
    "counts": (
        "the loss is a mean over something else than it is counted by, so micro-batches get wrong weights.",
        "Return (sum, count) from train_step: the sum of the losses and over how many targets it goes.",
    ),
}


def _cause(trainer: Trainer, batches: list[Any], joined: Any) -> str:
    for name, kinds in (
        ("dropout", (_DropoutNd,)),
        ("BatchNorm", (_BatchNorm,)),
        ("BatchNorm", (_BatchNorm, _DropoutNd)),
    ):
        with _in_eval(trainer.model, kinds) as found:
            if found and _far(trainer, batches, joined) is None:
                return name
    return "counts"


def _far(trainer: Trainer, batches: list[Any], joined: Any) -> str | None:
    """Return the parameter whose gradient differs most, or None if all agree."""
    one, other = gradient(trainer, batches), gradient(trainer, [joined])
    worst, name = 0.0, None
    for key, value in other.items():
        scale = float(value.norm()) + 1e-12
        distance = float((one[key] - value).norm()) / scale if key in one else 1.0
        if distance > worst and scale > 1e-7:
            worst, name = distance, key
    return name if worst > _CLOSE[trainer.precision.mode] else None


def gradient(trainer: Trainer, batches: list[Any]) -> dict[str, Tensor]:
    """Return the gradients that the run's own step makes of a window, and leave no trace."""
    model = trainer.model
    state = TrainState(model, trainer.optimizers, (), trainer.precision, trainer.config, trainer.device)
    window = Window(batches, 0, 0, False)
    kept = {name: value.detach().clone() for name, value in unwrap(model).named_buffers()}
    with rng.fork(seed=3), _put_back(model, kept):
        tally = TrainStep(trainer.forward).gradients(state, window)
        factor = tally.result()[2]
        scale = 1.0 if trainer.precision.scaler is None else float(trainer.precision.scaler.get_scale())
        named = unwrap(model).named_parameters()
        return {
            n: p.grad.detach().clone() * (1.0 if factor is None else factor) / scale
            for n, p in named
            if p.grad is not None
        }


@contextmanager
def _put_back(model: nn.Module, buffers: dict[str, Tensor]) -> Iterator[None]:
    try:
        yield
    finally:
        for parameter in model.parameters():
            parameter.grad = None
        live = dict(unwrap(model).named_buffers())
        with torch.no_grad():
            for name, value in buffers.items():
                live[name].copy_(value)


@contextmanager
def _in_eval(model: nn.Module, kinds: tuple[type, ...]) -> Iterator[bool]:
    """Inside, modules of these kinds are in eval mode; gives whether any was in train mode."""
    found = [module for module in model.modules() if isinstance(module, kinds) and module.training]
    for module in found:
        module.training = False
    try:
        yield bool(found)
    finally:
        for module in found:
            module.training = True


def join(batches: list[Any]) -> Any:
    """Return several batches as one.

    Raises:
        TypeError: if they hold something that cannot be joined.
    """
    first = batches[0]
    if isinstance(first, Tensor):
        return torch.cat(batches) if first.dim() else torch.stack(batches)
    if isinstance(first, Mapping):
        return {key: join([batch[key] for batch in batches]) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(join(list(items)) for items in zip(*batches, strict=True)))
    if isinstance(first, list | tuple):
        if not any(isinstance(item, Tensor | Mapping | list | tuple) for item in first):
            return type(first)(item for batch in batches for item in batch)
        return type(first)(join(list(items)) for items in zip(*batches, strict=True))
    raise TypeError(f"a {type(first).__name__} in a batch")
