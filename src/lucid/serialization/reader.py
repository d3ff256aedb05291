"""Open a `.lcs` file, check all of it that is not tensor data, and read tensors with their checksums."""

from __future__ import annotations

import os
import stat
import struct
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import torch
import xxhash

from lucid.errors import ChecksumError, FormatError, LimitError, TruncatedError, VersionError
from lucid.serialization import dtypes, layout, memory

UNIT_CHUNKS = 4 << 20  # bytes read by one call
PIECES = 64  # a unit with more tensors than that goes through a scratch buffer
THREADS = 2  # more threads than cores hurt; see docs/format.md

Source = str | os.PathLike[str] | BinaryIO


@dataclass(frozen=True, slots=True)
class Record:
    """What the manifest says of one tensor. `block` is None for a view of another tensor (`base`, at `offset`)."""

    name: str | None
    device: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    block: layout.Block | None = None
    stride: tuple[int, ...] | None = None
    expand: tuple[int, ...] | None = None
    base: int = -1
    offset: int = 0


class Reader:
    """One open file. Opening verifies footer, header, manifest and table; data is verified as it is read."""

    def __init__(self, source: Source) -> None:
        self.where = str(source) if isinstance(source, str | os.PathLike) else str(getattr(source, "name", "the file"))
        self._file: BinaryIO | None = None
        self._fd = -1
        if isinstance(source, str | os.PathLike):
            self._fd = _open_regular(Path(source))
        else:
            self._file = source
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:  # noqa: E501
        self.close()

    def close(self) -> None:
        """Close the file if this reader opened it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    # --- opening ---------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        size = os.fstat(self._fd).st_size if self._file is None else self._file.seek(0, os.SEEK_END)
        if size < 8 + layout.FOOTER_SIZE:
            raise TruncatedError(f"{self.where} must be a .lcs file, got only {size} bytes.")
        self.size = size
        end = size - layout.FOOTER_SIZE
        self.footer = layout.Footer.unpack(self._bytes(end, size), size, self.where)
        head = self._bytes(0, self.footer.data_start)
        tail = self._bytes(self.footer.manifest_start, end)
        for raw, expected, what in (
            (head, self.footer.head_hash, "header"),
            (tail, self.footer.tail_hash, "manifest"),
        ):
            if xxhash.xxh3_64_intdigest(raw) != expected:
                raise ChecksumError(f"{self.where}: the {what} changed since it was written. Take another checkpoint.")
        if struct.unpack_from("<Q", head)[0] != self.footer.data_start - 8:
            raise FormatError(f"{self.where}: the length of the header contradicts the footer.")
        blocks, self.metadata = layout.parse_header(head[8:], size - self.footer.data_start, self.where)
        last = blocks[-1] if blocks else None
        self.data_size = self.footer.manifest_start - self.footer.data_start
        if last is None or last.name != layout.TAIL_NAME or last.dtype != "U8" or last.start != self.data_size:
            raise FormatError(f"{self.where}: the last tensor must be {layout.TAIL_NAME}.")
        self.blocks = {block.name: block for block in blocks[:-1]}
        self._table = struct.unpack_from(f"<{self.footer.chunks}Q", tail, self.footer.manifest_size)
        self._parse_manifest(tail[: self.footer.manifest_size])

    def _parse_manifest(self, raw: bytes) -> None:
        manifest = layout.parse_json(raw, f"{self.where}: the manifest")
        if not isinstance(manifest, dict) or not {"requires", "devices", "tensors", "tree"} <= manifest.keys():
            raise FormatError(f"{self.where}: the manifest must have requires, devices, tensors and tree.")
        if manifest["requires"]:
            raise VersionError(f"{self.where} requires {str(manifest['requires'])[:200]}, unknown here. Update lucid.")
        devices, tensors = manifest["devices"], manifest["tensors"]
        if not isinstance(devices, list) or not isinstance(tensors, list) or len(tensors) > layout.MAX_TENSORS:
            raise FormatError(f"{self.where}: devices and tensors of the manifest must be lists.")
        self._devices: list[Any] = devices
        self._tensors: list[Any] = tensors
        self.tree: Any = manifest["tree"]
        self.user: Any = manifest.get("user", {})

    @property
    def num_tensors(self) -> int:
        """How many tensors the tree can refer to."""
        return len(self._tensors)

    def record(self, index: Any) -> Record:
        """Return the checked record of one tensor."""
        if type(index) is not int or not 0 <= index < len(self._tensors):
            raise FormatError(f"{self.where}: the tree refers to tensor {str(index)[:40]}, there are {self.num_tensors}.")  # noqa: E501
        what = f"{self.where}: tensor {index} of the manifest"
        try:
            name, device, *rest = self._tensors[index]
            device = self._devices[device]
            extras = rest[0] if rest else {}
            alias = extras.get("alias")
        except (TypeError, ValueError, IndexError, AttributeError):
            raise FormatError(f"{what} is malformed.") from None
        if not isinstance(device, str) or len(device) > 100:
            raise FormatError(f"{what} has no device.")
        if alias is not None:
            return self._alias(name, device, alias, what)
        block = self.blocks.get(name) if isinstance(name, str) else None
        if block is None:
            raise FormatError(f"{what} is not in the header.")
        return _direct(block, device, extras, what)

    def _alias(self, name: Any, device: str, alias: Any, what: str) -> Record:
        try:
            base, offset, shape, stride, dtype = (alias[key] for key in ("i", "off", "shape", "stride", "dt"))
            stored = self._tensors[base] if type(base) is int and 0 <= base < self.num_tensors else None
            block = self.blocks.get(stored[0]) if stored else None
        except (KeyError, TypeError):
            raise FormatError(f"{what}: the view is malformed.") from None
        kind = dtypes.by_name(dtype)
        if block is None or kind is None or type(offset) is not int or offset < 0 or offset % kind.itemsize:
            raise FormatError(f"{what}: a view must have a stored base, a dtype and an offset that fits it.")
        sizes, steps = layout.check_sizes(shape, what), layout.check_sizes(stride, what)
        if len(sizes) != len(steps):
            raise FormatError(f"{what}: shape and stride must have one length.")
        span = 0 if 0 in sizes else 1 + sum((n - 1) * s for n, s in zip(sizes, steps, strict=True))
        if offset + span * kind.itemsize > block.stop - block.start:
            raise LimitError(f"{what}: the view reaches beyond its base.")
        return Record(None, device, kind, sizes, None, steps, None, base, offset)

    # --- reading ---------------------------------------------------------------------------------------------------

    def read(self, indices: Iterable[int], targets: Mapping[int, torch.Tensor] | None = None) -> dict[int, torch.Tensor]:  # noqa: E501
        """Read tensors into new CPU memory, or into the contiguous CPU tensors that `targets` names.

        Raises:
            ChecksumError: bytes changed; the targets then hold undefined values.
        """
        records = {index: self.record(index) for index in indices}
        for record in list(records.values()):
            if record.block is None:
                records.setdefault(record.base, self.record(record.base))
        dense: dict[int, torch.Tensor] = {}
        wanted: list[tuple[int, int, int]] = []
        given = targets or {}
        for index, record in records.items():
            if record.block is None:
                continue
            tensor = given[index] if index in given else _empty(record)
            dense[index] = tensor
            if record.block.stop > record.block.start:
                wanted.append((record.block.start, record.block.stop, tensor.data_ptr()))
        wanted.sort()
        self.fill(wanted)
        return {index: _shaped(index, record, dense, given) for index, record in records.items()}

    def fill(self, wanted: list[tuple[int, int, int]]) -> None:
        """Read ranges of the data, given as (start, stop, address) in order, and verify every chunk they touch."""
        starts = [start for start, _, _ in wanted]
        units = self._units(wanted)
        bad: list[int] = []

        def work(part: list[tuple[int, int]]) -> None:
            scratch = memory.Buffer(UNIT_CHUNKS + layout.CHUNK if self.footer.chunk <= UNIT_CHUNKS else self.footer.chunk)  # noqa: E501
            for low, high in part:
                bad.extend(self._unit(low, high, wanted, starts, scratch))

        if len(units) < 4 or self._file is not None:
            work(units)
        else:
            half = -(-len(units) // THREADS)  # contiguous halves: dealing units out in turn breaks readahead
            with ThreadPoolExecutor(THREADS) as pool:
                list(pool.map(work, (units[at : at + half] for at in range(0, len(units), half))))
        if bad:
            self._report(sorted(bad))

    def _units(self, wanted: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
        """Return the byte ranges to read: whole chunks, about 4 MiB each."""
        chunk = self.footer.chunk
        step = max(1, UNIT_CHUNKS // chunk) * chunk
        units: list[tuple[int, int]] = []
        at = 0
        for start, stop, _ in wanted:
            at = max(at, start - start % chunk)
            while at < stop:
                if units and units[-1][1] == at and units[-1][1] - units[-1][0] < step:
                    units[-1] = (units[-1][0], min(at + chunk, self.data_size))
                else:
                    units.append((at, min(at + chunk, self.data_size)))
                at += chunk
        return units

    def _unit(
        self, low: int, high: int, wanted: list[tuple[int, int, int]], starts: list[int], scratch: memory.Buffer
    ) -> list[int]:
        at = max(bisect_right(starts, low) - 1, 0)
        pieces: list[tuple[int, int, int]] = []
        while at < len(wanted) and wanted[at][0] < high:
            start, stop, address = wanted[at]
            if stop > low:
                first = max(start, low)
                pieces.append((first, min(stop, high), address + first - start))
            at += 1
        if len(pieces) > PIECES:
            self._pread([scratch.view[: high - low]], low)
            for first, last, address in pieces:
                memory.copy(address, scratch.address + first - low, last - first)
            return self._hash(low, [scratch.view[: high - low]])
        views: list[memoryview] = []
        end = low
        for first, last, address in (*pieces, (high, high, 0)):
            if first > end:  # bytes that nobody asked for, but which the checksum covers
                views.append(scratch.view[end - low : first - low])
            if last > first:
                views.append(memory.view(address, last - first))
            end = last
        self._pread(views, low)
        return self._hash(low, views)

    def _hash(self, low: int, views: list[memoryview]) -> list[int]:
        """Return the chunks, from byte `low` on, whose checksum is wrong."""
        chunk = self.footer.chunk
        number, room, bad = low // chunk, chunk, []
        state = xxhash.xxh3_64()
        for whole in views:
            rest = whole
            while len(rest):
                part, rest = rest[:room], rest[room:]
                state.update(part)
                room -= len(part)
                if not room:
                    if state.intdigest() != self._table[number]:
                        bad.append(number)
                    number, room, state = number + 1, chunk, xxhash.xxh3_64()
        if room < chunk and state.intdigest() != self._table[number]:
            bad.append(number)
        return bad

    def _report(self, bad: list[int]) -> None:
        chunk = self.footer.chunk
        names = self.names_in(bad)
        shown = ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        raise ChecksumError(
            f"{self.where}: bytes changed since they were written, in {len(bad)} chunk(s) of {chunk} bytes "
            f"({', '.join(map(str, bad[:8]))}); tensors hit: {shown}. Take another checkpoint."
        )

    def names_in(self, chunks: Iterable[int]) -> list[str]:
        """Return the names of the tensors that lie in these chunks."""
        size = self.footer.chunk
        return [
            block.name
            for block in self.blocks.values()
            if any(block.start < (n + 1) * size and block.stop > n * size for n in chunks)
        ]

    def bad_chunks(self) -> list[int]:
        """Read all data and return the chunks whose checksum is wrong."""
        chunk = self.footer.chunk
        scratch = memory.Buffer(max(UNIT_CHUNKS, chunk))
        bad: list[int] = []
        for low in range(0, self.data_size, scratch.size):
            view = scratch.view[: min(scratch.size, self.data_size - low)]
            self._pread([view], low)
            bad.extend(self._hash(low, [view]))
        return bad

    def _bytes(self, start: int, stop: int) -> bytes:
        raw = bytearray(stop - start)
        self._raw_read([memoryview(raw)], start)
        return bytes(raw)

    def _pread(self, views: list[memoryview], start: int) -> None:
        self._raw_read(views, self.footer.data_start + start)

    def _raw_read(self, views: list[memoryview], offset: int) -> None:
        if self._file is not None:
            self._file.seek(offset)
        while views:
            if self._file is None:
                got = os.preadv(self._fd, views, offset)
            else:
                got = _read_some(self._file, views[0])
            if not got:
                raise TruncatedError(f"{self.where} ended at byte {offset} while it was read: something cut it short.")
            offset += got
            while views and got >= len(views[0]):
                got -= len(views[0])
                views = views[1:]
            if views and got:
                views = [views[0][got:], *views[1:]]


def _read_some(file: BinaryIO, view: memoryview) -> int:
    into = getattr(file, "readinto", None)
    if into is not None:
        return int(into(view) or 0)
    data = file.read(len(view))
    view[: len(data)] = data
    return len(data)


def _open_regular(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FormatError(f"{path} must be a regular file: a checkpoint is read at many places of it.")
    return fd


def _direct(block: layout.Block, device: str, extras: Any, what: str) -> Record:
    shape = block.shape
    dtype = dtypes.FROM_CODE.get(block.dtype)
    if "dt" in extras:
        dtype = dtypes.by_name(extras["dt"])
        shape = layout.check_sizes(extras.get("shape"), what)
        if dtype is None or dtypes.stored_form(dtype, shape) != (block.dtype, block.shape):
            raise FormatError(f"{what}: its dtype and shape do not fit the header.")
    if dtype is None:
        raise FormatError(f"{what} has dtype {block.dtype}, which this torch lacks.")
    stride = expand = None
    if "stride" in extras:
        stride = layout.check_sizes(extras["stride"], what)
        if len(stride) != len(shape) or not _permuted(shape, stride):
            raise FormatError(f"{what}: its stride must be a permutation of the contiguous one.")
    if "expand" in extras:
        expand = layout.check_sizes(extras["expand"], what)
        if len(expand) != len(shape) or any(n not in (1, m) for n, m in zip(shape, expand, strict=True)):
            raise FormatError(f"{what}: it cannot be expanded to {list(expand)[:8]}.")
    return Record(block.name, device, dtype, shape, block, stride, expand)


def _permuted(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    from lucid.serialization.slots import is_permuted

    return is_permuted(shape, stride)


def _empty(record: Record) -> torch.Tensor:
    if record.dtype is torch.complex32:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls half complex numbers experimental
            return torch.empty(record.shape, dtype=record.dtype)
    return torch.empty(record.shape, dtype=record.dtype)


def _shaped(
    index: int, record: Record, dense: Mapping[int, torch.Tensor], given: Mapping[int, torch.Tensor]
) -> torch.Tensor:
    if record.block is None:
        storage = dense[record.base].untyped_storage()
        empty = torch.empty(0, dtype=record.dtype)
        return empty.set_(storage, record.offset // record.dtype.itemsize, record.shape, record.stride)  # type: ignore[arg-type]  # noqa: E501
    tensor = dense[index]
    if index in given:
        return tensor
    if record.stride is not None:
        tensor = torch.empty_strided(record.shape, record.stride, dtype=record.dtype).copy_(tensor)
    return tensor.expand(record.expand) if record.expand is not None else tensor
