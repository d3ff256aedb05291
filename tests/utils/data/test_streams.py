"""Streams: positions from their own state, refused or skipped to otherwise, shared among workers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from lucid.errors import DataError, ResumeError
from lucid.utils.data import DataLoader, Feed

from .support import Noisy, StatefulStream, Stream, ambient, epoch

WORKERS: dict[str, dict[str, Any]] = {
    "0": {},
    "1": {"num_workers": 1},
    "2": {"num_workers": 2},
    "2, persistent": {"num_workers": 2, "persistent_workers": True},
    "3, short batches dropped": {"num_workers": 3, "drop_last": True},
}
many_workers = pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes")


def feed_of(kind: Any = StatefulStream, on_stream: Any = "refuse", **options: Any) -> Feed:
    return Feed(DataLoader(kind(), 3, **options), seed=4, on_stream=on_stream)


@many_workers
@pytest.mark.parametrize("name", WORKERS)
def test_stateful_stream_goes_on_at_any_batch(name: str) -> None:
    """From the state after any batch, the rest of the epoch and the next one are those of the unbroken run."""
    whole = feed_of(**WORKERS[name])
    first, second = list(whole.batches(0)), list(whole.batches(1))
    starts = (1, 4, len(first)) if WORKERS[name] else range(1, len(first) + 1)
    for start in starts:
        broken, resumed = feed_of(**WORKERS[name]), feed_of(**WORKERS[name])
        batches = broken.batches(0)
        for _ in range(start):
            next(batches)
        resumed.load_state_dict(broken.state_dict())
        broken.close()
        rest = list(resumed.batches(0, start))
        assert len(rest) == len(first) - start
        assert all(map(torch.equal, rest, first[start:]))
        assert all(map(torch.equal, resumed.batches(1), second))
        resumed.close()
    assert whole.notes() == []
    whole.close()


@many_workers
@pytest.mark.parametrize("name", WORKERS)
def test_stream_without_a_state_is_skipped_to_exactly(name: str) -> None:
    """Skipping reads again what was read, draws included; it leaves the ambient streams alone."""
    whole, resumed = feed_of(Stream, **WORKERS[name]), feed_of(Stream, "skip", **WORKERS[name])
    rows = list(whole.batches(2))
    before = ambient()
    assert all(map(torch.equal, resumed.batches(2, 4), rows[4:]))
    assert ambient() == before
    assert {tuple(row) for row in epoch(whole, 2).tolist()} == {tuple(row.tolist()) for batch in rows for row in batch}
    for feed in (whole, resumed):
        feed.close()


def test_stream_in_workers_gives_every_row_once() -> None:
    """A stream that shares its rows gives them all, in turns of the workers, with draws that differ."""
    rows = epoch(feed_of(num_workers=2), 0)
    assert sorted(rows[:, 0].tolist()) == list(map(float, range(23)))
    assert rows[:6, 0].tolist() == [0, 2, 4, 1, 3, 5]
    assert len(rows[:, 1:4].unique()) == 3 * 23


def test_position_without_a_state_is_refused() -> None:
    """The notes say beforehand, and the error says at resume, why it cannot be exact and what to do."""
    feed = feed_of(Stream)
    why = "Stream is a stream without a position of its own. Give it state_dict"
    assert feed.notes()[0].startswith(why)
    with pytest.raises(ResumeError, match=f'batch 2 of epoch 0 cannot be reached: {why}.*on_stream="skip"'):
        feed.batches(0, 2)


def test_state_of_another_position_is_refused() -> None:
    """A stateful stream without the state of this very position does not guess."""
    feed, other = feed_of(), feed_of()
    next(feed.batches(0))
    other.load_state_dict(feed.state_dict())
    with pytest.raises(ResumeError, match="the checkpoint has no state of the stream StatefulStream for it"):
        other.batches(0, 2)


def test_state_of_other_workers_is_refused() -> None:
    """Each worker has its own place, so their number cannot change in the middle of an epoch."""
    feed, other = feed_of(num_workers=2), feed_of(num_workers=1)
    next(feed.batches(0))
    other.load_state_dict(feed.state_dict())
    feed.close()
    with pytest.raises(ResumeError, match=r"read by 2 workers .* now there are 1"):
        other.batches(0, 1)


def test_skipping_beyond_the_end_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """A stream that has become shorter is said to be so; progress is logged."""
    with caplog.at_level(logging.INFO, "lucid.data"), pytest.raises(DataError, match=r"must reach batch 9, .*after 8"):
        next(feed_of(Stream, "skip").batches(0, 9))
    assert caplog.messages == ["skipping 0 of 9 batches of epoch 0"]


@pytest.mark.parametrize("persistent", [False, True])
def test_unshared_stream_in_workers_is_refused(persistent: bool) -> None:
    """A stream that never asks for its worker would come as many times as there are workers."""
    loader = DataLoader(Stream(shares=False), 3, num_workers=2, persistent_workers=persistent)
    with pytest.raises(DataError, match=r"Stream must share its rows among its 2 workers.* would come 2 times"):
        next(Feed(loader).batches(0))


class Vouched(Stream):
    """Shares in a way that cannot be seen."""

    sharded_by_worker = True


def cut(worker: int) -> None:
    """Give a worker its part, as torch's documentation shows."""
    info = get_worker_info()
    info.dataset.at = 12 if worker else 0
    info.dataset.rows = 23 if worker else 12


def seed_only(worker: int) -> None:
    """Do what does not share: look at the number."""
    torch.manual_seed(worker + get_worker_info().num_workers)


def test_sharing_is_seen_where_it_is_done() -> None:
    """One worker, an attribute, or a `worker_init_fn` that works on the data set are all enough; seeding is not."""
    assert len(epoch(Feed(DataLoader(Stream(shares=False), 3, num_workers=1)), 0)) == 23
    assert len(epoch(Feed(DataLoader(Vouched(shares=False), 3, num_workers=2)), 0)) == 46
    loader = DataLoader(Stream(shares=False), 3, num_workers=2, worker_init_fn=cut)
    assert sorted(epoch(Feed(loader), 0)[:, 0].tolist()) == list(map(float, range(23)))
    loader = DataLoader(Stream(shares=False), 3, num_workers=2, worker_init_fn=seed_only)
    with pytest.raises(DataError, match="would come 2 times"):
        next(Feed(loader).batches(0))


class Sized(Stream):
    def __len__(self) -> int:
        return self.rows


@pytest.mark.parametrize(
    ("kind", "workers", "length"), [(Stream, 0, None), (Sized, 0, 8), (Sized, 1, 8), (Sized, 2, None)]
)
def test_length_is_known_where_it_is_exact(kind: Any, workers: int, length: int | None) -> None:
    """Several workers make short batches of their own, so that the length is a guess: None."""
    feed = feed_of(kind, num_workers=workers)
    assert feed.num_batches(0) == length
    assert feed.rows(0, 0) == []
    cut = [note for note in feed.notes() if note.startswith("an epoch of Sized ends after the 8 batches of its length")]
    assert len(cut) == (length is not None)


class Told(IterableDataset[int]):
    """Says in which epoch it is."""

    now = -1

    def set_epoch(self, number: int) -> None:
        self.now = number

    def __iter__(self) -> Iterator[int]:
        return iter([self.now])


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}])
def test_stream_hears_of_the_epoch(options: dict[str, Any]) -> None:
    """`set_epoch` is called where the stream is read, persistent workers included."""
    feed = Feed(DataLoader(Told(), 1, **options))
    assert [batch.item() for number in (3, 4) for batch in feed.batches(number)] == [3, 4]
    feed.close()


class Fails(Stream):
    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from list(super().__iter__())[:4]
        raise OSError("connection lost")


def test_error_in_a_worker_says_where() -> None:
    """The message has worker, epoch and row count; the cause is the user's error."""
    batches = feed_of(Fails, num_workers=1).batches(2)
    next(batches)
    with pytest.raises(
        DataError, match="Fails failed in worker 0, epoch 2, after 3 rows: OSError: connection"
    ) as caught:
        next(batches)
    assert isinstance(caught.value.__cause__, OSError)


class Rows:
    """A loader of somebody's own: shuffles by the global stream, and by nothing else."""

    def __init__(self) -> None:
        self.passes = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.passes += 1
        return iter(torch.randperm(12).split(4))

    def __len__(self) -> int:
        return 3


def test_any_iterable_has_orders_by_seed_and_epoch() -> None:
    """A loader that is not torch's is a stream, seeded for each epoch, without moving the ambient streams."""
    before = ambient()
    feed = Feed(Rows(), seed=1)
    first, second = epoch(feed, 0), epoch(feed, 1)
    assert ambient() == before
    assert (feed.num_batches(0), feed.loader.passes) == (3, 2)
    assert not torch.equal(first, second)
    torch.manual_seed(50)
    assert torch.equal(epoch(Feed(Rows(), seed=1), 1), second)
    assert torch.equal(epoch(Feed(Rows(), seed=1, on_stream="skip"), 1, 1), second[4:])


class Overriding(torch.utils.data.DataLoader[Any]):
    """A subclass of torch's loader that does something to each batch."""

    def __iter__(self) -> Any:
        return (2 * batch for batch in super().__iter__())


def test_loader_with_its_own_iter_is_not_bypassed() -> None:
    """What a subclass does to batches is done."""
    rows = epoch(Feed(Overriding(Noisy(), 4)), 0)
    assert rows[:, 0].tolist() == [2.0 * row for row in range(11)]


class StatefulLoader(Rows):
    """A loader that says where it stands, like torchdata's or a streaming library's."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.at < 6:
            self.at += 1
            yield torch.tensor([self.at, torch.rand(()).item()])
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def test_state_of_a_loader_counts() -> None:
    """A loader with a state of its own is resumed by it."""
    whole = list(Feed(StatefulLoader()).batches(0))
    broken, resumed = Feed(StatefulLoader()), Feed(StatefulLoader())
    batches = broken.batches(0)
    for _ in range(4):
        next(batches)
    resumed.load_state_dict(broken.state_dict())
    assert all(map(torch.equal, resumed.batches(0, 4), whole[4:]))
    assert [note[:26] for note in broken.notes()] == ["an epoch of StatefulLoader"]


def test_stream_that_changes_between_epochs_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """A counter that goes up with every pass is not there after a resume at a border: a warning names it."""

    class Counts(Stream):
        passes = 0

        def __iter__(self) -> Iterator[torch.Tensor]:
            self.passes += 1
            return super().__iter__()

    stream = Counts()
    stream.passes = 0
    for feed, told in ((Feed(DataLoader(stream, 3)), 1), (Feed(DataLoader(Stream(), 3)), 0)):
        caplog.clear()
        for number in range(2):
            list(feed.batches(number))
        assert [message.split(" is another")[0] for message in caplog.messages] == ["Counts.passes"] * told


def test_stream_of_ready_batches_in_workers() -> None:
    """With `batch_size=None` an item is a batch, in workers too."""
    feed = Feed(DataLoader(StatefulStream(5), batch_size=None, num_workers=2))
    items = [row[0].item() for row in feed.batches(0)]
    assert items == [0.0, 1.0, 2.0, 3.0, 4.0]
    resumed = Feed(DataLoader(StatefulStream(5), batch_size=None, num_workers=2))
    batches = feed.batches(0)
    for _ in range(3):
        next(batches)
    resumed.load_state_dict(feed.state_dict())
    assert [row[0].item() for row in resumed.batches(0, 3)] == [3.0, 4.0]
    feed.close()


def test_error_in_a_stream_here_says_when() -> None:
    """Without workers too, the user's error is the cause of one that says which epoch."""
    with pytest.raises(DataError, match="Fails failed in epoch 1: OSError: connection lost") as caught:
        list(feed_of(Fails).batches(1))
    assert isinstance(caught.value.__cause__, OSError)


def test_iterator_lasts_one_epoch() -> None:
    """What can be read once is said to be so when it is needed again."""
    feed = Feed(iter([torch.ones(1)]))
    assert len(list(feed.batches(0))) == 1
    with pytest.raises(DataError, match="a list_iterator can be read only once, and epoch 1 needs it again"):
        feed.batches(1)


torchdata = pytest.mark.skipif("not __import__('importlib.util').util.find_spec('torchdata')", reason="needs torchdata")


@torchdata
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("workers", [0, 1])
def test_torchdatas_loader_over_rows_is_arithmetic(workers: int) -> None:
    """A StatefulDataLoader over a map-style data set needs no state: it is torch's loader to a feed."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    def feed(seed: int) -> Feed:
        torch.manual_seed(seed)
        return Feed(StatefulDataLoader(Noisy(), 3, shuffle=True, num_workers=workers), seed=5)

    first = feed(1)
    whole = epoch(first)
    assert torch.equal(epoch(feed(2), 1, 2), whole[6:])
    assert torch.equal(whole, epoch(Feed(DataLoader(Noisy(), 3, shuffle=True), seed=5)))
    assert first.state_dict() == {}


@torchdata
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_torchdatas_loader_over_a_stream_keeps_the_state() -> None:
    """Over a stream its own state is what resumes it."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    def feed() -> Feed:
        return Feed(StatefulDataLoader(StatefulStream(), 3), seed=5)

    whole = list(feed().batches(0))
    broken, resumed = feed(), feed()
    batches = broken.batches(0)
    for _ in range(3):
        next(batches)
    resumed.load_state_dict(broken.state_dict())
    assert all(map(torch.equal, resumed.batches(0, 3), whole[3:]))


class BufferShuffledExamplesIterable:
    """Named like the step of Hugging Face's streams that shuffles through a buffer."""


class Steps:
    """Another step of such a stream."""

    def __init__(self, **inner: Any) -> None:
        self.__dict__ |= inner


@pytest.mark.parametrize(
    "inner",
    [
        {"ex_iterable": Steps(ex_iterable=BufferShuffledExamplesIterable())},
        {"ex_iterables": [Steps(), BufferShuffledExamplesIterable()]},
    ],
)
def test_shuffle_buffer_left_out_of_a_state_is_said(inner: dict[str, Any]) -> None:
    """A state that leaves out the content of a shuffle buffer counts as none, and the notes say why."""
    stream = StatefulStream()
    assert Feed(DataLoader(stream, 3)).notes() == []
    stream._ex_iterable = Steps(**inner)  # type: ignore[attr-defined]
    assert (
        Feed(DataLoader(stream, 3)).notes()[0].startswith("StatefulStream shuffles through a buffer whose content is")
    )


@pytest.mark.filterwarnings("ignore")
def test_hugging_face_stream_goes_on_exactly() -> None:
    """A real one: its own state is enough without a buffer, and is not trusted with one."""
    datasets = pytest.importorskip("datasets")

    def feed(shuffle: bool = False) -> Feed:
        rows = datasets.Dataset.from_dict({"x": list(range(20))}).with_format("torch").to_iterable_dataset(num_shards=2)
        return Feed(DataLoader(rows.shuffle(seed=3, buffer_size=8) if shuffle else rows, 3))

    whole = [batch["x"].tolist() for batch in feed().batches(0)]
    broken, resumed = feed(), feed()
    batches = broken.batches(0)
    for _ in range(4):
        next(batches)
    resumed.load_state_dict(broken.state_dict())
    assert [batch["x"].tolist() for batch in resumed.batches(0, 4)] == whole[4:]
    assert (feed().notes(), len(feed(shuffle=True).notes())) == ([], 1)
