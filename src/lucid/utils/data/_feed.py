"""`Feed`: any loader as epochs of batches whose position is arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch.utils.data import IterableDataset

from lucid.devices import move
from lucid.errors import DataError

from ._map import MapSource
from ._order import length_of
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
    """

    def __init__(
        self,
        loader: Any,
        seed: int = 0,
        device: torch.device | str = "cpu",
        role: Literal["train", "eval"] = "train",
        on_stream: Literal["refuse", "skip"] = "refuse",
    ) -> None:
        self.device = torch.device(device)
        self.role = role
        if isinstance(loader, list | tuple):
            loader = torch.utils.data.DataLoader(loader, batch_size=None)  # type: ignore[arg-type]
        self.loader = loader
        self._source: MapSource | StreamSource
        if _is_map_style(loader):
            self._source = MapSource(loader, seed, pin=self.device.type == "cuda")
        else:
            self._source = StreamSource(loader, seed, on_stream)

    def num_batches(self, epoch: int) -> int | None:
        """Return how many micro-batches an epoch has; None for a stream that does not say."""
        return self._source.num_batches(epoch)

    @property
    def num_rows(self) -> int | None:
        """Rows of the data set, or None if it does not say."""
        return length_of(getattr(self.loader, "dataset", None))

    @property
    def batch_size(self) -> int | None:
        """Rows per micro-batch, or None if they differ or nobody knows."""
        size = getattr(self.loader, "batch_size", None)
        return size if isinstance(size, int) else None

    def batches(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield the micro-batches of an epoch from number `start` on, on the device.

        Args:
            epoch: number of the epoch, from 0.
            start: number of the first micro-batch; no row before it is read.
        """
        batches = self._source.batches(epoch, start)
        if self.device.type == "cpu":
            return batches
        return (move(batch, self.device, non_blocking=True) for batch in batches)

    def rows(self, epoch: int, batch: int) -> list[Any]:
        """Return the row numbers of one micro-batch.

        Raises:
            DataError: for a stream, whose rows have no numbers.
        """
        if isinstance(self._source, StreamSource):
            raise DataError("a stream has no row numbers.")
        return self._source.order(epoch).keys(batch)

    def state_dict(self) -> dict[str, Any]:
        """Return a stream's position and state; {} where (epoch, batch) says everything."""
        return self._source.state_dict() if isinstance(self._source, StreamSource) else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        if isinstance(self._source, StreamSource):
            self._source.load_state_dict(state)

    def fingerprint(self) -> dict[str, Any]:
        """Return what must be the same for a resumed run to be the same run, as plain values."""
        loader = self.loader
        return {
            "dataset": type(getattr(loader, "dataset", loader)).__name__,
            "num_rows": self.num_rows,
            "batch_size": self.batch_size,
            "drop_last": getattr(loader, "drop_last", None),
            "sampler": type(getattr(loader, "sampler", None)).__name__,
        }

    def notes(self) -> list[str]:
        """Return what cannot be resumed exactly, in words; [] if nothing."""
        return self._source.notes() if isinstance(self._source, StreamSource) else []

    def close(self) -> None:
        """Stop worker processes and threads."""
        self._source.close()


def _is_map_style(loader: Any) -> bool:
    if not all(hasattr(loader, name) for name in ("dataset", "sampler", "batch_sampler", "collate_fn", "num_workers")):
        return False
    if isinstance(loader.dataset, IterableDataset):
        return False
    own_iter = type(loader).__iter__
    return not isinstance(loader, torch.utils.data.DataLoader) or own_iter is torch.utils.data.DataLoader.__iter__
