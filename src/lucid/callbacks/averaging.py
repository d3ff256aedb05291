"""Averaged weights, put in place of the raw ones for evaluation: what EMA and SWA have in common."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from lucid.callbacks.base import Callback
from lucid.serialization import model_state, unwrap
from lucid.state import TrainState


class Averaging(Callback):
    """Moves an average of the parameters towards them after each step; buffers are the live ones.

    During an evaluation the average stands in the model; the raw weights come back bit for bit, also after an error. A
    step that was left out does not move it. The average is part of every checkpoint.
    """

    changes_in_eval = False

    def __init__(self) -> None:
        self.average: dict[str, Tensor] = {}
        self._raw: dict[str, Tensor] | None = None

    @abstractmethod
    def share(self, step: int) -> float | None:
        """Return the share of the weights of this step in the new average; None: it stays."""

    def on_train_start(self, state: TrainState) -> None:
        """Begin with the weights as they are, unless a checkpoint brought an average."""
        live = _parameters(state.model)
        if not self.average:
            self.average = {name: weight.detach().clone() for name, weight in live.items()}
        self.average = {name: self.average[name].to(weight.device) for name, weight in live.items()}

    def on_step_end(self, state: TrainState) -> None:
        """Move the average towards the weights."""
        share = None if state.progress.skipped_in_row else self.share(state.step)
        if share is not None:
            weights = [weight.detach() for weight in _parameters(state.model).values()]
            torch._foreach_lerp_(list(self.average.values()), weights, share)

    def on_eval_start(self, state: TrainState) -> None:
        """Swap the average in."""
        live = _parameters(state.model)
        self._raw = {name: weight.detach().clone() for name, weight in live.items()}
        _copy(live, self.average)

    def on_eval_end(self, state: TrainState, metrics: dict[str, float] | None) -> None:
        """Put the raw weights back."""
        if self._raw is not None:
            _copy(_parameters(state.model), self._raw)
            self._raw = None

    def state_dict(self) -> dict[str, Any]:
        """Return the average, by parameter name."""
        return {"average": self.average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the average of a checkpoint, onto the device of the one before."""
        live = self.average
        self.average = {
            name: value.to(live[name].device if name in live else value.device, copy=True)
            for name, value in state["average"].items()
        }

    def averaged_state(self, state: TrainState) -> dict[str, Any]:
        """Return the model's state with averaged weights, to save or export; tied weights under all their names."""
        live = _parameters(state.model)
        average = {id(weight): self.average[name] for name, weight in live.items()}
        names = unwrap(state.model).named_parameters(remove_duplicate=False)
        tied = {_plain(name): average[id(weight)] for name, weight in names}
        return {name: tied.get(name, value) for name, value in model_state(state.model).items()}


def _parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    return {_plain(name): weight for name, weight in unwrap(model).named_parameters()}


def _plain(name: str) -> str:
    return name.replace("_orig_mod.", "")


def _copy(live: dict[str, nn.Parameter], values: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, weight in live.items():
            weight.copy_(values[name])
