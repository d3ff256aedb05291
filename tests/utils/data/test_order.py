"""`Order`: batches of an epoch by arithmetic."""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from lucid.utils.data._order import Order, count_repeats, layers_of, length_of, pack


@given(st.lists(st.integers(0, 6), max_size=30))
def test_repeats_count_earlier_places_of_the_same_row(rows: list[int]) -> None:
    """The number at a place is how often its row came before it, for tensors and for lists alike."""
    expected = [rows[:at].count(row) for at, row in enumerate(rows)]
    for packed in (torch.tensor(rows, dtype=torch.int64), rows):
        counted = count_repeats(packed)
        assert (counted is None) == (max(Counter(rows).values(), default=0) < 2)
        assert counted is None or counted.tolist() == expected


def test_ragged_batches_keep_their_bounds() -> None:
    """Batches of a batch sampler may differ in size."""
    order = Order(torch.tensor([4, 4, 1, 0, 4]), bounds=[0, 2, 3, 5])
    assert [order.keys(batch) for batch in range(order.num_batches)] == [[4, 4], [1], [0, 4]]
    assert [order.repeats(batch) for batch in range(3)] == [[0, 1], [0], [0, 2]]


def test_sequence_takes_no_memory() -> None:
    """Rows in sequence stay a range, of any length."""
    order = Order(range(10**12), 7, unique=True)
    assert order.num_batches == -(-(10**12) // 7)
    assert order.keys(10**11) == list(range(7 * 10**11, 7 * 10**11 + 7))


def test_pack_makes_a_tensor_of_whole_numbers_only() -> None:
    """NumPy's and torch's whole numbers count; names, pairs and truth values stay as they are."""
    assert torch.equal(pack([1, np.int32(2), torch.tensor(3)]), torch.tensor([1, 2, 3]))
    for keys in (["a"], [(0, 1)], [True], [1.0]):
        assert pack(keys) is keys


def test_length_is_none_where_there_is_none() -> None:
    """A `__len__` that raises is no length."""

    class Lengthless:
        def __len__(self) -> int:
            raise TypeError

    assert (length_of([1, 2]), length_of(Lengthless()), length_of(iter(()))) == (2, None, None)


def test_layers_go_through_wrapped_data_sets() -> None:
    """The data set in a subset in a subset is found."""
    inner = torch.utils.data.Subset([1, 2, 3], [0, 1])
    outer = torch.utils.data.Subset(inner, [1])
    assert [id(layer) for layer in layers_of(outer)] == [id(outer), id(inner), id(inner.dataset)]
