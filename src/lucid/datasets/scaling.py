"""Mean 0 and standard deviation 1, learnt on the training rows and kept for prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Scaler:
    """Mean and standard deviation of each feature."""

    mean: torch.Tensor
    std: torch.Tensor

    @classmethod
    def fit(cls, values: torch.Tensor) -> Scaler:
        """Learn from the rows of values: (N, ...). A feature that never changes keeps its unit."""
        wide = values.double()
        std = wide.std(0, correction=0)
        return cls(wide.mean(0).float(), torch.where(std > 0, std, torch.ones_like(std)).float())

    def apply(self, values: torch.Tensor) -> torch.Tensor:
        """Return scaled values."""
        return (values - self.mean) / self.std

    def undo(self, values: torch.Tensor) -> torch.Tensor:
        """Return values in their own unit."""
        return values * self.std + self.mean

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"mean": self.mean.tolist(), "std": self.std.tolist()}

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Scaler:
        """Return what `to_dict` kept."""
        return cls(torch.tensor(state["mean"]), torch.tensor(state["std"]))
