"""Steps that a number on the device can forbid, so that they may be queued before the host knows it.

Torch's fused kernels take `found_inf`, as `torch.amp.GradScaler` gives it: where it is 1 they leave weights and moments
alone and the count of steps is taken back.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer, optimizer

from lucid.optim._direct import DirectStep

_TORCHS: tuple[Any, ...] = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)


def why_not(of: Optimizer) -> str | None:
    """Return why a step of this optimizer cannot be forbidden on the device, in words; None if it can."""
    kind: Any = type(of)
    name = kind.__name__
    own: Any = vars(of).get("step")  # torch's schedules replace it, and mark theirs
    if not _has_known_step(kind) or (own is not None and not hasattr(own, "_wrapped_by_lr_sched")):
        return f"the step of {name} is not torch's own"
    if not all(group["fused"] for group in of.param_groups):
        return f"{name} is not fused"
    hooks: Any = of
    if (
        hooks._optimizer_step_pre_hooks
        or hooks._optimizer_step_post_hooks
        or optimizer._global_optimizer_pre_hooks
        or optimizer._global_optimizer_post_hooks
    ):
        return f"hooks watch the steps of {name}"
    return None


def step_unless(of: Optimizer, forbidden: Tensor) -> None:
    """Step, or change no number if `forbidden` is 1; states that the step makes for new parameters stay.

    Args:
        of: an optimizer for which `why_not` gave None.
        forbidden: 0 or 1, () float32, on any device.
    """
    of.found_inf = forbidden  # type: ignore[attr-defined]  # torch's name for it
    try:
        of.step()
    finally:
        del of.found_inf  # type: ignore[attr-defined]


@cache
def _has_known_step(kind: Any) -> bool:
    return inspect.unwrap(kind.step) in {DirectStep.step, *(inspect.unwrap(one.step) for one in _TORCHS)}
