"""An IterableDataset read by worker processes, with the state of every worker beside each batch.

Batches come round robin: worker 0, 1, ..., 0, 1, ... A resumed pass has to begin with the worker whose turn it is, and
torch always begins with its first process; so the workers are numbered anew, the one whose turn it is being first.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch.utils.data import IterableDataset, get_worker_info

from lucid import rng
from lucid.errors import DataError, ResumeError

from ._generators import OwnGenerators, pack_states, unpack_states
from ._rows import Failure, pack_failure, seed_streams, unwrap
from ._worker import WorkerInit, WorkerView, same, start


class StreamBatch(NamedTuple):
    """What a worker sends: a batch, from whom, and where that worker stands after it."""

    batch: Any
    worker: int
    state: bytes | None


class StreamWorkers:
    """Opens passes over an IterableDataset that workers read.

    Args:
        loader: torch's DataLoader over the data set.
        seed: what the randomness of a pass is derived from.
    """

    def __init__(self, loader: Any, seed: int) -> None:
        self._loader = loader
        self._seed = seed
        self.is_stateful = is_stateful(loader.dataset)
        self._epoch = torch.zeros(1, dtype=torch.int64)
        self._epoch.share_memory_()  # persistent workers read it at every pass
        self._workers: torch.utils.data.DataLoader[Any] | None = None
        self._states: dict[str, Any] = {}
        self._last = -1
        self._turn = 0

    def open(self, epoch: int, state: dict[str, Any] | None) -> Iterator[Any]:
        """Return the batches of an epoch, from the state if there is one.

        Raises:
            ResumeError: if the state is that of another number of workers.
        """
        workers = self._loader.num_workers
        if state is not None and state["workers"] != workers:
            raise ResumeError(
                f"the stream was read by {state['workers']} workers and each has its own place in it, now there are "
                f'{workers}. Use num_workers={state["workers"]}, or on_stream="skip".'
            )
        first = (state["last"] + 1) % workers if state else 0
        self._turn += 1
        self._states, self._last = (dict(state["states"]), state["last"]) if state else ({}, -1)
        self._epoch.fill_(epoch)
        if state is not None or self._workers is None:
            self._workers = self._start(first, epoch, self._states)
        inner = self._workers
        if not self._loader.persistent_workers or first != 0:
            self._workers = None  # the next pass begins with worker 0 again, so it needs other processes
        return self._read(inner, self._turn)

    def _read(self, inner: Any, turn: int) -> Iterator[Any]:
        for item in start(inner):
            if turn != self._turn:
                raise RuntimeError("a newer iteration over these batches has begun; this one is over.")
            got: StreamBatch = unwrap(item)
            self._last = got.worker
            if got.state is not None:
                self._states[str(got.worker)] = got.state
            yield got.batch

    def state(self) -> dict[str, Any] | None:
        """Return where each worker stands after the batch handed out last."""
        if not self.is_stateful:
            return None
        for name, one in self._states.items():
            if isinstance(one, bytes):
                self._states[name] = pickle.loads(one)
        return {"workers": self._loader.num_workers, "last": self._last, "states": dict(self._states)}

    def _start(self, first: int, epoch: int, states: dict[str, Any]) -> torch.utils.data.DataLoader[Any]:
        loader = self._loader
        return torch.utils.data.DataLoader(
            _Reader(loader, self._seed, self._epoch, epoch, states),
            batch_size=None,
            num_workers=loader.num_workers,
            collate_fn=same,
            pin_memory=loader.pin_memory and torch.accelerator.is_available(),
            timeout=loader.timeout,
            worker_init_fn=WorkerInit(loader.worker_init_fn, first),
            multiprocessing_context=loader.multiprocessing_context,
            generator=torch.Generator().manual_seed(rng.derive(self._seed, "workers")),
            prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.persistent_workers,
        )

    def close(self) -> None:
        """Stop the workers."""
        self._turn += 1
        self._workers = None


def is_stateful(thing: Any) -> bool:
    """Whether an object can say where it stands and go there exactly."""
    able = all(callable(getattr(thing, name, None)) for name in ("state_dict", "load_state_dict"))
    return able and not has_lossy_buffer(thing)


def has_lossy_buffer(dataset: Any) -> bool:
    """Whether this is a stream of Hugging Face that shuffles through a buffer: its state leaves out the content."""
    steps = [getattr(dataset, "_ex_iterable", None)]
    for step in steps:  # grows while it is walked
        if "BufferShuffled" in type(step).__name__:
            return True
        inner = [getattr(step, "ex_iterable", None), *(getattr(step, "ex_iterables", None) or ())]
        steps += [one for one in inner if one is not None]
    return False


class _Reader(IterableDataset[Any]):
    """Runs in the workers: makes the batches, so that a batch and the state after it belong together."""

    def __init__(self, loader: Any, seed: int, now: torch.Tensor, epoch: int, states: dict[str, Any]) -> None:
        self.dataset = loader.dataset
        self._batch_size = loader.batch_size
        self._drop_last = loader.drop_last
        self._collate_fn = loader.collate_fn
        self._seed = seed
        self._now = now
        self._states_epoch = epoch
        self._states = states
        self._stateful = is_stateful(loader.dataset)

    def __iter__(self) -> Iterator[StreamBatch | Failure]:
        try:
            yield from self._batches()
        except DataError as error:
            yield pack_failure(error)

    def _batches(self) -> Iterator[StreamBatch]:
        view: Any = get_worker_info()
        epoch = int(self._now)
        where = f"in worker {view.number}, epoch {epoch}"
        own = OwnGenerators(self.dataset)
        if self._begin(epoch, view.number, own):
            return
        for rows in self._rows(view, where):
            try:
                batch = self._collate_fn(rows)
            except Exception as error:
                raise DataError(f"collate_fn failed {where}: {type(error).__name__}: {error}") from error
            ended = self._batch_size is not None and len(rows) < self._batch_size
            yield StreamBatch(batch, view.number, self._state(own, ended))

    def _begin(self, epoch: int, worker: int, own: OwnGenerators) -> bool:
        """Seed, or go to the state there is; return whether that is the end of this worker's part."""
        seed_streams(rng.derive(self._seed, "stream", epoch, worker))
        own.seed(rng.derive(self._seed, "stream", epoch))  # alike in all workers: they may shuffle alike, then share
        if callable(getattr(self.dataset, "set_epoch", None)):
            self.dataset.set_epoch(epoch)
        state = self._states.get(str(worker)) if epoch == self._states_epoch else None
        if state is not None:
            self.dataset.load_state_dict(state["source"])
            rng.restore(state["rng"])
            own.restore(unpack_states(state["own"]))
        return state is not None and bool(state["ended"])

    def _rows(self, view: WorkerView, where: str) -> Iterator[Any]:
        """Yield what `collate_fn` takes: a list of rows, or one item if the loader has `batch_size=None`."""
        size = self._batch_size
        iterator, given = None, 0
        while True:
            try:
                iterator = iter(self.dataset) if iterator is None else iterator
                rows = list(islice(iterator, size or 1))
            except Exception as error:
                name = f"{type(self.dataset).__name__} failed {where}, after {given} rows"
                raise DataError(f"{name}: {type(error).__name__}: {error}") from error
            if rows and not given:
                view.check_shared()
            given += len(rows)
            if not rows or (size is not None and self._drop_last and len(rows) < size):
                return
            yield rows[0] if size is None else rows

    def _state(self, own: OwnGenerators, ended: bool) -> bytes | None:
        """Return where this worker stands, packed at once: the queue would do it later, when it has moved on."""
        if not self._stateful:
            return None
        source, states = self.dataset.state_dict(), pack_states(own.capture())
        return pickle.dumps({"source": source, "rng": rng.capture(), "own": states, "ended": ended})
