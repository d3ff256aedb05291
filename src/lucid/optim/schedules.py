"""The named schedules: pure functions of the step, by name, and what builds a scheduler from one.

A schedule is `(step, *, total_steps, ...) -> factor on the base learning rate`, where `step` counts the optimizer
updates already done, from 0: update number k (from 0) uses the factor of step k. Beyond `total_steps` the last
value stays.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lucid.errors import ConfigError, nearest
from lucid.optim._curves import (
    constant,
    one_cycle,
    step_decay,
    warmup_cosine,
    warmup_linear,
    warmup_stable_decay,
)
from lucid.optim._schedule import Factor, Schedule

__all__ = [
    "EXTENSION",
    "Factor",
    "Schedule",
    "build",
    "constant",
    "make",
    "names",
    "one_cycle",
    "options",
    "preview",
    "step_decay",
    "warmup_cosine",
    "warmup_linear",
    "warmup_stable_decay",
]

_CURVES: dict[str, Callable[..., float]] = {
    "warmup_cosine": warmup_cosine,
    "warmup_linear": warmup_linear,
    "warmup_stable_decay": warmup_stable_decay,
    "one_cycle": one_cycle,
    "step_decay": step_decay,
    "constant": constant,
}

_JUMPS = "goes on at this step's value on the curve of the longer run, which is higher than where the shorter one ended"
EXTENSION: dict[str, str] = {
    "warmup_cosine": _JUMPS,
    "warmup_linear": _JUMPS,
    "warmup_stable_decay": "is constant until the new decay begins; from before the old decay it is exact",
    "one_cycle": _JUMPS,
    "step_decay": "milestones given as steps and `every` stay; those given as shares move with the new total",
    "constant": "goes on unchanged",
}
"""What a schedule does when a run is made longer: it is a function of the step and the new total, nothing else."""


def names() -> list[str]:
    """Return the names of all schedules."""
    return list(_CURVES)


def options(name: str) -> dict[str, Any]:
    """Return the options of a schedule and their defaults.

    Raises:
        ConfigError: if there is no schedule of this name.
    """
    parameters = inspect.signature(_curve(name)).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "total_steps"}


def make(name: str, total_steps: int, **chosen: Any) -> Factor:
    """Return a schedule with everything but the step filled in, checked.

    Args:
        name: one of `names()`.
        total_steps: steps of the whole run.
        **chosen: options of that schedule; see `options(name)`.

    Raises:
        ConfigError: for an unknown name or option, or a value that cannot work.

    Example:
        >>> make("step_decay", 100, gamma=0.5)(50)
        0.5
    """
    curve, known = _curve(name), options(name)
    for key in chosen:
        if key not in known:
            hint = nearest(key, known)
            raise ConfigError(f"schedule {name!r} has no option {key!r}; it has {', '.join(known)}.{hint}")
    factor = partial(curve, total_steps=total_steps, **chosen)
    for step in (0, total_steps):  # a wrong value is found here, not in the middle of a run
        factor(step)
    return factor


def build(
    name: str, optimizer: Optimizer, total_steps: int, *, others: Mapping[str, Factor] | None = None, **chosen: Any
) -> Schedule:
    """Return a scheduler that applies a named schedule to an optimizer.

    Args:
        name: one of `names()`.
        optimizer: whose learning rates to set; each group's own rate is its base.
        total_steps: steps of the whole run.
        others: schedules of further values, as `Schedule` takes them, such as `{"weight_decay": make(...)}`.
        **chosen: options of that schedule; see `options(name)`.

    Raises:
        ConfigError: for an unknown name or option, or a value that cannot work.
    """
    return Schedule(optimizer, make(name, total_steps, **chosen), others=others)


def preview(scheduler: LRScheduler, total_steps: int) -> list[list[float]]:
    """Return the learning rates that updates 0 to `total_steps - 1` will use, one list per parameter group.

    Works for any scheduler that steps once per update, from where it stands now; scheduler and optimizer are left
    alone.

    Args:
        scheduler: ours or torch's.
        total_steps: how many updates to look ahead.
    """
    optimizer = scheduler.optimizer
    params = [[torch.nn.Parameter(torch.zeros(()))] for _ in optimizer.param_groups]
    groups = [
        {
            **{key: copy.deepcopy(value) for key, value in group.items() if key not in ("params", "param_names")},
            "params": p,
        }
        for group, p in zip(optimizer.param_groups, params, strict=True)
    ]
    stand_in = torch.optim.Optimizer(groups, dict(optimizer.defaults))
    stand_in._opt_called = True  # type: ignore[attr-defined]  # torch warns if no update came before
    stand_in.step = _no_step  # type: ignore[method-assign,assignment]
    ahead = copy.deepcopy(scheduler, {id(optimizer): stand_in})
    rates: list[list[float]] = [[] for _ in groups]
    for number in range(total_steps):
        if number:
            ahead.step()
        for group, trace in zip(stand_in.param_groups, rates, strict=True):
            trace.append(float(group["lr"]))
    return rates


def _no_step() -> None:
    """Stand for the step of an optimizer that has nothing to train."""


_no_step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]


def _curve(name: str) -> Callable[..., float]:
    if name not in _CURVES:
        raise ConfigError(f"there is no schedule {name!r}; there are {', '.join(_CURVES)}.{nearest(name, _CURVES)}")
    return _CURVES[name]
