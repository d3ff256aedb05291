"""Curves from records: columns that grow record by record, thinned to what a picture can show.

`Curves.add` takes records in, `Curves.points` gives the points to draw of one value. Thinning keeps the extremes and
the non-finite values of every stretch, so that a spike or a NaN among a million records is still seen.
"""

from __future__ import annotations

import bisect
import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lucid.records.record import Record
from lucid.records.thinning import MAX_POINTS, Thinned, stride_of

POINT_KINDS = ("log", "eval", "skip")
"""Kinds of records whose values are points of a curve."""

ROWS = "train/rows"
"""The value that counts the rows trained on."""

_MAX_THINNED = 8
"""Resolutions that are kept up to date for one curve."""


@dataclass(slots=True)
class _Column:
    """One value: the row of each number in the axis that all values share, the numbers, and what to draw of them."""

    rows: array[int] = field(default_factory=lambda: array("I"))
    numbers: array[float] = field(default_factory=lambda: array("d"))
    thinned: dict[int, Thinned] = field(default_factory=dict)

    def kept(self, max_points: int) -> list[int]:
        """Return the positions to draw."""
        if max_points not in self.thinned and len(self.thinned) >= _MAX_THINNED:
            self.thinned.clear()
        return self.thinned.setdefault(max_points, Thinned(max_points)).positions(self.numbers)


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

    def points(self, name: str, *, window: int = 1, max_points: int = MAX_POINTS, since_row: int = 0) -> dict[str, Any]:
        """Return what to draw of one value.

        Args:
            name: of the value.
            window: also give `smooth`, the mean of the finite numbers among the `window` records around each point.
            max_points: about how many points to keep.
            since_row: `num_rows` when this was last asked with the same arguments; 0 for all points.

        Returns:
            `keep`, how many of the points given last still hold; the others are replaced by the lists of equal length
            `step`, `seconds`, `y` (None where not finite), `rows` if the run counts them and `smooth` if `window` is
            above 1. `marks`, a list of (position among all points, "nan" | "inf" | "-inf").
        """
        column = self._columns.get(name, _Column())
        kept = column.kept(max_points)
        keep = bisect.bisect_left(kept, self._settled(column, since_row, window, max_points)) if since_row else 0
        places = kept[keep:]
        rows = [column.rows[at] for at in places]
        numbers = [column.numbers[at] for at in places]
        points: dict[str, Any] = {
            "keep": keep,
            "step": [self.steps[row] for row in rows],
            "seconds": [round(self.seconds[row], 3) for row in rows],
            "y": [number if math.isfinite(number) else None for number in numbers],
            "marks": [[keep + at, str(number)] for at, number in enumerate(numbers) if not math.isfinite(number)],
        }
        if ROWS in self._columns:
            points["rows"] = [self._rows_at(row, self.steps[row]) for row in rows]
        if window > 1:
            points["smooth"] = [_mean_around(column.numbers, at, window) for at in places]
        return points

    def _settled(self, column: _Column, since_row: int, window: int, max_points: int) -> int:
        """Return up to which position nothing can have changed since there were `since_row` rows."""
        count = bisect.bisect_left(column.rows, since_row)
        stride = stride_of(count, max_points)
        if count == 0 or stride != stride_of(len(column.numbers), max_points):
            return 0
        settled = count // stride * stride
        if window > 1:
            settled = min(settled, count - window // 2)
        counted = self._columns[ROWS].rows if ROWS in self._columns else None
        if counted is not None:  # behind the newest of these, rows were not known yet
            known = bisect.bisect_left(counted, since_row)
            settled = min(settled, bisect.bisect_right(column.rows, counted[known - 1]) if known else 0)
        return settled

    @property
    def num_rows(self) -> int:
        """How many records were taken in."""
        return len(self.steps)

    def place(self, step: int) -> dict[str, float | None]:
        """Return where a step lies on the axes: `step`, `seconds`, and `rows` if the run counts them."""
        row = bisect.bisect_right(self.steps, step) - 1
        found: dict[str, float | None] = {"step": step, "seconds": self.seconds[row] if row >= 0 else 0.0}
        return found | {"rows": self._rows_at(row, step)} if ROWS in self._columns else found

    def _rows_at(self, row: int, step: int) -> int | None:
        """Return the rows trained on at a step, by a straight line between the records around that say so."""
        column = self._columns[ROWS]
        after = bisect.bisect_right(column.rows, row)
        if after == 0 or after == len(column.rows):
            return _whole(column.numbers[max(0, after - 1)])
        low, high = column.numbers[after - 1], column.numbers[after]
        start, end = self.steps[column.rows[after - 1]], self.steps[column.rows[after]]
        return _whole(low + (high - low) * (step - start) / (end - start) if end > start else low)


def collect(records: Iterable[Record]) -> Curves:
    """Return the curves of records in the order of their file."""
    curves = Curves()
    for record in records:
        curves.add(record)
    return curves


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


def _whole(number: float) -> int | None:
    return round(number) if math.isfinite(number) else None


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number beyond float64
        return math.inf if value > 0 else -math.inf
