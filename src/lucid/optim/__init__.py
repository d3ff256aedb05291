"""Optimizers, schedules, parameter groups and clipping.

| file | question it answers |
|---|---|
| `optimizers.py` | `AdamW`, `Adam`, `SGD`, `Adagrad` that take the fused kernel where they can |
| `lr_scheduler.py` | torch's schedulers, and the named schedules as functions of an optimizer |
| `schedules.py` | the named schedules as pure functions of the step, `build`, `preview` |
| `_schedule.py`, `_curves.py` | the scheduler that applies a function of the step; the functions |
| `groups.py` | `param_groups`: which parameters get which learning rate and weight decay |
| `clipping.py` | norm of the gradient, and three ways to limit it |
| `veto.py` | steps that a number on the device can forbid |

Any other name is `torch.optim`'s own.
"""

from __future__ import annotations

from typing import Any

import torch.optim

from lucid.optim import clipping, lr_scheduler, schedules
from lucid.optim.groups import describe_groups, param_groups
from lucid.optim.lr_scheduler import build_scheduler, warmup_cosine
from lucid.optim.optimizers import SGD, Adagrad, Adam, AdamW, can_fuse
from lucid.optim.schedules import Schedule

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Schedule",
    "build_scheduler",
    "can_fuse",
    "clipping",
    "describe_groups",
    "lr_scheduler",
    "param_groups",
    "schedules",
    "warmup_cosine",
]


def __getattr__(name: str) -> Any:
    return getattr(torch.optim, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *dir(torch.optim)})
