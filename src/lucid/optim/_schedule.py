"""`Schedule`: applies a function of the step to the values of an optimizer's groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lucid.errors import ConfigError, nearest

Factor = Callable[[int], float]


class Schedule(LRScheduler):
    """Set the learning rate of each group to its base rate times a factor of the step.

    A `torch.optim.lr_scheduler.LRScheduler` for whoever asks, but its state is the step and the base values, and
    `step` costs about a microsecond. The base rate of a group is its `initial_lr`, or its `lr` where that is not set
    yet. Groups added later join with the rate that they bring.

    Args:
        optimizer: whose groups to set.
        factor: step -> factor on the base learning rate.
        last_epoch: steps already done; -1 and 0 for a new run (torch's name).
        others: further values to schedule, by name: "weight_decay" or "momentum" (the first beta of Adam), each a
            function of the step that gives a factor on the group's own value.

    Raises:
        ConfigError: if this is no optimizer, or a group lacks a value named in `others`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        factor: Factor,
        last_epoch: int = -1,
        *,
        others: Mapping[str, Factor] | None = None,
    ) -> None:
        # Not torch's __init__: it wraps optimizer.step to warn about an order on which no state here depends.
        if not isinstance(optimizer, Optimizer):
            raise ConfigError(f"a schedule needs a torch optimizer, got {type(optimizer).__name__}.")
        self.optimizer = optimizer
        self.factor = factor
        self.others = dict(others or {})
        self.base_lrs: list[float | Tensor] = []
        self._other_bases: dict[str, list[float]] = {name: [] for name in self.others}
        self.last_epoch = max(last_epoch, 0)
        self._step_count = self.last_epoch + 1
        self.apply()

    def step(self, epoch: int | None = None) -> None:
        """Count one optimizer update and set the rates of the next; `epoch` goes to that step instead."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self._step_count += 1
        self.apply()

    def apply(self) -> None:
        """Set the optimizer's rates to those of the current step, as after loading a state into a new optimizer."""
        groups = self.optimizer.param_groups
        if len(groups) != len(self.base_lrs):
            self._join(groups)
        factor = self.factor(self.last_epoch)
        for group, base in zip(groups, self.base_lrs, strict=True):
            if type(group["lr"]) is float:
                group["lr"] = base * factor
            else:
                _set(group, "lr", base * factor)
        if self.others:
            self._apply_others(groups)

    def get_lr(self) -> list[float | Tensor]:
        """Return the rates of the current step."""
        factor = self.factor(self.last_epoch)
        return [base * factor for base in self.base_lrs]

    def get_last_lr(self) -> list[float | Tensor]:
        """Return the rates that the next update uses."""
        return [lr.clone() if isinstance(lr, Tensor) else lr for lr in (g["lr"] for g in self.optimizer.param_groups)]

    def state_dict(self) -> dict[str, Any]:
        """Return the step and the base values; everything else follows from them."""
        others = {name: list(values) for name, values in self._other_bases.items()}
        return {"last_epoch": self.last_epoch, "base_lrs": list(self.base_lrs), "other_bases": others}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a step and base values. As in torch, the current rates come with the optimizer's own state.

        Raises:
            ConfigError: if the state has another number of parameter groups.
        """
        bases, groups = state_dict["base_lrs"], self.optimizer.param_groups
        if len(bases) != len(groups):
            raise ConfigError(
                f"the schedule's state has {len(bases)} parameter groups, the optimizer has {len(groups)}. "
                "Build the optimizer as it was when the state was saved."
            )
        self.last_epoch = state_dict["last_epoch"]
        self._step_count = self.last_epoch + 1
        self.base_lrs = list(bases)
        for name, values in state_dict.get("other_bases", {}).items():
            if name in self._other_bases:
                self._other_bases[name] = list(values)

    def _initial_step(self) -> None:
        """Start at step 0: what torch's SequentialLR asks of the first scheduler it holds."""
        self._update_lr(0)

    def _update_lr(self, epoch: int | None = None) -> None:
        """Go to a step: what torch's SequentialLR asks at a milestone."""
        self.step(epoch)

    def _apply_others(self, groups: list[dict[str, Any]]) -> None:
        for name, function in self.others.items():
            factor = function(self.last_epoch)
            for group, base in zip(groups, self._other_bases[name], strict=True):
                if name == "momentum" and "betas" in group:
                    group["betas"] = (base * factor, *group["betas"][1:])
                else:
                    _set(group, name, base * factor)

    def _join(self, groups: list[dict[str, Any]]) -> None:
        for number in range(len(self.base_lrs), len(groups)):
            group = groups[number]
            lr = group["lr"]
            group.setdefault("initial_lr", lr.clone() if isinstance(lr, Tensor) else lr)
            self.base_lrs.append(float(group["initial_lr"]))
            for name, bases in self._other_bases.items():
                bases.append(_value_of(group, name, number))


def _set(group: dict[str, Any], name: str, value: float | Tensor) -> None:
    """Keep a tensor the same object: a compiled step holds on to it."""
    if isinstance(group[name], Tensor):
        group[name].fill_(value)
    else:
        group[name] = value


def _value_of(group: dict[str, Any], name: str, number: int) -> float:
    if name == "momentum" and "betas" in group:
        return float(group["betas"][0])
    if isinstance(group.get(name), int | float | Tensor) and not isinstance(group[name], bool):
        return float(group[name])
    numbers = [key for key, value in group.items() if isinstance(value, int | float) and not isinstance(value, bool)]
    hint = nearest(name, numbers)
    raise ConfigError(
        f"parameter group {number} has no number {name!r} to schedule; it has {', '.join(numbers)}.{hint}"
    )
