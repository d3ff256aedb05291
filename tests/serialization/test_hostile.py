"""Files made to do harm, with valid checksums: refused with a typed error or read within bounded memory."""

from __future__ import annotations

import io
import json
import os
import resource
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lucid.errors import CheckpointError, FormatError, LimitError
from lucid.serialization import inspect, load, load_into, save, verify

from .resign import Parts


def victim() -> dict[str, Any]:
    """Return the state whose file is attacked."""
    wide = torch.arange(64.0).reshape(8, 8)
    return {
        "w": wide, "t": torch.ones(4, 6).t(), "view": wide[2:4], "e": torch.ones(1, 4).expand(3, 4),
        "c": torch.ones(2, dtype=torch.complex128), "ints": list(range(300)), "blob": b"x" * 300,
        "sparse": torch.eye(3).to_sparse(), "step": 3, "d": {1: 2},
    }  # fmt: skip


def parts() -> Parts:
    """Return the parts of the victim's file."""
    file = io.BytesIO()
    save(victim(), file)
    return Parts.of(file.getvalue())


def index(parts: Parts, name: str) -> int:
    """Return the number of a tensor of the tree."""
    return int(parts.manifest["tree"][name]["i"])


Attack = Callable[[Parts], None]
ATTACKS: dict[str, Attack] = {}


def attack(change: Attack) -> Attack:
    """Register an attack that must be refused."""
    ATTACKS[change.__name__] = change
    return change


def header(name: str, **fields: Any) -> Attack:
    """Return an attack on one entry of the header."""

    def change(p: Parts) -> None:
        p.header[name] = {**p.header[name], **fields}

    return change


for _label, _change in {
    "dtype unknown": header("w", dtype="F128"),
    "dtype no text": header("w", dtype=["F32"]),
    "dtype other width": header("w", dtype="F64"),
    "shape negative": header("w", shape=[-8, -8]),
    "shape float": header("w", shape=[8.0, 8]),
    "shape bool": header("w", shape=[True, 64]),
    "shape overflow": header("w", shape=[1 << 40, 1 << 40]),
    "shape many dims": header("w", shape=[8, 8] + [1] * 70),
    "shape no list": header("w", shape=64),
    "shape huge": header("w", shape=[1 << 61]),
    "offsets swapped": header("w", data_offsets=[256, 0]),
    "offsets negative": header("w", data_offsets=[-256, 0]),
    "offsets beyond": header("w", data_offsets=[0, 1 << 50]),
    "offsets three": header("w", data_offsets=[0, 1, 2]),
    "offsets text": header("w", data_offsets=["0", "256"]),
    "offsets overlap": header("t", data_offsets=[0, 96]),
}.items():
    ATTACKS[_label] = _change


@attack
def entry_missing(p: Parts) -> None:
    """A hole in the data."""
    del p.header["w"]


@attack
def entry_no_dict(p: Parts) -> None:
    """An entry that is a number."""
    p.header["w"] = 3


@attack
def metadata_no_strings(p: Parts) -> None:
    """Numbers in the metadata."""
    p.header["__metadata__"] = {"a": 1}


@attack
def header_duplicate_key(p: Parts) -> None:
    """Two entries of one name: readers would disagree which counts."""
    p.raw_header = b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":1}'


@attack
def header_duplicate_field(p: Parts) -> None:
    """One field twice, with spaces in between, in a header that is right without it."""
    raw = p.build()
    text = raw[8 : 8 + int.from_bytes(raw[:8], "little")].rstrip()
    p.raw_header = text.replace(b'"dtype"', b'"dtype" : "U8", "dtype"', 1)


@attack
def tail_longer_than_the_file(p: Parts) -> None:
    """The last tensor claims more bytes than there are."""
    size = len(p.data)
    entry = {"dtype": "U8", "shape": [1 << 40], "data_offsets": [size, size + (1 << 40)]}
    p.raw_header = json.dumps({**p.header, "__lcs__": entry}).encode()


@attack
def footer_bytes_behind_the_table(p: Parts) -> None:
    """Bytes that belong to nothing."""
    p.padding = bytes(8)


@attack
def footer_table_with_one_checksum_too_many(p: Parts) -> None:
    """A table that fits the file but not the data."""
    p.padding, p.footer["chunks"] = bytes(8), -(-len(p.data) // (1 << 20)) + 1


@attack
def header_list(p: Parts) -> None:
    """A header that is a list."""
    p.raw_header = b"[]"


@attack
def header_nested(p: Parts) -> None:
    """A header of a hundred thousand brackets."""
    p.raw_header = b"[" * 100_000


@attack
def header_nan(p: Parts) -> None:
    """NaN is no JSON."""
    p.raw_header = b'{"a":NaN}'


@attack
def header_no_utf8(p: Parts) -> None:
    """Bytes that are no text."""
    p.raw_header = b'{"\xff":1}'


@attack
def header_huge_number(p: Parts) -> None:
    """An integer of a million digits."""
    p.raw_header = b'{"a":' + b"9" * 1_000_000 + b"}"


def manifest(text: bytes) -> Attack:
    """Return an attack that replaces the manifest."""

    def change(p: Parts) -> None:
        p.raw_manifest = text

    return change


for _label, _text in {
    "empty": b"",
    "list": b"[]",
    "null": b"null",
    "no tree": b'{"requires":[],"devices":[],"tensors":[]}',
    "tensors dict": b'{"requires":[],"devices":[],"tensors":{},"tree":1}',
    "nested": b'{"requires":[],"devices":[],"tensors":[],"tree":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "deep": b'{"requires":[],"devices":[],"tensors":[],"tree":' + b"[" * 400 + b"]" * 400 + b"}",
    "duplicate": b'{"requires":[],"requires":[],"devices":[],"tensors":[],"tree":1}',
    "infinity": b'{"requires":[],"devices":[],"tensors":[],"tree":Infinity}',
    "requires text": b'{"requires":"x","devices":[],"tensors":[],"tree":1}',
}.items():
    ATTACKS[f"manifest {_label}"] = manifest(_text)


def record(name: str, value: Any) -> Attack:
    """Return an attack on the record of one tensor."""

    def change(p: Parts) -> None:
        p.manifest["tensors"][index(p, name)] = value

    return change


ALIAS = {"i": 0, "off": 0, "shape": [2, 8], "stride": [8, 1], "dt": "float32"}
for _label, _value in {
    "number": 3,
    "short": ["w"],
    "long": ["w", 0, {}, 1],
    "device beyond": ["w", 9],
    "device negative": ["w", -1],
    "device bool": ["w", False],
    "extras list": ["w", 0, []],
    "name unknown": ["nobody", 0],
    "name list": [["w"], 0],
    "dtype unknown": ["w", 0, {"dt": "float1024", "shape": [8, 8]}],
    "dtype attribute": ["w", 0, {"dt": "Tensor", "shape": [8, 8]}],
    "dtype other": ["w", 0, {"dt": "complex128", "shape": [8, 8]}],
    "stride wrong": ["w", 0, {"stride": [8, 2]}],
    "stride short": ["w", 0, {"stride": [1]}],
    "stride huge": ["w", 0, {"stride": [1 << 60, 1]}],
    "expand wrong": ["w", 0, {"expand": [9, 8]}],
    "expand short": ["w", 0, {"expand": [8]}],
    "alias of itself": [None, 0, {"alias": {**ALIAS, "i": None}}],
    "alias beyond": [None, 0, {"alias": {**ALIAS, "i": 99}}],
    "alias offset": [None, 0, {"alias": {**ALIAS, "off": 1 << 20}}],
    "alias negative": [None, 0, {"alias": {**ALIAS, "off": -4}}],
    "alias odd": [None, 0, {"alias": {**ALIAS, "off": 2}}],
    "alias shape": [None, 0, {"alias": {**ALIAS, "shape": [99, 99]}}],
    "alias stride": [None, 0, {"alias": {**ALIAS, "stride": [1 << 50, 1]}}],
    "alias lengths": [None, 0, {"alias": {**ALIAS, "stride": [1]}}],
    "alias empty": [None, 0, {"alias": {}}],
    "alias text": [None, 0, {"alias": "w"}],
}.items():
    ATTACKS[f"record {_label}"] = record("view", _value)


@attack
def alias_of_an_alias(p: Parts) -> None:
    """A view whose base is a view."""
    at = index(p, "view")
    p.manifest["tensors"][at] = [None, 0, {"alias": {**ALIAS, "i": at}}]


@attack
def alias_of_an_alias_with_a_name(p: Parts) -> None:
    """A view whose base is a view that also names a stored tensor."""
    at, base = index(p, "view"), index(p, "t")
    p.manifest["tensors"][base] = ["w", 0, {"alias": {**ALIAS, "i": index(p, "w")}}]
    p.manifest["tensors"][at] = [None, 0, {"alias": {**ALIAS, "i": base}}]
    p.manifest["tree"] = {"$": "t", "i": at}


def tree(node: Any) -> Attack:
    """Return an attack that replaces the tree."""

    def change(p: Parts) -> None:
        p.manifest["tree"] = node

    return change


for _label, _node in {
    "tag unknown": {"$": "import", "v": "os"},
    "tag no text": {"$": ["t"]},
    "index beyond": {"$": "t", "i": 99},
    "index negative": {"$": "t", "i": -1},
    "index bool": {"$": "t", "i": True},
    "index missing": {"$": "t"},
    "class": {"$": "enum", "c": "os:system", "v": "x"},
    "class list": {"$": "dc", "c": ["os"], "v": {}},
    "named tuple": {"$": "nt", "c": "builtins:tuple", "v": []},
    "factory": {"$": "ddict", "v": [], "d": "eval"},
    "pairs": {"$": "dict", "v": [1]},
    "pairs text": {"$": "dict", "v": "ab"},
    "key list": {"$": "dict", "v": [[[], 1]]},
    "set of lists": {"$": "set", "v": [[]]},
    "deque": {"$": "deque", "v": [], "n": -1},
    "float": {"$": "f", "v": "zz"},
    "float short": {"$": "f", "v": "00"},
    "int": {"$": "int", "v": []},
    "fraction": {"$": "fraction", "v": ["1", "0"]},
    "fraction long": {"$": "fraction", "v": ["f" * 100_000, "3"]},
    "zone": {"$": "datetime", "v": ["2020-01-01", "../../etc/passwd", 0]},
    "dtype": {"$": "dtype", "v": "load"},
    "layout": {"$": "layout", "v": "load"},
    "device": {"$": "device", "v": "nowhere:0"},
    "numpy objects": {"$": "nd", "d": "|O", "n": [1], "i": 0},
    "numpy fields of objects": {"$": "nd", "d": [["a", "|O"]], "n": [1], "i": 0},
    "numpy shape": {"$": "nd", "d": "<f4", "n": [1 << 40], "i": 0},
    "numpy width": {"$": "nd", "d": "<U99999999", "n": [1], "i": 0},
    "numpy empty type": {"$": "nd", "d": "|V0", "n": [1 << 30], "i": 0},
    "numpy scalar": {"$": "nps", "d": "<f8", "v": "AA=="},
    "generator": {"$": "npgen", "k": "Evil", "v": {}},
    "generator state": {"$": "npgen", "k": "PCG64", "v": {"bit_generator": "PCG64"}},
    "random state": {"$": "pyrandom", "v": [1, 2]},
    "torch generator": {"$": "tgen", "d": "cpu", "v": {"$": "t", "i": 0}},
    "torch generator device": {"$": "tgen", "d": "nowhere", "v": {"$": "t", "i": 0}},
    "base64": {"$": "bytes", "v": "§"},
    "sparse kind": {"$": "sparse", "k": "load", "n": [1], "p": {"indices": 0, "values": 0}, "q": 0, "g": 0},
    "sparse parts": {"$": "sparse", "k": "sparse_coo", "n": [3, 3], "p": {"indices": 0}, "q": 0, "g": 0},
    "sparse list": {"$": "sparse", "k": "sparse_coo", "n": [3, 3], "p": [0, 0], "q": 0, "g": 0},
    "quantized": {"$": "q", "i": 0, "dt": "qint8", "s": "0", "z": 0},
}.items():
    ATTACKS[f"tree {_label}"] = tree(_node)


@attack
def sparse_index_beyond(p: Parts) -> None:
    """Indices that point outside the sparse tensor would read other memory."""
    at = p.manifest["tree"]["sparse"]["p"]["indices"]
    start, stop = p.header[p.manifest["tensors"][at][0]]["data_offsets"]
    p.data = p.data[:start] + b"\x7f" * (stop - start) + p.data[stop:]


@attack
def gradient_of_integers(p: Parts) -> None:
    """Integers cannot require a gradient."""
    p.manifest["tree"] = {"$": "t", "i": index(p, "ints"), "g": True}


@attack
def bytes_of_an_expanded_view(p: Parts) -> None:
    """A view of 2^28 elements over one, turned into a byte string."""
    at = index(p, "view")
    p.manifest["tensors"][at][2]["alias"].update(shape=[1 << 28], stride=[0], dt="uint8")
    p.manifest["tree"] = {"$": "bytes", "i": at}


@attack
def one_tensor_copied_many_times(p: Parts) -> None:
    """The same bytes in ten thousand byte strings."""
    p.manifest["tree"] = [{"$": "bytes", "i": index(p, "blob")}] * 10_000


for _label, _fields in {
    "data start": {"data_start": 0},
    "data start odd": {"data_start": 4097},
    "data start beyond": {"data_start": 1 << 60},
    "manifest": {"manifest_start": 8},
    "manifest size": {"manifest_size": 1 << 40},
    "manifest size short": {"manifest_size": 8},
    "table": {"table_start": 0},
    "chunks": {"chunks": 1 << 50},
    "no chunks": {"chunks": 0},
    "chunk size": {"chunk": 0},
    "chunk size odd": {"chunk": 4097},
    "chunk size huge": {"chunk": 1 << 40},
    "size": {"size": 8},
}.items():
    ATTACKS[f"footer {_label}"] = lambda p, fields=_fields: p.footer.update(fields)


@pytest.mark.parametrize("name", list(ATTACKS))
def test_attack_is_refused_with_a_typed_error_and_little_memory(name: str) -> None:
    """The error names the file; Python's memory stays below a fixed multiple of the file's size."""
    target = parts()
    ATTACKS[name](target)
    raw = target.build()
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="the file"):
            load(io.BytesIO(raw))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < (8 << 20) + 20 * len(raw)


@pytest.mark.parametrize("name", list(ATTACKS))
def test_other_readers_of_an_attacked_file_raise_typed_errors_only(name: str) -> None:
    """`inspect`, `verify` and `load_into` either work on it or raise a `CheckpointError`."""
    target = parts()
    ATTACKS[name](target)
    raw = target.build()
    for verb in (inspect, verify, lambda file: load_into(file, {"w": torch.zeros(8, 8)}, strict=False)):
        try:
            verb(io.BytesIO(raw))
        except CheckpointError:
            continue


def test_larger_chunks_than_ours_are_read() -> None:
    """The chunk size is the file's own, from 4 KiB to 1 GiB."""
    for chunk in (4096, 1 << 16, 1 << 30):
        target = parts()
        target.footer["chunk"] = chunk
        assert torch.equal(load(io.BytesIO(target.build()))["w"], victim()["w"])


def test_huge_view_that_nobody_copies_is_harmless() -> None:
    """A view of 2^40 equal elements takes the memory of one."""
    target = parts()
    at = index(target, "view")
    target.manifest["tensors"][at][2]["alias"].update(shape=[1 << 40], stride=[0])
    assert load(io.BytesIO(target.build()))["view"].shape == (1 << 40,)


def test_long_hex_integer_is_read_in_linear_time_and_memory() -> None:
    """An integer of a million hex digits loads; the decimal limit of Python does not apply."""
    target = parts()
    target.manifest["tree"] = {"$": "int", "v": "f" * 1_000_000}
    assert load(io.BytesIO(target.build())) == (1 << 4_000_000) - 1


@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
def test_only_regular_files_are_read(kind: str, tmp_path: Path) -> None:
    """A pipe is not waited for, an endless device not read."""
    path = tmp_path / "a.lcs"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path = Path("/dev/zero")
    with pytest.raises(FormatError, match="regular file"):
        load(path)


def test_attacks_with_little_address_space() -> None:
    """All attacks in a process that may not map much more than torch needs: the same typed errors."""
    code = (
        "import resource, torch, io\n"
        "from serialization import test_hostile as t\n"
        "from lucid.serialization import load\n"
        "from lucid.errors import CheckpointError\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * 4096\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20),) * 2)\n"
        "refused = 0\n"
        "for name, change in t.ATTACKS.items():\n"
        "    p = t.parts(); change(p)\n"
        "    try: load(io.BytesIO(p.build()))\n"
        "    except CheckpointError: refused += 1\n"
        "print(refused == len(t.ATTACKS))\n"
    )
    tests = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(tests)}
    )
    assert done.stdout.strip() == "True", done.stderr[-2000:]
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY


def test_limit_on_the_header_is_checked_before_it_is_read() -> None:
    """A footer that claims a header of more than 100 MB is refused by number."""
    target = parts()
    target.footer["data_start"] = 8 + 100_000_001
    with pytest.raises(LimitError, match="100000000"):
        load(io.BytesIO(target.build()))


def test_loading_imports_nothing(tmp_path: Path) -> None:
    """A file full of class names and module paths causes no import."""
    target = parts()
    target.manifest["tree"] = {"a": "antigravity:fly", "b": [{"$": "path", "v": "this"}]}
    before = set(sys.modules)
    load(io.BytesIO(target.build()))
    target.manifest["tree"] = {"$": "enum", "c": "antigravity:fly", "v": "x"}
    with pytest.raises(CheckpointError, match="antigravity:fly"):
        load(io.BytesIO(target.build()))
    assert set(sys.modules) == before
