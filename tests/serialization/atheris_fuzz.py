"""Changed files by a fuzzer that watches which lines of the reader each of them reaches. In `tests/`:

python -m serialization.atheris_fuzz -atheris_runs=100000 /tmp/new corpus   # libFuzzer's options and folders
python -m serialization.atheris_fuzz --seeds serialization/corpus/small      # write the seeds anew

A mutation changes one part of a file and computes lengths, offsets and checksums anew, so that it reaches the decoder.
The rule: a `CheckpointError` or a read that takes at most `ROOM` more memory. Counts are printed at the end as JSON.
"""

from __future__ import annotations

import atexit
import io
import json
import random
import resource
import struct
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import atheris
import torch

with atheris.instrument_imports(include=["lucid.serialization"]):
    from lucid.errors import CheckpointError
    from lucid.serialization import layout, save

    from . import fuzzing
    from .resign import Parts
    from .states import TYPES, torture

ROOM = 64 << 20  # bytes that one file of some KB may take
SEEDS = [path.read_bytes() for path in sorted((fuzzing.CORPUS / "small").glob("*.lcs"))]
kinds: Counter[str] = Counter()


def seeds() -> dict[str, Any]:
    """Return small states, each with one group of things that can be stored."""
    state = torture()
    state["dtypes"] = dict(list(state["dtypes"].items())[::3])
    keys = {key: value for key, value in state.items() if not isinstance(key, str)}
    named = {
        key: value for key, value in state.items() if isinstance(key, str) and key not in ("generators", "streams")
    }
    named["dollar"] = named.pop("")
    named["state dict"] = torch.nn.Linear(2, 2).state_dict()
    for kind in ("numpy", "containers", "times", "sparse", "bytes"):
        named |= {f"{kind} {at}": value for at, value in enumerate(named.pop(kind))}
    return {**named, "keys": keys}


def write_seeds(folder: Path) -> None:
    """Save each small state without the padding of its header."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, state in seeds().items():
        file = io.BytesIO()
        save({"w": state}, file, types=TYPES)
        parts = Parts.of(file.getvalue())
        parts.page = 8
        (folder / f"{name.replace(' ', '-')}.lcs").write_bytes(parts.build())


def take_apart(data: bytes, dice: random.Random) -> Parts:
    """Return the parts of a file, of one with broken JSON too; of a seed if the file cannot be taken apart."""
    try:
        footer = layout.Footer.unpack(data[-layout.FOOTER_SIZE :], len(data), "file")
        header, manifest = data[8 : footer.data_start], data[footer.manifest_start : footer.table_start]
        parts = Parts({}, data[footer.data_start : footer.manifest_start], None)
    except CheckpointError:
        return take_apart(dice.choice(SEEDS), dice)
    try:
        parts.header = json.loads(header)
        parts.header.pop(layout.TAIL_NAME)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        parts.header, parts.raw_header = {}, header.rstrip()
    try:
        parts.manifest = json.loads(manifest)
    except (ValueError, RecursionError):
        parts.raw_manifest = manifest.rstrip()
    parts.page = 8
    return parts


def mutator(data: bytes, max_size: int, seed: int) -> bytes:
    """Change one part of a file and sign the whole again."""
    dice = random.Random(seed)
    if dice.randrange(100) == 0:  # bytes as they come, checksums and all
        return bytes(atheris.Mutate(data, max_size))
    parts = take_apart(data, dice)
    try:
        change(parts, dice)
        made = parts.build()
    except (struct.error, TypeError, ValueError, RecursionError):  # what cannot be written at all
        return data
    return made if len(made) <= max_size else data


def change(parts: Parts, dice: random.Random) -> None:
    """Change one part of a file."""
    kind = dice.randrange(20)
    if kind < 5 and parts.raw_manifest is None:
        change_number(parts.manifest, dice)
    elif kind < 9 and parts.raw_manifest is None:
        for _ in range(dice.randint(1, 3)):
            fuzzing.change_json(parts.manifest, dice)
    elif kind < 13:
        raw = parts.raw_manifest if parts.raw_manifest is not None else json.dumps(parts.manifest).encode()
        parts.raw_manifest = bytes(atheris.Mutate(raw, len(raw) + 64))
    elif kind < 15 and parts.raw_header is None:
        fuzzing.change_json(parts.header, dice)
    elif kind < 17:
        header = parts.raw_header or parts.build()[8:].split(b"}}", 1)[0] + b"}}"
        parts.raw_header = bytes(atheris.Mutate(header, len(header) + 64))
    elif kind < 18:
        fuzzing.change_footer(parts, dice)
    else:
        parts.data = bytes(atheris.Mutate(parts.data, len(parts.data) + 64)) if parts.data else b"\x00"


def change_number(manifest: Any, dice: random.Random) -> None:
    """Change one number, of what is said of tensors if there is any, or repeat a node."""
    parts = manifest if not isinstance(manifest, dict) or dice.randrange(3) == 0 else manifest.get("tensors")
    places = fuzzing.nodes(parts, [])
    numbers = [(where, key) for where, key in places if type(where[key]) is int]
    if numbers and dice.randrange(5):
        where, key = dice.choice(numbers)
        old = where[key]
        where[key] = dice.choice(
            (0, 1, 2, old + 1, old - 1, old * 2, old * 8, old + 64, 1 << 20, 1 << 40, 1 << 60, -old)
        )
    elif places:
        where, key = dice.choice(places)
        where[key] = [where[key]] * dice.randint(1, 40)


def crossover(one: bytes, other: bytes, max_size: int, seed: int) -> bytes:
    """Give a file the structure of another, or a part of it."""
    dice = random.Random(seed)
    parts, donor = take_apart(one, dice), take_apart(other, dice)
    places = fuzzing.nodes(parts.manifest, [])
    found = fuzzing.nodes(donor.manifest, [])
    if places and found and dice.randrange(3):
        (where, key), (source, name) = dice.choice(places), dice.choice(found)
        where[key] = source[name]
    else:
        parts.manifest, parts.raw_manifest = donor.manifest, donor.raw_manifest
    try:
        made = parts.build()
    except (struct.error, TypeError, ValueError, RecursionError):
        return one
    return made if len(made) <= max_size else one


def try_one(data: bytes) -> None:
    """Read one file in every way; whatever goes through stops the fuzzer."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kinds[fuzzing.attempt(data)] += 1
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    if grown > ROOM:
        raise MemoryError(f"{len(data)} bytes of a file took {grown} bytes of memory")


def report() -> None:
    """Print what came."""
    files = sum(kinds.values())
    read = sum(number for kind, number in kinds.items() if kind.startswith("read"))
    errors: Counter[str] = Counter()
    for kind, number in kinds.items():
        errors[kind.split()[0]] += number
    print(json.dumps({"files": files, "refused": files - read, "kinds": len(kinds), "errors": errors}), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--seeds"]:
        write_seeds(Path(sys.argv[2]))
        sys.exit()
    torch.set_num_threads(1)
    atexit.register(report)
    atheris.Setup(sys.argv, try_one, custom_mutator=mutator, custom_crossover=crossover)
    atheris.Fuzz()
