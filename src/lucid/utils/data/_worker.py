"""What a worker process does before it reads rows: drop the run's signal handlers, then call the user's function."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch.utils.data import get_worker_info
from torch.utils.data._utils import worker as _torch_worker


class WorkerInit:
    """`worker_init_fn` for a loader whose data set is wrapped; can be pickled if the user's function can.

    The user's code sees its own data set in `get_worker_info()`, not the wrapper.

    Args:
        user_fn: the user's `worker_init_fn`, or None.
    """

    def __init__(self, user_fn: Callable[[int], None] | None) -> None:
        self.user_fn = user_fn

    def __call__(self, worker_id: int) -> None:
        drop_handlers()
        info = get_worker_info()
        wrapped = getattr(getattr(info, "dataset", None), "dataset", None)
        if info is not None and wrapped is not None:
            # `get_worker_info` has no setter; its module keeps the record in this variable.
            _torch_worker._worker_info = dataclasses.replace(info, dataset=wrapped)
        if self.user_fn is not None:
            self.user_fn(worker_id)


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
