"""Splits are seeded, complete, in proportion, and recorded."""

from __future__ import annotations

import pytest
import torch

from lucid.datasets.split import split_in_order, split_rows
from lucid.errors import DataError


def test_parts_hold_every_row_once() -> None:
    """Whatever the shares."""
    parts = split_rows(101, validation=0.2, test=0.1, seed=3)
    assert sorted(parts.train + parts.validation + parts.test) == list(range(101))
    assert (len(parts.validation), len(parts.test)) == (20, 10)


def test_split_is_a_function_of_its_seed() -> None:
    """And leaves torch's own stream alone."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one, other = (split_rows(50, validation=0.2, test=0.2, seed=seed) for seed in (0, 1))
    assert one == split_rows(50, validation=0.2, test=0.2, seed=0)
    assert one.record()["digest"] != other.record()["digest"]
    assert torch.equal(before, torch.get_rng_state())


def test_every_class_keeps_its_proportion() -> None:
    """90 rows of one class and 10 of another."""
    labels = [0] * 90 + [1] * 10
    parts = split_rows(100, validation=0.2, test=0.1, seed=0, labels=labels)
    assert [sum(labels[row] for row in rows) for rows in (parts.train, parts.validation, parts.test)] == [7, 2, 1]
    assert [len(rows) for rows in (parts.train, parts.validation, parts.test)] == [70, 20, 10]


def test_split_of_a_text_keeps_its_order() -> None:
    """Train, validation, test, each one piece."""
    parts = split_in_order(10, validation=0.2, test=0.1)
    assert (parts.train, parts.validation, parts.test) == ([0, 1, 2, 3, 4, 5, 6], [7, 8], [9])


def test_split_that_leaves_nothing_to_train_on_is_refused() -> None:
    """With counts."""
    with pytest.raises(DataError, match="of 1 rows leaves none to train on"):
        split_rows(1, validation=0.0, test=0.9, seed=0)
    with pytest.raises(DataError, match="1 rows are too few"):
        split_in_order(1, validation=0.9, test=0.05)
