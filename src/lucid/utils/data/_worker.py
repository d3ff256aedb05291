"""What a worker process does before it reads rows: drop the run's signal handlers, then call the user's function."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch.utils.data import get_worker_info
from torch.utils.data._utils import worker as _torch_worker

from lucid.errors import DataError

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

    def __call__(self, worker_id: int) -> None:
        drop_handlers()
        info: Any = get_worker_info()
        view = WorkerView(info, (worker_id + self.first) % info.num_workers, info.dataset.dataset)
        _torch_worker._worker_info = view  # type: ignore[assignment]  # there is no setter
        if self.user_fn is not None:
            self.user_fn(view.number)
            # Its number was an argument; what it does to the data set may well be the sharing.
            view.asked_for_number = view.asked_for_dataset


def drop_handlers() -> None:
    """Forget the handlers that a forked worker has from the run: only the run itself may save and stop.

    A scheduler, or Ctrl-C, signals the whole group. The run then finishes its step, so its workers must outlive the
    signal: SIGINT and SIGUSR1 are ignored, and so is the first SIGTERM; a second one ends the worker.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGUSR1"):
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _obey_the_next)


def _obey_the_next(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def same(value: Any) -> Any:
    """Return the value: `collate_fn` of a loader whose data set makes whole batches."""
    return value
