"""Medians and quartiles of what was measured in rounds; ratios are taken within a round."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

Spread = tuple[float, float, float]
"""Median, lower and upper quartile."""


def spread(values: Sequence[float]) -> Spread:
    """Return median and quartiles; of one value, that value three times.

    Example:
        >>> spread([4.0, 1.0, 2.0, 3.0, 5.0])
        (3.0, 2.0, 4.0)
    """
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return middle, low, high


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Return median and quartiles of ours / theirs, round by round.

    Example:
        >>> ratio([2.0, 6.0, 12.0], [1.0, 2.0, 3.0])
        (3.0, 2.5, 3.5)
    """
    return spread([a / b for a, b in zip(ours, theirs, strict=True)])


def shown(value: Spread, digits: int = 2) -> str:
    """Return a spread as text.

    Example:
        >>> shown((1.0, 0.98, 1.05))
        '1.00 [0.98-1.05]'
    """
    return "{0:.{3}f} [{1:.{3}f}-{2:.{3}f}]".format(*value, digits)
