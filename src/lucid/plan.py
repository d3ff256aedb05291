"""The plan of a run: how many steps there are and on which of them things happen, known before the first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lucid.config import Every, TrainConfig
from lucid.errors import DataError


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps of a run, by arithmetic from the data's length and the settings.

    `None` where a stream does not tell its length.
    """

    batches_per_epoch: int | None
    accumulation: int
    epochs: int
    max_steps: int | None
    log_every: Every
    eval_every: Every
    save_every: Every
    has_eval: bool = True
    steps_per_epoch: int | None = field(init=False)
    """Windows per epoch, a short last one included."""
    total_steps: int | None = field(init=False)
    """Steps of the whole run."""

    def __post_init__(self) -> None:
        batches, total = self.batches_per_epoch, self.max_steps
        per_epoch = None if batches is None else -(-batches // self.accumulation)
        if per_epoch is not None:
            total = self.epochs * per_epoch if total is None else min(self.epochs * per_epoch, total)
        object.__setattr__(self, "steps_per_epoch", per_epoch)  # the loop asks for both at every step
        object.__setattr__(self, "total_steps", total)

    @property
    def short_window(self) -> int:
        """Micro-batches in the short last window of an epoch; 0 if all windows are whole."""
        return 0 if self.batches_per_epoch is None else self.batches_per_epoch % self.accumulation

    def notes(self) -> list[str]:
        """Return what is out of the ordinary about the windows, in words."""
        short, total = self.short_window, self.batches_per_epoch
        if not short:
            return []
        if total is not None and total < self.accumulation:
            return [f"every step has {short} micro-batches, not {self.accumulation}: the epoch has no more"]
        return [f"the last step of an epoch has {short} of {self.accumulation} micro-batches and is their mean"]

    def is_due(self, every: Every, step: int, last_in_epoch: bool, last: bool) -> bool:
        """Whether something that happens `every` so often happens after this step; the last step is always due."""
        if last:
            return True
        return last_in_epoch if every == "epoch" else bool(every) and step % every == 0

    def steps(self, every: Every) -> list[int]:
        """Return every step at which something with this cadence happens; needs a known length."""
        total, per_epoch = self.total_steps, self.steps_per_epoch
        if total is None:
            return []
        return [
            step
            for step in range(1, total + 1)
            if self.is_due(every, step, bool(per_epoch) and step % (per_epoch or 1) == 0, step == total)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain values for the record."""
        return {
            "batches_per_epoch": self.batches_per_epoch,
            "gradient_accumulation_steps": self.accumulation,
            "steps_per_epoch": self.steps_per_epoch,
            "short_window": self.short_window,
            "epochs": self.epochs,
            "total_steps": self.total_steps,
            "log_every": self.log_every,
            "eval_every": self.eval_every if self.has_eval else None,
            "save_every": self.save_every,
        }


def make_plan(batches_per_epoch: int | None, config: TrainConfig, has_eval: bool = True) -> Plan:
    """Return the plan for data of this many micro-batches per epoch.

    Args:
        batches_per_epoch: as the loader says; None for a stream without a length.
        config: the run's settings.
        has_eval: whether there is anything to evaluate on.

    Raises:
        DataError: if an epoch has no micro-batch.
    """
    if batches_per_epoch == 0:
        raise DataError(
            "the training data gives no batch: the data set is empty, or shorter than one batch with drop_last=True."
        )
    return Plan(
        batches_per_epoch,
        config.gradient_accumulation_steps,
        config.epochs,
        config.max_steps,
        config.log_every,
        config.eval_every,
        config.save_every,
        has_eval,
    )
