"""An exponential moving average of the weights, used for evaluation."""

from __future__ import annotations

from typing import Any

import torch

from lucid.callbacks.base import Callback
from lucid.errors import ConfigError
from lucid.state import TrainState, model_state, unwrap


class EMA(Callback):
    """Averages the weights after each step and puts the average in their place during evaluation.

    `average = decay * average + (1 - decay) * weight`, over parameters; buffers are the live ones. The raw weights come
    back bit for bit after the evaluation. A step that was left out does not move the average.

    Args:
        decay: share of the old average kept at each step, in (0, 1); 0.999 averages over about 1,000 steps.

    Source: Polyak & Juditsky 1992; the exponential form as in Tarvainen & Valpola 2017, arXiv:1703.01780, section 2.
    """

    def __init__(self, decay: float = 0.999) -> None:
        if not 0 < decay < 1:
            raise ConfigError(f"EMA decay must lie between 0 and 1, got {decay!r}.")
        self.decay = decay
        self.average: dict[str, torch.Tensor] = {}
        self._raw: dict[str, torch.Tensor] | None = None

    def on_train_start(self, state: TrainState) -> None:
        """Begin with the weights as they are, unless a checkpoint brought an average."""
        live = self._parameters(state)
        if not self.average:
            self.average = {name: weight.detach().clone() for name, weight in live.items()}
        self.average = {name: self.average[name].to(weight.device) for name, weight in live.items()}

    def on_step_end(self, state: TrainState) -> None:
        """Move the average towards the weights."""
        if state.progress.skipped_in_row:
            return
        weights = [weight.detach() for weight in self._parameters(state).values()]
        torch._foreach_lerp_(list(self.average.values()), weights, 1 - self.decay)

    def on_eval_start(self, state: TrainState) -> None:
        """Swap the average in."""
        live = self._parameters(state)
        self._raw = {name: weight.detach().clone() for name, weight in live.items()}
        self._copy(live, self.average)

    def on_eval_end(self, state: TrainState, metrics: dict[str, float] | None) -> None:
        """Put the raw weights back."""
        if self._raw is not None:
            self._copy(self._parameters(state), self._raw)
            self._raw = None

    def state_dict(self) -> dict[str, Any]:
        """Return the average, by parameter name."""
        return {"average": self.average, "decay": self.decay}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the average of a checkpoint, onto the device of the one before."""
        live = self.average
        self.average = {name: value.to(live[name].device if name in live else value.device, copy=True)
                        for name, value in state["average"].items()}  # fmt: skip

    def averaged_state(self, state: TrainState) -> dict[str, Any]:
        """Return the model's state with averaged weights, to save or export."""
        return {**model_state(state.model), **self.average}

    @staticmethod
    def _parameters(state: TrainState) -> dict[str, torch.nn.Parameter]:
        return {name.replace("_orig_mod.", ""): weight for name, weight in unwrap(state.model).named_parameters()}

    @staticmethod
    def _copy(live: dict[str, torch.nn.Parameter], values: dict[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, weight in live.items():
                weight.copy_(values[name])
