"""No change of any bit, length or block of a file goes unnoticed."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash

from lucid.errors import CheckpointError, ChecksumError, TruncatedError, VersionError
from lucid.serialization import layout, load, save, verify
from lucid.serialization.reader import Reader

from .resign import Parts
from .states import same


def small() -> dict[str, Any]:
    """Return a state whose file is little more than a page."""
    return {"w": torch.arange(20.0), "b": torch.ones(3, dtype=torch.int8), "step": 7, "name": "x"}


def packed(state: Any) -> bytes:
    """Return the bytes of the file of a state."""
    file = io.BytesIO()
    save(state, file)
    return file.getvalue()


def test_every_single_bit_flip_is_refused() -> None:
    """All bits of a small file, one after the other: none gives a state back."""
    raw = bytearray(packed(small()))
    refused = 0
    for at in range(len(raw)):
        for bit in range(8):
            raw[at] ^= 1 << bit
            try:
                load(io.BytesIO(raw))
            except CheckpointError:
                refused += 1
            raw[at] ^= 1 << bit
    assert refused == 8 * len(raw)
    assert same(load(io.BytesIO(raw)), small())


def test_every_truncation_is_refused() -> None:
    """All shorter lengths, and longer ones, are refused as such."""
    raw = packed(small())
    for length in range(len(raw)):
        with pytest.raises(CheckpointError):
            load(io.BytesIO(raw[:length]))
    for extra in (1, 96, 4096):
        with pytest.raises(TruncatedError):
            load(io.BytesIO(raw + bytes(extra)))
        with pytest.raises(TruncatedError, match=f"must have {len(raw)} bytes, got {len(raw) + extra}"):
            load(io.BytesIO(raw[:-96] + bytes(extra) + raw[-96:]))


def test_every_lost_block_is_refused() -> None:
    """A block of zeros in the place of any 512 bytes is refused, unless they were zeros."""
    raw = packed({"w": torch.randn(4000)})
    lost = 0
    for at in range(0, len(raw), 512):
        torn = raw[:at] + bytes(len(raw[at : at + 512])) + raw[at + 512 :]
        with pytest.raises(CheckpointError):
            load(io.BytesIO(torn))
        lost += 1
    assert lost == -(-len(raw) // 512)


def test_the_message_names_the_tensors_hit(tmp_path: Path) -> None:
    """A flipped bit in the data is reported with the chunk and the tensor that it hit."""
    path = tmp_path / "a.lcs"
    save({"model": {"first": torch.zeros(1 << 19), "second": torch.zeros(1 << 19)}}, path)
    with Reader(path) as reader:
        block = reader.blocks["model.second"]
        place = reader.footer.data_start + block.start + (3 << 18)
    _flip(path, place)
    with pytest.raises(ChecksumError, match=r"1 chunk.*'model.second'") as caught:
        load(path)
    assert "model.first" not in str(caught.value)
    report = verify(path)
    assert not report.ok
    assert "model.second" in report.files[0].reason


def test_reading_one_part_ignores_damage_elsewhere(tmp_path: Path) -> None:
    """A part whose chunks are right can still be read."""
    path = tmp_path / "a.lcs"
    save({"a": torch.ones(1 << 19), "b": torch.ones(1 << 19)}, path)
    with Reader(path) as reader:
        place = reader.footer.data_start + reader.blocks["b"].start + (1 << 20)
    _flip(path, place)
    assert torch.equal(load(path, select="a"), torch.ones(1 << 19))
    with pytest.raises(ChecksumError):
        load(path, select="b")


def _flip(path: Path, place: int) -> None:
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 16]))


def test_footer_is_checked_before_anything_else_is_believed() -> None:
    """A newer major version and an unknown checksum are named as such."""
    raw = packed(small())
    footer = bytearray(raw[-96:])
    footer[8] = 9
    signed = bytes(footer[:88])
    newer = raw[:-96] + signed + xxhash.xxh3_64_intdigest(signed).to_bytes(8, "little")
    with pytest.raises(VersionError, match=r"version 9\.0.*Update lucid"):
        load(io.BytesIO(newer))


def test_newer_minor_version_opens_and_unknown_requirement_does_not() -> None:
    """A reader accepts newer minors; what it must understand stands in `requires`."""
    parts = Parts.of(packed(small()))
    parts.footer["minor"] = 7
    assert same(load(io.BytesIO(parts.build())), small())
    parts.manifest["requires"] = ["holograms"]
    with pytest.raises(VersionError, match="holograms"):
        load(io.BytesIO(parts.build()))


def test_rebuilding_a_file_from_its_parts_gives_a_valid_file() -> None:
    """The tool of the attacks is sound: without a change its files load."""
    assert same(load(io.BytesIO(Parts.of(packed(small())).build())), small())


def test_alignment_of_tensors() -> None:
    """Each tensor starts at a multiple of the largest power of two, up to 4096, that divides its size."""
    raw = packed({str(n): torch.zeros(n, dtype=torch.uint8) for n in (1, 3, 64, 100, 4096, 8192, 12288, 6, 0)})
    with Reader(io.BytesIO(raw)) as reader:
        assert reader.footer.data_start % 4096 == 0
        for block in reader.blocks.values():
            size = block.stop - block.start
            if size:
                assert block.start % min(4096, size & -size) == 0
        assert len(reader.blocks) == 9


def test_names_in_the_header_are_printable_and_unique() -> None:
    """Odd keys become plain names; two that look alike get a number."""
    taken: set[str] = set()
    paths = [("a", "b"), ("a.b",), ("__x",), ('"',), ("\ud800",), ("x" * 999,), ("x" * 999,), ()]
    names = [layout.header_name(path, taken) for path in paths]
    assert names[:3] == ["a.b", "a.b#2", "_.__x"]
    assert len(set(names)) == len(names)
    assert all(name.isascii() and len(name) <= 520 for name in names)
