"""The order of rows in one epoch: a pure function of (seed, epoch), cut into batches by arithmetic.

    sampler classes of torch    one tensor (or a range) for the whole epoch, sliced per batch
    anybody else's sampler      run once under derived seeds, then held as a tensor or a list
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler

from lucid import rng
from lucid.errors import DataError

_DEPTH = 3  # how many wrappers around a sampler are looked through


class Order:
    """The rows of one epoch, batch by batch.

    Args:
        rows: row numbers (or whatever keys the sampler gives) of the epoch, one after another.
        batch_size: rows per batch; None: every key is a batch of its own, as with `batch_size=None`.
        drop_last: leave out a short last batch.
        bounds: ends of the batches in `rows`, for a batch sampler whose batches differ in size.
        unique: no row comes twice, so that nobody has to look.
    """

    def __init__(
        self,
        rows: Tensor | range | list[Any],
        batch_size: int | None = None,
        drop_last: bool = False,
        bounds: list[int] | None = None,
        unique: bool = False,
    ) -> None:
        self.rows = rows
        self.batch_size = batch_size
        self._bounds = bounds
        if bounds is not None:
            self.num_batches = len(bounds) - 1
        elif batch_size is None:
            self.num_batches = len(rows)
        else:
            self.num_batches = len(rows) // batch_size if drop_last else -(-len(rows) // batch_size)
        self._repeats = None if unique else _repeats(rows)

    def span(self, batch: int) -> tuple[int, int]:
        """Return where a batch begins and ends in `rows`."""
        if self._bounds is not None:
            return self._bounds[batch], self._bounds[batch + 1]
        size = self.batch_size or 1
        return batch * size, min(batch * size + size, len(self.rows))

    def keys(self, batch: int) -> list[Any]:
        """Return the row numbers of one batch."""
        first, end = self.span(batch)
        part = self.rows[first:end]
        return part.tolist() if isinstance(part, Tensor) else list(part)

    def repeats(self, batch: int) -> list[int] | None:
        """Return how often each row of the batch came before in this epoch; None where none did in the epoch."""
        if self._repeats is None:
            return None
        first, end = self.span(batch)
        return self._repeats[first:end].tolist()


def _repeats(rows: Tensor | range | list[Any]) -> Tensor | None:
    """For each place, how often its row came at an earlier place; None if no row comes twice."""
    if isinstance(rows, range):
        return None
    if isinstance(rows, list):
        return _repeats_of_keys(rows)
    values, places = torch.sort(rows, stable=True)
    again = torch.zeros_like(values, dtype=torch.bool)
    again[1:] = values[1:] == values[:-1]
    if not again.any():
        return None
    number = torch.arange(len(values))
    start = torch.where(again, torch.zeros_like(number), number).cummax(0).values
    return torch.empty_like(number).scatter_(0, places, number - start)


def _repeats_of_keys(rows: list[Any]) -> Tensor | None:
    seen: dict[str, int] = {}
    counts = []
    for key in rows:
        name = repr(key)
        counts.append(seen.get(name, 0))
        seen[name] = counts[-1] + 1
    return torch.tensor(counts) if len(seen) < len(rows) else None


def make_order(loader: Any, seed: int, epoch: int) -> Order:
    """Return the order that a map-style loader has in an epoch.

    Args:
        loader: torch's DataLoader, or anything with its `sampler`, `batch_sampler` and `dataset`.
        seed: seed of the run.
        epoch: number of the epoch, from 0; `set_epoch` of the samplers is told.

    Raises:
        DataError: if the sampler never ends.
    """
    outer = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    chain = sampler_chain(outer, loader.dataset)
    _set_epoch(chain, epoch)
    with _derived_generators(chain, seed, epoch):
        if loader.batch_sampler is None:
            rows, unique = _rows_of(outer, loader, seed, epoch)
            return Order(rows, None, unique=unique)
        if type(outer) is BatchSampler:
            rows, unique = _rows_of(outer.sampler, loader, seed, epoch)
            return Order(rows, outer.batch_size, outer.drop_last, unique=unique)
        return _ragged(_run(outer, loader, seed, epoch))


def _ragged(batches: list[Any]) -> Order:
    batches = [list(batch) for batch in batches]
    bounds = list(itertools.accumulate(map(len, batches), initial=0))
    return Order(_pack([row for batch in batches for row in batch]), bounds=bounds)


def _rows_of(sampler: Any, loader: Any, seed: int, epoch: int) -> tuple[Tensor | range | list[Any], bool]:
    """Return the epoch's rows and whether they are known to be distinct. Generators are the derived ones already."""
    if type(sampler) is SequentialSampler:
        return range(len(sampler.data_source)), True
    if type(sampler) is RandomSampler:
        return _shuffled(sampler)
    if type(sampler) is SubsetRandomSampler:
        indices = torch.as_tensor(sampler.indices, dtype=torch.int64)
        return indices[torch.randperm(len(indices), generator=sampler.generator)], False
    if type(sampler) is WeightedRandomSampler:
        wanted, again = sampler.num_samples, sampler.replacement
        return torch.multinomial(sampler.weights, wanted, again, generator=sampler.generator), not again
    return _pack(_run(sampler, loader, seed, epoch)), False


def _shuffled(sampler: RandomSampler) -> tuple[Tensor, bool]:
    rows, wanted = len(sampler.data_source), sampler.num_samples
    if sampler.replacement:
        return torch.randint(rows, (wanted,), generator=sampler.generator), False
    rounds = -(-wanted // rows)
    drawn = [torch.randperm(rows, generator=sampler.generator) for _ in range(rounds)]
    return (drawn[0] if rounds == 1 else torch.cat(drawn))[:wanted], rounds == 1


def _run(sampler: Iterable[Any], loader: Any, seed: int, epoch: int) -> list[Any]:
    """Read a sampler of somebody else to its end, every global stream seeded for this epoch."""
    limit = max(1_000_000, 100 * _length(loader.dataset))
    with rng.fork():
        rng.seed_all(rng.derive(seed, "order", epoch))
        keys = list(itertools.islice(sampler, limit + 1))
    if len(keys) > limit:
        raise DataError(
            f"the sampler {type(sampler).__name__} must end: it gave more than {limit} entries in epoch {epoch}. "
            "An epoch ends with its sampler; cut an endless one, for example with `num_samples`."
        )
    return keys


def length_of(thing: object) -> int | None:
    """Return `len(thing)`, or None where it has no length."""
    try:
        return len(thing) if isinstance(thing, Sized) else None
    except (TypeError, NotImplementedError):
        return None


def _length(dataset: object) -> int:
    return length_of(dataset) or 0


def _pack(keys: list[Any]) -> Tensor | list[Any]:
    """Plain row numbers take 8 bytes each in a tensor; other keys stay a list."""
    if all(type(key) is int for key in keys):
        return torch.tensor(keys, dtype=torch.int64)
    if all(isinstance(key, int | np.integer) or (isinstance(key, Tensor) and key.ndim == 0) for key in keys):
        return torch.tensor([int(key) for key in keys], dtype=torch.int64)
    return keys


def sampler_chain(sampler: Any, dataset: Any) -> list[Any]:
    """Return the sampler and the samplers that it wraps, outermost first."""
    found: list[Any] = []
    level = [sampler]
    for _ in range(_DEPTH + 1):
        found += level
        inner = [value for each in level for value in _wrapped(each) if value is not dataset]
        level = [value for value in inner if not any(value is other for other in found)]
    return found


def _wrapped(sampler: Any) -> Iterator[Any]:
    for name, value in getattr(sampler, "__dict__", {}).items():
        if hasattr(value, "__iter__") and ("sampler" in name or hasattr(value, "set_epoch")):
            yield value


def _set_epoch(chain: list[Any], epoch: int) -> None:
    """Tell the outermost samplers that listen; what stands inside such a one is its own business."""
    told: list[Any] = []
    for sampler in chain:
        if any(sampler is inner for inner in told):
            continue
        if callable(getattr(sampler, "set_epoch", None)):
            sampler.set_epoch(epoch)
            told += sampler_chain(sampler, None)


@contextmanager
def _derived_generators(chain: list[Any], seed: int, epoch: int) -> Iterator[None]:
    """Give every sampler generators seeded for this epoch in place of its own, and its own back at the end."""
    replaced: list[tuple[Any, str, Any]] = []
    try:
        for depth, sampler in enumerate(chain):
            for name, value in list(getattr(sampler, "__dict__", {}).items()):
                fresh = _fresh(name, value, (seed, "order", epoch, depth, name))
                if fresh is not None:
                    replaced.append((sampler, name, value))
                    setattr(sampler, name, fresh)
        yield
    finally:
        for sampler, name, value in replaced:
            setattr(sampler, name, value)


def _fresh(name: str, value: Any, parts: tuple[int | str, ...]) -> Any:
    if isinstance(value, torch.Generator):
        generator = torch.Generator(value.device)
        return generator.manual_seed(rng.derive(*parts, value.initial_seed()))
    if value is None and name == "generator":
        return torch.Generator().manual_seed(rng.derive(*parts))
    if isinstance(value, np.random.Generator):
        return np.random.default_rng(rng.derive(*parts))
    if isinstance(value, np.random.RandomState):
        return np.random.RandomState(rng.derive(*parts) & (2**32 - 1))
    if type(value) is random.Random:
        return random.Random(rng.derive(*parts))
    return None
