"""Plain safetensors files, read and written without the safetensors package."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from lucid.errors import FormatError, LimitError, UnsupportedTypeError
from lucid.serialization import dtypes, layout, memory, system
from lucid.serialization.handle import Handle, Source
from lucid.serialization.storage import commit
from lucid.serialization.writer import write_at


def write_plain(tensors: dict[str, torch.Tensor], path: str | os.PathLike[str], metadata: dict[str, str]) -> int:
    """Write tensors as a plain safetensors file, atomically and durably; returns its size in bytes.

    Every name gets its own bytes: the format has no ties.

    Raises:
        UnsupportedTypeError: a dtype that safetensors does not have.
    """
    names = list(tensors)
    for name in names:
        if tensors[name].dtype not in dtypes.DIRECT:
            raise UnsupportedTypeError(
                f"{name} has dtype {tensors[name].dtype}, which safetensors does not have. Convert it, or select a "
                "part without it."
            )
    order = [names[at] for at in layout.placement([tensors[name].nbytes for name in names])]
    blocks, end = [], 0
    for name in order:
        tensor = tensors[name]
        code = dtypes.DIRECT[tensor.dtype]
        blocks.append(layout.Block(name, code, tuple(tensor.shape), end, end + tensor.nbytes))
        end += tensor.nbytes
    header = layout.pack_header(blocks, None, metadata)

    def write(_: str, fd: int) -> None:
        write_at(fd, memoryview(header), 0)
        for block in blocks:
            if block.stop > block.start:
                dense = tensors[block.name].detach().resolve_conj().resolve_neg().cpu().contiguous()
                view = memory.view(dense.data_ptr(), block.stop - block.start)
                write_at(fd, view, len(header) + block.start)
        system.flush(fd)

    commit(Path(path), write)
    return len(header) + end


def read_plain(source: Source) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Read a plain safetensors file: its tensors by name and its metadata. There are no checksums to verify.

    Raises:
        FormatError: no safetensors file, or a broken one.
    """
    handle = Handle(source)
    try:
        size = int.from_bytes(handle.bytes(0, 8), "little")
        if size > layout.MAX_HEADER or 8 + size > handle.size:
            raise LimitError(f"{handle.where} must be a safetensors file; the length of its header cannot be right.")
        blocks, metadata = layout.parse_header(handle.bytes(8, 8 + size), handle.size - 8 - size, handle.where)
        return {block.name: _read(handle, 8 + size, block) for block in blocks}, metadata
    finally:
        handle.close()


def _read(handle: Handle, base: int, block: layout.Block) -> torch.Tensor:
    dtype: Any = dtypes.FROM_CODE.get(block.dtype)
    shape = block.shape
    if block.dtype == "F4" and dtypes.FLOAT4 is not None and shape and shape[-1] % 2 == 0:
        dtype, shape = dtypes.FLOAT4, (*shape[:-1], shape[-1] // 2)
    if dtype is None:
        raise FormatError(f"{handle.where}: {block.name!r} has dtype {block.dtype}, which this torch lacks.")
    tensor = torch.empty(shape, dtype=dtype)
    if block.stop > block.start:
        handle.read([memory.view(tensor.data_ptr(), block.stop - block.start)], base + block.start)
    return tensor
