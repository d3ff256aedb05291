"""Torch's schedulers under their names, and the named schedules as functions of an optimizer.

`CosineAnnealingLR` takes `t_max` as well as torch's `T_max`. Any other name is `torch.optim.lr_scheduler`'s own.
"""

from __future__ import annotations

from typing import Any

import torch.optim.lr_scheduler as _torch
from torch.optim import Optimizer

from lucid.errors import ConfigError
from lucid.optim.schedules import Schedule, build

__all__ = ["CosineAnnealingLR", "Schedule", "build_scheduler", "warmup_cosine"]


class CosineAnnealingLR(_torch.CosineAnnealingLR):
    """`torch.optim.lr_scheduler.CosineAnnealingLR`, with `t_max` as a second spelling of `T_max`.

    Args:
        optimizer: whose learning rate to set.
        T_max: calls of `step` until the lowest rate.
        eta_min: lowest rate.
        last_epoch: calls of `step` already made; -1 for a new run.
        t_max: the same as `T_max`; give one of them.

    Raises:
        ConfigError: if neither or both are given.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        T_max: int | None = None,  # noqa: N803 - torch's own spelling
        eta_min: float = 0.0,
        last_epoch: int = -1,
        *,
        t_max: int | None = None,
    ) -> None:
        if (T_max is None) == (t_max is None):
            raise ConfigError(f"CosineAnnealingLR needs one of T_max and t_max, got T_max={T_max}, t_max={t_max}.")
        super().__init__(optimizer, T_max if T_max is not None else t_max, eta_min, last_epoch)  # type: ignore[arg-type]


def warmup_cosine(optimizer: Optimizer, warmup_steps: int, total_steps: int, **options: Any) -> Schedule:
    """Return a schedule for the optimizer: linear warm-up, then half a cosine down to `min_lr_ratio`.

    Args:
        optimizer: whose learning rate to set.
        warmup_steps: steps of rise; 0 for none.
        total_steps: steps of the whole run, warm-up included.
        **options: further ones of `schedules.warmup_cosine`.
    """
    return build("warmup_cosine", optimizer, total_steps, warmup_steps=warmup_steps, **options)


def build_scheduler(optimizer: Optimizer, total_steps: int, name: str = "warmup_cosine", **options: Any) -> Schedule:
    """Return a named schedule for a run of this many steps.

    Args:
        optimizer: whose learning rate to set.
        total_steps: steps of the whole run.
        name: one of `schedules.names()`. Default: what most networks are trained with.
        **options: those of the schedule. `warmup_steps` left out means 5 % of the run where the schedule warms up.
    """
    if name.startswith("warmup"):
        options.setdefault("warmup_steps", total_steps // 20)
    return build(name, optimizer, total_steps, **options)


def __getattr__(name: str) -> Any:
    return getattr(_torch, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *dir(_torch)})
