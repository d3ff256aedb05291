"""What a worker process does before it reads rows: drop the run's signal handlers, then call the user's function."""

from __future__ import annotations

import atexit
import os
import signal
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils import worker as _torch_worker

from lucid.errors import DataError

_PATIENCE = 5.0  # seconds that a worker has to end when the run leaves
SHARDED = "sharded_by_worker"
"""Attribute by which a stream says that it shares its rows among the workers by some way of its own."""


class WorkerView:
    """What `get_worker_info()` gives in our workers: torch's record, with the user's own data set in it.

    It remembers being looked at: a stream that never asks which worker it is in cannot have shared its rows.

    Args:
        info: torch's record.
        number: number of the worker, which for a resumed stream is not that of its process.
        dataset: the user's data set.
    """

    def __init__(self, info: Any, number: int, dataset: Any) -> None:
        self._info = info
        self.number = number
        self._dataset = dataset
        self.asked_for_number = False
        self.asked_for_dataset = False

    @property
    def id(self) -> int:
        """Number of the worker, from 0."""
        self.asked_for_number = True
        return self.number

    @property
    def num_workers(self) -> int:
        """How many workers there are."""
        self.asked_for_number = True
        return self.count

    @property
    def dataset(self) -> Any:
        """The user's data set in this process."""
        self.asked_for_dataset = True
        return self._dataset

    @property
    def count(self) -> int:
        """How many workers there are, without being remembered."""
        return int(self._info.num_workers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._info, name)

    def check_shared(self) -> None:
        """Raise `DataError` if the stream's code, which has given a row by now, cannot have shared its rows."""
        if self.asked_for_number or self.count < 2 or getattr(self._dataset, SHARDED, False):
            return
        raise DataError(
            f"the stream {type(self._dataset).__name__} must share its rows among its {self.count} workers, and it "
            "never asked torch.utils.data.get_worker_info() which worker it is in: every row would come "
            f"{self.count} times. Give each worker its part, use num_workers=1, or, if it shares them in another "
            f"way, set its attribute {SHARDED} = True."
        )


class WorkerInit:
    """`worker_init_fn` for a loader whose data set is wrapped; can be pickled if the user's function can.

    Args:
        user_fn: the user's `worker_init_fn`, or None.
        first: number of the worker that the first process is.
    """

    def __init__(self, user_fn: Callable[[int], None] | None, first: int = 0) -> None:
        self.user_fn = user_fn
        self.first = first
        self._leaving = _exits.leaving

    def __call__(self, worker_id: int) -> None:
        drop_handlers(self._leaving)
        info: Any = get_worker_info()
        view = WorkerView(info, (worker_id + self.first) % info.num_workers, info.dataset.dataset)
        _torch_worker._worker_info = view  # type: ignore[assignment]  # there is no setter
        if self.user_fn is not None:
            self.user_fn(view.number)
            # Its number was an argument; what it does to the data set may well be the sharing.
            view.asked_for_number = view.asked_for_dataset


def drop_handlers(leaving: torch.Tensor) -> None:
    """Forget the handlers that a forked worker has from the run: only the run itself may save and stop.

    A scheduler, or Ctrl-C, signals the whole group. The run then finishes its step, so its workers must outlive the
    signal. SIGTERM ends them only when the run is leaving, for then it is the run that sends it.

    Args:
        leaving: one byte of shared memory, not 0 when the run is leaving.
    """

    def ended(number: int, frame: FrameType | None) -> None:
        if leaving.item():
            os._exit(0)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGUSR1"):
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, ended)


class _Exits:
    """Ends the workers that are still there when this process leaves: Python would wait for them without end.

    `atexit` runs the last that was registered first, so this comes before the waiting of `multiprocessing`.
    """

    def __init__(self) -> None:
        self._owner = 0
        self._iterators: weakref.WeakSet[Any] = weakref.WeakSet()
        self._flag = torch.zeros(1, dtype=torch.uint8)

    @property
    def leaving(self) -> torch.Tensor:
        """One byte in shared memory; a process that was forked gets one of its own."""
        if self._owner != os.getpid():
            self._owner = os.getpid()
            self._iterators = weakref.WeakSet()
            self._flag = torch.zeros(1, dtype=torch.uint8)
            self._flag.share_memory_()
            atexit.register(self.leave)
        return self._flag

    def add(self, iterator: Any) -> None:
        """Remember torch's iterator over workers for as long as it lives."""
        self._iterators.add(iterator)

    def leave(self) -> None:
        """Ask every worker to end, and end those that do not."""
        if self._owner != os.getpid():
            return
        self._flag.fill_(1)
        workers = [worker for iterator in self._iterators for worker in getattr(iterator, "_workers", [])]
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join(_PATIENCE)
            if worker.is_alive():
                worker.kill()


_exits = _Exits()


def start(loader: torch.utils.data.DataLoader[Any]) -> Iterator[Any]:
    """Return an iterator over a loader with workers, which end when this process does."""
    iterator = iter(loader)
    _exits.add(iterator)
    return iterator


def same(value: Any) -> Any:
    """Return the value: `collate_fn` of a loader whose data set makes whole batches."""
    return value
