"""What is known about a step that was left out: rows, micro-batch, first bad parameter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lucid.state import TrainState, unwrap
from lucid.step import StepResult
from lucid.windows import Window

_ROWS_NAMED = 64


def explain(
    rows_of: Callable[[int, int], list[int]], state: TrainState, window: Window, result: StepResult
) -> dict[str, Any]:
    """Name what is bad in a step that was left out. Reads tensors: only called in that case.

    Args:
        rows_of: gives the row numbers of (epoch, micro-batch).
        state: its gradients are still those of the step.
        window: the micro-batches of the step.
        result: what the step gave.

    Returns:
        Any of "micro_batch" (place in the window, from 0), "parameter" (the first whose gradient is NaN or inf),
        "rows" (row numbers of that micro-batch or, if none is known to be bad, of the window).
    """
    info: dict[str, Any] = {}
    bad = [index for index, loss in enumerate(result.micro_losses) if not torch.isfinite(loss)]
    if bad:
        info["micro_batch"] = bad[0]
    for name, parameter in unwrap(state.model).named_parameters():
        if parameter.grad is not None and not torch.isfinite(_values(parameter.grad)).all():
            info["parameter"] = name
            break
    places = [window.start + index for index in bad[:1]] or range(window.start, window.start + len(window.batches))
    rows = [row for place in places for row in rows_of(window.epoch, place)]
    if rows:
        info["rows"] = rows[:_ROWS_NAMED]
    return info


def _values(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient
