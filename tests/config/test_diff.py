"""Differences between configurations."""

from __future__ import annotations

import math

from lucid.config import RunConfig, diff, to_dict


def test_equal_settings_differ_in_nothing() -> None:
    """NaN equals NaN, a tuple equals a list."""
    assert diff(to_dict(RunConfig()), to_dict(RunConfig())) == []
    assert diff({"a": math.nan, "b": (1, 2)}, {"a": math.nan, "b": [1, 2]}) == []


def test_each_difference_is_named_with_both_values() -> None:
    """Changed, removed and added keys, in order."""
    texts = [change.text for change in diff({"a": {"b": 1, "c": None}}, {"a": {"b": 2}, "d": "x"})]
    assert texts == ["a.b: 1 -> 2", "a.c: none -> (not set)", "d: (not set) -> 'x'"]


def test_types_count() -> None:
    """1, 1.0 and True are three settings."""
    assert len(diff({"a": 1, "b": 1}, {"a": 1.0, "b": True})) == 2
