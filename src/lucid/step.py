"""One step: forward and backward over the micro-batches of a window, then clip, update and schedule.

for batch in window:
    loss = forward(model, batch)            # under autocast
    scale(share of loss).backward()         # a plain call
unscale once; one denominator for the window; norm
clip once, optimizers step, schedules step  # or nothing at all, if the norm is NaN or inf: `verdict.py`
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lucid.loss_rules import Count
from lucid.losses import Loss
from lucid.optim.clipping import grad_norm
from lucid.pieces import cut, free_memory, halve, joined
from lucid.state import TrainState
from lucid.tally import Tally
from lucid.windows import Window

Forward = Callable[[nn.Module, Any], Loss]

# Why steps are left out that were no fault: no policy but "skip" applies to them.
EMPTY = "no valid target in the window"
OVERFLOW = "gradient overflow in fp16"
UNSURE = "gradient overflow in fp16, or a fault: the step before was good at the same scale"
OMITTED = "its window is left out since the run went back to a checkpoint"
HARMLESS = (EMPTY, OVERFLOW, UNSURE, OMITTED)


@dataclass(slots=True)
class StepResult:
    """What one step gave. Tensors are 0-d and stay on the device."""

    loss: Tensor
    grad_norm: Tensor
    count: Count
    parts: dict[str, Tensor] | None = None
    """Mean and count of each logged part, `(2,)`."""
    skipped: str | None = None
    """Why the step was left out; None if it was done."""
    micro_losses: list[Tensor] = field(default_factory=list)


class TrainStep:
    """The step of a trainer.

    Args:
        forward: takes (model, batch) and returns the loss of one micro-batch.
    """

    notes: tuple[str, ...] = ()

    def __init__(self, forward: Forward) -> None:
        self.forward = forward

    def __call__(self, state: TrainState, window: Window) -> StepResult:
        """Do one step over the window, in smaller pieces if memory runs out."""
        while True:
            try:
                halvings = state.progress.halvings
                tally = self.gradients(state, cut(window, halvings) if halvings else window)
            except (RuntimeError, MemoryError) as error:
                if not halve(state, window, error):
                    raise
            else:
                break
            free_memory()
        result = update(state, tally)
        if halvings:
            result.micro_losses = joined(result.micro_losses, window, halvings)
        return result

    def gradients(self, state: TrainState, window: Window) -> Tally:
        """Run the forward and backward passes of the window."""
        precision, tally = state.precision, Tally(state, window)
        for batch in window.batches:
            with precision.autocast():
                loss = self.forward(state.model, batch)
            precision.scale(tally.share(loss)).backward()
        return tally


@torch.no_grad()
def update(state: TrainState, tally: Tally) -> StepResult:
    """Finish a window whose gradients are there: unscale, clip, guard, step, schedule.

    A step that the guard leaves out changes no weight, buffer, moment, count of an optimizer or schedule.
    """
    loss, count, correction = tally.result()
    gradients = [parameter.grad for parameter in state.parameters() if parameter.grad is not None]
    state.precision.unscale(state.optimizers)
    if correction is not None:
        torch._foreach_mul_(gradients, correction)
    norm = grad_norm(gradients)
    result = StepResult(loss, norm, count, tally.mean_parts() if tally.parts else None, None, tally.losses)
    if state.verdict.settle(state, gradients, norm, state.watch.probe(loss, norm)):
        state.step_schedulers()
    else:
        state.buffers.restore()
        result.skipped = _why(state, tally, loss)
    state.precision.update()
    return result


def _why(state: TrainState, tally: Tally, loss: Tensor) -> str:
    if tally.is_empty:
        return EMPTY
    scaler = state.precision.scaler
    if scaler is not None and torch.isfinite(loss) and scaler.get_scale() > 1 and not state.watch.spike():
        return UNSURE if scaler.has_held() else OVERFLOW  # the scale was too high: the scaler lowers it
    return state.watch.spike() or "NaN or inf in loss or gradient"
