"""An exponential moving average of the weights, used for evaluation."""

from __future__ import annotations

from lucid.callbacks.averaging import Averaging
from lucid.errors import ConfigError


class EMA(Averaging):
    """Averages the weights after each step and puts the average in their place during evaluation.

    `average = decay * average + (1 - decay) * weight`, over parameters; buffers are the live ones.

    Args:
        decay: share of the old average kept at each step, in (0, 1); 0.999 averages over about 1,000 steps.

    Raises:
        ConfigError: if it is outside.

    Source: Polyak & Juditsky 1992; the exponential form as in Tarvainen & Valpola 2017, arXiv:1703.01780, section 2.
    """

    def __init__(self, decay: float = 0.999) -> None:
        if not 0 < decay < 1:
            raise ConfigError(f"EMA decay must lie between 0 and 1, got {decay!r}.")
        super().__init__()
        self.decay = decay

    def share(self, step: int) -> float:
        """Return the share of the new weights, the same at each step."""
        return 1 - self.decay
