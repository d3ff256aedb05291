"""A seeded split of rows into train, validation and test, and its record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import xxhash

from lucid.errors import DataError


@dataclass(frozen=True, slots=True)
class Split:
    """Row numbers of each part, ascending."""

    train: list[int]
    validation: list[int]
    test: list[int]
    seed: int | None
    """None where the order of the file decides."""

    def record(self) -> dict[str, Any]:
        """Return counts, seed and a digest: two splits with one digest hold the same rows."""
        digest = xxhash.xxh3_64()
        for rows in (self.train, self.validation, self.test):
            digest.update(torch.tensor(rows, dtype=torch.int64).numpy().tobytes() + b"|")
        counts = {"train": len(self.train), "validation": len(self.validation), "test": len(self.test)}
        return {"seed": self.seed, **counts, "digest": digest.hexdigest()}


def split_rows(
    count: int, *, validation: float, test: float, seed: int, labels: Sequence[int] | torch.Tensor | None = None
) -> Split:
    """Draw the rows of each part.

    Args:
        count: rows in all.
        validation: share kept for validation, in [0, 1).
        test: share kept for the test, in [0, 1).
        seed: the split is a function of it, of `count` and of `labels` alone.
        labels: class of each row; every class then keeps its proportion in each part. None: rows are drawn freely.

    Raises:
        DataError: no rows to train on.
    """
    generator = torch.Generator().manual_seed(seed)
    if labels is None:
        groups = [torch.arange(count)]
    else:
        classes = torch.as_tensor(labels)
        groups = [(classes == value).nonzero()[:, 0] for value in sorted(set(classes.tolist()))]
    parts: list[list[int]] = [[], [], []]
    for group in groups:
        order = group[torch.randperm(len(group), generator=generator)].tolist()
        first, second = round(len(order) * test), round(len(order) * test) + round(len(order) * validation)
        for part, rows in zip(parts, (order[second:], order[first:second], order[:first]), strict=True):
            part.extend(rows)
    if not parts[0]:
        raise DataError(
            f"a split with validation {validation} and test {test} of {count} rows leaves none to train on."
        )
    train, kept, held = (sorted(part) for part in parts)
    return Split(train, kept, held, seed)


def split_in_order(count: int, *, validation: float, test: float) -> Split:
    """Cut rows in their order: train first, then validation, then test. For text and other sequences.

    Raises:
        DataError: no rows to train on.
    """
    first, second = count - round(count * validation) - round(count * test), count - round(count * test)
    if first < 1:
        raise DataError(f"{count} rows are too few to keep {validation} for validation and {test} for the test.")
    rows = list(range(count))
    return Split(rows[:first], rows[first:second], rows[second:], None)
