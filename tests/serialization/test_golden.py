"""Files of every released version stay readable, and today's writer has not drifted."""

from __future__ import annotations

import datetime
import decimal
import io
import pathlib
import random
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lucid.serialization import inspect, load, save, verify

from .states import ALL_DTYPES, TYPES, Color, Pair, bits, same

GOLDEN = Path(__file__).parent / "golden"


def counted(dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor of any dtype whose bytes count up from 1 (booleans: true and false)."""
    tensor = torch.zeros((2, 3), dtype=torch.uint8)
    raw = (torch.arange(6 * dtype.itemsize) % 200 + 1).to(torch.uint8)
    if dtype is torch.bool:
        return torch.tensor([[True, False, True], [False, True, True]])
    if dtype is torch.complex32:
        return torch.empty(0, dtype=torch.float16).set_(raw.untyped_storage(), 0, (2, 3, 2)).view(torch.complex32)
    return tensor.new_empty(0).to(dtype).set_(raw.untyped_storage(), 0, (2, 3)) if dtype.itemsize else tensor


def state() -> dict[Any, Any]:
    """Return a state that needs no random numbers."""
    wide = torch.arange(48.0).reshape(6, 8)
    plain = [d for d in ALL_DTYPES if d.is_floating_point or d.is_complex or str(d)[6:].lstrip("uint").isdigit()]
    plain = [d for d in plain if d.itemsize > 1 or d in (torch.int8, torch.uint8, torch.float8_e5m2)]
    bias = torch.nn.Parameter(torch.ones(3))
    group = {"betas": (0.9, 0.999), "foreach": None}
    return {
        "model": OrderedDict(weight=wide, tied=wide, view=wide.t(), row=wide[2], bias=bias),
        "dtypes": {str(d): counted(d) for d in plain if d is not torch.complex32},
        "channels last": torch.arange(120.0).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "expanded": torch.ones(1, 4).expand(3, 4),
        "union": [wide.clone().view(-1)[:30], 1],
        "optimizer": {"state": {0: {"step": torch.tensor(1.0)}}, "param_groups": [group]},
        "rng": [random.Random(3), np.random.RandomState(4), np.random.default_rng(5)],
        "numbers": [1 << 70, -0.0, float("inf"), float("nan"), 1.5, 2j, np.float32(1.5), np.arange(3)],
        "containers": [
            (1,), {1, "a"}, frozenset({2}), deque([1], 3), Counter("aa"), defaultdict(list, {1: [2]}), b"x" * 300,
        ],
        "text": [pathlib.PurePosixPath("a/b"), decimal.Decimal("1.5"), datetime.datetime(2020, 1, 2, 3, 4, 5)],
        "ints": list(range(300)),
        "classes": [Color.BLUE, Pair(1, 2)],
    }  # fmt: skip


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.lcs")), ids=lambda path: path.stem)
def test_golden_file_is_read(path: Path) -> None:
    """Every value of the file is what was saved."""
    loaded = load(path, types=TYPES)
    assert same(loaded, state())
    assert loaded["model"]["weight"] is loaded["model"]["tied"]
    assert bits(loaded["model"]["view"].t()) == bits(loaded["model"]["weight"])
    assert verify(path).ok
    assert inspect(path).meta == {"step": 7}


def test_writer_gives_the_bytes_of_the_newest_golden_file() -> None:
    """The same state gives the same file as on the day of the version."""
    newest = sorted(GOLDEN.glob("*.lcs"))[-1]
    file = io.BytesIO()
    save(state(), file, types=TYPES, meta={"step": 7})
    assert file.getvalue() == newest.read_bytes()
