"""The step for optimizers that evaluate the loss several times, such as LBFGS.

loss and gradient of the window; NaN, inf or a spike?  leave the step out
optimizer.step(closure)     the closure computes loss and gradient anew, with the same random numbers
weights still finite?       else take everything back and leave the step out
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lucid import rng
from lucid.amp import Precision
from lucid.errors import ConfigError, PrecisionError
from lucid.optim.clipping import grad_norm
from lucid.state import TrainState
from lucid.step import EMPTY, Forward, StepResult, TrainStep
from lucid.tally import Tally
from lucid.windows import Window


class ClosureStep:
    """One step of one optimizer whose `step` needs a closure.

    The window is one function of the weights: every evaluation draws the same random numbers, so that dropout does not
    disturb a line search. The gradient is not clipped, since the optimizer compares it with the loss. Loss and norm of
    the first evaluation are those that are logged.

    Args:
        forward: takes (model, batch) and returns the loss of one micro-batch.
    """

    notes = ("the optimizer takes the gradient as it is: max_grad_norm does not apply",)

    def __init__(self, forward: Forward) -> None:
        self.forward = forward

    def __call__(self, state: TrainState, window: Window) -> StepResult:
        """Do one step over the window."""
        streams = rng.capture()
        weights = {name: value.clone() for name, value in state.model.state_dict().items()}
        result, tally = self._evaluate(state, window)
        after = rng.capture()
        if not torch.isfinite(state.watch.probe(result.loss, result.grad_norm)):
            state.model.load_state_dict(weights)
            result.skipped = EMPTY if tally.is_empty else state.watch.spike() or "NaN or inf in loss or gradient"
            return result
        (optimizer,) = state.optimizers
        before = copy.deepcopy(optimizer.state_dict())
        first: list[Tensor] = [result.loss]

        def closure() -> Tensor:
            if first:
                return first.pop()
            rng.restore(streams)
            return self._evaluate(state, window)[0].loss

        optimizer.step(closure)  # type: ignore[arg-type]  # a 0-d tensor, as torch's own examples return
        rng.restore(after)
        if all(bool(torch.isfinite(parameter).all()) for parameter in state.parameters()):
            state.step_schedulers()
            return result
        state.model.load_state_dict(weights)
        optimizer.load_state_dict(before)
        result.skipped = "NaN or inf in the weights after the optimizer's own evaluations"
        return result

    def _evaluate(self, state: TrainState, window: Window) -> tuple[StepResult, Tally]:
        """Return loss and norm of the window; the gradients are in the parameters."""
        for parameter in state.parameters():
            parameter.grad = None
        tally = Tally(state, window)
        for batch in window.batches:
            with torch.enable_grad(), state.precision.autocast():
                loss = self.forward(state.model, batch)
            tally.share(loss).backward()
        mean, count, correction = tally.result()
        gradients = [parameter.grad for parameter in state.parameters() if parameter.grad is not None]
        if correction is not None:
            torch._foreach_mul_(gradients, correction)
        parts = tally.mean_parts() if tally.parts else None
        return StepResult(mean, grad_norm(gradients), count, parts, None, tally.losses), tally


def step_for(forward: Forward, optimizers: Sequence[Optimizer], precision: Precision) -> TrainStep | ClosureStep:
    """Return the step that fits the optimizers.

    Raises:
        ConfigError: for several optimizers of which one needs a closure.
        PrecisionError: for one in fp16, whose scaler knows no closures.
    """
    with_closure = [type(optimizer).__name__ for optimizer in optimizers if needs_closure(optimizer)]
    if not with_closure:
        return TrainStep(forward)
    if len(optimizers) > 1:
        raise ConfigError(
            f"{with_closure[0]} evaluates the loss itself and must be the only optimizer, got {len(optimizers)}."
        )
    if precision.scaler is not None:
        raise PrecisionError(
            f"{with_closure[0]} evaluates the loss itself, which precision 'fp16' does not allow: take 'bf16', 'fp32'."
        )
    return ClosureStep(forward)


def needs_closure(optimizer: Optimizer) -> bool:
    """Whether `optimizer.step` cannot be called without a closure."""
    parameter: Any = inspect.signature(type(optimizer).step).parameters.get("closure")
    return parameter is not None and parameter.default is inspect.Parameter.empty
