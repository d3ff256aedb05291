"""Orders of samplers: torch's, the user's, and those that carry something from epoch to epoch."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from lucid.errors import ResumeError
from lucid.utils.data import DataLoader, Feed

from .support import Noisy, ambient, epoch, order

ROWS = 24


def feed_of(sampler: Any = None, batch_sampler: Any = None) -> Feed:
    """Return a feed over ROWS rows in batches of 4."""
    if batch_sampler is not None:
        return Feed(DataLoader(Noisy(ROWS), batch_sampler=batch_sampler), seed=2)
    return Feed(DataLoader(Noisy(ROWS), 4, sampler=sampler), seed=2)


def random_sampler(**options: Any) -> RandomSampler:
    return RandomSampler(range(ROWS), **options)


class Shuffling(Sampler[int]):
    """Shuffles its list in place at every pass, with the stream that it is told."""

    def __init__(self, draw: Any) -> None:
        self.rows = list(range(ROWS))
        self.draw = draw

    def __iter__(self) -> Iterator[int]:
        self.draw(self.rows)
        return iter(self.rows)

    def __len__(self) -> int:
        return ROWS


class Owner(Sampler[int]):
    """Draws from a generator of its own."""

    def __init__(self, rng: Any) -> None:
        self.rng = rng

    def __iter__(self) -> Iterator[int]:
        if isinstance(self.rng, torch.Generator):
            return iter(torch.randperm(ROWS, generator=self.rng).tolist())
        if isinstance(self.rng, random.Random):
            return iter(self.rng.sample(range(ROWS), ROWS))
        return iter(self.rng.permutation(ROWS).tolist())


class Wrapped(Sampler[int]):
    """Hands on what another sampler gives."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[int]:
        return iter(self.inner)

    def __len__(self) -> int:
        return len(self.inner)


SAMPLERS = {
    "random": random_sampler,
    "random, again": lambda: random_sampler(replacement=True, num_samples=30),
    "random, twice": lambda: random_sampler(num_samples=50),
    "random, own generator": lambda: random_sampler(generator=torch.Generator().manual_seed(5)),
    "subset": lambda: SubsetRandomSampler([3, 1, 4, 15, 9]),
    "weighted": lambda: WeightedRandomSampler(torch.arange(1.0, ROWS + 1).tolist(), 40),
    "in place, random": lambda: Shuffling(random.shuffle),
    "in place, numpy": lambda: Shuffling(np.random.shuffle),
    "own torch": lambda: Owner(torch.Generator().manual_seed(5)),
    "own numpy": lambda: Owner(np.random.default_rng(5)),
    "own legacy numpy": lambda: Owner(np.random.RandomState(5)),
    "own random": lambda: Owner(random.Random(5)),
    "wrapped": lambda: Wrapped(random_sampler(generator=torch.Generator().manual_seed(5))),
    "distributed": lambda: DistributedSampler(Noisy(ROWS), num_replicas=2, rank=1),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_order_is_a_function_of_seed_and_epoch(name: str) -> None:
    """Epoch 2 has the same rows whether epochs 0 and 1 came first or not, and epochs differ."""
    before = ambient()
    through = feed_of(SAMPLERS[name]())
    orders = [order(through, number) for number in range(3)]
    torch.manual_seed(99)
    assert order(feed_of(SAMPLERS[name]()), 2) == orders[2]
    assert len({tuple(one) for one in orders}) == 3
    torch.manual_seed(0)
    assert ambient() == before


@pytest.mark.parametrize("name", ["random", "own torch", "own numpy", "own random", "in place, random"])
def test_sampler_and_its_generator_are_left_as_they_were(name: str) -> None:
    """A pass of ours changes neither the user's list nor the state of the user's generator."""

    def look(sampler: Any) -> str:
        rng = getattr(sampler, "rng", None)
        states = [getattr(rng, get)() for get in ("get_state", "getstate") if hasattr(rng, get)]
        return repr((getattr(sampler, "rows", 0), rng.bit_generator.state if hasattr(rng, "bit_generator") else states))

    sampler = SAMPLERS[name]()
    before = look(sampler)
    order(feed_of(sampler), 1)
    assert look(sampler) == before


def test_plain_shuffle_holds_one_tensor() -> None:
    """A million rows in memory are 8 bytes each, not a million objects."""
    feed = Feed(DataLoader(range(1_000_000), 100, shuffle=True))
    rows = feed._source.order(0).rows
    assert isinstance(rows, torch.Tensor)
    assert (rows.dtype, len(rows), len(rows.unique())) == (torch.int64, 1_000_000, 1_000_000)


def test_the_users_seed_counts() -> None:
    """Two generators of the user give two orders under one seed of the run."""
    one, two = (random_sampler(generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    assert order(feed_of(one)) != order(feed_of(two)) != order(feed_of(random_sampler()))


def test_subset_of_a_data_set_is_asked_by_its_own_numbers() -> None:
    """Rows are numbered as the loader's data set numbers them."""
    feed = Feed(DataLoader(Subset(Noisy(30), range(10, 20)), 5, shuffle=True))
    assert sorted(order(feed)) == list(range(10))
    assert sorted(epoch(feed, 0)[:, 0].tolist()) == list(map(float, range(10, 20)))


def test_row_drawn_twice_draws_differently() -> None:
    """A row that a weighted sampler repeats gets other noise each time, the same in a new run."""
    feeds = [feed_of(WeightedRandomSampler([1.0, 1.0, *[0.0] * (ROWS - 2)], 12)) for _ in range(2)]
    rows, again = epoch(feeds[0]), epoch(feeds[1])
    assert torch.equal(rows, again)
    assert set(rows[:, 0].tolist()) == {0.0, 1.0}
    assert len(set(rows[:, 1].tolist())) == 12


class Buckets(Sampler[list[int]]):
    """Batches of different sizes in a random sequence."""

    def __init__(self, sampler: Any = None) -> None:
        self.sampler = sampler
        self.told: list[int] = []

    def __iter__(self) -> Iterator[list[int]]:
        batches = [[0], [1, 2], [3, 4, 5], [6]]
        random.shuffle(batches)
        return iter(batches)

    def __len__(self) -> int:
        return 4


def test_batch_sampler_decides_the_batches() -> None:
    """Its batches come as they are, from any start, and the batch size is nobody's."""
    feed = feed_of(batch_sampler=Buckets())
    batches = list(feed.batches(1))
    assert [batch[:, 0].tolist() for batch in batches] == [list(map(float, feed.rows(1, at))) for at in range(4)]
    assert sorted(map(len, batches)) == [1, 1, 2, 3]
    assert feed.batch_size is None
    assert all(map(torch.equal, feed_of(batch_sampler=Buckets()).batches(1, 2), batches[2:]))


def test_torchs_batch_sampler_has_a_batch_size() -> None:
    """A BatchSampler given by hand is cut by arithmetic like the usual one."""
    feed = feed_of(batch_sampler=BatchSampler(random_sampler(), 5, drop_last=True))
    assert (feed.batch_size, feed.num_batches(0), len(set(order(feed)))) == (5, 4, 20)


class Told(Sampler[int]):
    """Listens to `set_epoch`."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def set_epoch(self, number: int) -> None:
        self.told.append(number)

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(16, generator=torch.Generator().manual_seed(self.told[-1])).tolist())

    def __len__(self) -> int:
        return 16


@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "persistent_workers": True}])
@pytest.mark.parametrize("wrap", [lambda told: told, Wrapped])
def test_set_epoch_is_called_once_per_epoch(wrap: Any, options: dict[str, Any]) -> None:
    """Planning, reading, resuming at a border and asking for rows tell an epoch once, through a wrapper too."""

    def run(told: Told, epochs: list[tuple[int, int]]) -> list[list[float]]:
        feed = Feed(DataLoader(Noisy(16), 2, sampler=wrap(told), **options))
        assert [feed.num_batches(number) for number in range(4)] == [8] * 4
        seen = [epoch(feed, number, start)[:, 0].tolist() for number, start in epochs]
        feed.rows(3, 0)
        feed.close()
        return seen

    whole, border, middle = Told(), Told(), Told()
    seen = run(whole, [(0, 0), (1, 0), (2, 0), (3, 0)])
    assert [sorted(one) for one in seen] == [list(map(float, range(16)))] * 4
    assert run(border, [(1, 0), (2, 0), (3, 0)]) == seen[1:]
    assert run(middle, [(1, 5), (2, 0), (3, 0)]) == [seen[1][10:], *seen[2:]]
    assert (whole.told, border.told, middle.told) == ([0, 1, 2, 3], [1, 2, 3], [1, 2, 3])
    assert len({tuple(one) for one in seen}) == 4


def test_set_epoch_reaches_the_sampler_in_a_batch_sampler() -> None:
    """`batch_sampler.sampler` is told, once."""
    told = Told()
    for batch_sampler in (BatchSampler(told, 4, False), Buckets(told)):
        told.told.clear()
        order(feed_of(batch_sampler=batch_sampler), 3)
        assert told.told == [3]


def test_set_epoch_that_is_handed_on_is_not_called_twice() -> None:
    """A wrapper that tells its inner sampler itself is the only one told."""

    class Forwarding(Wrapped):
        def set_epoch(self, number: int) -> None:
            self.inner.set_epoch(number)

    told = Told()
    order(feed_of(Forwarding(told)), 2)
    assert told.told == [2]


class Counting(Sampler[int]):
    """Makes its order from a counter that goes up at every pass."""

    def __init__(self) -> None:
        self.passes = 0

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        return iter(torch.randperm(ROWS, generator=torch.Generator().manual_seed(self.passes)).tolist())

    def __len__(self) -> int:
        return ROWS


class Stateful(Counting):
    """Says where it stands by itself."""

    def state_dict(self) -> dict[str, int]:
        return {"passes": self.passes}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.passes = state["passes"]


class CountingInDict(Counting):
    """Keeps its counter in a dict."""

    def __init__(self) -> None:
        self.state = {"passes": 0}

    @property
    def passes(self) -> int:
        return self.state["passes"]

    @passes.setter
    def passes(self, value: int) -> None:
        self.state["passes"] = value


@pytest.mark.parametrize("kind", [Counting, CountingInDict, Stateful])
@pytest.mark.parametrize(("number", "start"), [(1, 2), (2, 0)])
def test_sampler_with_a_state_goes_on_where_it_stood(kind: Any, number: int, start: int) -> None:
    """A counter, or a state_dict, is saved as the epoch began with it, and taken up in the middle or at a border."""
    whole = feed_of(kind())
    expected = [epoch(whole, at) for at in range(4)]
    first = feed_of(kind())
    epoch(first, 0)
    batches = first.batches(1)
    for _ in range(start or 6):
        next(batches)
    resumed = feed_of(kind())
    resumed.load_state_dict(first.state_dict())
    assert torch.equal(epoch(resumed, number, start), expected[number][4 * start :])
    assert torch.equal(epoch(resumed, number + 1), expected[number + 1])


def test_planning_does_not_move_a_counting_sampler() -> None:
    """Asking for lengths of epochs runs a copy, so the first epoch read is the first."""

    class Lengthless(Counting):
        __len__ = None  # type: ignore[assignment]

    planned, plain = feed_of(Lengthless()), feed_of(Lengthless())
    assert [planned.num_batches(number) for number in range(3)] == [6, 6, 6]
    assert torch.equal(epoch(planned, 0), epoch(plain, 0))


def test_state_of_another_epoch_is_refused() -> None:
    """A sampler's state is that of one epoch and of the next, and of no other."""
    first = feed_of(Counting())
    next(first.batches(0))
    resumed = feed_of(Counting())
    resumed.load_state_dict(first.state_dict())
    with pytest.raises(ResumeError, match="state is that of epoch 0, and the run goes on in epoch 2"):
        resumed.batches(2)


def test_state_of_another_sampler_is_refused() -> None:
    """A state that no sampler is there for does not get lost."""
    first = feed_of(Wrapped(Counting()))
    next(first.batches(0))
    resumed = feed_of(batch_sampler=[[0]])
    resumed.load_state_dict(first.state_dict())
    with pytest.raises(ResumeError, match="state of another sampler than list, which it is now"):
        resumed.batches(1)


def test_sampler_that_cannot_be_copied_runs_itself() -> None:
    """A lock in a sampler is no obstacle."""

    class Locked(Owner):
        lock = None

    def locked() -> Locked:
        sampler = Locked(np.random.default_rng(5))
        sampler.lock = threading.Lock()  # type: ignore[assignment]
        return sampler

    sampler = locked()
    assert feed_of(sampler).notes()[0].startswith("the sampler Locked cannot be copied")
    through = feed_of(sampler)
    orders = [order(through, number) for number in range(2)]
    assert sampler.rng.bit_generator.state == np.random.default_rng(5).bit_generator.state
    assert order(feed_of(locked()), 1) == orders[1] != orders[0]


def test_wrong_length_of_a_sampler_is_said() -> None:
    """A `__len__` that is off makes the plan wrong: a warning says by how much."""

    class Liar(Buckets):
        def __len__(self) -> int:
            return 9

    with pytest.warns(UserWarning, match="Liar said 9 batches and gave 4 in epoch 0"):
        assert len(list(feed_of(batch_sampler=Liar()).batches(0))) == 4


def test_generator_as_a_sampler_lasts_one_epoch() -> None:
    """An iterator cannot be read twice, and the second epoch says so."""
    feed = feed_of(row for row in [1, 2, 3])
    assert order(feed) == [1, 2, 3]
    with pytest.raises(ValueError, match="epoch 1 must have at least one batch, its sampler gave none"):
        feed.batches(1)


def test_names_as_keys_get_their_own_draws() -> None:
    """Keys need not be numbers."""

    class Named(Noisy):
        def __getitem__(self, key: Any) -> torch.Tensor:
            return super().__getitem__(int(key[1:]))

    keys = [f"r{number}" for number in range(6)]
    feeds = [Feed(DataLoader(Named(6), 2, sampler=RandomSampler(keys) if at else keys)) for at in (0, 0)]
    rows = epoch(feeds[0])
    assert feeds[0].rows(1, 1) == ["r2", "r3"]
    assert torch.equal(rows, epoch(feeds[1]))
    assert len(set(rows[:, 1].tolist())) == 6


def test_pairs_as_keys_are_told_apart() -> None:
    """A key that is a pair is a name as a whole, not by its first part."""

    class Scaled(Noisy):
        def __getitem__(self, key: Any) -> torch.Tensor:
            return super().__getitem__(key[1])

    feed = Feed(DataLoader(Scaled(6), batch_sampler=[[(True, 0), (True, 1)], [(True, 2), (False, 2)]]))
    assert len(set(epoch(feed)[:, 1].tolist())) == 4
    assert feed.rows(1, 1) == [(True, 2), (False, 2)]


def test_batches_as_keys_have_their_rows() -> None:
    """A BatchSampler given as `sampler` hands whole lists to the data set."""

    class Many(Noisy):
        def __getitem__(self, rows: Any) -> torch.Tensor:
            return torch.tensor(rows)

    options = {"sampler": BatchSampler(random_sampler(), 5, drop_last=False), "batch_size": None}
    feed = Feed(DataLoader(Many(ROWS), **options))
    assert [batch.tolist() for batch in feed.batches(0)] == [feed.rows(0, at) for at in range(5)]
    assert sorted(order(feed)) == list(range(ROWS))
    assert feed.num_rows == ROWS


def test_sequential_is_recognised() -> None:
    """Rows in sequence are a range: nothing is held."""
    assert feed_of(SequentialSampler(range(ROWS)))._source.order(5).rows == range(ROWS)
