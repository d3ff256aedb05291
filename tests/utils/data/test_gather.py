"""Arrays in memory: whole batches by index, the same bits as row by row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Sampler, SequentialSampler, Subset, TensorDataset, WeightedRandomSampler

from lucid.errors import DataError
from lucid.utils.data import ArrayDataset, DataLoader, Feed
from lucid.utils.data._gather import gather_of

X, Y = torch.arange(33.0).reshape(11, 3), torch.arange(11)


class Unread(TensorDataset):
    """Not exactly a TensorDataset, so nothing is assumed about it."""


@settings(deadline=None, max_examples=40)
@given(
    size=st.integers(1, 12),
    drop=st.booleans(),
    shuffle=st.booleans(),
    start=st.integers(0, 11),
    indices=st.none() | st.lists(st.integers(0, 10), min_size=1, max_size=11),
    tensors=st.integers(1, 3),
)
def test_gathered_batches_are_those_read_row_by_row(
    size: int, drop: bool, shuffle: bool, start: int, indices: list[int] | None, tensors: int
) -> None:
    """Same bits, same types, same containers as torch's own collating."""

    def batches(kind: Any) -> list[list[torch.Tensor]]:
        dataset = kind(*(X, Y, X.double())[:tensors])
        dataset = dataset if indices is None else Subset(dataset, indices)
        feed = Feed(DataLoader(dataset, size, shuffle=shuffle, drop_last=drop), seed=6)
        return list(feed.batches(1, min(start, feed.num_batches(1) or 0)))

    if drop and size > (11 if indices is None else len(indices)):
        return
    gathered, read, arrays = (batches(kind) for kind in (TensorDataset, Unread, ArrayDataset))
    assert len(gathered) == len(read) == len(arrays)
    for one, two, three in zip(gathered, read, arrays, strict=True):
        assert type(one) is type(two) is type(three) is list
        assert all(map(torch.equal, one, two))
        assert all(map(torch.equal, one, three))
        assert [each.dtype for each in one] == [each.dtype for each in two] == [each.dtype for each in three]


def test_no_row_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast path never calls `__getitem__`."""
    asked = []
    monkeypatch.setattr(TensorDataset, "__getitem__", lambda self, row: asked.append(row))
    monkeypatch.setattr(ArrayDataset, "__getitem__", lambda self, row: asked.append(row))
    for dataset in (TensorDataset(X, Y), ArrayDataset(X.numpy(), Y), Subset(TensorDataset(X), [1, 2])):
        assert len(list(Feed(DataLoader(dataset, 2, shuffle=True)).batches(0))) == -(-len(dataset) // 2)
    assert asked == []


def test_only_exact_types_are_gathered() -> None:
    """A subclass, another collate_fn or workers mean that the user's code runs."""
    assert gather_of(Unread(X)) is None
    assert gather_of(Subset(Unread(X), [0])) is None
    assert Feed(DataLoader(TensorDataset(X), 2, collate_fn=len))._source.gather is None
    assert list(Feed(DataLoader(TensorDataset(X), 4, collate_fn=len)).batches(0)) == [4, 4, 3]


@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_do_not_share_memory_with_the_data(shuffle: bool) -> None:
    """Changing a batch in place leaves the data set as it was."""
    x = X.clone()
    for dataset in (TensorDataset(x), ArrayDataset(x), ArrayDataset(x.numpy())):
        for (batch,) in Feed(DataLoader(dataset, 4, shuffle=shuffle)).batches(0):
            batch.zero_()
    assert torch.equal(x, X)


def test_gather_takes_batches_of_any_sampler() -> None:
    """Batches of different sizes and repeated rows are gathered too."""
    feed = Feed(DataLoader(TensorDataset(Y), batch_sampler=[[3], [1, 1], [0, 2, 10]]))
    assert [batch[0].tolist() for batch in feed.batches(0)] == [[3], [1, 1], [0, 2, 10]]
    weighted = Feed(DataLoader(TensorDataset(Y), 5, sampler=WeightedRandomSampler([1.0] * 11, 30)))
    assert [batch[0].tolist() for batch in weighted.batches(0)] == [weighted.rows(0, at) for at in range(6)]


def test_memory_mapped_arrays_are_read_by_batch(tmp_path: Path) -> None:
    """A read-only map on disk gives tensors of its own."""
    np.save(tmp_path / "x.npy", X.numpy())
    dataset = ArrayDataset(np.load(tmp_path / "x.npy", mmap_mode="r"), Y.tolist())
    feed = Feed(DataLoader(dataset, 4, shuffle=True))
    for batch, (x, y) in enumerate(feed.batches(0)):
        assert torch.equal(x, X[feed.rows(0, batch)])
        assert y.tolist() == feed.rows(0, batch)
    x, y = dataset[3]
    assert torch.equal(x, X[3])
    assert int(y) == 3


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ((), "needs at least one array"),
        ((np.zeros(3), np.zeros(4)), r"same number of rows, got \[3, 4\]"),
        ((np.array(["a", "b"]),), "array 0 must hold numbers that torch knows, got <U1"),
        ((np.zeros(2), 5.0), r"array 1 must have shape \(N, ...\), got a single value"),
    ],
)
def test_arrays_that_are_no_rows_are_refused(arrays: tuple[Any, ...], text: str) -> None:
    """What cannot be gathered is a DataError at once."""
    with pytest.raises(DataError, match=text):
        ArrayDataset(*arrays)


class Given(Sampler[int]):
    """Gives these rows."""

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[int]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


@pytest.mark.parametrize(
    "dataset", [TensorDataset(X), ArrayDataset(X.numpy()), Subset(TensorDataset(X), list(range(11)))]
)
def test_row_that_there_is_not_is_named_with_its_batch(dataset: Any) -> None:
    """Before the epoch begins, whatever kind of sampler gave it; a row below 0 counts from the end, as in torch."""
    text = "row {} in batch {} of epoch 2 must be one of the 11 rows of the data set, counted from 0"
    for row in (11, -12):
        with pytest.raises(DataError, match=text.format(row, 1)):
            Feed(DataLoader(dataset, 3, sampler=Given([0, 1, 2, 3, row, 5]))).batches(2)
        with pytest.raises(DataError, match=text.format(row, 2)):
            Feed(DataLoader(dataset, batch_sampler=[[0], [1, 2, 3], [4, row]])).batches(2)
    with pytest.raises(DataError, match=text.format(11, 2)):
        Feed(DataLoader(dataset, 5, sampler=SequentialSampler(range(20)))).batches(2)
    (batch,) = Feed(DataLoader(dataset, 3, sampler=Given([0, -1, -11]))).batches(0)
    assert torch.equal(batch[0], X[[0, 10, 0]])


def test_index_of_a_subset_that_there_is_not_is_named() -> None:
    """When the loader is looked at; one below 0 counts from the end."""
    with pytest.raises(DataError, match="index 11 at place 2 of a Subset must be one of the 11 rows"):
        Feed(DataLoader(Subset(TensorDataset(X), [0, 1, 11]), 2))
    (batch,) = Feed(DataLoader(Subset(Subset(TensorDataset(X), [3, -2]), [-1, 0]), 2)).batches(0)
    assert torch.equal(batch[0], X[[9, 3]])
