"""Where things lie in a `.lcs` file: header, data, tail and footer. Nothing here touches torch.

    0     8          length N of the header, u64 little-endian
    8     N          safetensors header (JSON), padded with spaces so that the data starts at a multiple of 4096
    D     S          tensor bytes, back to back
    D+S   M+8C+96    the tensor `__lcs__`: manifest (JSON), one XXH3-64 per 1 MiB of data, footer

`docs/format.md` is the specification.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import xxhash

from lucid.errors import ChecksumError, FormatError, LimitError, TruncatedError, VersionError

MAGIC = b"\x89LCS\r\n\x1a\n"
VERSION = (1, 0)
XXH3_64 = 1
PAGE = 4096
CHUNK = 1 << 20
TAIL_NAME = "__lcs__"

# The limits of docs/format.md. A reader checks each before it allocates.
MAX_HEADER = 100_000_000
MAX_MANIFEST = 1 << 30
MAX_TENSORS = 10_000_000
MAX_DIMS = 64
MAX_SIZE = 1 << 62
MIN_CHUNK, MAX_CHUNK = 4096, 1 << 30

FOOTER_SIZE = 96
_FIELDS = struct.Struct("<8sHHIQQQQQQQQQ")

# safetensors' own names of element types and their widths in bits.
WIDTHS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F8_E8M0": 8, "F4": 4,
}  # fmt: skip


class Block(NamedTuple):
    """One tensor of the header: its name, element type, shape and bytes [start, stop) of the data region."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Footer:
    """The last 96 bytes: every offset, and the checksums that cover header, manifest and table."""

    size: int
    data_start: int
    manifest_start: int
    manifest_size: int
    table_start: int
    chunks: int
    head_hash: int
    tail_hash: int
    chunk: int = CHUNK
    minor: int = VERSION[1]

    def pack(self) -> bytes:
        """Return the 96 bytes."""
        head = _FIELDS.pack(
            MAGIC, VERSION[0], self.minor, XXH3_64, self.chunk, self.size, self.data_start, self.manifest_start,
            self.manifest_size, self.table_start, self.chunks, self.head_hash, self.tail_hash,
        )  # fmt: skip
        return head + xxhash.xxh3_64_intdigest(head).to_bytes(8, "little")

    @classmethod
    def unpack(cls, raw: bytes, size: int, where: str) -> Footer:
        """Check the last 96 bytes of a file of `size` bytes and return them.

        Raises:
            FormatError: they are no footer, or contradict themselves.
            TruncatedError: the file is not as long as the footer says.
            ChecksumError: a bit of the footer changed.
            VersionError: a newer major version or an unknown checksum wrote it.
        """
        if len(raw) != FOOTER_SIZE or raw[:8] != MAGIC:
            raise TruncatedError(
                f"{where} must end with a .lcs footer, got other bytes: it was cut short, is still being "
                "written, or is no .lcs file."
            )
        if xxhash.xxh3_64_intdigest(raw[:88]).to_bytes(8, "little") != raw[88:]:
            raise ChecksumError(f"{where}: the footer changed since it was written. Take another checkpoint.")
        _, major, minor, algorithm, chunk, *rest = _FIELDS.unpack(raw[:88])
        if major != VERSION[0] or algorithm != XXH3_64:
            raise VersionError(
                f"{where} has format version {major}.{minor} with checksum kind {algorithm}, this reader knows "
                f"version {VERSION[0]} with kind {XXH3_64}. Update lucid."
            )
        total, data, manifest, manifest_size, table, chunks, head_hash, tail_hash = rest
        footer = cls(total, data, manifest, manifest_size, table, chunks, head_hash, tail_hash, chunk, minor)
        footer._check(size, where)
        return footer

    def _check(self, size: int, where: str) -> None:
        if self.size != size:
            raise TruncatedError(f"{where} must have {self.size} bytes, got {size}: it was cut short or appended to.")
        if not MIN_CHUNK <= self.chunk <= MAX_CHUNK or self.chunk & (self.chunk - 1):
            raise LimitError(f"{where}: the chunk size must be a power of two in 4 KiB..1 GiB, got {self.chunk}.")
        if not 8 <= self.data_start <= 8 + MAX_HEADER:
            raise LimitError(f"{where}: the header must have at most {MAX_HEADER} bytes, got {self.data_start - 8}.")
        if self.manifest_size > MAX_MANIFEST:
            raise LimitError(f"{where}: the manifest must have at most 1 GiB, got {self.manifest_size} bytes.")
        regions = (
            self.data_start <= self.manifest_start,
            self.manifest_start + self.manifest_size == self.table_start,
            self.table_start + 8 * self.chunks + FOOTER_SIZE == self.size,
            self.chunks == -(-(self.manifest_start - self.data_start) // self.chunk),
        )
        if not all(regions):
            raise FormatError(f"{where}: the regions in the footer contradict each other. The file is broken.")


_quoted = json.encoder.encode_basestring_ascii


def pack_header(blocks: Iterable[Block], tail: tuple[int, int] | None, metadata: dict[str, str]) -> bytes:
    """Return the length word and the header, padded so that the data starts at a multiple of 4096."""
    last = () if tail is None else (Block(TAIL_NAME, "U8", (tail[1] - tail[0],), *tail),)
    # Text put together by hand takes a third of the time of a dict for each tensor.
    entries = [f'"__metadata__":{json.dumps(metadata, separators=(",", ":"))}']
    for name, dtype, shape, start, stop in (*blocks, *last):
        sizes = ",".join(map(str, shape))
        entries.append(f'{_quoted(name)}:{{"dtype":"{dtype}","shape":[{sizes}],"data_offsets":[{start},{stop}]}}')
    text = f"{{{','.join(entries)}}}".encode("ascii")
    size = -(-(8 + len(text)) // PAGE) * PAGE - 8
    if size > MAX_HEADER:
        raise LimitError(
            f"the header must have at most {MAX_HEADER} bytes, got {size}: the state has too many tensors for one "
            "file. Save parts of it apart."
        )
    return struct.pack("<Q", size) + text.ljust(size)


def parse_json(raw: bytes, where: str, *, flat: bool = False) -> Any:
    """Read JSON strictly: no duplicate keys, no NaN or Infinity, any wrong input is a `FormatError`.

    In a `flat` table of tables no call for each of them is needed: every key brings a colon, so if there are as many
    keys as colons, none was there twice.
    """
    try:
        if flat:
            table = json.loads(raw, parse_constant=_refuse)
            if _num_keys(table) == raw.count(b":"):
                return table
        return json.loads(raw, object_pairs_hook=_unique, parse_constant=_refuse)
    except (ValueError, RecursionError, UnicodeDecodeError) as error:
        raise FormatError(f"{where} is not valid JSON: {str(error)[:200]}") from None


def _num_keys(table: Any) -> int:
    """Return the number of keys of a dict of dicts, -1 for anything else."""
    if type(table) is not dict or not all(type(entry) is dict for entry in table.values()):
        return -1
    return len(table) + sum(map(len, table.values()))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def parse_header(raw: bytes, data_size: int, where: str) -> tuple[list[Block], dict[str, str]]:
    """Return the tensors in the order of their bytes, and the string pairs of `__metadata__`.

    The tensors must fill `data_size` bytes without a hole or an overlap: that bounds memory by the size of the file.
    """
    table = parse_json(raw, f"{where}: the header", flat=True)
    if not isinstance(table, dict):
        raise FormatError(f"{where}: the header must be a JSON object, got {type(table).__name__}.")
    metadata = table.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise FormatError(f"{where}: __metadata__ in the header must map strings to strings.")
    if len(table) > MAX_TENSORS:
        raise LimitError(f"{where}: at most {MAX_TENSORS} tensors are allowed, got {len(table)}.")
    blocks = [_parse_block(name, entry, where) for name, entry in table.items()]
    blocks.sort(key=lambda block: (block.start, block.stop))
    end = 0
    for block in blocks:
        if block.start != end:
            raise FormatError(f"{where}: tensor {block.name[:80]!r} must start at byte {end}, got {block.start}.")
        end = block.stop
    if end != data_size:
        raise FormatError(f"{where}: the tensors must fill {data_size} bytes of data, got {end}.")
    return blocks, metadata


def _parse_block(name: str, entry: Any, where: str) -> Block:
    try:
        dtype, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
        width = WIDTHS[dtype]
    except (TypeError, ValueError, KeyError):
        raise FormatError(
            f"{where}: header entry {name[:80]!r} must have a known dtype, a shape and two data_offsets, got "
            f"{str(entry)[:200]}."
        ) from None
    sizes = check_sizes(shape, where)
    if type(start) is not int or type(stop) is not int or not 0 <= start <= stop < MAX_SIZE:
        raise FormatError(f"{where}: header entry {name[:80]!r} has the wrong data_offsets {start!r}, {stop!r}.")
    if (stop - start) * 8 != math.prod(sizes) * width:
        raise FormatError(f"{where}: header entry {name[:80]!r}: data_offsets do not fit its shape and {dtype}.")
    return Block(name, dtype, sizes, start, stop)


def check_sizes(shape: Any, what: str) -> tuple[int, ...]:
    """Return `shape` as a tuple if it is a list of at most 64 sizes whose product stays below 2^62."""
    if type(shape) is not list:
        raise FormatError(f"{what}: a shape must be a list of integers of at least 0, got {str(shape)[:80]}.")
    total = 1
    for size in shape:
        if type(size) is not int or size < 0:
            raise FormatError(f"{what}: a shape must be a list of integers of at least 0, got {str(shape)[:80]}.")
        total *= size or 1
        if total >= MAX_SIZE:
            break
    if total >= MAX_SIZE or len(shape) > MAX_DIMS:
        raise LimitError(f"{what}: a shape must have at most {MAX_DIMS} dimensions and 2^62 elements.")
    return tuple(shape)


_UNPRINTABLE = re.compile(r"[^\x20-\x7e]|[\"\\]")


def header_name(path: Sequence[object], taken: set[str]) -> str:
    """Return the name of a tensor for people and foreign readers: its path joined with dots, made unique ASCII."""
    name = ".".join(map(str, path))
    if not (name.isascii() and name.isprintable()) or '"' in name or "\\" in name:
        name = _UNPRINTABLE.sub("_", name)
    name = name[:512]
    if name.startswith("__") or not name:
        name = "_." + name
    unique, count = name, 1
    while unique in taken:
        count += 1
        unique = f"{name}#{count}"
    taken.add(unique)
    return unique


def placement(sizes: Sequence[int]) -> list[int]:
    """Return the order in which tensors of these byte counts are laid out.

    Holes are illegal in safetensors, so alignment comes from the order: sizes divisible by the largest power of two
    (up to 4096) first. Each tensor then starts at a multiple of the largest power of two that divides its own size.
    """

    def rank(index: int) -> int:
        size = sizes[index]
        return -13 if size == 0 else -min(12, (size & -size).bit_length() - 1)

    return sorted(range(len(sizes)), key=rank)
