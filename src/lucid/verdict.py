"""Clip and update, unless the gradient norm says that the step must be left out: at once, or queued before it is read.

at once     read the norm; clip; update                             # any optimizer, any way to clip
queued      flag on its way to the host; clip; update, which the flag forbids on the device; read the flag

On an accelerator reading the norm waits for the backward pass. In the queued form the update is there for the device to
go on with while the host wakes up. Both give the same bits; `docs/design/guard.md` has the reasons.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from lucid.optim.clipping import clip_adaptive_, clip_by_norm_, clip_by_value_, norm_factor, scale_
from lucid.optim.veto import step_unless, why_not

if TYPE_CHECKING:
    from lucid.state import TrainState


class Verdict:
    """The form for a CPU, where a read waits for nothing: at once."""

    def settle(self, state: TrainState, gradients: list[Tensor], norm: Tensor, probe: Tensor) -> bool:
        """Clip and update; or return False, and change nothing, if the step must be left out.

        The usual case, a finite norm below the limit, is settled by one comparison.

        Args:
            state: its optimizers step.
            gradients: unscaled.
            norm: their norm.
            probe: the norm, or NaN or inf if the step must be left out.
        """
        limit, how = state.config.max_grad_norm, state.config.clip
        if limit is None or how != "norm":
            if not torch.isfinite(probe):
                return False
            if limit is not None and how == "value":
                clip_by_value_(gradients, limit)
            elif limit is not None:
                clip_adaptive_([p for p in state.parameters() if p.grad is not None], limit)
        elif not probe <= limit:
            if not torch.isfinite(probe):
                return False
            clip_by_norm_(gradients, norm, limit)
        for optimizer in state.optimizers:
            optimizer.step()
        return True

    def notes(self, state: TrainState) -> list[str]:
        """Return when the norm is read, in words; nothing where that makes no difference."""
        return []


class QueuedVerdict(Verdict):
    """The form for an accelerator, where the optimizers can be forbidden to step: queued.

    Args:
        signal: brings a flag from the device to the host.
    """

    def __init__(self, signal: Signal) -> None:
        self._signal = signal

    def settle(self, state: TrainState, gradients: list[Tensor], norm: Tensor, probe: Tensor) -> bool:
        """Clip and update on the device, and only then read whether the device did."""
        if self._why_at_once(state) or any(gradient.is_sparse for gradient in gradients):
            return super().settle(state, gradients, norm, probe)
        nothing = probe - probe  # NaN if the step must be left out, else 0
        flag = (nothing != 0).float()
        self._signal.send(flag)
        limit = state.config.max_grad_norm
        if limit is not None:
            # 1 up to the limit, as in the other form; and if left out, so that the gradients can still be looked at
            scale_(gradients, torch.where(probe + nothing > limit, norm_factor(norm, limit), 1.0))
        known = [len(optimizer.state) for optimizer in state.optimizers]
        for optimizer in state.optimizers:
            step_unless(optimizer, flag)
        if not self._signal.arrived():
            return True
        for optimizer, number in zip(state.optimizers, known, strict=True):
            while len(optimizer.state) > number:  # those that the step has just made
                optimizer.state.popitem()
        return False

    def notes(self, state: TrainState) -> list[str]:
        """Return when the norm is read, in words."""
        why = self._why_at_once(state)
        if why is None:
            return ["the update is queued before the gradient norm is read"]
        return [f"the device waits while the gradient norm is read, before each update: {why}"]

    def _why_at_once(self, state: TrainState) -> str | None:
        if state.config.max_grad_norm is not None and state.config.clip != "norm":
            return f"clip is {state.config.clip!r}, not 'norm'"
        return next((why for why in map(why_not, state.optimizers) if why), None)


class Signal:
    """A flag on its way to the host, which waits for nothing that is queued after `send`.

    Args:
        device: where the flags are; on a CPU there is no way to go.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._flag = torch.zeros(())
        self._event: torch.Event | None = None
        if device.type != "cpu":
            self._flag, self._event = torch.zeros((), pin_memory=True), torch.Event(device)

    def send(self, flag: Tensor) -> None:
        """Queue the copy of a flag, 0 or 1."""
        self._flag.copy_(flag, non_blocking=True)
        if self._event is not None:
            self._event.record(torch.accelerator.current_stream(self._device))

    def arrived(self) -> bool:
        """Wait for the flag that was sent last; return whether it is 1."""
        if self._event is not None:
            self._event.synchronize()
        return bool(self._flag)


def make_verdict(device: torch.device, form: Literal["auto", "at once", "queued"] = "auto") -> Verdict:
    """Return the form for a device; "auto" is at once on a CPU and where the device has no events, queued elsewhere."""
    if form == "at once" or (form == "auto" and device.type == "cpu"):
        return Verdict()
    try:
        signal = Signal(device)
        signal.send(torch.zeros((), device=device))
        signal.arrived()
    except RuntimeError:  # a backend without page-locked memory or events
        return Verdict()
    return QueuedVerdict(signal)
