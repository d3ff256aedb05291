"""Stop when the monitor no longer gets better."""

from __future__ import annotations

from lucid.callbacks.base import Callback
from lucid.errors import ConfigError
from lucid.state import TrainState


class EarlyStopping(Callback):
    """Ends the run after `patience` evaluations in a row without a new best. NaN counts as no better.

    The count is part of the run's state, so a resumed run goes on counting.

    Args:
        patience: evaluations without a better monitor that are allowed.

    Raises:
        ConfigError: if it is below 1, or, at the first evaluation, if that does not give the monitor.
    """

    def __init__(self, patience: int) -> None:
        if patience < 1:
            raise ConfigError(f"EarlyStopping needs patience of at least 1, got {patience!r}.")
        self.patience = patience

    def on_eval_end(self, state: TrainState, metrics: dict[str, float] | None) -> None:
        """Ask for the end of the run when patience is used up."""
        monitor = state.config.monitor or "eval/loss"
        if metrics is None:
            return
        if monitor not in metrics:
            raise ConfigError(
                f"early stopping needs {monitor!r}, but the evaluation gives {', '.join(metrics)}: name one of these "
                "as train.monitor, with train.mode."
            )
        if state.best.evals_since >= self.patience:
            state.request_stop(f"no better {monitor} for {self.patience} evaluations")
