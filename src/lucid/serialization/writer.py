"""Write a plan: header, data, checksums, manifest, table, footer; beside the target first, then renamed."""

from __future__ import annotations

import os
import secrets
import struct
from pathlib import Path

import xxhash

from lucid.serialization import layout, memory
from lucid.serialization.plan import Plan


def write_atomic(plan: Plan, path: Path) -> int:
    """Write a plan durably to `path`: temp file, flush, rename, flush of the folder. Returns the bytes written."""
    temp = path.with_name(f".{path.name}.tmp-{os.getpid()}-{secrets.token_hex(4)}")
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        try:
            size = _write(plan, fd)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temp, path)
    except BaseException:
        temp.unlink(missing_ok=True)
        raise
    flush_folder(path.parent)
    return size


def flush_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write(plan: Plan, fd: int) -> int:
    _write_all(fd, memoryview(plan.header))
    table, state, room = [], xxhash.xxh3_64(), layout.CHUNK
    for slot in plan.slots:
        if not slot.size:
            continue
        address, owner = slot.dense()
        rest = memory.view(address, slot.size)
        _write_all(fd, rest)
        while len(rest):
            part, rest = rest[:room], rest[room:]
            state.update(part)
            room -= len(part)
            if not room:
                table.append(state.intdigest())
                state, room = xxhash.xxh3_64(), layout.CHUNK
        del owner
    if room < layout.CHUNK:
        table.append(state.intdigest())
    _write_all(fd, memoryview(tail(plan, table)))
    return plan.file_size


def tail(plan: Plan, table: list[int]) -> bytes:
    """Return manifest, table and footer."""
    raw = plan.manifest + struct.pack(f"<{len(table)}Q", *table)
    start = len(plan.header) + plan.data_size
    footer = layout.Footer(
        size=plan.file_size,
        data_start=len(plan.header),
        manifest_start=start,
        manifest_size=len(plan.manifest),
        table_start=start + len(plan.manifest),
        chunks=len(table),
        head_hash=xxhash.xxh3_64_intdigest(plan.header),
        tail_hash=xxhash.xxh3_64_intdigest(raw),
    )
    return raw + footer.pack()


def _write_all(fd: int, view: memoryview) -> None:
    while len(view):
        view = view[os.write(fd, view) :]
