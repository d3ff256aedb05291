"""One step: forward and backward over the micro-batches of a window, then clip, update and schedule.

    for batch in window:
        loss = forward(model, batch)            # under autocast
        scale(share of loss).backward()         # a plain call
    unscale once; one denominator for the window; norm; guard; clip once
    optimizers step, schedules step             # or nothing at all, if the guard found NaN or inf
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lucid.losses import Count, Loss
from lucid.optim.clipping import clip_adaptive_, clip_by_norm_, clip_by_value_, grad_norm
from lucid.state import TrainState
from lucid.windows import Window, num_rows

Forward = Callable[[nn.Module, Any], Loss]


@dataclass(slots=True)
class StepResult:
    """What one step gave. Tensors are 0-d and stay on the device."""

    loss: Tensor
    grad_norm: Tensor
    count: Count
    parts: dict[str, Tensor] | None = None
    skipped: str | None = None
    """Why the step was left out; None if it was done."""
    micro_losses: list[Tensor] = field(default_factory=list)


class TrainStep:
    """The step of a trainer.

    Args:
        forward: takes (model, batch) and returns the loss of one micro-batch.
    """

    def __init__(self, forward: Forward) -> None:
        self.forward = forward

    def __call__(self, state: TrainState, window: Window) -> StepResult:
        """Do one step over the window."""
        precision, tally = state.precision, Tally(window)
        for batch in window.batches:
            with precision.autocast():
                loss = self.forward(state.model, batch)
            precision.scale(tally.share(loss, batch)).backward()
        return update(state, tally)


class Tally:
    """Makes the losses of a window's micro-batches one mean over all their targets.

    Equal shares are known before the first backward. Where counts differ, each loss weighs by its count against the
    first one's, and `correction` puts the sum right once all are known: the gradient is that of the one big batch.
    """

    __slots__ = ("_counts", "_first", "_losses", "_only", "_rows", "_size", "parts")

    def __init__(self, window: Window) -> None:
        self._size = len(window.batches)
        self._rows = [num_rows(batch) for batch in window.batches]
        self._losses: list[Tensor] = []
        self._counts: list[Count] = []
        self._first: Count = 1
        self._only: Loss | None = None
        self.parts: list[dict[str, Tensor]] = []

    def share(self, loss: Loss, batch: Any = None) -> Tensor:
        """Take the loss of the next micro-batch; return what to call `backward` on."""
        value, rows = loss.value, self._rows[len(self._losses)]
        if loss.parts:
            self.parts.append(loss.parts)
        self._losses.append(value.detach())
        if self._size == 1:
            self._counts.append(rows if loss.count is None else loss.count)
            self._only = loss
            return value
        count = loss.num_targets(rows)
        self._counts.append(count)
        if len(self._counts) == 1:
            self._first = count.clamp(min=1) if isinstance(count, Tensor) else max(count, 1)
            return value
        return value if isinstance(count, int) and count == self._first else value * (count / self._first)

    @property
    def is_full(self) -> bool:
        """Whether every micro-batch of the window was taken."""
        return len(self._losses) == self._size

    @property
    def losses(self) -> list[Tensor]:
        """Mean loss of each micro-batch so far."""
        return self._losses

    def result(self) -> tuple[Tensor, Count, Count | float | None]:
        """Return the window's mean loss, its count, and the factor that the gradients still need (None: none)."""
        if self._size == 1:
            return self._losses[0], self._counts[0], None
        total = sum(self._counts)
        losses = torch.stack(self._losses)
        if isinstance(total, int):
            weights = torch.tensor(self._counts, dtype=losses.dtype, device=losses.device)
        else:
            weights = torch.stack([torch.as_tensor(c, dtype=losses.dtype, device=losses.device) for c in self._counts])
        # A micro-batch without a valid target has a NaN mean that weighs nothing.
        mean = torch.where(weights > 0, losses * weights, torch.zeros_like(losses)).sum() / total
        return mean, total, self._first / total if total is not None else None

    @property
    def is_empty(self) -> bool:
        """Whether the window has no valid target at all (a host read; only asked when a step was left out)."""
        only = self._only
        return int(sum(self._counts) if only is None else only.num_targets(self._rows[0])) == 0

    def mean_parts(self) -> dict[str, Tensor] | None:
        """Return the mean of each logged part over the micro-batches."""
        if not self.parts:
            return None
        return {name: torch.stack([part[name].float() for part in self.parts]).mean() for name in self.parts[0]}


@torch.no_grad()
def update(state: TrainState, tally: Tally) -> StepResult:
    """Finish a window whose gradients are there: unscale, clip, guard, step, schedule.

    A step that the guard leaves out changes neither weights, moments, the optimizers' counts nor the schedules.
    """
    parameters = state.parameters()
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    state.precision.unscale(state.optimizers)
    loss, count, correction = tally.result()
    if correction is not None:
        torch._foreach_mul_(gradients, correction)
    norm = grad_norm(gradients)
    result = StepResult(loss, norm, count, tally.mean_parts(), None, tally.losses)
    if _clip(state, gradients, norm, loss):
        for optimizer in state.optimizers:
            optimizer.step()
        state.step_schedulers()
    else:
        result.skipped = _why(state, tally)
    state.precision.update()
    return result


def _clip(state: TrainState, gradients: list[Tensor], norm: Tensor, loss: Tensor) -> bool:
    """Clip where needed; return False, and change nothing, if the loss or the norm is NaN or inf.

    The usual case, a finite norm below the limit, is settled by one comparison.
    """
    limit, how = state.config.max_grad_norm, state.config.clip
    probe = norm + loss * 0  # NaN if either is not finite
    if limit is None or how != "norm":
        if not torch.isfinite(probe):
            return False
        if limit is not None and how == "value":
            clip_by_value_(gradients, limit)
        elif limit is not None:
            clip_adaptive_([p for p in state.parameters() if p.grad is not None], limit)
        return True
    if probe <= limit:
        return True
    if not torch.isfinite(probe):
        return False
    clip_by_norm_(gradients, norm, limit)
    return True


def _why(state: TrainState, tally: Tally) -> str:
    if tally.is_empty:
        return "no valid target in the window"
    return "gradient overflow in fp16" if state.precision.mode == "fp16" else "NaN or inf in loss or gradient"
