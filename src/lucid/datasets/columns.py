"""A column of a table becomes numbers: learnt on the training rows, kept for prediction.

numeric: missing values take the training median, and a second feature says that they were missing; then scaled.
words: one feature per word seen in training; a missing value is a word of its own, an unseen word is all zeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from lucid.errors import DataError

MISSING = ("", "na", "n/a", "nan", "null", "none", "?")
MAX_WORDS = 1000
STRAY = 20
"""Different numbers from which on a column with at most a tenth of words is one of numbers with a slip in it."""


def is_missing(cell: Any) -> bool:
    """Say whether a cell holds nothing."""
    if isinstance(cell, str):
        return cell.strip().lower() in MISSING
    return cell is None or (isinstance(cell, float) and math.isnan(cell))


def as_number(cell: Any) -> float | None:
    """Return a cell as a finite number, or None."""
    try:
        value = float(cell)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def is_numeric(cells: Sequence[Any]) -> bool:
    """Say whether every cell that holds something is a number, and one does."""
    held = [cell for cell in cells if not is_missing(cell)]
    return bool(held) and all(as_number(cell) is not None for cell in held)


def fit_column(name: str, cells: Sequence[Any]) -> dict[str, Any]:
    """Learn one column from its training cells.

    Returns:
        Plain values for `apply_column`.

    Raises:
        DataError: words without end, such as names or identifiers; or a stray word in a column of numbers.
    """
    if is_numeric(cells):
        held = torch.tensor([float(cell) for cell in cells if not is_missing(cell)], dtype=torch.float64)
        median = held.median()
        filled = torch.cat([held, median.expand(len(cells) - len(held))])
        std = float(filled.std(correction=0))
        return {
            "name": name,
            "kind": "number",
            "median": float(median),
            "mean": float(filled.mean()),
            "std": std or 1.0,
            "missing": len(held) < len(cells),
        }
    _refuse_stray(name, cells)
    words = sorted({_word(cell) for cell in cells})
    if len(words) > MAX_WORDS:
        raise DataError(
            f"column {name!r} has {len(words)} different words, at most {MAX_WORDS} can become features. "
            f'Leave it out: --data.options.drop "[\\"{name}\\"]".'
        )
    return {"name": name, "kind": "words", "words": words}


def _refuse_stray(name: str, cells: Sequence[Any]) -> None:
    """A slip of the pen in a column of numbers would make a word of every number."""
    held = [cell for cell in cells if not is_missing(cell)]
    numbers = [number for cell in held if (number := as_number(cell)) is not None]
    if len(set(numbers)) > STRAY and 10 * len(numbers) >= 9 * len(held):
        stray = next(cell for cell in held if as_number(cell) is None)
        raise DataError(
            f"column {name!r} holds {stray!r} among {len(numbers)} numbers. Mend it or leave the cell empty, or leave "
            f'the column out: --data.options.drop "[\\"{name}\\"]".'
        )


def _word(cell: Any) -> str:
    return "" if is_missing(cell) else str(cell).strip()


def width(column: dict[str, Any]) -> int:
    """Return how many features a column becomes."""
    return len(column["words"]) if column["kind"] == "words" else 1 + bool(column["missing"])


def apply_column(column: dict[str, Any], cells: Sequence[Any]) -> torch.Tensor:
    """Return (N, width) float32.

    Raises:
        DataError: a cell that is not a number in a column of numbers.
    """
    if column["kind"] == "words":
        place = {word: index for index, word in enumerate(column["words"])}
        out = torch.zeros(len(cells), len(place))
        for row, cell in enumerate(cells):
            at = place.get(_word(cell))
            if at is not None:
                out[row, at] = 1.0
        return out
    values, absent = [], []
    for row, cell in enumerate(cells):
        number = column["median"] if is_missing(cell) else as_number(cell)
        if number is None:
            raise DataError(f"column {column['name']!r}, row {row + 1}: {cell!r} is not a number.")
        values.append((number - column["mean"]) / column["std"])
        absent.append(float(is_missing(cell)))
    features = [torch.tensor(values, dtype=torch.float32)]
    if column["missing"]:
        features.append(torch.tensor(absent))
    return torch.stack(features, 1)
