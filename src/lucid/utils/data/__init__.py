"""The data pipeline: `Feed` makes any loader resumable by arithmetic. Everything else here is torch's own.

which rows, in which order      _order.py
one batch, row by row           _rows.py; arrays in memory: _gather.py
map-style loaders, workers      _map.py, _worker.py
streams                         _streams.py
the face                        _feed.py, _loader.py
"""

from __future__ import annotations

from typing import Any

import torch.utils.data as _torch

from ._feed import Feed
from ._gather import ArrayDataset
from ._loader import DataLoader

__all__ = ["ArrayDataset", "DataLoader", "Feed"]


def __getattr__(name: str) -> Any:
    try:
        return getattr(_torch, name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}, and torch.utils.data has none") from None


def __dir__() -> list[str]:
    return sorted({*__all__, *dir(_torch)})
