"""Schedules as pure functions of the step, and the scheduler that applies one to an optimizer.

A schedule is `(step, *, total_steps, ...) -> factor on the base learning rate`, where `step` counts the optimizer
updates already done, from 0: update number k (from 0) uses the factor of step k. Beyond `total_steps` the last
value stays. The functions are in `_curves.py`, by name here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor
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

__all__ = [
    "Factor",
    "Schedule",
    "build",
    "constant",
    "make",
    "names",
    "one_cycle",
    "options",
    "step_decay",
    "warmup_cosine",
    "warmup_linear",
    "warmup_stable_decay",
]

Factor = Callable[[int], float]

_CURVES: dict[str, Callable[..., float]] = {
    "warmup_cosine": warmup_cosine,
    "warmup_linear": warmup_linear,
    "warmup_stable_decay": warmup_stable_decay,
    "one_cycle": one_cycle,
    "step_decay": step_decay,
    "constant": constant,
}


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
    """
    curve, known = _curve(name), options(name)
    for key in chosen:
        if key not in known:
            raise ConfigError(
                f"schedule {name!r} has no option {key!r}; it has {', '.join(known) or 'none'}.{nearest(key, known)}"
            )
    factor = partial(curve, total_steps=total_steps, **chosen)
    factor(0)  # a wrong value is found here, not at the first step
    return factor


def build(name: str, optimizer: Optimizer, total_steps: int, **chosen: Any) -> Schedule:
    """Return a scheduler that applies a named schedule to an optimizer.

    Args:
        name: one of `names()`.
        optimizer: whose learning rates to set; each group's own rate is its base.
        total_steps: steps of the whole run.
        **chosen: options of that schedule; see `options(name)`.

    Raises:
        ConfigError: for an unknown name or option, or a value that cannot work.
    """
    return Schedule(optimizer, make(name, total_steps, **chosen))


class Schedule(LRScheduler):
    """Set the learning rate of each group to its base rate times a factor of the step.

    A `torch.optim.lr_scheduler.LRScheduler` for whoever asks, but its state is the step alone, and `step` costs
    two microseconds. Base rates are each group's `initial_lr`, or `lr` where that is not set yet.

    Args:
        optimizer: whose groups to set.
        factor: step -> factor on the base learning rate.
        last_epoch: steps already done; -1 for a new run (torch's name).
        others: further values to schedule, by name: "weight_decay" or "momentum" (the first beta of Adam), each a
            function of the step that gives a factor on the group's own value.

    Raises:
        ConfigError: if a group lacks a value named in `others`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        factor: Factor,
        last_epoch: int = -1,
        *,
        others: Mapping[str, Factor] | None = None,
    ) -> None:
        # Not torch's __init__: it wraps optimizer.step to warn about an order that no state here depends on.
        if not isinstance(optimizer, Optimizer):
            raise ConfigError(f"a schedule needs a torch optimizer, got {type(optimizer).__name__}.")
        self.optimizer = optimizer
        self.factor = factor
        self.others = dict(others or {})
        self.base_lrs: list[float | Tensor] = []
        self._other_bases: dict[str, list[float]] = {name: [] for name in self.others}
        self._add_groups()
        self.last_epoch = max(last_epoch, 0)
        self._step_count = 1
        self._apply()

    def step(self, epoch: int | None = None) -> None:
        """Count one optimizer update and set the rates of the next."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self._step_count += 1
        self._apply()

    def get_lr(self) -> list[float | Tensor]:
        """Return the rates of the current step."""
        factor = self.factor(self.last_epoch)
        return [base * factor for base in self.base_lrs]

    def get_last_lr(self) -> list[float | Tensor]:
        """Return the rates that the next update uses."""
        return [lr.clone() if isinstance(lr, Tensor) else lr for lr in (g["lr"] for g in self.optimizer.param_groups)]

    def state_dict(self) -> dict[str, Any]:
        """Return the step and the base values; everything else follows from them."""
        return {
            "last_epoch": self.last_epoch,
            "base_lrs": [_plain(lr) for lr in self.base_lrs],
            "other_bases": {name: list(values) for name, values in self._other_bases.items()},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a step and base values, and set the optimizer's rates to that step's.

        Raises:
            ConfigError: if the state has another number of parameter groups.
        """
        bases = state_dict["base_lrs"]
        if len(bases) != len(self.optimizer.param_groups):
            raise ConfigError(
                f"the schedule's state has {len(bases)} parameter groups, the optimizer has "
                f"{len(self.optimizer.param_groups)}. Build the optimizer as it was when the state was saved."
            )
        self.last_epoch = state_dict["last_epoch"]
        self._step_count = self.last_epoch + 1
        self.base_lrs = list(bases)
        for name, values in state_dict.get("other_bases", {}).items():
            if name in self._other_bases:
                self._other_bases[name] = list(values)
        self._apply()

    def _initial_step(self) -> None:
        """Set the rates of step 0 again: what torch's SequentialLR asks of the schedulers it holds."""
        self.last_epoch, self._step_count = 0, 1
        self._apply()

    def _apply(self) -> None:
        groups = self.optimizer.param_groups
        if len(groups) != len(self.base_lrs):
            self._add_groups()
        factor = self.factor(self.last_epoch)
        for group, base in zip(groups, self.base_lrs, strict=True):
            lr = group["lr"]
            if isinstance(lr, Tensor):
                lr.fill_(_plain(base) * factor)
            else:
                group["lr"] = base * factor
        if self.others:
            self._apply_others(groups)

    def _apply_others(self, groups: list[dict[str, Any]]) -> None:
        for name, function in self.others.items():
            factor = function(self.last_epoch)
            for group, base in zip(groups, self._other_bases[name], strict=True):
                if name == "momentum" and "betas" in group:
                    group["betas"] = (base * factor, *group["betas"][1:])
                else:
                    group[name] = base * factor

    def _add_groups(self) -> None:
        for number, group in enumerate(self.optimizer.param_groups):
            if number < len(self.base_lrs):
                continue
            lr = group["lr"]
            self.base_lrs.append(_plain(group.setdefault("initial_lr", lr.clone() if isinstance(lr, Tensor) else lr)))
            for name, bases in self._other_bases.items():
                bases.append(_value_of(group, name, number))


def _value_of(group: dict[str, Any], name: str, number: int) -> float:
    if name == "momentum" and "betas" in group:
        return float(group["betas"][0])
    if name not in group or not isinstance(group[name], int | float):
        numbers = [key for key, value in group.items() if isinstance(value, float)]
        raise ConfigError(
            f"parameter group {number} has no number {name!r} to schedule; it has {', '.join(numbers)}."
            f"{nearest(name, numbers)}"
        )
    return float(group[name])


def _plain(lr: float | Tensor) -> float:
    return float(lr)  # read once, at set-up


def _curve(name: str) -> Callable[..., float]:
    if name not in _CURVES:
        raise ConfigError(f"there is no schedule {name!r}; there are {', '.join(_CURVES)}.{nearest(name, _CURVES)}")
    return _CURVES[name]
