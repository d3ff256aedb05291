"""`Feed`: any loader as epochs of batches whose position is arithmetic."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterator
from typing import Any, Literal

import torch
from torch.utils.data import BatchSampler, IterableDataset

from lucid import rng
from lucid.devices import move
from lucid.errors import ConfigError, DataError, nearest

from ._check import check_kind, check_map_style
from ._fingerprint import fingerprint
from ._map import MapSource
from ._order import length_of
from ._prefetch import ahead
from ._streams import StreamSource


class Feed:
    """Batches of a loader, epoch by epoch, from any position, on the device.

    The order of a map-style loader is a pure function of (seed, epoch) and what happens inside a row of (seed, epoch,
    row): number of workers, prefetch and breaks do not matter, and no row before the position is read.

    Args:
        loader: torch's DataLoader or one like it, a list or tuple of ready batches, or any iterable of batches.
        seed: seed of the run.
        device: where the batches go. On the CPU nothing is moved.
        role: "train", or "eval" for streams of randomness apart from those of training.
        on_stream: what to do where a stream cannot go to a position by itself: "refuse" it, or "skip", which reads and
            discards everything before it.

    Raises:
        DataError: if the loader cannot give a batch.
        ConfigError: if `role` or `on_stream` is another word.
    """

    def __init__(
        self,
        loader: Any,
        seed: int = 0,
        device: torch.device | str = "cpu",
        role: Literal["train", "eval"] = "train",
        on_stream: Literal["refuse", "skip"] = "refuse",
    ) -> None:
        self._given: weakref.WeakSet[Generator[Any, None, None]] = weakref.WeakSet()
        self.device = torch.device(device)
        self.role = role
        self.on_stream = on_stream
        _check_word("role", role, ("train", "eval"))
        _check_word("on_stream", on_stream, ("refuse", "skip"))
        check_kind(loader, role)
        ready = isinstance(loader, list | tuple)
        if ready:
            loader = torch.utils.data.DataLoader(_not_empty(loader, role), batch_size=None)
        self.loader = loader
        own_seed = seed if role == "train" else rng.derive(seed, role)
        self._source: MapSource | StreamSource
        if _is_map_style(loader):
            check_map_style(loader, role)
            self._source = MapSource(loader, own_seed, self.device.type == "cuda", ready, tell_epoch=role == "train")
        else:
            self._source = StreamSource(loader, own_seed, on_stream)

    def num_batches(self, epoch: int) -> int | None:
        """Return how many micro-batches an epoch has; None for a stream that does not say."""
        return self._source.num_batches(epoch)

    @property
    def num_rows(self) -> int | None:
        """Rows of the data set, or None if it does not say, or if its items are ready batches."""
        loader = self.loader
        items_are_batches = isinstance(self._source, MapSource) and loader.batch_sampler is None
        if items_are_batches and not isinstance(loader.sampler, BatchSampler):
            return None
        return length_of(getattr(loader, "dataset", None))

    @property
    def batch_size(self) -> int | None:
        """Rows per micro-batch, or None if they differ or nobody knows."""
        for holder in (self.loader, getattr(self.loader, "batch_sampler", None)):
            size = getattr(holder, "batch_size", None)
            if isinstance(size, int):
                return size
        return None

    @property
    def last_batch_size(self) -> int | None:
        """Return the rows of an epoch's last micro-batch, or None if only an epoch can tell."""
        sampler = getattr(self.loader, "batch_sampler", None)
        if type(sampler) is not BatchSampler or not isinstance(self._source, MapSource):
            return None
        rows = length_of(sampler.sampler)
        if rows is None:
            return None
        size: int = sampler.batch_size
        return size if sampler.drop_last else rows % size or size

    def batches(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield the micro-batches of an epoch from number `start` on, on the device.

        Args:
            epoch: number of the epoch, from 0.
            start: number of the first micro-batch; no row before it is read.

        Raises:
            DataError: if there is no such position, a row cannot be read (its error is the cause), or a stream gives
                nothing.
            ResumeError: if a stream cannot go to `start`.
        """
        batches = self._moved(self._source.batches(epoch, start))
        if isinstance(batches, Generator):
            self._given.add(batches)
        return batches

    def _moved(self, batches: Iterator[Any]) -> Iterator[Any]:
        if self.device.type == "cpu":
            return batches
        if self._source.may_run_ahead:
            pin = self.device.type == "cuda" and self._source.gather is not None
            return ahead(batches, self.device, pin)
        return (move(batch, self.device, non_blocking=self.device.type == "cuda") for batch in batches)

    def rows(self, epoch: int, batch: int) -> list[Any]:
        """Return the row numbers of one micro-batch; [] for a stream, whose rows have none."""
        return self._source.rows(epoch, batch) if isinstance(self._source, MapSource) else []

    def state_dict(self) -> dict[str, Any]:
        """Return the state of a stream, or of samplers that carry one; {} where (epoch, batch) says everything."""
        return self._source.state_dict() if self._source.has_state else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self._source.load_state_dict(state)

    def fingerprint(self) -> dict[str, Any]:
        """Return what must be the same for a resumed run to be the same run, as plain values."""
        return fingerprint(self.loader, self._source)

    def notes(self) -> list[str]:
        """Return what cannot be resumed exactly and where a stream is cut, in words; [] if nothing."""
        return self._source.notes()

    def close(self) -> None:
        """Stop worker processes and threads; iterators that were given out are over."""
        for batches in list(self._given):
            batches.close()
        self._source.close()


def _check_word(name: str, word: str, allowed: tuple[str, str]) -> None:
    if word not in allowed:
        raise ConfigError(
            f"Feed: {name} must be {allowed[0]!r} or {allowed[1]!r}, got {word!r}.{nearest(word, allowed)}"
        )


def _not_empty(batches: Any, role: str) -> Any:
    if not batches:
        raise DataError(f"the {role} data must have at least one batch, got an empty {type(batches).__name__}.")
    return batches


def _is_map_style(loader: Any) -> bool:
    """Whether this is torch's loader (or torchdata's) over rows that have numbers, not some iterable of batches."""
    if not isinstance(loader, torch.utils.data.DataLoader) or isinstance(loader.dataset, IterableDataset):
        return False
    plain = torch.utils.data.DataLoader
    return all(
        getattr(type(loader), name) is getattr(plain, name) or type(loader).__module__.startswith("torchdata.")
        for name in ("__iter__", "_get_iterator")
    )
