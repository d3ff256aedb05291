"""What every data set hands to the rest: rows to train on, rows kept aside, and what the rows mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import Dataset, TensorDataset

TASKS = ("classification", "multilabel", "regression", "language-modelling")


@dataclass(kw_only=True)
class DataBundle:
    """Data ready for a run. `transform_state` and the fields below it are plain values, kept in every checkpoint."""

    train: Dataset[Any]
    validation: Dataset[Any] | None
    test: Dataset[Any] | None
    task: str
    """One of `TASKS`."""
    num_outputs: int
    """Classes, tokens of the vocabulary, or numbers to predict: the width of the model's output."""
    input_shape: tuple[int, ...]
    """Shape of one row as the model sees it."""
    class_names: list[str] | None = None
    """Name of each class, by its number."""
    transform_state: dict[str, Any] = field(default_factory=dict)
    """How a raw row becomes a row for the model; see `lucid.datasets.rows`."""
    split: dict[str, Any] = field(default_factory=dict)
    """How the rows were split: seed, counts, digest of the row numbers."""

    @property
    def num_classes(self) -> int | None:
        """Classes, or None where there are none."""
        return self.num_outputs if self.task in ("classification", "multilabel") else None

    def meta(self) -> dict[str, Any]:
        """Return what prediction needs besides the weights, as plain values."""
        return {
            "task": self.task,
            "num_outputs": self.num_outputs,
            "input_shape": list(self.input_shape),
            "class_names": self.class_names,
            "transform_state": self.transform_state,
            "split": self.split,
        }


def pick(x: torch.Tensor, y: torch.Tensor, rows: Sequence[int]) -> TensorDataset | None:
    """Return these rows as a data set held in memory, or None when there are none."""
    index = torch.tensor(list(rows), dtype=torch.int64)
    return TensorDataset(x[index], y[index]) if len(index) else None
