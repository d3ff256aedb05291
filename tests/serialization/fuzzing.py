"""Random changes of valid files, put together again with valid checksums. Run by `test_fuzz.py`, or as a program:

python -m serialization.fuzzing SEED COUNT      # prints what it found as JSON
"""

from __future__ import annotations

import copy
import io
import json
import random
import struct
import sys
import tracemalloc
import warnings
from collections import Counter, deque
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lucid.errors import CheckpointError
from lucid.serialization import inspect, load, load_into, verify

from .resign import Parts
from .states import TYPES

CORPUS = Path(__file__).parent / "corpus"
TAGS = (
    "t", "p", "dict", "odict", "counter", "ddict", "tuple", "set", "frozenset", "deque", "size", "slice", "int", "f",
    "c", "bytes", "bytearray", "ints", "nd", "ndobj", "nps", "npdtype", "npgen", "nprs", "tgen", "pyrandom", "sparse",
    "q", "dtype", "device", "layout", "memory_format", "datetime", "date", "time", "td", "path", "ppath", "wpath",
    "decimal", "fraction", "uuid", "range", "...", "enum", "dc", "nt", "nothing",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 7, 255, 1 << 31, 1 << 53, 1 << 62, 1 << 63, 1 << 64, -(1 << 63), 0.5, 1e308, "", "a",
    "$", "float32", "complex128", "F32", "U8", "F64", "cpu", "cuda:0", "<f4", "|O", "|V0", "<U9999999", "PCG64", "0x",
    "ff", "AAAA", "\ud800", "x" * 300, [], [0], [[]], [1 << 40], [1 << 62, 2], {}, {"$": "t", "i": 0}, {"$": "t"},
)  # fmt: skip


def nodes(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return every (container, key) of a JSON value."""
    items = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    for key, item in items:
        found.append((value, key))
        nodes(item, found)
    return found


def change_json(value: Any, dice: random.Random) -> None:
    """Change one place of a JSON value."""
    places = nodes(value, [])
    if not places:
        return
    where, key = dice.choice(places)
    kind = dice.randrange(7)
    if kind == 0:
        where[key] = copy.deepcopy(dice.choice(VALUES))
    elif kind == 1:
        other, other_key = dice.choice(places)
        where[key] = json.loads(json.dumps(other[other_key]))
    elif kind == 2:
        del where[key]
    elif kind == 3 and isinstance(where[key], int):
        where[key] += dice.choice((-1, 1, 8, -8, 4096, 1 << 32))
    elif kind == 4 and isinstance(where, dict):
        where[dice.choice(("$", "v", "i", "k", "n", "d", "alias", "stride", "expand", "dt", "shape"))] = dice.choice(
            VALUES
        )
    elif kind == 5 and isinstance(where[key], list):
        where[key] = where[key] * 2
    else:
        where[key] = {
            "$": dice.choice(TAGS),
            "v": where[key],
            "i": dice.choice((0, 1, 2)),
            "k": "list",
            "n": [1],
            "d": "<f4",
        }


def change_bytes(raw: bytes, dice: random.Random) -> bytes:
    """Flip, cut, repeat or insert bytes."""
    data = bytearray(raw)
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(data) + 1)
        kind = dice.randrange(4)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << dice.randrange(8)
        elif kind == 1:
            del data[at : at + dice.randint(1, 9)]
        elif kind == 2:
            data[at:at] = data[at : at + dice.randint(1, 40)]
        else:
            data[at:at] = dice.choice((b"[", b"{", b'"', b"}", b"]", b",", b"9" * 30, b"\x00", b"\xff", b"-", b"e9"))
    return bytes(data)


def change_footer(parts: Parts, dice: random.Random) -> None:
    """Set one field of the footer."""
    name = dice.choice(
        ("size", "data_start", "manifest_start", "manifest_size", "table_start", "chunks", "chunk", "minor")
    )
    limit = (1 << 16) - 1 if name == "minor" else (1 << 64) - 1
    parts.footer[name] = dice.choice((0, 1, 8, 4096, 1 << 20, 1 << 31, 1 << 62, limit)) & limit


def mutate(raw: bytes, dice: random.Random) -> bytes:
    """Return a changed file with valid checksums."""
    parts = Parts.of(raw)
    for _ in range(dice.randint(1, 3)):
        kind = dice.randrange(10)
        if kind < 5:
            change_json(parts.manifest, dice)
        elif kind < 7:
            change_json(parts.header, dice)
        elif kind == 7:
            change_footer(parts, dice)
        elif kind == 8:
            parts.raw_manifest = change_bytes(json.dumps(parts.manifest).encode(), dice)
        else:
            parts.data = change_bytes(parts.data, dice)
    try:
        return parts.build()
    except (struct.error, TypeError, ValueError):  # the change made something that cannot be written at all
        return raw


def held(state: Any) -> int:
    """Return the bytes of memory that the tensors, arrays and byte strings of a state keep, each once."""
    found: dict[int, int] = {}
    stack = [state]
    while stack:
        item = stack.pop()
        if isinstance(item, torch.Tensor) and item.layout is torch.strided:
            found[item.untyped_storage().data_ptr()] = item.untyped_storage().nbytes()
        elif isinstance(item, torch.Tensor) and item.layout is torch.sparse_coo:
            stack += [item._indices(), item._values()]
        elif isinstance(item, np.ndarray) and item.dtype.hasobject:
            stack += item.ravel().tolist()
        elif isinstance(item, np.ndarray):
            found[item.__array_interface__["data"][0]] = item.nbytes
        elif isinstance(item, bytes | bytearray):
            found[id(item)] = len(item)
        elif isinstance(item, dict):
            stack += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple | set | frozenset | deque):
            stack += item
    return sum(found.values())


def load_bounded(raw: bytes) -> None:
    """Load a file whose tensors, and copies out of them, must not take more memory than it has bytes for."""
    size = held(load(io.BytesIO(raw), types=TYPES))
    if size > 2 * len(raw):
        raise MemoryError(f"{len(raw)} bytes of a file became {size} bytes of memory")


def attempt(raw: bytes) -> str:
    """Read a file in every way; returns the kinds of what came. Anything but a `CheckpointError` goes through."""
    came = []
    live = {"w": torch.zeros(8, 8), "d": {1: torch.zeros(2)}}
    verbs = (
        lambda _: load_bounded(raw),
        inspect,
        verify,
        lambda file: load_into(file, live, strict=False, types=TYPES),
    )
    for verb in verbs:
        try:
            verb(io.BytesIO(raw))
            came.append("read")
        except CheckpointError as error:
            came.append(type(error).__name__)
    return " ".join(came)


def fuzz(seed: int, count: int, *, trace: bool = True) -> dict[str, Any]:
    """Try `count` changed files; returns counts, and the first files that broke the rule.

    With `trace`, `peak_bytes` is the most memory that Python took for one file beyond 20 times its size.
    """
    dice = random.Random(seed)
    seeds = [path.read_bytes() for path in sorted(CORPUS.glob("*.lcs"))]
    kinds: Counter[str] = Counter()
    broken: list[str] = []
    peak = 0
    if trace:
        tracemalloc.start()
    for _ in range(count):
        raw = mutate(dice.choice(seeds), dice)
        if trace:
            tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                kinds[attempt(raw)] += 1
        except BaseException as error:
            broken.append(f"{type(error).__name__}: {error}"[:300])
        peak = max(peak, tracemalloc.get_traced_memory()[1] - before - 20 * len(raw))
    tracemalloc.stop()
    refused = count - sum(number for kind, number in kinds.items() if kind.startswith("read"))
    found = {"files": count, "refused": refused, "kinds": len(kinds), "peak_bytes": peak}
    return {**found, "broken": broken[:5], "num_broken": len(broken)}


if __name__ == "__main__":
    print(json.dumps(fuzz(int(sys.argv[1]), int(sys.argv[2]), trace=False)))
