"""Open a `.lcs` file, check all of it that is not tensor data, and read tensors."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any

import torch
import xxhash

from lucid.errors import ChecksumError, FormatError, TruncatedError, VersionError
from lucid.serialization import layout, system
from lucid.serialization.chunks import Chunks
from lucid.serialization.handle import Handle, Source
from lucid.serialization.records import Record, Records

Place = Callable[[torch.Tensor, str], torch.Tensor]


class Reader:
    """One open file. Opening verifies footer, header, manifest and table; data is verified as it is read.

    Attributes:
        tree: the nodes of the state, `user`: those of the caller's `meta`.
        records: what is known of each tensor that the tree refers to, by index.
        blocks: the stored tensors by name.
        chunks: the data region.
    """

    def __init__(self, source: Source) -> None:
        self.handle = Handle(source)
        self.where = self.handle.where
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, if it was opened here."""
        self.handle.close()

    def _open(self) -> None:
        system.check_byte_order()
        self.size = size = self.handle.size
        if size < 8 + layout.FOOTER_SIZE:
            raise TruncatedError(f"{self.where} must be a .lcs file, got only {size} bytes.")
        end = size - layout.FOOTER_SIZE
        self.footer = footer = layout.Footer.unpack(self.handle.bytes(end, size), size, self.where)
        head = self.handle.bytes(0, footer.data_start)
        tail = self.handle.bytes(footer.manifest_start, end)
        for raw, expected, what in ((head, footer.head_hash, "header"), (tail, footer.tail_hash, "manifest")):
            if xxhash.xxh3_64_intdigest(raw) != expected:
                raise ChecksumError(f"{self.where}: the {what} changed since it was written. Take another checkpoint.")
        if struct.unpack_from("<Q", head)[0] != footer.data_start - 8:
            raise FormatError(f"{self.where}: the length of the header contradicts the footer.")
        blocks, self.metadata = layout.parse_header(head[8:], size - footer.data_start, self.where)
        last = blocks.pop() if blocks else None
        if (
            last is None
            or (last.name, last.dtype) != (layout.TAIL_NAME, "U8")
            or last.start != footer.manifest_start - footer.data_start
        ):
            raise FormatError(f"{self.where}: the last tensor must be {layout.TAIL_NAME}.")
        self.blocks = {block.name: block for block in blocks}
        table = struct.unpack_from(f"<{footer.chunks}Q", tail, footer.manifest_size)
        self.chunks = Chunks(self.handle, footer, table, blocks)
        self._parse(tail[: footer.manifest_size])

    def _parse(self, raw: bytes) -> None:
        manifest = layout.parse_json(raw, f"{self.where}: the manifest")
        if not isinstance(manifest, dict) or not {"requires", "devices", "tensors", "tree"} <= manifest.keys():
            raise FormatError(f"{self.where}: the manifest must have requires, devices, tensors and tree.")
        if manifest["requires"]:
            raise VersionError(f"{self.where} requires {str(manifest['requires'])[:200]}, unknown here. Update lucid.")
        self.records = Records(manifest, self.blocks, self.where)
        self.tree: Any = manifest["tree"]
        self.user: Any = manifest.get("user", {})

    def read(
        self, indices: Iterable[int], targets: Mapping[int, torch.Tensor] | None = None, place: Place | None = None
    ) -> dict[int, torch.Tensor]:
        """Read tensors into new CPU memory, or into the contiguous CPU tensors that `targets` names.

        `place(tensor, device)` may move each new tensor; `device` is the one recorded in the file.

        Raises:
            ChecksumError: bytes changed; the targets then hold undefined values.
        """
        records = {index: self.records[index] for index in indices}
        for record in list(records.values()):
            if record.block is None:
                records.setdefault(record.base, self.records[record.base])
        given = targets or {}
        dense: dict[int, torch.Tensor] = {}
        wanted: list[tuple[int, int, int]] = []
        for index, record in records.items():
            if record.block is None:
                continue
            tensor = dense[index] = given[index] if index in given else _empty(record)
            if record.block.stop > record.block.start:
                wanted.append((record.block.start, record.block.stop, tensor.data_ptr()))
        wanted.sort()
        self.chunks.fill(wanted)
        if place is not None:
            for index in dense.keys() - given.keys():
                dense[index] = place(dense[index], records[index].device)
        return {
            index: dense[index] if index in given else _shaped(record, dense[index if record.block else record.base])
            for index, record in records.items()
        }


def _empty(record: Record) -> torch.Tensor:
    if record.dtype is not torch.complex32:
        return torch.empty(record.shape, dtype=record.dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls half complex numbers experimental
        return torch.empty(record.shape, dtype=record.dtype)


def _shaped(record: Record, stored: torch.Tensor) -> torch.Tensor:
    """Return the tensor of a record from the dense tensor that was stored (for a view: from its base)."""
    if record.block is None:
        offset = stored.storage_offset() * stored.element_size() + record.offset
        if offset % record.dtype.itemsize:  # the base was read into a live tensor that lies at an odd place
            stored, offset = stored.clone(), record.offset
        view = torch.empty(0, dtype=record.dtype, device=stored.device)
        storage, stride = stored.untyped_storage(), record.stride or ()
        return view.set_(storage, offset // record.dtype.itemsize, record.shape, stride)
    if record.stride is not None:
        empty = torch.empty_strided(record.shape, record.stride, dtype=record.dtype, device=stored.device)
        stored = empty.copy_(stored)
    return stored.expand(record.expand) if record.expand is not None else stored
