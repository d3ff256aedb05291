"""torch's DataLoader; what it refuses is a `DataError`."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from lucid.errors import DataError

from ._order import length_of


class DataLoader(torch.utils.data.DataLoader[Any]):
    """torch's DataLoader with torch's arguments: it only says more clearly what is wrong with them.

    Raises:
        DataError: if the data set has no rows, or an argument does not fit; it is a `ValueError` as in torch.
    """

    __signature__ = inspect.signature(torch.utils.data.DataLoader)

    def __init__(self, dataset: Any, *args: Any, **options: Any) -> None:
        if length_of(dataset) == 0:
            raise DataError(f"the data set of a DataLoader must have rows, got a {type(dataset).__name__} of length 0.")
        try:
            super().__init__(dataset, *args, **options)
        except ValueError as error:
            raise DataError(f"DataLoader: {error}") from error
