"""Makes the losses of a window's micro-batches one mean: the gradient is that of the one big batch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lucid.errors import LossError
from lucid.loss_rules import Count
from lucid.losses import Loss
from lucid.state import TrainState
from lucid.windows import Window


class Tally:
    """Weighs each loss by its targets, and keeps what the forward passes of the window are about to change.

    Equal shares are known before the first backward. Where counts differ, each loss weighs by its count against the
    first one's, and a last factor on the gradients puts the sum right once all counts are known.

    Args:
        state: the run's state, before the first forward pass of the window.
        window: the micro-batches.
    """

    __slots__ = ("_apart", "_counts", "_first", "_only", "_rows", "_size", "_state", "losses", "parts")

    def __init__(self, state: TrainState, window: Window) -> None:
        self._state = state
        self._size = len(window.batches)
        self._rows = window.rows
        self.losses: list[Tensor] = []
        """Mean loss of each micro-batch so far."""
        self._counts: list[Count] = []
        self._first: Count = 1
        self._only: Loss | None = None
        self._apart: Apart | None = None
        self.parts: list[tuple[int, dict[str, Loss]]] = []
        """Rows and logged parts of each micro-batch that has any."""
        if state.buffers.any:
            state.buffers.keep()

    def share(self, loss: Loss) -> Tensor:
        """Take the loss of the next micro-batch; return what to call `backward` on."""
        value, rows = loss.value, self._rows[len(self.losses)]
        if loss.parts:
            self.parts.append((rows, loss.parts))
        self.losses.append(value.detach())
        if self._size == 1:
            self._only = loss
            self._counts.append(rows if loss.count is None else loss.count)
            if loss.count is not None or loss.terms is not None:
                value = value * _alive(_num_targets(loss, rows))
                self.losses[0] = value.detach()
            return value
        if loss.terms or self._apart:
            return self._share_apart(loss, rows)
        count = loss.num_targets(rows)
        self._counts.append(count)
        if len(self._counts) == 1:
            self._first = _above_zero(count)
        return value if isinstance(count, int) and count == self._first else value * (count / self._first)

    def _share_apart(self, loss: Loss, rows: int) -> Tensor:
        if self._apart is None:
            if len(self.losses) > 1:
                raise LossError(
                    "train_step must return the same kinds of losses for every micro-batch of a step, got parts with "
                    f"counts of their own ({', '.join(loss.terms or ())}) after a micro-batch without."
                )
            self._apart = Apart(self._state)
        self._counts.append(rows)
        return self._apart.share(loss.terms or {"": loss}, rows)

    @property
    def is_full(self) -> bool:
        """Whether every micro-batch of the window was taken."""
        return len(self.losses) == self._size

    def result(self) -> tuple[Tensor, Count, Count | None]:
        """Return the window's mean loss, its count, and the factor that the gradients still need (None: none)."""
        if self._apart is not None:
            return self._apart.join(), sum(self._counts), None
        if self._size == 1:
            return self.losses[0], self._counts[0], None
        mean, total = weighted_mean(self.losses, self._counts)
        return mean, total, self._first / total if isinstance(total, Tensor) or total else math.nan

    @property
    def is_empty(self) -> bool:
        """Whether the window has no valid target at all (a host read; only asked when a step was left out)."""
        if self._apart is not None:
            return self._apart.is_empty
        only = self._only
        return float(sum(self._counts) if only is None else _num_targets(only, self._rows[0])) == 0

    def mean_parts(self) -> dict[str, Tensor]:
        """Return mean and count of each logged part, as a tensor `(2,)`."""
        means: dict[str, Tensor] = {}
        for name in self.parts[0][1]:
            found = [(parts[name], rows) for rows, parts in self.parts if name in parts]
            mean, total = weighted_mean([part.value for part, _ in found], [part.num_targets(n) for part, n in found])
            means[name] = torch.stack([mean.double(), torch.as_tensor(total, device=mean.device).double()])
        return means


class Apart:
    """Gradients of losses with different counts, kept apart until the counts of the whole window are known.

    One buffer of gradients for each loss, and one backward for each: the price of several `(sum, count)` in one step of
    several micro-batches. Where the counts are one and the same, nothing of this is needed.

    Args:
        state: the run's state.
    """

    def __init__(self, state: TrainState) -> None:
        self._state = state
        self._gradients: dict[str, list[Tensor | None]] = {}
        self._losses: dict[str, list[Tensor]] = {}
        self._counts: dict[str, list[Count]] = {}
        self._open = ""

    def share(self, terms: dict[str, Loss], rows: int) -> Tensor:
        """Run `backward` for all losses of a micro-batch but the last; return what to call it on for that one."""
        self._collect()
        *others, last = terms.items()
        for name, term in others:
            self._state.precision.scale(self._share(name, term, rows)).backward(retain_graph=True)
            self._collect()
        return self._share(*last, rows)

    def _share(self, name: str, term: Loss, rows: int) -> Tensor:
        counts = self._counts.setdefault(name, [])
        counts.append(term.num_targets(rows))
        self._losses.setdefault(name, []).append(term.value.detach())
        self._open = name
        return term.value * (counts[-1] / _above_zero(counts[0]))

    def _collect(self) -> None:
        """Move what the last backward gave from the parameters to the buffers of its loss."""
        parameters = self._state.parameters()
        kept = self._gradients.setdefault(self._open, [None] * len(parameters))
        for index, parameter in enumerate(parameters):
            gradient, parameter.grad = parameter.grad, None
            if gradient is not None:
                before = kept[index]
                kept[index] = gradient if before is None else before.add_(gradient)

    def join(self) -> Tensor:
        """Put the joint gradient into the parameters; return the sum of the mean losses."""
        self._collect()
        alive = _alive(sum(sum(counts) for counts in self._counts.values()))
        means: list[Tensor] = []
        for name, counts in self._counts.items():
            weighted, total = _weighted_sum(self._losses[name], counts)
            means.append(weighted / _above_zero(total) * alive)
            factor = _above_zero(counts[0]) / _above_zero(total) * alive
            for parameter, gradient in zip(self._state.parameters(), self._gradients[name], strict=True):
                if gradient is not None:
                    gradient.mul_(factor)
                    parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        return torch.stack(means).sum()

    @property
    def is_empty(self) -> bool:
        """Whether no loss had any target (a host read)."""
        return float(sum(sum(counts) for counts in self._counts.values())) == 0


def weighted_mean(losses: list[Tensor], counts: list[Count]) -> tuple[Tensor, Count]:
    """Return the mean of means over different counts, and the sum of the counts; NaN over nothing."""
    weighted, total = _weighted_sum(losses, counts)
    return weighted / total if isinstance(total, Tensor) or total else weighted * math.nan, total


def _weighted_sum(losses: list[Tensor], counts: list[Count]) -> tuple[Tensor, Count]:
    total, values = sum(counts), torch.stack(losses)
    if isinstance(total, Tensor):
        weights = torch.stack([torch.as_tensor(c, dtype=values.dtype, device=values.device) for c in counts])
    else:
        weights = torch.tensor(counts, dtype=values.dtype, device=values.device)
    # A micro-batch without a valid target has a NaN mean that weighs nothing.
    return torch.where(weights > 0, values * weights, torch.zeros_like(values)).sum(), total


def _num_targets(loss: Loss, rows: int) -> Count:
    if loss.terms:
        return sum(term.num_targets(rows) for term in loss.terms.values())
    return loss.num_targets(rows)


def _above_zero(count: Count) -> Count:
    """Return the count, or 1 for none: something to divide by."""
    return count.where(count > 0, 1) if isinstance(count, Tensor) else count or 1


def _alive(count: Count) -> Count:
    """Return 1 if there is a target, else NaN, which the guard finds: a step over nothing must change nothing."""
    if not isinstance(count, Tensor):
        return 1.0 if count else math.nan
    there = (count > 0).float()
    return there / there
