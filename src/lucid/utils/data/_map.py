"""Batches of a map-style loader: position is arithmetic, and no row before it is read."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import default_collate

from lucid import rng
from lucid.errors import DataError, ResumeError

from ._check import check_start
from ._gather import gather_of
from ._order import Order, length_of
from ._rows import RowReader, Ticket, unwrap
from ._sampling import SamplerStates, Sampling
from ._worker import WorkerInit, same
from ._worker import start as start_workers

_KEPT = 2  # orders of epochs in memory: this one, and the one before for questions about its last batches


class MapSource:
    """Host batches of a map-style loader.

    Args:
        loader: torch's DataLoader, or one like it.
        seed: what every order and every row's randomness is derived from.
        pin: let workers hand over page-locked memory.
        ready: the data set is a list of ready batches, which are handed out as they are.
        tell_epoch: call `set_epoch` of the data set too, where it has one.
    """

    def __init__(self, loader: Any, seed: int, pin: bool = False, ready: bool = False, tell_epoch: bool = True) -> None:
        self.loader = loader
        self._seed = seed
        self._pin = pin
        single = loader.batch_sampler is None
        here = loader.num_workers == 0
        self._ready = ready
        in_memory = here and not single and loader.collate_fn is default_collate
        self._gather = gather_of(loader.dataset) if in_memory else None
        self._reader = RowReader(loader.dataset, loader.collate_fn, seed, single, tell_epoch)
        self._sampling = Sampling(loader, seed)
        self._states = SamplerStates(self._sampling.chain)
        self.has_state = self._states.possible
        self._start_states: tuple[int, dict[str, Any]] | None = None
        self._loaded: dict[str, Any] = {}
        self._orders: dict[int, Order] = {}
        self._tickets = _Tickets()
        self._workers: torch.utils.data.DataLoader[Any] | None = None
        self._turn = 0

    @property
    def may_run_ahead(self) -> bool:
        """Whether batches may be read in a thread: not where that runs the user's code with the global streams."""
        return self.loader.num_workers > 0 or not self._reader.runs_user_code

    @property
    def gather(self) -> Any:
        """The arrays that batches are gathered from, or None."""
        return self._gather

    @property
    def user_seeds(self) -> list[int]:
        """Seeds of the generators that the user gave to samplers."""
        return self._sampling.user_seeds()

    def order(self, epoch: int) -> Order:
        """Return the order of an epoch; made once, then kept while it is in use."""
        if epoch not in self._orders:
            self._go_to(epoch)
            while len(self._orders) >= _KEPT:
                del self._orders[next(iter(self._orders))]
            order = self._sampling.order(epoch)
            if self._gather is not None:
                self._gather.fit(order, epoch)
            told = length_of(self._sampling.outer)
            if told is not None and told != order.num_batches:
                name = type(self._sampling.outer).__name__
                warnings.warn(
                    f"the sampler {name} said {told} batches and gave {order.num_batches} in epoch {epoch}: "
                    "totals planned from its length are off. Make its __len__ exact.",
                    stacklevel=2,
                )
            self._orders[epoch] = order
        return self._orders[epoch]

    def _go_to(self, epoch: int) -> None:
        """Put samplers that carry a state from epoch to epoch where this epoch begins."""
        if self._loaded:
            loaded, self._loaded = self._loaded, {}
            states = {loaded["epoch"]: loaded["before"], loaded["epoch"] + 1: loaded["after"]}
            if epoch not in states:
                raise ResumeError(
                    f"the samplers' state is that of epoch {loaded['epoch']}, and the run goes on in epoch {epoch}."
                )
            self._states.write(states[epoch])
        self._start_states = (epoch, self._states.read())

    def rows(self, epoch: int, batch: int) -> list[Any]:
        """Return the row numbers of a batch; the key itself where a sampler gives lists to `batch_size=None`."""
        keys = self.order(epoch).keys(batch)
        return keys[0] if self._reader.single and isinstance(keys[0], list) else keys

    def num_batches(self, epoch: int) -> int:
        """Return the number of batches, by the sampler's length where it has one."""
        if epoch in self._orders or self._sampling.lasts_one_epoch:
            return self.order(epoch).num_batches
        return self._sampling.count(epoch)

    def batches(self, epoch: int, start: int) -> Iterator[Any]:
        """Yield the host batches of an epoch from `start` on."""
        order = self.order(epoch)
        check_start(epoch, start, order.num_batches)
        if self._gather is not None:
            return self._gather.batches(order, start)
        if self._ready:
            return itertools.islice(self.loader.dataset, start, None)
        if self.loader.num_workers > 0:
            return self._from_workers(self._begin(order, epoch, start), self._turn, epoch, start)
        return self._here(order, epoch, start)

    def _here(self, order: Order, epoch: int, start: int) -> Iterator[Any]:
        for ticket in _tickets(order, epoch, start):
            if not self._reader.runs_user_code:
                yield self._reader.read(ticket)
                continue
            with rng.fork(), self._reader.own_generators():
                batch = self._reader.read(ticket)
            yield batch

    def _begin(self, order: Order, epoch: int, start: int) -> Iterator[Any]:
        """Let the workers begin; here and now, because to fork in another thread is to copy locks that are held."""
        self._turn += 1
        if self._workers is None:
            self._workers = self._start_workers()
        self._tickets.set(order, epoch, start)
        return start_workers(self._workers)

    def _from_workers(self, results: Iterator[Any], turn: int, epoch: int, start: int) -> Iterator[Any]:
        for batch in itertools.count(start):
            if turn != self._turn:
                raise RuntimeError("a newer iteration over these batches has begun; this one is over.")
            try:
                result = next(results)
            except StopIteration:
                return
            except RuntimeError as error:  # killed, or out of time: what a row raises comes as a result
                raise DataError(f"a worker was lost before batch {batch} of epoch {epoch} came: {error}") from error
            yield unwrap(result)

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

    def state_dict(self) -> dict[str, Any]:
        """Return what samplers carry from epoch to epoch; {} where (seed, epoch) says it all."""
        if self._start_states is None:
            return self._loaded
        epoch, before = self._start_states
        after = self._states.read()
        return {"epoch": epoch, "before": before, "after": after} if before or after else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self._loaded = state
        self._start_states = None
        self._orders.clear()

    def notes(self) -> list[str]:
        """Return what cannot be resumed exactly."""
        return self._sampling.notes()

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
