"""Batches of a map-style loader: position is arithmetic, and no row before it is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import default_collate

from lucid import rng

from ._gather import gather_of
from ._order import Order, length_of, make_order
from ._rows import RowReader, Ticket, unwrap
from ._worker import WorkerInit, same

_KEPT = 2  # orders of epochs in memory: this one, and the one before for questions about its last batches


class MapSource:
    """Host batches of a map-style loader.

    Args:
        loader: torch's DataLoader, or anything with its attributes.
        seed: what every order and every row's randomness is derived from.
        pin: let workers hand over page-locked memory.
    """

    def __init__(self, loader: Any, seed: int, pin: bool) -> None:
        self.loader = loader
        self._seed = seed
        self._pin = pin
        self._single = loader.batch_sampler is None
        in_memory = loader.num_workers == 0 and not self._single and loader.collate_fn is default_collate
        self._gather = gather_of(loader.dataset) if in_memory else None
        self._reader = RowReader(loader.dataset, loader.collate_fn, seed, self._single)
        self._orders: dict[int, Order] = {}
        self._tickets = _Tickets()
        self._workers: torch.utils.data.DataLoader[Any] | None = None
        self._turn = 0

    @property
    def runs_user_code_here(self) -> bool:
        """Whether reading a batch calls the user's code in this process, which must then be the main thread."""
        return self._gather is None and self.loader.num_workers == 0

    def order(self, epoch: int) -> Order:
        """Return the order of an epoch; made once, then kept while it is in use."""
        if epoch not in self._orders:
            while len(self._orders) >= _KEPT:
                del self._orders[next(iter(self._orders))]
            self._orders[epoch] = make_order(self.loader, self._seed, epoch)
        return self._orders[epoch]

    def num_batches(self, epoch: int) -> int:
        """Return the number of batches, by the sampler's length where it has one."""
        if epoch not in self._orders:
            told = length_of(self.loader.sampler if self._single else self.loader.batch_sampler)
            if told is not None:
                return told
        return self.order(epoch).num_batches

    def batches(self, epoch: int, start: int) -> Iterator[Any]:
        """Yield the host batches of an epoch from `start` on."""
        order = self.order(epoch)
        if self._gather is not None:
            return self._gather.batches(order, start)
        if self.loader.num_workers > 0:
            return self._from_workers(order, epoch, start)
        return self._here(order, epoch, start)

    def _here(self, order: Order, epoch: int, start: int) -> Iterator[Any]:
        for ticket in _tickets(order, epoch, start):
            with rng.fork():
                batch = self._reader.read(ticket)
            yield batch

    def _from_workers(self, order: Order, epoch: int, start: int) -> Iterator[Any]:
        self._turn += 1
        turn = self._turn
        if self._workers is None:
            self._workers = self._start_workers()
        self._tickets.set(order, epoch, start)
        for batch in self._workers:
            if turn != self._turn:
                raise RuntimeError("a newer iteration over these batches has begun; this one is over.")
            yield unwrap(batch)

    def _start_workers(self) -> torch.utils.data.DataLoader[Any]:
        loader = self.loader
        return torch.utils.data.DataLoader(
            self._reader,  # type: ignore[arg-type]  # a map-style data set by shape
            batch_size=None,
            sampler=self._tickets,
            num_workers=loader.num_workers,
            collate_fn=same,
            pin_memory=self._pin,
            timeout=loader.timeout,
            worker_init_fn=WorkerInit(loader.worker_init_fn),
            multiprocessing_context=loader.multiprocessing_context,
            generator=torch.Generator().manual_seed(rng.derive(self._seed, "workers")),
            prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.persistent_workers,
        )

    def close(self) -> None:
        """Stop the workers."""
        self._turn += 1
        self._workers = None


class _Tickets:
    """Sampler of the loader with the workers: what it gives is set anew for every epoch."""

    def __init__(self) -> None:
        self._now: tuple[Order, int, int] | None = None

    def set(self, order: Order, epoch: int, start: int) -> None:
        self._now = (order, epoch, start)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(()) if self._now is None else _tickets(*self._now)


def _tickets(order: Order, epoch: int, start: int) -> Iterator[Ticket]:
    for batch in range(start, order.num_batches):
        yield Ticket(epoch, batch, order.keys(batch), order.repeats(batch))
