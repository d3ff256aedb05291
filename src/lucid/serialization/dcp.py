"""Read a folder of `torch.distributed.checkpoint` into one state, without its unrestricted unpickling.

Its `.metadata` is a pickle. Only the few classes that torch itself writes there are let in; everything else is read
with the weights-only loader.
"""

from __future__ import annotations

import io
import math
import pathlib
import pickle
import re
from typing import Any

import torch

from lucid.errors import FormatError
from lucid.serialization import layout

_FILE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")


def _allowed() -> dict[tuple[str, str], Any]:
    from torch.distributed.checkpoint import filesystem, metadata

    names = (
        "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "TensorProperties",
        "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING",
    )  # fmt: skip
    table = {(metadata.__name__, name): getattr(metadata, name) for name in names}
    table[(filesystem.__name__, "_StorageInfo")] = filesystem._StorageInfo
    table[("torch", "Size")] = torch.Size
    table[("torch.serialization", "_get_layout")] = torch.serialization._get_layout
    for kind in ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"):
        table[("pathlib", kind)] = pathlib.PurePosixPath
    return table


class _Unpickler(pickle.Unpickler):
    def __init__(self, raw: bytes) -> None:
        super().__init__(io.BytesIO(raw))
        self._table = _allowed()

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self._table:
            return self._table[(module, name)]
        value = getattr(torch, name, None) if module == "torch" else None
        if isinstance(value, torch.dtype):
            return value
        raise pickle.UnpicklingError(f"{module}.{name} does not belong there")


def read_dcp(folder: pathlib.Path) -> dict[str, Any]:
    """Return the state of a DCP folder, its shards put together and its names nested again.

    DCP turns every key of a dict into text; it stays text.

    Raises:
        FormatError: something else than DCP writes, a shard that is missing, or a broken one.
    """
    try:
        metadata = _Unpickler((folder / ".metadata").read_bytes()).load()
        flat = _read_all(folder, metadata)
        paths = metadata.planner_data or {}
        nested: dict[Any, Any] = {}
        for name, value in flat.items():
            _put(nested, paths.get(name) or (name,), value)
        return {key: _lists(value) for key, value in nested.items()}
    except FormatError:
        raise
    except Exception as error:  # a pickle can make Python raise anything
        raise FormatError(f"{folder} is a broken DCP checkpoint: {type(error).__name__}: {str(error)[:300]}") from error


def _read_all(folder: pathlib.Path, metadata: Any) -> dict[str, Any]:
    parts: dict[str, list[tuple[Any, Any]]] = {}
    for index, info in metadata.storage_data.items():
        parts.setdefault(index.fqn, []).append((index, info))
    found: dict[str, Any] = {}
    for name, entry in metadata.state_dict_metadata.items():
        if not hasattr(entry, "size"):
            found[name] = _read_part(folder, parts[name][0][1])
            continue
        dtype, size = entry.properties.dtype, tuple(entry.size)
        if math.prod(size) * dtype.itemsize > sum(info.length for _, info in parts.get(name, [])):
            raise FormatError(f"{folder}: the shards of {name!r} are too small for its shape {size[:8]}.")
        whole = torch.empty(size, dtype=dtype)
        filled = 0
        for index, info in parts[name]:
            chunk = _read_part(folder, info)
            offsets = tuple(index.offset) if index.offset is not None else (0,) * whole.dim()
            place = tuple(slice(start, start + size) for start, size in zip(offsets, chunk.shape, strict=True))
            whole[place].copy_(chunk)
            filled += chunk.numel()
        if filled != whole.numel():
            raise FormatError(f"{folder}: the shards of {name!r} have {filled} of {whole.numel()} elements.")
        found[name] = whole
    return found


def _read_part(folder: pathlib.Path, info: Any) -> Any:
    if not _FILE.fullmatch(str(info.relative_path)) or info.transform_descriptors:
        raise FormatError(f"{folder} names {str(info.relative_path)[:80]!r}, which is no plain file beside it.")
    with open(folder / info.relative_path, "rb") as file:
        file.seek(int(info.offset))
        raw = file.read(min(int(info.length), layout.MAX_SIZE))
    return torch.load(io.BytesIO(raw), map_location="cpu", weights_only=True)


def _put(tree: dict[Any, Any], path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = value


def _lists(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    items = {key: _lists(item) for key, item in value.items()}
    if items and all(type(key) is int for key in items):  # DCP's way to write a list
        return [items[key] for key in sorted(items)]
    return items
