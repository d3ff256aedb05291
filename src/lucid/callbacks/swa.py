"""Stochastic weight averaging: the plain mean of the weights from a step on, used for evaluation."""

from __future__ import annotations

from typing import Any

from lucid.callbacks.averaging import Averaging
from lucid.errors import ConfigError


class SWA(Averaging):
    """Averages the weights of every `every`-th step from `start` on, all with one weight.

    Before `start` the average follows the weights, so that evaluations see the raw ones then. Use
    a constant or cyclic learning rate from `start` on, such as `torch.optim.swa_utils.SWALR`. A model with BatchNorm
    needs its running averages taken anew for the averaged weights: `torch.optim.swa_utils.update_bn`.

    Args:
        start: first step that counts.
        every: steps between two that count; steps per epoch for one model per epoch.

    Raises:
        ConfigError: if `start` or `every` is below 1.

    Source: Izmailov et al. 2018, arXiv:1803.05407, algorithm 1.
    """

    def __init__(self, start: int, every: int = 1) -> None:
        if start < 1 or every < 1:
            raise ConfigError(f"SWA start and every must be at least 1, got {start} and {every}.")
        super().__init__()
        self.start, self.every = start, every
        self.num_averaged = 0

    def share(self, step: int) -> float | None:
        """Return 1 over the number of models in the mean; before `start` the average follows the weights."""
        if step < self.start:
            return 1.0
        if (step - self.start) % self.every:
            return None
        self.num_averaged += 1
        return 1 / self.num_averaged

    def state_dict(self) -> dict[str, Any]:
        """Return the average and how many it is of."""
        return {**super().state_dict(), "num_averaged": self.num_averaged}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        super().load_state_dict(state)
        self.num_averaged = state["num_averaged"]
