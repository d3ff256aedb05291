"""Curves keep the extremes and what is not finite, however many records there are."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lucid.records import Record
from lucid.records.curves import collect


def _log(step: int, time: float, **values: float) -> Record:
    return Record("log", step, 1, time, {name.replace("_", "/", 1): value for name, value in values.items()})


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


def test_rows_that_are_no_number_are_none() -> None:
    """A count of rows that is not finite gives no place on that axis, and no error."""
    curves = collect([_log(1, 1.0, train_rows=math.nan, train_loss=1.0)])
    assert curves.points("train/loss")["rows"] == [None]
    assert curves.place(1)["rows"] is None


@given(
    st.lists(st.tuples(st.sampled_from(["L", "E", "R", "LLE", "LR"]), st.integers(1, 30)), max_size=12),
    st.sampled_from([1, 2, 5, 9]),
    st.integers(3, 40),
)
def test_points_since_the_last_time_add_up_to_all_points(pieces: list[tuple[str, int]], window: int, most: int) -> None:
    """Whatever comes, the points that still hold with the new ones behind them are the points asked for at once."""
    curves, had, step = collect([]), {name: _nothing(window) for name in ("train/loss", "eval/loss")}, 0
    for letters, times in pieces:
        since = curves.num_rows
        for letter in letters * times:
            step += 1
            curves.add(_some(letter, step))
        for name, before in had.items():
            new = curves.points(name, window=window, max_points=most, since_row=since)
            had[name] = _put_together(before, new)
            whole = curves.points(name, window=window, max_points=most)
            if len(whole["step"]):
                assert had[name] == whole


def _nothing(window: int) -> dict[str, Any]:
    return {"step": [], "seconds": [], "y": [], "marks": [], "rows": []} | ({"smooth": []} if window > 1 else {})


def _some(letter: str, step: int) -> Record:
    number = math.nan if step % 7 == 0 else float(step * 37 % 11)
    if letter == "L":
        return _log(step, float(step), train_loss=number, train_rows=step * 8.0)
    if letter == "E":
        return Record("eval", step, 1, float(step), {"eval/loss": number})
    return _log(step, float(step), train_loss=number)


def _put_together(before: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return what the page holds then."""
    keep = new["keep"]
    lists = {name: [*before.get(name, [])[:keep], *new[name]] for name in new if name not in ("keep", "marks")}
    marks = [*(mark for mark in before["marks"] if mark[0] < keep), *new["marks"]]
    return {"keep": 0, **lists, "marks": marks}


def test_a_new_record_touches_the_newest_points_only() -> None:
    """Of a hundred thousand records one more sends the stretch that is not full, however long the curve is."""
    curves = collect(_log(step, float(step), train_loss=float(step % 13)) for step in range(100_000))
    since = curves.num_rows
    curves.add(_log(100_000, 1.0, train_loss=3.0))
    points = curves.points("train/loss", window=9, since_row=since)
    assert (len(points["step"]), points["step"][-1]) == (3, 100_000)
    assert points["keep"] > 700
