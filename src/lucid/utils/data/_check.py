"""What is wrong with a loader, said before any training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, SequentialSampler

from lucid.errors import DataError

from ._order import length_of
from ._sampling import is_exactly


def check_kind(loader: Any, role: str) -> None:
    """Raise `DataError` unless this is something to take batches from."""
    name = type(loader).__name__
    if isinstance(loader, Dataset) and not isinstance(loader, IterableDataset):
        raise DataError(
            f"the {role} data must be batches, got the data set {name} itself. "
            f"Say how large a batch is: DataLoader({name[:1].lower() + name[1:]}, batch_size=32)."
        )
    if isinstance(loader, str | bytes | dict | torch.Tensor) or not isinstance(loader, Iterable):
        raise DataError(
            f"the {role} data must be a DataLoader, a list of batches or another iterable of batches, got a {name}."
        )


def check_map_style(loader: Any, role: str) -> None:
    """Raise `DataError` for a map-style loader that cannot give a batch, or whose rows cannot be asked for."""
    dataset = loader.dataset
    name = type(dataset).__name__
    if not hasattr(dataset, "__getitem__"):
        raise DataError(
            f"the {role} data set {name} must have __getitem__(row) and __len__(), or be an IterableDataset."
        )
    rows = length_of(dataset)
    if rows is None and is_exactly(getattr(loader.batch_sampler, "sampler", loader.sampler), SequentialSampler):
        raise DataError(
            f"the {role} data set {name} must have __len__(), or its loader a sampler that says which rows."
        )
    if rows == 0:
        raise DataError(f"the {role} data set {name} must have rows, got none.")
    size = getattr(loader, "batch_size", None)
    told = length_of(loader.sampler if loader.batch_sampler is None else loader.batch_sampler)
    if told == 0 and loader.drop_last and size is not None:
        raise DataError(
            f"the {role} data must fill at least one batch of {size} rows with drop_last=True, got {rows} rows "
            f"({name}). Lower batch_size or set drop_last=False."
        )
    if told == 0:
        raise DataError(f"the {role} data must give at least one batch, the sampler of its loader gives none.")


def check_start(epoch: int, start: int, num_batches: int) -> None:
    """Raise `DataError` unless the position is in the epoch (its end counts)."""
    if num_batches == 0:
        raise DataError(f"epoch {epoch} must have at least one batch, its sampler gave none.")
    if not 0 <= start <= num_batches:
        raise DataError(
            f"epoch {epoch} has {num_batches} batches and cannot begin at batch {start}. "
            "If this is a resumed run, its data or batch size has changed."
        )
