"""What must be the same for a resumed run to be the same run."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import xxhash

from ._gather import Gather
from ._map import MapSource
from ._order import length_of

_ROWS = 16  # rows hashed at each end


def fingerprint(loader: Any, source: Any) -> dict[str, Any]:
    """Return a description of the data as plain values.

    Content is hashed only where it lies in memory: reading a row of somebody's data set costs what it costs, and
    counts as a read.

    Args:
        loader: the user's loader.
        source: what reads it.
    """
    dataset = getattr(loader, "dataset", None)
    described: dict[str, Any] = {
        "kind": "rows" if isinstance(source, MapSource) else "stream",
        "dataset": _class_name(loader if dataset is None else dataset),
        "num_rows": length_of(dataset),
        "batch_size": getattr(loader, "batch_size", None),
        "drop_last": bool(getattr(loader, "drop_last", False)),
    }
    if isinstance(source, MapSource):
        described["sampler"] = _class_name(loader.sampler if loader.batch_sampler is None else loader.batch_sampler)
        inner = getattr(loader.batch_sampler, "sampler", None)
        described["order"] = _class_name(inner) if inner is not None else described["sampler"]
        described["user_seeds"] = source.user_seeds
        described["content"] = _content(source.gather)
    return described


def _content(gather: Gather | None) -> str | None:
    """Hash the shapes and the first and last rows of arrays in memory."""
    if gather is None:
        return None
    digest = xxhash.xxh3_64()
    for array in gather.arrays:
        digest.update(f"{tuple(array.shape)} {array.dtype}".encode())
        for part in (array[:_ROWS], array[-_ROWS:]):
            digest.update(_bytes(part))
    if gather.rows is not None:
        digest.update(_bytes(gather.rows))
    return digest.hexdigest()


def _bytes(part: Any) -> bytes:
    if isinstance(part, torch.Tensor):
        part = part.detach() if part.is_cpu else part.detach().cpu()
        return np.from_dlpack(part.contiguous().view(torch.uint8)).tobytes() if part.ndim else b""
    return np.ascontiguousarray(part).tobytes()


def _class_name(thing: Any) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"
