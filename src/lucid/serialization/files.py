"""The two main verbs on one file: `save` and `load`."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any, BinaryIO

from lucid.serialization import memory
from lucid.serialization.decode import Decoder, decoding
from lucid.serialization.handle import Source
from lucid.serialization.location import MapLocation, placer
from lucid.serialization.nodes import find, references
from lucid.serialization.plan import make_plan
from lucid.serialization.reader import Reader
from lucid.serialization.sources import TensorData
from lucid.serialization.storage import write_to


def save(
    state: Any,
    path: str | PathLike[str] | BinaryIO,
    *,
    types: Sequence[type] = (),
    meta: dict[str, Any] | None = None,
    retries: int = 0,
) -> int:
    """Save a nested state to a `.lcs` file, atomically and durably.

    The file is written beside its target, flushed, and renamed; until then an older file of that name stays as it is.
    Tied and overlapping tensors are stored once. Nothing is pickled.

    Args:
        state: tensors, arrays, numbers, text and containers of them, nested; docs/format.md has the list.
        path: where to: a path, a URL of fsspec such as `s3://bucket/a.lcs`, or a file open for binary writing (which
            is written from its position on, without any promise of atomicity).
        types: enums, dataclasses and named tuples that the state holds.
        meta: small plain values that `inspect` shows without reading the state.
        retries: how often to try again after an error of the system.

    Returns:
        Size of the file in bytes.

    Raises:
        UnsupportedTypeError: something in the state cannot be stored; the message has its path.
        SaveFailedError: the system refused to write; `__cause__` is its error. An older file is as it was.

    Example:
        >>> import tempfile, torch, lucid.serialization as s
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     size = s.save({"weight": torch.ones(2), 7: ("a", None)}, f"{folder}/a.lcs")
        ...     s.load(f"{folder}/a.lcs")
        {'weight': tensor([1., 1.]), 7: ('a', None)}
    """
    plan = make_plan(state, types=types, meta=meta)
    return write_to(path, plan, TensorData(plan), retries=retries)


def load(
    path: Source,
    *,
    map_location: MapLocation = "cpu",
    select: str | Sequence[str] | None = None,
    types: Sequence[type] = (),
) -> Any:
    """Load a `.lcs` file, with every checksum verified. Nothing in a file can make code run.

    To resume, use `load_into`: it needs no second copy of the state and is several times faster.

    Args:
        path: a path, a URL of fsspec, or a seekable file open for binary reading.
        map_location: device for all tensors, a dict from recorded to wanted device, a callable on (storage, device),
            or None for the recorded devices. "cpu", unlike torch, so that a file opens on every machine.
        select: read only this part, by path (`model`, `optimizer/state/0`). A list of paths gives a dict by path.
        types: enums, dataclasses and named tuples that the file may hold.

    Returns:
        The state, or the selected part of it.

    Raises:
        FormatError: no `.lcs` file, or a broken one.
        ChecksumError: bytes changed since it was written; the message names the tensors hit.
        ClassNotAllowedError: the file holds an object of a class that `types` does not list.
        MismatchError: nothing is at `select`.
    """
    names = [select] if isinstance(select, str) else select
    with memory.no_collection(), Reader(path) as reader:
        with decoding(reader.where):
            nodes = [reader.tree] if names is None else [find(reader.tree, name, reader.where) for name in names]
            needed = references(nodes)
        tensors = reader.read(needed, place=None if map_location == "cpu" else placer(map_location, reader.where))
        with decoding(reader.where):
            found = Decoder(tensors, types).decode(nodes)
    return found[0] if names is None or isinstance(select, str) else dict(zip(names, found, strict=True))
