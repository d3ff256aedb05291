"""Spikes: a loss or gradient norm far above what the last steps had. NaN and inf are found here as well."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

_LEAST_STEPS = 20  # a median over fewer says little


class Watch:
    """Looks at loss and gradient norm of a step before the update; this one finds NaN and inf only."""

    def probe(self, loss: Tensor, norm: Tensor) -> Tensor:
        """Return the norm, or something that is not finite if the step must be left out."""
        return torch.add(norm, loss, alpha=0)  # NaN if either is not finite, in one operation

    def spike(self) -> str | None:
        """Return what was too high in the last step, in words; None if it was no spike (a host read)."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return what the next steps are compared with."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""


class SpikeWatch(Watch):
    """Also finds a loss or norm more than `factor` times the median of the last good steps.

    Nothing is a spike before 20 steps (or `window`, if that is less) were seen. All of it stays on the device.

    Args:
        factor: how many times the median is too high; above 1.
        window: steps that the median is taken over.
    """

    def __init__(self, factor: float, window: int) -> None:
        self.factor, self.window = factor, window
        self._history = torch.full((2, window), math.nan)
        self._seen = 0
        self._values = self._medians = torch.zeros(2)
        self._bad = torch.zeros(2, dtype=torch.bool)

    def probe(self, loss: Tensor, norm: Tensor) -> Tensor:
        """Return the norm, or NaN if the step must be left out; remember a good step."""
        probe = super().probe(loss, norm)
        if self._history.device != probe.device:
            self._history = self._history.to(probe.device)
        self._values = torch.stack([loss.float(), norm.float()])
        self._medians = self._history.nanmedian(dim=1).values
        self._bad = (self._values > self.factor * self._medians) & (self._medians > 0)
        if self._seen < min(self.window, _LEAST_STEPS):
            self._bad = torch.zeros_like(self._bad)
        probe = torch.where(self._bad.any(), math.nan, probe)
        self._history[:, self._seen % self.window] = torch.where(torch.isfinite(probe), self._values, math.nan)
        self._seen += 1
        return probe

    def spike(self) -> str | None:
        """Return what was too high in the last step, in words."""
        for index, name in enumerate(("loss", "gradient norm")):
            if self._bad[index] and torch.isfinite(self._values[index]):
                value, median = float(self._values[index]), float(self._medians[index])
                return f"spike: {name} {value:.4g} is {value / median:.3g} times the median of the last steps"
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the last values and how many steps were seen."""
        return {"history": self._history, "seen": self._seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the values of a checkpoint; with another window length, begin anew."""
        if state and state["history"].shape == self._history.shape:
            self._history, self._seen = state["history"].clone(), int(state["seen"])


def make_watch(factor: float | None, window: int) -> Watch:
    """Return what looks at every step: for NaN and inf only, or for spikes as well."""
    return Watch() if factor is None else SpikeWatch(factor, window)
