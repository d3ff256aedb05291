"""Thinning keeps the extremes and what is not finite, and a curve that grows piece by piece is thinned the same."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lucid.records.thinning as thinning
from lucid.records.thinning import Thinned, thin


@given(st.lists(st.floats(), min_size=1, max_size=400), st.integers(3, 60))
def test_thin_keeps_extremes_ends_and_a_non_finite(numbers: list[float], most: int) -> None:
    """Whatever the curve: lowest, highest, first, last and some NaN or inf stay, and about `most` points."""
    kept = thin(numbers, most)
    assert kept == sorted(set(kept))
    assert {0, len(numbers) - 1} <= set(kept)
    assert len(kept) <= max(most, 3 * (most // 3) + 2)
    finite = [number for number in numbers if math.isfinite(number)]
    shown = [numbers[at] for at in kept if math.isfinite(numbers[at])]
    if finite:
        assert (min(shown), max(shown)) == (min(finite), max(finite))
    assert (len(finite) < len(numbers)) == any(not math.isfinite(numbers[at]) for at in kept)


def test_thin_keeps_the_one_nan_among_many() -> None:
    """One NaN among ten thousand numbers is among the points."""
    numbers = [float(at % 7) for at in range(10_000)]
    numbers[5_432] = math.nan
    assert 5_432 in thin(numbers, 300)


def test_short_curves_are_kept_whole() -> None:
    """A curve that fits is not touched."""
    assert thin([1.0] * 1500) == list(range(1500))


@given(st.integers(0, 400), st.lists(st.integers(1, 60), max_size=30), st.integers(3, 60))
def test_curve_that_grows_is_thinned_as_if_it_came_whole(seed: int, pieces: list[int], most: int) -> None:
    """The positions depend on the numbers alone, not on when one looked."""
    draw = random.Random(seed)
    numbers = [draw.choice([1.0, 2.0, 3.0, 4.0, draw.random(), math.nan, math.inf]) for _ in range(sum(pieces))]
    growing = Thinned(most)
    for count in itertools.accumulate(pieces):
        assert growing.positions(numbers[:count]) == thin(numbers[:count], most)


def test_full_stretches_are_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a first look at many numbers, a hundred more cost at most a few stretches, even if stretches now double."""
    numbers = [float(at % 7) for at in range(127_950)]
    growing, looked = Thinned(1500), 0
    growing.positions(numbers)
    assert (thinning.stride_of(127_950, 1500), thinning.stride_of(128_050, 1500)) == (256, 512)
    stretches = thinning._stretches

    def counted(numbers: list[float], start: int, end: int, stride: int) -> list[tuple[int, int, int]]:
        nonlocal looked
        looked += max(0, end - start)
        return stretches(numbers, start, end, stride)

    monkeypatch.setattr(thinning, "_stretches", counted)
    growing.positions(numbers + [1.0] * 100)
    assert looked <= 100 + 2 * 512
