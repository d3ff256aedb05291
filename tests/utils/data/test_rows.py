"""Rows in processes: the same draws everywhere, errors that say which row."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset, TensorDataset, get_worker_info

from lucid.errors import DataError
from lucid.utils.data import DataLoader, Feed
from lucid.utils.data._rows import WorkerTracebackError, reads_at_once

from .support import Noisy, draws, epoch

WORKERS: dict[str, dict[str, Any]] = {
    "1": {"num_workers": 1},
    "2, ahead": {"num_workers": 2, "prefetch_factor": 5},
    "2, persistent": {"num_workers": 2, "persistent_workers": True},
    "4": {"num_workers": 4},
    "spawned": {"num_workers": 1, "multiprocessing_context": "spawn", "persistent_workers": True},
}
many_workers = pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")


def jitter(rows: list[torch.Tensor]) -> torch.Tensor:
    """Stack rows and append draws of the batch's own."""
    return torch.cat([torch.stack(rows), torch.tensor(draws(), dtype=torch.float64).expand(len(rows), 3)], dim=1)


@many_workers
@pytest.mark.parametrize("name", WORKERS)
def test_draws_are_those_of_no_workers(name: str) -> None:
    """In any process, over borders of epochs and from the middle, rows and batches draw the same numbers."""
    here, away = (
        Feed(DataLoader(Noisy(), 3, shuffle=True, collate_fn=jitter, **options), seed=5)
        for options in ({}, WORKERS[name])
    )
    for number, start in ((0, 0), (1, 0), (1, 2), (2, 3)):
        assert torch.equal(epoch(here, number, start), epoch(away, number, start))
    away.close()


@settings(deadline=None, max_examples=12)
@given(rows=st.integers(1, 20), size=st.integers(1, 6), drop=st.booleans(), workers=st.integers(1, 2), data=st.data())
def test_workers_give_the_tail_from_any_start(
    rows: int, size: int, drop: bool, workers: int, data: st.DataObject
) -> None:
    """Rows, borders and draws with workers are those without, from every start."""
    if drop and rows < size:
        return
    options: dict[str, Any] = {"batch_size": size, "shuffle": True, "drop_last": drop}
    here = list(Feed(DataLoader(Noisy(rows), **options)).batches(1))
    start = data.draw(st.integers(0, len(here)))
    away = list(Feed(DataLoader(Noisy(rows), num_workers=workers, **options)).batches(1, start))
    assert len(away) == len(here) - start
    assert all(map(torch.equal, away, here[start:]))


def test_draws_differ_between_rows_epochs_and_streams() -> None:
    """No two numbers of two epochs are the same."""
    feed = Feed(DataLoader(Noisy(50), 7, shuffle=True))
    numbers = torch.cat([epoch(feed, 0), epoch(feed, 1)])[:, 1:]
    assert len(numbers.unique()) == 2 * 50 * 3


def test_draws_do_not_depend_on_batch_size_or_order() -> None:
    """A row's draws are its own: cut and shuffled otherwise, they are the same."""
    one, two = (
        epoch(Feed(DataLoader(Noisy(), size, shuffle=shuffle), seed=1)) for size, shuffle in ((3, True), (4, False))
    )
    assert torch.equal(one[one[:, 0].argsort()], two)


def numbers_of_the_batch(rows: list[object]) -> list[float]:
    """Collate: forget the rows and draw."""
    return draws()


def test_draws_of_the_batch_do_not_go_on_from_those_of_its_rows() -> None:
    """A row that draws more does not change what `collate_fn` draws."""
    quiet, noisy = (Feed(DataLoader(rows, 2, collate_fn=numbers_of_the_batch)) for rows in (range(4), Noisy(4)))
    assert list(quiet.batches(0)) == list(noisy.batches(0))
    assert len({number for batch in quiet.batches(0) for number in batch}) == 6


def test_rows_that_run_no_code_are_not_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking up a list or a tensor draws nothing: one seed per batch, for `collate_fn`, or none."""
    seeds: list[int] = []
    monkeypatch.setattr("lucid.utils.data._rows.seed_streams", seeds.append)
    counted = []
    for dataset in (range(6), Subset(TensorDataset(torch.arange(6)), range(6)), Noisy(6)):
        for options in ({}, {"collate_fn": numbers_of_the_batch}):
            seeds.clear()
            assert len(list(Feed(DataLoader(dataset, 3, **options)).batches(0))) == 2
            counted.append(len(seeds))
    assert counted == [0, 2, 0, 2, 6, 8]


class Owner(Dataset[torch.Tensor]):
    """Draws from generators in its attributes: one of its own, and one inside a list of transforms."""

    def __init__(self, *generators: Any) -> None:
        self.first, *rest = generators
        self.transform = type("Compose", (), {})()
        self.transform.transforms = [type("Jitter", (), {})() for _ in rest]
        for one, generator in zip(self.transform.transforms, rest, strict=True):
            one.rng = generator

    def __len__(self) -> int:
        return 9

    def __getitem__(self, row: int) -> torch.Tensor:
        generators = [self.first, *(one.rng for one in self.transform.transforms)]
        drawn = [
            torch.rand((), generator=g).item() if isinstance(g, torch.Generator) else g.random() for g in generators
        ]
        return torch.tensor([float(row), *drawn], dtype=torch.float64)


def own() -> Owner:
    return Owner(np.random.default_rng(3), torch.Generator().manual_seed(3), random.Random(3), np.random.RandomState(3))


def test_generators_of_the_data_set_are_seeded_by_the_row() -> None:
    """`default_rng` in an attribute draws the same after a break and in a worker, and is left as it was."""
    dataset = own()
    dataset.secret = random.SystemRandom()  # has no state and is left alone
    feed = Feed(DataLoader(dataset, 2, shuffle=True))
    whole = epoch(feed)
    assert torch.equal(epoch(Feed(DataLoader(own(), 2, shuffle=True)), 1, 3), whole[6:])
    away = Feed(DataLoader(own(), 2, shuffle=True, num_workers=1, multiprocessing_context="fork"))
    assert torch.equal(epoch(away, 1), whole)
    assert len(whole[:, 1:].unique()) == 9 * 4
    assert dataset.first.bit_generator.state == np.random.default_rng(3).bit_generator.state


class AtOnce(Noisy):
    """Reads a batch by itself."""

    def __getitems__(self, rows: list[int]) -> list[torch.Tensor]:
        self.read += rows
        numbers = torch.rand(len(rows), dtype=torch.float64)
        return [
            torch.stack([torch.tensor(float(row)).double(), number]) for row, number in zip(rows, numbers, strict=True)
        ]


def test_own_getitems_reads_a_batch() -> None:
    """A data set's `__getitems__` is used as it is, its draws named by the batch's first row."""
    feeds = [Feed(DataLoader(AtOnce(), 3, shuffle=True, num_workers=workers)) for workers in (0, 1)]
    batches = [list(feed.batches(2)) for feed in feeds]
    assert all(map(torch.equal, *batches))
    assert torch.equal(torch.cat(batches[0][1:]), epoch(Feed(DataLoader(AtOnce(), 3, shuffle=True)), 2, 1))
    assert feeds[0].loader.dataset.read == [row for batch in range(4) for row in feeds[0].rows(2, batch)]


def test_torchs_containers_are_read_row_by_row() -> None:
    """`Subset.__getitems__` only passes rows on, so draws inside stay those of the row."""
    assert not reads_at_once(Subset(Noisy(), [1]))
    assert not reads_at_once(Subset(StackDataset(Noisy(), Noisy()), [1]))
    assert not reads_at_once(ConcatDataset([Noisy()]))
    assert reads_at_once(Subset(AtOnce(), [1]))
    assert reads_at_once(StackDataset(a=Noisy(), b=AtOnce()))
    one, two = (epoch(Feed(DataLoader(Subset(Noisy(30), range(5, 17)), size, shuffle=True))) for size in (3, 4))
    assert torch.equal(one, two)


class Broken(Noisy):
    """Row 5 cannot be read."""

    def __getitem__(self, row: int) -> torch.Tensor:
        if row == 5:
            raise KeyError("no label")
        return super().__getitem__(row)


@pytest.mark.parametrize("workers", [0, 2])
def test_error_in_a_row_names_it_and_keeps_the_cause(workers: int) -> None:
    """The message has row, batch and epoch; the cause is the user's error with the line that raised it."""
    feed = Feed(DataLoader(Broken(), 3, num_workers=workers))
    batches = feed.batches(4)
    next(batches)
    text = r"row 5 of Broken failed, in batch 1 of epoch 4 \(rows 3, 4, 5\): KeyError: 'no label'"
    with pytest.raises(DataError, match=text) as caught:
        next(batches)
    cause = caught.value.__cause__
    assert (type(cause), cause.args) == (KeyError, ("no label",))
    if workers:
        assert isinstance(cause.__cause__, WorkerTracebackError)
        assert 'raise KeyError("no label")' in str(cause.__cause__)
    else:
        assert cause.__traceback__ is not None
        assert cause.__traceback__.tb_next.tb_frame.f_code.co_name == "__getitem__"


class Unpicklable(Noisy):
    """Raises what cannot leave the worker."""

    def __getitem__(self, row: int) -> torch.Tensor:
        class LocalError(Exception):
            pass

        raise LocalError("deep inside")


def test_error_that_cannot_be_pickled_comes_as_text() -> None:
    """The traceback is there even where the error itself stays in the worker."""
    with pytest.raises(DataError, match=r"row 0 of Unpicklable failed.*LocalError: deep inside") as caught:
        list(Feed(DataLoader(Unpicklable(), 3, num_workers=1)).batches(0))
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert 'raise LocalError("deep inside")' in str(caught.value.__cause__.__cause__)


def ragged(rows: list[torch.Tensor]) -> torch.Tensor:
    raise ValueError("rows differ in length")


@pytest.mark.parametrize("workers", [0, 1])
def test_error_in_collate_names_the_rows(workers: int) -> None:
    """A batch that cannot be made says which rows it was to hold."""
    feed = Feed(DataLoader(Noisy(20), 10, collate_fn=ragged, num_workers=workers))
    text = r"collate_fn failed on batch 0 of epoch 0 \(rows 0, 1, 2, 3, 4, 5, 6, 7, \.\.\.\): ValueError: rows differ"
    with pytest.raises(DataError, match=text):
        next(feed.batches(0))


def test_error_in_getitems_names_the_rows() -> None:
    """A batch read at once fails as a batch."""

    class Fails(AtOnce):
        def __getitems__(self, rows: list[int]) -> list[torch.Tensor]:
            raise OSError("disk")

    with pytest.raises(
        DataError, match=r"Fails.__getitems__ failed on batch 0 of epoch 0 \(rows 0, 1\): OSError: disk"
    ):
        next(Feed(DataLoader(Fails(), 2)).batches(0))


class Asks(Noisy):
    """Rows that say what the worker info shows."""

    offset = 0

    def __getitem__(self, row: int) -> torch.Tensor:
        info = get_worker_info()
        shown = info is not None and info.dataset is self and info.seed is not None
        return torch.tensor([row, self.offset, shown, -1 if info is None else info.num_workers])


def shift(worker: int) -> None:
    """Set up the data set of a worker, as torch's documentation shows."""
    get_worker_info().dataset.offset = 100 + worker


def test_workers_show_the_users_data_set() -> None:
    """`worker_init_fn` is called with the worker's number and finds the user's data set, not a wrapper."""
    feed = Feed(DataLoader(Asks(4), 2, num_workers=2, worker_init_fn=shift))
    assert epoch(feed, 0).tolist() == [[0, 100, 1, 2], [1, 100, 1, 2], [2, 101, 1, 2], [3, 101, 1, 2]]
    assert epoch(Feed(DataLoader(Asks(1), 1)), 0).tolist() == [[0, 0, 0, -1]]


class Told(Noisy):
    """Rows that say in which epoch the data set believes to be."""

    now = -1

    def set_epoch(self, number: int) -> None:
        self.now = number

    def __getitem__(self, row: int) -> torch.Tensor:
        return torch.tensor([row, self.now])


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "persistent_workers": True}])
def test_data_set_hears_of_the_epoch_in_its_process(options: dict[str, Any]) -> None:
    """`set_epoch` of a data set, or of the one in a subset, is called where its rows are read."""
    feed = Feed(DataLoader(Subset(Told(3), [2]), 1, **options))
    assert [epoch(feed, number).tolist() for number in (4, 5)] == [[[2, 4]], [[2, 5]]]
    feed.close()
