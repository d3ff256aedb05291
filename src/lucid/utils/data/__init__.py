"""The data pipeline: `Feed` makes any loader resumable by arithmetic. Everything else here is torch's own.

Which file answers which question:

- which rows, in which order: `_sampling.py` asks the samplers, `_order.py` cuts batches
- one batch: `_rows.py` row by row, `_gather.py` from arrays in memory
- generators that data sets and samplers hold: `_generators.py`
- loaders over rows with numbers: `_map.py`
- streams: `_streams.py`, with workers `_stream_workers.py`
- in a worker process: `_worker.py`
- on to an accelerator: `_prefetch.py`
- what is wrong with a loader, and what makes it the same: `_check.py`, `_fingerprint.py`
- the face: `_feed.py`, `_loader.py`
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
