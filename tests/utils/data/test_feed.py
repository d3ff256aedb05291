"""`Feed` over map-style loaders: order, position, roles, errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset, TensorDataset, random_split

import lucid.utils.data
from lucid.errors import ConfigError, DataError
from lucid.utils.data import ArrayDataset, DataLoader, Feed

from .support import Noisy, ambient, epoch, order


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(1, 40),
    size=st.integers(1, 9),
    drop=st.booleans(),
    shuffle=st.booleans(),
    number=st.integers(0, 3),
    data=st.data(),
)
def test_every_start_gives_the_tail_of_the_epoch(
    rows: int, size: int, drop: bool, shuffle: bool, number: int, data: st.DataObject
) -> None:
    """Batches from `start` on are the last ones of the whole epoch, and an epoch has every row once."""
    if drop and rows < size:
        return
    loader = DataLoader(Noisy(rows), size, shuffle=shuffle, drop_last=drop)
    feed = Feed(loader, seed=3)
    whole = list(feed.batches(number))
    start = data.draw(st.integers(0, len(whole)))
    tail = list(Feed(loader, seed=3).batches(number, start))
    assert len(whole) == feed.num_batches(number) == (rows // size if drop else -(-rows // size))
    assert len(tail) == len(whole) - start
    assert all(map(torch.equal, tail, whole[start:]))
    seen = [int(row) for batch in whole for row in batch[:, 0]]
    assert seen == order(feed, number)
    assert len(set(seen)) == len(seen) == (len(whole) * size if drop else rows)


def test_start_far_into_the_epoch_reads_only_what_is_handed_out() -> None:
    """At batch 900 of 1000 the first batch reads its own two rows and no other."""
    rows = Noisy(2000)
    feed = Feed(DataLoader(rows, 2, shuffle=True))
    next(feed.batches(0, 900))
    assert rows.read == feed.rows(0, 900)


def test_epoch_broken_three_times_is_the_unbroken_one() -> None:
    """New feeds, as in new processes, go on bit by bit where the one before stopped."""
    whole = epoch(Feed(DataLoader(Noisy(40), 3, shuffle=True), seed=9))
    parts: list[torch.Tensor] = []
    for start, end in ((0, 2), (2, 3), (3, 9), (9, 14)):
        batches = Feed(DataLoader(Noisy(40), 3, shuffle=True), seed=9).batches(1, start)
        parts += [next(batches) for _ in range(start, end)]
    assert torch.equal(torch.cat(parts), whole)


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    """Two epochs differ, two seeds differ, and asking again gives the same."""
    feed, other = (Feed(DataLoader(Noisy(50), 5, shuffle=True), seed=seed) for seed in (0, 1))
    orders = [order(feed, 0), order(feed, 1), order(other, 0)]
    assert len({tuple(one) for one in orders}) == 3
    assert order(feed, 0) == orders[0]


@pytest.mark.parametrize("workers", [0, 1])
def test_ambient_streams_neither_move_nor_matter(workers: int) -> None:
    """Dropout's stream stands still while rows are read, and its state changes nothing in them."""
    feed = Feed(DataLoader(Noisy(), 3, shuffle=True, num_workers=workers))
    before = ambient()
    first = epoch(feed)
    assert ambient() == before
    torch.manual_seed(77)
    np.random.seed(77)
    assert torch.equal(first, epoch(Feed(DataLoader(Noisy(), 3, shuffle=True))))


def test_evaluation_is_the_same_each_time_and_not_training() -> None:
    """Role "eval" repeats its order and draws, which are not those of "train"."""
    loader = DataLoader(Noisy(), 4, shuffle=True)
    feed = Feed(loader, role="eval")
    first = epoch(feed, 0)
    assert torch.equal(first, epoch(feed, 0))
    assert not torch.equal(first, epoch(Feed(loader), 0))


def test_evaluation_does_not_tell_the_data_set_an_epoch() -> None:
    """A data set that training shares stays in the epoch of training."""

    class Told(Noisy):
        told: list[int] = []  # noqa: RUF012

        def set_epoch(self, number: int) -> None:
            self.told.append(number)

    loader = DataLoader(Told(), 4)
    train = Feed(loader).batches(3)
    next(train)
    list(Feed(loader, role="eval").batches(0))
    list(train)
    assert Told.told == [3]


def test_list_of_batches_is_handed_out_as_it_is() -> None:
    """Ready batches are the very objects of the list, in its order."""
    batches = [{"x": torch.ones(2)}, {"x": torch.zeros(2)}]
    feed = Feed(batches)
    assert [id(batch) for batch in feed.batches(0)] == [id(batch) for batch in batches]
    assert [id(batch) for batch in feed.batches(0, 1)] == [id(batches[1])]
    assert (feed.num_batches(0), feed.batch_size, feed.state_dict(), feed.notes()) == (2, None, {}, [])


def test_loader_without_batches_gives_one_item_each() -> None:
    """With `batch_size=None` a key is a batch, converted as torch converts it."""
    feed = Feed(torch.utils.data.DataLoader([np.ones(2), np.zeros(2)], batch_size=None, shuffle=True))
    batches = list(feed.batches(0))
    assert [type(batch) for batch in batches] == [torch.Tensor, torch.Tensor]
    assert sorted(float(batch.sum()) for batch in batches) == [0.0, 2.0]
    assert [feed.rows(0, 0), feed.rows(0, 1)] in ([[0], [1]], [[1], [0]])


def test_only_stateless_feeds_have_an_empty_state() -> None:
    """Where (epoch, batch) says everything, there is nothing to save."""
    feed = Feed(DataLoader(Noisy(), 4, shuffle=True))
    next(feed.batches(0))
    assert feed.state_dict() == {}


class _Endless(torch.utils.data.Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield 0


class _Bodiless(Dataset[Any]):
    def __getitem__(self, row: int) -> int:
        return row


class _Empty(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(())


def _loader(dataset: Any, *args: Any, **options: Any) -> Any:
    return torch.utils.data.DataLoader(dataset, *args, **options)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: _loader([], 2), "the train data set list must have rows, got none."),
        (
            lambda: _loader(Noisy(3), 4, drop_last=True),
            "must fill at least one batch of 4 rows with drop_last=True, got 3 rows",
        ),
        (
            lambda: _loader(Noisy(3), batch_sampler=[]),
            "must give at least one batch, the sampler of its loader gives none",
        ),
        (lambda: _loader(_Bodiless(), 2), "_Bodiless must have __len__\\(\\), or its loader a sampler"),
        (lambda: Noisy(), "must be batches, got the data set Noisy itself. Say .*DataLoader\\(noisy, batch_size=32\\)"),
        (lambda: [], "must have at least one batch, got an empty list"),
        (lambda: "digits", "must be a DataLoader, a list of batches or another iterable of batches, got a str"),
        (lambda: None, "got a NoneType"),
        (lambda: _loader(Noisy(3), 2, sampler=_Endless()), "_Endless must end: it gave more than 1000000 entries"),
        (lambda: _loader(_Empty(), 2), "_Empty must give at least one batch, it gave none in epoch 0"),
        (lambda: iter(()), "must give at least one batch"),
    ],
)
def test_loader_that_gives_nothing_is_refused(make: Any, text: str) -> None:
    """What cannot feed a run is a DataError with what it must be and what came."""
    with pytest.raises(DataError, match=text):
        list(Feed(make()).batches(0))


@pytest.mark.parametrize("start", [-1, 4])
def test_position_outside_the_epoch_is_refused(start: int) -> None:
    """A start beyond the last batch says that the data changed; the end itself is a position."""
    feed = Feed(DataLoader(Noisy(6), 2))
    assert list(feed.batches(0, 3)) == []
    with pytest.raises(DataError, match=f"epoch 0 has 3 batches and cannot begin at batch {start}"):
        feed.batches(0, start)


def test_fingerprint_says_what_decides_the_data() -> None:
    """Length, batch size, sampler, the user's seed and the bytes of arrays all show, without reading a row."""
    x = torch.arange(20.0).reshape(10, 2)

    def of(values: torch.Tensor, size: int = 4, seed: int = 1, **options: Any) -> dict[str, Any]:
        options |= {"generator": torch.Generator().manual_seed(seed)}
        return Feed(DataLoader(TensorDataset(values), size, **options)).fingerprint()

    base = of(x, shuffle=True)
    changed = x.clone()
    changed[9, 1] = -1
    others = [
        of(changed, shuffle=True),
        of(x, 5, shuffle=True),
        of(x, seed=2, shuffle=True),
        of(x),
        of(x[:9], shuffle=True),
    ]
    assert base == of(x.clone(), shuffle=True)
    assert [sorted(key for key in base if base[key] != other[key]) for other in others] == [
        ["content"],
        ["batch_size"],
        ["user_seeds"],
        ["order", "user_seeds"],
        ["content", "num_rows"],
    ]
    rows = Noisy()
    Feed(DataLoader(rows, 2)).fingerprint()
    assert rows.read == []


def test_closed_feed_ends_its_iterators_and_can_begin_again() -> None:
    """After `close` an iterator given out before is over; a new one works."""
    feed = Feed(DataLoader(Noisy(), 2, num_workers=1, persistent_workers=True))
    batches = feed.batches(0)
    next(batches)
    feed.close()
    assert list(batches) == []
    assert len(list(feed.batches(0))) == 6
    feed.close()


def test_newer_iteration_ends_the_older_one() -> None:
    """Two passes cannot share the workers: the older one says so."""
    feed = Feed(DataLoader(Noisy(), 2, num_workers=1, persistent_workers=True))
    old = feed.batches(0)
    next(old)
    next(feed.batches(1))
    with pytest.raises(RuntimeError, match="a newer iteration over these batches has begun"):
        next(old)
    feed.close()


@pytest.mark.parametrize(("name", "word"), [("on_stream", "skipp"), ("role", "test")])
def test_unknown_words_are_refused(name: str, word: str) -> None:
    """A misspelt choice names the two there are."""
    with pytest.raises(ConfigError, match=f"Feed: {name} must be '.*' or '.*', got '{word}'"):
        Feed([1], **{name: word})


def test_everything_else_is_torchs() -> None:
    """Names that are not ours are the objects of torch.utils.data."""
    assert lucid.utils.data.random_split is random_split
    assert lucid.utils.data.TensorDataset is TensorDataset
    assert {"Feed", "ArrayDataset", "random_split"} <= set(dir(lucid.utils.data))
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        lucid.utils.data.Nothing
    assert issubclass(DataLoader, torch.utils.data.DataLoader)
    assert isinstance(ArrayDataset(np.ones(2)), Dataset)


@pytest.mark.parametrize(
    ("args", "options", "text"),
    [
        ((Noisy(), 0), {}, "DataLoader: batch_size should be a positive integer"),
        ((Noisy(),), {"num_workers": -1}, "DataLoader: num_workers option should be non-negative"),
        (([], 2), {"shuffle": True}, "must have rows, got a list of length 0"),
    ],
)
def test_wrong_loader_arguments_are_data_errors(args: Any, options: Any, text: str) -> None:
    """What torch refuses with a ValueError is a DataError, which is one."""
    with pytest.raises(DataError, match=text):
        DataLoader(*args, **options)


def test_rows_of_the_last_batch_are_known_by_arithmetic() -> None:
    """A short one, a whole one, none left out; unknown for a sampler of batches and for a stream."""
    rows = TensorDataset(torch.arange(10.0))
    loaders = [DataLoader(rows, batch_size=size, drop_last=drop) for size, drop in ((3, False), (5, False), (3, True))]
    assert [Feed(loader).last_batch_size for loader in loaders] == [1, 5, 3]
    own = DataLoader(rows, batch_sampler=[[0, 1], [2]])
    assert [Feed(loader).last_batch_size for loader in (own, [torch.zeros(2)])] == [None, None]
