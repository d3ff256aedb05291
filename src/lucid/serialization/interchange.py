"""To and from other formats: plain safetensors, torch files, Lightning checkpoints, folders of Hugging Face and DCP.

Pickles are read with torch's weights-only loader: they cannot run code.
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from lucid.errors import FormatError, MismatchError
from lucid.serialization import layout
from lucid.serialization.files import load, save
from lucid.serialization.handle import Source
from lucid.serialization.plain import read_plain, write_plain

SHARD = re.compile(r"[A-Za-z0-9_.-]+")


def export_safetensors(path: Source, target: str | os.PathLike[str], *, select: str | None = "model") -> int:
    """Write a part of a `.lcs` file as a plain safetensors file, under the names the part itself uses.

    Args:
        path: the `.lcs` file.
        target: the new file; its folder must exist.
        select: path of the part. None: all tensors of the file.

    Returns:
        Size of the new file in bytes.

    Raises:
        MismatchError: nothing, or no tensor, is at `select`.
        UnsupportedTypeError: a dtype that safetensors does not have.
    """
    tensors = dict(_tensors(load(path, select=select), ()))
    if not tensors:
        raise MismatchError(f"{path}: there must be tensors at {select!r}, there are none.")
    return write_plain(tensors, target, {"format": "pt"})


def _tensors(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield ".".join(map(str, path)) or "tensor", value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(item, (*path, key))
    elif isinstance(value, list | tuple):
        for at, item in enumerate(value):
            yield from _tensors(item, (*path, at))


def convert(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> int:
    """Turn a checkpoint of another format into a `.lcs` file.

    Known by their content: safetensors files; files of `torch.save`; checkpoints of Lightning (their parts go to
    `model`, `optimizer`, `scheduler`, `progress`, the rest to `lightning`); folders of Hugging Face models with one or
    more weight files (`model`); folders of `torch.distributed.checkpoint`.

    Returns:
        Size of the new file in bytes.

    Raises:
        FormatError: none of these, a broken one, or a pickle that needs more than the weights-only loader allows.
        UnsupportedTypeError: something in it cannot be stored.
    """
    path = Path(source)
    if path.is_dir():
        if (path / ".metadata").is_file():
            from lucid.serialization.dcp import read_dcp

            return save(read_dcp(path), target)
        return save({"model": _read_folder(path)}, target)
    kind = _kind(path)
    if kind == "safetensors":
        return save({"model": read_plain(path)[0]}, target)
    state = read_pickle(path)
    if isinstance(state, dict) and "pytorch-lightning_version" in state:
        state = _lightning(state)
    return save(state, target)


def _kind(path: Path) -> str:
    with open(path, "rb") as file:
        head = file.read(9)
        file.seek(0, os.SEEK_END)
        size = file.tell()
        file.seek(max(0, size - layout.FOOTER_SIZE))
        if file.read(8) == layout.MAGIC:
            raise FormatError(f"{path} is a .lcs file already.")
    length = int.from_bytes(head[:8], "little")
    return "safetensors" if head[8:] == b"{" and 8 + length <= size else "torch"


def read_pickle(source: Any) -> Any:
    """Read a file of `torch.save` with the weights-only loader.

    Raises:
        FormatError: it is none, or needs more than weights.
    """
    try:
        return torch.load(source, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, AttributeError, TypeError) as error:
        first = str(error).strip().split("\n")[0][:300]
        raise FormatError(
            f"{source} must be a file of torch.save that holds only tensors and plain values, got: {first} "
            "If you trust it, load it yourself and give the state to lucid.save."
        ) from error


_LIGHTNING = {"state_dict": "model", "optimizer_states": "optimizer", "lr_schedulers": "scheduler"}


def _lightning(state: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    rest = dict(state)
    for theirs, ours in _LIGHTNING.items():
        part = rest.pop(theirs, None)
        # Lightning has a list of optimizers even for one.
        found[ours] = part[0] if isinstance(part, list) and len(part) == 1 else part
    found["progress"] = {"epoch": rest.pop("epoch", None), "step": rest.pop("global_step", None)}
    return {**found, "lightning": rest}


def _read_folder(folder: Path) -> dict[str, torch.Tensor]:
    """Read the weights of a Hugging Face folder, in one file or in several with an index."""
    for name in ("model.safetensors", "adapter_model.safetensors"):
        if (folder / name).is_file():
            return read_plain(folder / name)[0]
    for name in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        if (folder / name).is_file():
            return _read_shards(folder, folder / name)
    if (folder / "pytorch_model.bin").is_file():
        return dict(read_pickle(folder / "pytorch_model.bin"))
    raise FormatError(
        f"{folder} must hold model.safetensors, pytorch_model.bin, an index of such files or a DCP .metadata file."
    )


def _read_shards(folder: Path, index: Path) -> dict[str, torch.Tensor]:
    table = layout.parse_json(index.read_bytes(), str(index))
    names = table.get("weight_map") if isinstance(table, dict) else None
    if not isinstance(names, dict):
        raise FormatError(f"{index} must have a weight_map.")
    found: dict[str, torch.Tensor] = {}
    for shard in sorted(set(map(str, names.values()))):
        if not SHARD.fullmatch(shard) or shard.startswith("."):
            raise FormatError(f"{index} names {shard[:80]!r}, which is not a file beside it.")
        part = folder / shard
        found.update(read_plain(part)[0] if shard.endswith(".safetensors") else read_pickle(part))
    missing = sorted(set(names) - set(found))
    if missing:
        raise FormatError(f"{index}: its files lack {len(missing)} tensors that it lists, such as {missing[0]!r}.")
    return found
