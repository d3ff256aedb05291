"""The thread that moves batches ahead of an accelerator; the device "meta" stands in for one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from lucid.errors import DataError
from lucid.utils.data import DataLoader, Feed
from lucid.utils.data._prefetch import AHEAD, _CudaShip, ahead

from .support import Noisy

META = torch.device("meta")


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "lucid-prefetch"]


class Source:
    """Batches that count how many were read, and where."""

    def __init__(self, count: int, fail_at: int = -1) -> None:
        self.read = 0
        self.closed = False
        self.readers: set[str] = set()
        self.count, self.fail_at = count, fail_at

    def __iter__(self) -> Iterator[torch.Tensor]:
        try:
            for number in range(self.count):
                if number == self.fail_at:
                    raise OSError("disk")
                self.read += 1
                self.readers.add(threading.current_thread().name)
                yield torch.full((2,), number)
        finally:
            self.closed = True


def test_all_batches_come_moved_and_the_thread_ends() -> None:
    """Every batch is on the device; nothing runs afterwards."""
    source = Source(7)
    batches = list(ahead(iter(source), META, pin=False))
    assert [(batch.device, batch.shape) for batch in batches] == [(META, (2,))] * 7
    assert source.readers == {"lucid-prefetch"}
    assert threads() == []


def test_thread_stays_a_few_batches_ahead() -> None:
    """It reads what was handed out, what stands ready and the one in its hands, and no more."""
    source = Source(100)
    batches = ahead(iter(source), META, pin=False)
    for _ in range(5):
        next(batches)
    batches.close()
    assert 5 <= source.read <= 5 + AHEAD + 1
    assert source.closed
    assert threads() == []


def test_error_comes_after_the_batches_before_it() -> None:
    """The batches read before the error are handed out, then it is raised where they are read."""
    batches = ahead(iter(Source(9, fail_at=3)), META, pin=False)
    assert len([next(batches) for _ in range(3)]) == 3
    with pytest.raises(OSError, match="disk"):
        next(batches)
    assert threads() == []


@pytest.mark.parametrize(
    ("dataset", "options", "runs"),
    [
        (TensorDataset(torch.ones(20, 2)), {}, True),
        (Noisy(20), {"num_workers": 1}, True),
        (Noisy(20), {}, False),
    ],
)
def test_feed_uses_the_thread_where_no_user_code_runs(dataset: Any, options: Any, runs: bool) -> None:
    """Rows read in this process use the global streams, so they are read in the main thread."""
    feed = Feed(DataLoader(dataset, 4, shuffle=True, **options), device="meta")
    batches = feed.batches(0, 2)
    first = next(batches)
    assert (first[0] if isinstance(first, list) else first).device == META
    assert (threads() != []) == runs
    assert len(list(batches)) == 2
    assert threads() == []
    next(feed.batches(1))
    feed.close()
    assert threads() == []


def test_no_thread_on_the_cpu() -> None:
    """On the CPU there is nothing to overlap: batches come straight from the source."""
    batches = Feed(DataLoader(TensorDataset(torch.ones(20, 2)), 4)).batches(0)
    next(batches)
    assert threads() == []


class Broken(Noisy):
    def __getitem__(self, row: int) -> torch.Tensor:
        raise ValueError("torn")


def test_error_of_a_row_comes_through_the_thread() -> None:
    """A worker's error reaches the reader with its cause."""
    feed = Feed(DataLoader(Broken(), 4, num_workers=1), device="meta")
    with pytest.raises(DataError, match="row 0 of Broken failed") as caught:
        next(feed.batches(0))
    assert isinstance(caught.value.__cause__, ValueError)
    feed.close()


def test_cuda_copies_are_waited_for_by_the_computing_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy runs on a stream of its own, and the stream that computes waits for its event; the host does not."""
    log: list[object] = []

    class FakeStream:
        def __init__(self, device: Any = None) -> None:
            log.append("stream")

        def __enter__(self) -> None:
            log.append("enter")

        def __exit__(self, *error: object) -> None:
            log.append("leave")

        def record_event(self) -> str:
            log.append("event")
            return "copied"

        def wait_event(self, event: str) -> None:
            log.append(f"wait for {event}")

    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", FakeStream)
    ship = _CudaShip(META)
    item = ship.send([torch.ones(2)])
    assert log == ["stream", "enter", "event", "leave"]
    log.clear()
    assert ship.receive(item)[0].device == META
    assert log == ["stream", "wait for copied"]
