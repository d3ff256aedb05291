"""Curves from records: columns that grow record by record, thinned to what a picture can show.

`Curves.add` takes records in, `Curves.points` gives the points to draw of one value. Thinning keeps the extremes and
the non-finite values of every stretch, so that a spike or a NaN among a million records is still seen.
"""

from __future__ import annotations

import bisect
import itertools
import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lucid.records.record import Record

MAX_POINTS = 1500
"""Points of one curve in a picture: about the pixels of a wide window."""

POINT_KINDS = ("log", "eval", "skip")
"""Kinds of records whose values are points of a curve."""

ROWS = "train/rows"
"""The value that counts the rows trained on."""


@dataclass(slots=True)
class _Column:
    """One value: the row of each of its numbers in the axis that all values of a kind share, and the numbers."""

    rows: array[int] = field(default_factory=lambda: array("I"))
    numbers: array[float] = field(default_factory=lambda: array("d"))


class Curves:
    """The numbers of a run, by name.

    `seconds` counts the time during which the run was running: pauses before a resume are left out.
    """

    def __init__(self) -> None:
        self.steps = array("q")
        self.seconds = array("d")
        self._columns: dict[str, _Column] = {}
        self._last_time: float | None = None

    def add(self, record: Record) -> None:
        """Take one record in; those of `POINT_KINDS` give points."""
        paused = record.kind in ("plan", "resume")
        passed = 0.0 if paused or self._last_time is None else max(0.0, record.time - self._last_time)
        self._last_time = record.time
        so_far = self.seconds[-1] if self.seconds else 0.0
        if record.kind not in POINT_KINDS and not passed:
            return
        row = len(self.steps)
        self.steps.append(record.step)
        self.seconds.append(so_far + passed)
        if record.kind not in POINT_KINDS:
            return
        for name, value in record.values.items():
            column = self._columns.get(name)
            if column is None:
                column = self._columns[name] = _Column()
            column.rows.append(row)
            column.numbers.append(_float(value))

    def names(self) -> list[str]:
        """Return the names of all values, in the order in which they first came."""
        return list(self._columns)

    def last(self, name: str) -> float | None:
        """Return the newest number of a value, or None."""
        column = self._columns.get(name)
        return column.numbers[-1] if column is not None else None

    def numbers(self, name: str) -> array[float]:
        """Return all numbers of a value; empty if there is none."""
        column = self._columns.get(name)
        return column.numbers if column is not None else array("d")

    def points(
        self, name: str, *, window: int = 1, max_points: int = MAX_POINTS, since_step: int = -1
    ) -> dict[str, Any]:
        """Return what to draw of one value.

        Args:
            name: of the value.
            window: also give `smooth`, the mean of the finite numbers among the `window` records around each point.
            max_points: about how many points to keep.

        Returns:
            Lists of equal length `step`, `seconds`, `y` (None where not finite), `rows` if the run counts them and
            `smooth` if `window` is above 1; `marks`, a list of (position in these lists, "nan" | "inf" | "-inf").
        """
        column = self._columns.get(name, _Column())
        kept = thin(column.numbers, max_points)
        rows = [column.rows[at] for at in kept]
        numbers = [column.numbers[at] for at in kept]
        points: dict[str, Any] = {
            "step": [self.steps[row] for row in rows],
            "seconds": [round(self.seconds[row], 3) for row in rows],
            "y": [number if math.isfinite(number) else None for number in numbers],
            "marks": [[at, str(number)] for at, number in enumerate(numbers) if not math.isfinite(number)],
        }
        if ROWS in self._columns:
            points["rows"] = self._rows_at(points["step"])
        if window > 1:
            points["smooth"] = [_mean_around(column.numbers, at, window) for at in kept]
        return points

    def place(self, step: int) -> dict[str, float]:
        """Return where a step lies on the axes: `step`, `seconds`, and `rows` if the run counts them."""
        row = bisect.bisect_right(self.steps, step) - 1
        found: dict[str, float] = {"step": step, "seconds": self.seconds[row] if row >= 0 else 0.0}
        return found | {"rows": self._rows_at([step])[0]} if ROWS in self._columns else found

    def _rows_at(self, steps: list[int]) -> list[int]:
        """Return the rows trained on at these steps, by straight lines between the records that say so."""
        import numpy as np

        column = self._columns[ROWS]
        known = np.array(self.steps)[np.array(column.rows, dtype=np.int64)]
        return [round(rows) for rows in np.interp(steps, known, np.array(column.numbers)).tolist()]


def collect(records: Iterable[Record]) -> Curves:
    """Return the curves of records in the order of their file."""
    curves = Curves()
    for record in records:
        curves.add(record)
    return curves


def thin(numbers: Sequence[float], max_points: int = MAX_POINTS) -> list[int]:
    """Return the positions to draw: of every stretch the lowest, the highest and the first that is not finite.

    Args:
        numbers: the curve.
        max_points: curves up to this length are kept whole; longer ones give about this many.

    Example:
        >>> thin([1.0, 2.0, 3.0])
        [0, 1, 2]
    """
    count = len(numbers)
    if count <= max_points:
        return list(range(count))
    import numpy as np

    y = np.array(numbers, dtype=np.float64)
    finite = np.isfinite(y)
    low, high = np.where(finite, y, np.inf), np.where(finite, y, -np.inf)
    kept = {0, count - 1}
    edges = np.linspace(0, count, max(1, max_points // 3) + 1).astype(int).tolist()
    for start, end in itertools.pairwise(edges):
        kept.add(start + int(low[start:end].argmin()))
        kept.add(start + int(high[start:end].argmax()))
        first_bad = int(finite[start:end].argmin())
        if not finite[start + first_bad]:
            kept.add(start + first_bad)
    return sorted(kept)


def _mean_around(numbers: Sequence[float], at: int, window: int) -> float | None:
    """Return the mean of the finite numbers around a position; None if the one there is not finite.

    The window shrinks evenly on both sides at the ends, so that it never leans to one side.
    """
    if not math.isfinite(numbers[at]):
        return None
    half = min(window // 2, at, len(numbers) - 1 - at)
    finite = [number for number in numbers[at - half : at + half + 1] if math.isfinite(number)]
    try:
        return math.fsum(finite) / len(finite)
    except OverflowError:
        return None


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number beyond float64
        return math.inf if value > 0 else -math.inf
