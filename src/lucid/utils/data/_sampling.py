"""From a loader's samplers to the `Order` of an epoch: a pure function of (seed, epoch).

- sampler classes of torch: one tensor (or a range) for the whole epoch
- anybody else's sampler: a copy of it is run to its end under seeds derived for the epoch

A copy, because many samplers shuffle a list of theirs in place, and then the order would depend on how often they ran.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from lucid import rng
from lucid.errors import DataError, ResumeError

from ._generators import AMBIENT, OwnGenerators
from ._order import Order, layers_of, length_of, pack, vars_of

_DEPTH = 3  # how many wrappers around a sampler are looked through
_SMALL = 64  # entries of a dict that is carried from epoch to epoch
_PLAIN = (int, float, str, bool, type(None))


class Sampling:
    """Makes the orders of a map-style loader.

    Args:
        loader: torch's DataLoader, or anything with its `sampler`, `batch_sampler`, `dataset` and `generator`.
        seed: seed of the run.
    """

    def __init__(self, loader: Any, seed: int) -> None:
        self._loader = loader
        self._seed = seed
        self.outer = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        self.chain = sampler_chain(self.outer, loader.dataset)

    @property
    def lasts_one_epoch(self) -> bool:
        """Whether a sampler is an iterator: looking at it uses it up."""
        return any(hasattr(one, "__next__") for one in self.chain)

    def order(self, epoch: int) -> Order:
        """Return the order of an epoch, telling `set_epoch` and letting counters of the samplers go on.

        Raises:
            DataError: if a sampler never ends.
        """
        if any(hasattr(one, "set_epoch") for one in self.chain):
            with rng.fork(self._order_seed(epoch)):
                set_epoch(self.chain, epoch)
        return self._make(epoch, keep=True)

    def count(self, epoch: int) -> int:
        """Return the number of batches of an epoch without touching the user's samplers."""
        told = length_of(self.outer)
        if told is not None:
            return told
        return self._make(epoch, keep=False).num_batches

    def _make(self, epoch: int, keep: bool) -> Order:
        loader, outer = self._loader, self.outer
        if loader.batch_sampler is None:
            rows, unique = self._rows(outer, epoch, keep)
            return Order(rows, None, unique=unique)
        if is_exactly(outer, BatchSampler):
            rows, unique = self._rows(outer.sampler, epoch, keep)
            return Order(rows, outer.batch_size, outer.drop_last, unique=unique)
        batches = [list(batch) for batch in self._run(outer, epoch, keep)]
        bounds = list(itertools.accumulate(map(len, batches), initial=0))
        return Order(pack([row for batch in batches for row in batch]), bounds=bounds)

    def _rows(self, sampler: Any, epoch: int, keep: bool) -> tuple[Tensor | range | list[Any], bool]:
        """Return the rows of an epoch and whether they are known to be distinct."""
        if is_exactly(sampler, SequentialSampler):
            return range(len(sampler.data_source)), True
        if not any(is_exactly(sampler, kind) for kind in (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)):
            return pack(self._run(sampler, epoch, keep)), False
        generator = torch.Generator().manual_seed(self._order_seed(epoch, self._user_seed(sampler)))
        if is_exactly(sampler, RandomSampler):
            return _shuffled(sampler, generator)
        if is_exactly(sampler, SubsetRandomSampler):
            indices = torch.as_tensor(sampler.indices, dtype=torch.int64)
            return indices[torch.randperm(len(indices), generator=generator)], False
        wanted, again = sampler.num_samples, sampler.replacement
        return torch.multinomial(sampler.weights, wanted, again, generator=generator), not again

    def _order_seed(self, epoch: int, *more: int | str) -> int:
        return rng.derive(self._seed, "order", epoch, *more)

    def _user_seed(self, sampler: Any) -> int:
        """Seed that the user gave the sampler's generator, or -1."""
        own = sampler.generator
        if type(sampler).__module__.startswith("torchdata") and own is not self._loader.generator:
            return -1  # torchdata makes one itself, seeded by chance, where the user gave none
        return -1 if own is None else int(own.initial_seed())

    def notes(self) -> list[str]:
        """Return what may differ in a resumed run."""
        if self.lasts_one_epoch or any(is_stateful(one) or hasattr(one, "set_epoch") for one in self.chain):
            return []
        users = [one for one in self.chain if not type(one).__module__.startswith(("torch.", "torchdata."))]
        return [
            f"the sampler {type(one).__name__} cannot be copied: if it changes a list of its own when it runs, a "
            "resumed run has another order. Give it set_epoch(), or state_dict() and load_state_dict()."
            for one in users
            if _copied(one, self._loader.dataset) is None
        ]

    def user_seeds(self) -> list[int]:
        """Return the seeds of the user's generators, which are part of what decides the order."""
        seeded = [one for one in self.chain if isinstance(getattr(one, "generator", None), torch.Generator)]
        return [self._user_seed(one) for one in seeded]

    def _run(self, sampler: Iterable[Any], epoch: int, keep: bool) -> list[Any]:
        """Read a sampler of somebody else to its end, every stream seeded for this epoch."""
        limit = max(1_000_000, 100 * (length_of(self._loader.dataset) or 0))
        with self._runnable(sampler, epoch, keep) as runnable, rng.fork(self._order_seed(epoch)):
            keys = list(itertools.islice(runnable, limit + 1))
        if len(keys) > limit:
            raise DataError(
                f"the sampler {type(sampler).__name__} must end: it gave more than {limit} entries in epoch {epoch}. "
                "An epoch ends with its sampler; cut an endless one, for example with `num_samples`."
            )
        return keys

    @contextmanager
    def _runnable(self, sampler: Any, epoch: int, keep: bool) -> Iterator[Any]:
        """Give a copy of the sampler to run, or itself where it keeps a state of its own or cannot be copied."""
        dataset = self._loader.dataset
        chain = sampler_chain(sampler, dataset)
        twin = None if any(map(is_stateful, chain)) else _copied(sampler, dataset)
        runs = sampler if twin is None else twin
        own = OwnGenerators(runs, skip=layers_of(dataset))
        before = own.capture()
        own.seed(self._order_seed(epoch))
        try:
            if twin is not None and not keep:
                set_epoch(sampler_chain(twin, dataset), epoch)
            yield runs
        finally:
            own.restore(before)
        if twin is not None and keep:
            _carry_over(sampler_chain(twin, dataset), chain)


def _copied(sampler: Any, dataset: Any) -> Any:
    """Return a copy that shares the data set and the global streams, or None where it cannot be copied."""
    try:
        layers = layers_of(dataset)
        parts = [value for layer in layers for value in vars_of(layer).values()]
        return copy.deepcopy(sampler, {id(one): one for one in (*AMBIENT, *layers, *parts)})
    except Exception:  # a lock, a file, a connection: whatever it holds, it then runs itself
        return None


def _carry_over(runs: list[Any], chain: list[Any]) -> None:
    """Let plain values that the run changed, such as a counter of epochs, go on in the user's sampler."""
    for ran, original in zip(runs, chain, strict=True):
        before = vars_of(original)
        for name, value in vars_of(ran).items():
            if _is_plain(value) and (name not in before or before[name] != value):
                setattr(original, name, value)


def _is_plain(value: Any) -> bool:
    """Whether this may be a counter, alone or in a small dict; a list may be one that is shuffled in place."""
    if type(value) is dict:
        return len(value) <= _SMALL and all(type(key) is str and isinstance(one, _PLAIN) for key, one in value.items())
    return isinstance(value, _PLAIN)


def _shuffled(sampler: RandomSampler, generator: torch.Generator) -> tuple[Tensor, bool]:
    rows, wanted = len(sampler.data_source), sampler.num_samples
    if sampler.replacement:
        return torch.randint(rows, (wanted,), generator=generator), False
    rounds = -(-wanted // rows)
    drawn = [torch.randperm(rows, generator=generator) for _ in range(rounds)]
    return (drawn[0] if rounds == 1 else torch.cat(drawn))[:wanted], rounds == 1


def is_exactly(sampler: Any, kind: type) -> bool:
    """Whether this is torch's own class, or torchdata's twin of it: a subclass may do anything."""
    own = type(sampler)
    return own is kind or (own.__name__ == kind.__name__ and own.__module__.startswith("torchdata.stateful_dataloader"))


def is_stateful(sampler: Any) -> bool:
    """Whether a sampler's order comes from a state of its own; one that is told the epoch has its order from that."""
    methods = (getattr(sampler, name, None) for name in ("state_dict", "load_state_dict"))
    return all(map(callable, methods)) and not callable(getattr(sampler, "set_epoch", None))


def sampler_chain(sampler: Any, dataset: Any) -> list[Any]:
    """Return the sampler and the samplers that it wraps, outermost first."""
    found: list[Any] = []
    level = [sampler]
    for _ in range(_DEPTH + 1):
        found += level
        inner = [value for each in level for value in _wrapped(each) if value is not dataset]
        level = [value for at, value in enumerate(inner) if not any(value is other for other in found + inner[:at])]
    return found


def _wrapped(sampler: Any) -> Iterator[Any]:
    for name, value in vars_of(sampler).items():
        named = "sampler" in name or hasattr(value, "set_epoch")
        if isinstance(value, Sampler) or (named and hasattr(value, "__iter__")):
            yield value


def set_epoch(chain: list[Any], epoch: int) -> None:
    """Tell the outermost samplers that listen; what stands inside such a one is its own business."""
    told: list[Any] = []
    for sampler in chain:
        if any(sampler is inner for inner in told):
            continue
        if callable(getattr(sampler, "set_epoch", None)):
            sampler.set_epoch(epoch)
            told += sampler_chain(sampler, None)


class SamplerStates:
    """What a chain of samplers carries from epoch to epoch: their own state, or plain values that changed.

    Args:
        chain: the user's samplers.
    """

    def __init__(self, chain: list[Any]) -> None:
        self._chain = chain
        self._first = [self._plain(one) for one in chain]
        self.possible = any(map(is_stateful, chain)) or any(self._first)

    def read(self) -> dict[str, Any]:
        """Return the state by place in the chain; {} where no sampler has any."""
        states = {}
        for number, (sampler, first) in enumerate(zip(self._chain, self._first, strict=True)):
            if is_stateful(sampler):
                states[str(number)] = copy.deepcopy(sampler.state_dict())
            else:
                now = self._plain(sampler)
                changed = {name: value for name, value in now.items() if name not in first or first[name] != value}
                if changed:
                    states[str(number)] = changed
        return states

    def write(self, states: dict[str, Any]) -> None:
        """Put the samplers where `read` found them.

        Raises:
            ResumeError: if there are fewer samplers than then.
        """
        if any(int(number) >= len(self._chain) for number in states):
            raise ResumeError(
                f"the checkpoint has the state of another sampler than {type(self._chain[0]).__name__}, which it is "
                "now: its order cannot go on."
            )
        for number, state in states.items():
            sampler = self._chain[int(number)]
            if is_stateful(sampler):
                sampler.load_state_dict(copy.deepcopy(state))
            else:
                for name, value in state.items():
                    setattr(sampler, name, copy.copy(value))

    @staticmethod
    def _plain(sampler: Any) -> dict[str, Any]:
        if callable(getattr(sampler, "set_epoch", None)) or type(sampler).__module__.startswith("torch."):
            return {}
        return {name: copy.copy(value) for name, value in vars_of(sampler).items() if _is_plain(value)}
