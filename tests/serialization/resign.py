"""Take a `.lcs` file apart, change any part of it, and put it together again with valid checksums."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any

import xxhash

from lucid.serialization import layout


@dataclass
class Parts:
    """The parts of one file. `build` computes every length, offset and checksum that is not set by hand."""

    header: dict[str, Any]
    data: bytes
    manifest: Any
    raw_header: bytes | None = None
    raw_manifest: bytes | None = None
    footer: dict[str, int] = field(default_factory=dict)
    padding: bytes = b""
    page: int = 4096

    @classmethod
    def of(cls, raw: bytes) -> Parts:
        """Take a valid file apart."""
        footer = layout.Footer.unpack(raw[-96:], len(raw), "file")
        header = json.loads(raw[8 : footer.data_start])
        header.pop(layout.TAIL_NAME)
        manifest = json.loads(raw[footer.manifest_start : footer.table_start])
        return cls(header, raw[footer.data_start : footer.manifest_start], manifest)

    def build(self) -> bytes:
        """Return the file."""
        manifest = self.raw_manifest if self.raw_manifest is not None else json.dumps(self.manifest).encode()
        manifest = manifest.ljust(-(-len(manifest) // 8) * 8)
        chunk = self.footer.get("chunk", layout.CHUNK)
        size = len(self.data)
        step = chunk if 4096 <= chunk <= 1 << 30 else layout.CHUNK
        sums = [xxhash.xxh3_64_intdigest(self.data[at : at + step]) for at in range(0, size, step)]
        table = struct.pack(f"<{len(sums)}Q", *sums) + self.padding
        tail = len(manifest) + len(table) + 96
        header = self.raw_header
        if header is None:
            entry = {"dtype": "U8", "shape": [tail], "data_offsets": [size, size + tail]}
            header = json.dumps({**self.header, layout.TAIL_NAME: entry}).encode()
        length = -(-(8 + len(header)) // self.page) * self.page - 8
        head = struct.pack("<Q", length) + header.ljust(length)
        start = len(head) + size
        fields = {
            "size": start + tail, "data_start": len(head), "manifest_start": start, "manifest_size": len(manifest),
            "table_start": start + len(manifest), "chunks": len(sums),
            "head_hash": xxhash.xxh3_64_intdigest(head), "tail_hash": xxhash.xxh3_64_intdigest(manifest + table),
            "chunk": layout.CHUNK, **self.footer,
        }  # fmt: skip
        return head + self.data + manifest + table + layout.Footer(**fields).pack()
