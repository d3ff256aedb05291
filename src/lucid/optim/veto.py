"""Steps that a number on the device can forbid, so that they may be queued before the host knows it.

Torch's fused kernels take `found_inf`, as `torch.amp.GradScaler` gives it: where it is 1 they leave weights and moments
alone and the count of steps is taken back. Not on every device: Metal's ignored it for long. So it is tried once.
"""

from __future__ import annotations

import inspect
import math
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer, optimizer

from lucid.optim._direct import DirectStep
from lucid.optim.optimizers import SGD, Adagrad, Adam, AdamW

_OURS: dict[Any, Any] = {torch.optim.SGD: SGD, torch.optim.Adagrad: Adagrad, torch.optim.AdamW: AdamW,
                         torch.optim.Adam: Adam}  # fmt: skip


def why_not(of: Optimizer) -> str | None:
    """Return why a step of this optimizer cannot be forbidden on the device, in words; None if it can."""
    kind: Any = type(of)
    name = kind.__name__
    own: Any = vars(of).get("step")  # torch's schedules replace it, and mark theirs
    ours = _ours(kind)
    if ours is None or (own is not None and not hasattr(own, "_wrapped_by_lr_sched")):
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
    for group in of.param_groups:
        device = group["params"][0].device.type if group["params"] else "cpu"
        if not obeys(ours, device):
            return f"the fused kernel of {name} does not heed found_inf on {device!r}"
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
def _ours(kind: Any) -> Any:
    """Return our class with the same kernel, or None if the step is not one that is known."""
    known = {DirectStep.step, *(inspect.unwrap(one.step) for one in _OURS)}
    if inspect.unwrap(kind.step) not in known:
        return None
    return next((ours for theirs, ours in _OURS.items() if issubclass(kind, theirs)), None)


@cache
def obeys(ours: Any, device: str) -> bool:
    """Whether a step of this class changes nothing on this kind of device where it is forbidden: tried on two numbers.

    Args:
        ours: one of our classes.
        device: kind of device, such as "cuda".
    """
    ends = []
    for flags in ((0.0,), (0.0, 1.0)):
        weight = torch.ones(2, device=device, requires_grad=True)
        made = ours([weight], lr=0.1, fused=True, **({"momentum": 0.9} if ours is SGD else {}))
        for flag in flags:
            weight.grad = torch.full_like(weight, math.nan if flag else 1.0)
            step_unless(made, torch.tensor(flag, device=device))
        ends.append([value.tolist() for value in (weight, *made.state[weight].values())])
    return ends[0] == ends[1]
