"""Stop when the monitor no longer gets better."""

from __future__ import annotations

from lucid.callbacks.base import Callback
from lucid.state import TrainState


class EarlyStopping(Callback):
    """Ends the run after `patience` evaluations in a row without a new best. NaN counts as no better.

    The count is part of the run's state, so a resumed run goes on counting.

    Args:
        patience: evaluations without a better monitor that are allowed.
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience

    def on_eval_end(self, state: TrainState, metrics: dict[str, float] | None) -> None:
        """Ask for the end of the run when patience is used up."""
        if metrics is not None and state.best.evals_since >= self.patience:
            state.request_stop(f"no better {state.config.monitor or 'eval/loss'} for {self.patience} evaluations")
