"""Curves keep the extremes and what is not finite, however many records there are."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lucid.records import Record
from lucid.records.curves import collect, thin


def _log(step: int, time: float, **values: float) -> Record:
    return Record("log", step, 1, time, {name.replace("_", "/", 1): value for name, value in values.items()})


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


def test_running_time_stands_still_between_two_processes() -> None:
    """An hour between the last record and the resume is no running time."""
    records = [
        Record("plan", 0, 0, 100.0),
        _log(1, 110.0, train_loss=1.0),
        Record("resume", 1, 1, 3710.0),
        _log(2, 3725.0, train_loss=1.0),
    ]
    assert collect(records).points("train/loss")["seconds"] == [10.0, 25.0]


def test_clock_set_back_never_makes_time_negative() -> None:
    """A clock that jumps back counts as no time."""
    records = [_log(1, 100.0, train_loss=1.0), _log(2, 50.0, train_loss=1.0), _log(3, 51.0, train_loss=1.0)]
    assert collect(records).points("train/loss")["seconds"] == [0.0, 0.0, 1.0]


def test_points_have_rows_between_the_records_that_count_them() -> None:
    """An evaluation between two log records lies between their rows."""
    records = [
        _log(10, 1.0, train_rows=320.0),
        Record("eval", 15, 1, 2.0, {"eval/loss": 1.0}),
        _log(20, 3.0, train_rows=640.0),
    ]
    assert collect(records).points("eval/loss")["rows"] == [480]


def test_non_finite_numbers_are_marked_and_not_smoothed_over() -> None:
    """The mark is at its own place, its neighbours' means leave it out."""
    numbers = [1.0, math.nan, 3.0, -math.inf, 5.0]
    points = collect(_log(step, float(step), train_loss=y) for step, y in enumerate(numbers)).points(
        "train/loss", window=3
    )
    assert points["y"] == [1.0, None, 3.0, None, 5.0]
    assert points["marks"] == [[1, "nan"], [3, "-inf"]]
    assert points["smooth"] == [1.0, None, 3.0, None, 5.0]


def test_smooth_does_not_lean() -> None:
    """The mean of a straight line is that line, from end to end."""
    points = collect(_log(step, float(step), train_loss=float(step)) for step in range(50)).points(
        "train/loss", window=9
    )
    assert points["smooth"] == pytest.approx(points["y"])


@pytest.mark.parametrize("value", [10**400, -(10**400)])
def test_number_beyond_float_is_infinite(value: int) -> None:
    """A whole number that no float can hold is drawn as infinite."""
    points = collect([Record("log", 1, 1, 0.0, {"a": value})]).points("a")
    assert points["marks"] == [[0, "inf" if value > 0 else "-inf"]]


def test_value_that_is_not_there_has_no_points() -> None:
    """Asking for an unknown value gives an empty curve."""
    assert collect([]).points("train/loss")["step"] == []
