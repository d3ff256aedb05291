"""Which points of a long curve to draw, kept up to date while the curve grows."""

from __future__ import annotations

import math
from collections.abc import Sequence

MAX_POINTS = 1500
"""Points of one curve in a picture: about the pixels of a wide window."""

_Stretch = tuple[int, int, int]
"""Positions of the lowest and the highest number and of the first that is not finite; -1 for none."""


class Thinned:
    """Positions to draw of a growing curve: of every stretch the lowest, the highest and the first that is not finite.

    A stretch has a power of two of numbers. A full one stays as it is while the curve grows, and when there are too
    many, two become one: no number is looked at twice.

    Args:
        max_points: curves up to this length are kept whole; longer ones give between a third and all of this many.
    """

    def __init__(self, max_points: int = MAX_POINTS) -> None:
        self.max_points = max_points
        self._stride = 1
        self._full: list[_Stretch] = []

    def positions(self, numbers: Sequence[float]) -> list[int]:
        """Return the positions to draw, in order, the first and the last among them.

        Args:
            numbers: the whole curve; what was there at the last call must be there still.
        """
        count = len(numbers)
        stride = stride_of(count, self.max_points)
        if stride == 1:
            return list(range(count))
        while self._stride < stride:
            self._stride *= 2
            pairs = zip(self._full[::2], self._full[1::2], strict=False)
            self._full = [_joined(a, b, numbers) for a, b in pairs]
        start = len(self._full) * stride
        self._full += _stretches(numbers, start, count // stride * stride, stride)
        start = len(self._full) * stride
        kept = {0, count - 1}
        kept.update(at for found in self._full for at in found)
        kept.update(at for found in _stretches(numbers, start, count, max(1, count - start)) for at in found)
        kept.discard(-1)
        return sorted(kept)


def stride_of(count: int, max_points: int) -> int:
    """Return how many numbers a stretch has in a curve of `count` numbers."""
    stride = 1
    while count > max_points and stride * max(1, max_points // 3) < count:
        stride *= 2
    return stride


def thin(numbers: Sequence[float], max_points: int = MAX_POINTS) -> list[int]:
    """Return the positions to draw of a curve that does not grow.

    Example:
        >>> thin([1.0, 2.0, 3.0])
        [0, 1, 2]
    """
    return Thinned(max_points).positions(numbers)


def _stretches(numbers: Sequence[float], start: int, end: int, stride: int) -> list[_Stretch]:
    """Return what to keep of each stretch from `start` to `end`, which are whole ones."""
    if end <= start:
        return []
    import numpy as np

    y = np.array(numbers[start:end], dtype=np.float64).reshape(-1, stride)
    finite = np.isfinite(y)
    low, high = np.where(finite, y, np.inf).argmin(1), np.where(finite, y, -np.inf).argmax(1)
    bad = finite.argmin(1)
    starts = np.arange(start, end, stride)
    bad = np.where(finite.all(1), -1, starts + bad)
    return list(zip((starts + low).tolist(), (starts + high).tolist(), bad.tolist(), strict=True))


def _joined(a: _Stretch, b: _Stretch, numbers: Sequence[float]) -> _Stretch:
    """Return what to keep of two stretches that become one; `a` comes first."""
    low = min(a[0], b[0], key=lambda at: numbers[at] if math.isfinite(numbers[at]) else math.inf)
    high = max(a[1], b[1], key=lambda at: numbers[at] if math.isfinite(numbers[at]) else -math.inf)
    return low, high, a[2] if a[2] >= 0 else b[2]
