"""States for the tests, and what it means that two of them are the same."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import fractions
import math
import pathlib
import random
import struct
import uuid
import warnings
import zoneinfo
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any, NamedTuple

import numpy as np
import torch


class Color(enum.Enum):
    """An enum that a caller may allow."""

    RED = 1
    BLUE = "b"


@dataclasses.dataclass
class Point:
    """A dataclass that a caller may allow; its initialiser must not run while loading."""

    x: int
    y: Any = None

    def __post_init__(self) -> None:
        INITIALISED.append(self)


class Pair(NamedTuple):
    """A named tuple that a caller may allow."""

    left: int
    right: Any


INITIALISED: list[Point] = []
TYPES = (Color, Point, Pair)


def bits(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a tensor's elements in order."""
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if not dense.numel():
        return b""
    flat = torch.empty(0, dtype=torch.uint8).set_(
        dense.untyped_storage(), dense.storage_offset() * dense.element_size(), (dense.numel() * dense.element_size(),)
    )
    return bytes(flat.numpy())


def same(a: Any, b: Any) -> bool:
    """Say whether two states are equal in values, bits, types, order of keys."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return _same_tensor(a, b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and all(map(same, a.ravel().tolist(), b.ravel().tolist()))
    if isinstance(a, dict):
        extra = getattr(a, "default_factory", None) is getattr(b, "default_factory", None)
        return extra and len(a) == len(b) and all(map(same, a.items(), b.items()))
    if isinstance(a, deque):
        return a.maxlen == b.maxlen and same(list(a), list(b))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, complex):
        return same([a.real, a.imag], [b.real, b.imag])
    if isinstance(a, np.generic):
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    if isinstance(a, np.random.Generator):
        return same(a.bit_generator.state, b.bit_generator.state)
    if isinstance(a, np.random.RandomState):
        return same(a.get_state(legacy=False), b.get_state(legacy=False))
    if isinstance(a, random.Random):
        return a.getstate() == b.getstate()
    if isinstance(a, torch.Generator):
        return torch.equal(a.get_state(), b.get_state())
    if dataclasses.is_dataclass(a):
        return same(vars(a), vars(b))
    return bool(a == b)


def _same_tensor(a: torch.Tensor, b: torch.Tensor) -> bool:
    if (a.dtype, a.shape, a.layout, a.requires_grad) != (b.dtype, b.shape, b.layout, b.requires_grad):
        return False
    if a.layout is torch.strided and a.is_quantized:
        return (a.q_scale(), a.q_zero_point()) == (b.q_scale(), b.q_zero_point()) and same(a.int_repr(), b.int_repr())
    if a.layout is not torch.strided:
        return same(a.to_dense(), b.to_dense())
    return bits(a) == bits(b)


def of_dtype(dtype: torch.dtype, shape: tuple[int, ...] = (3, 4)) -> torch.Tensor:
    """Return a tensor of any dtype with random bits."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        empty = torch.empty(shape, dtype=dtype)
    size = math.prod(shape) * dtype.itemsize
    if size:
        raw = torch.empty(0, dtype=torch.uint8).set_(empty.untyped_storage(), 0, (size,))
        raw.random_(0, 2 if dtype is torch.bool else 256)
    return empty


ALL_DTYPES = sorted(
    {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    - {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}
    - {getattr(torch, "bit", torch.float32)},
    key=str,
)


def sparse() -> list[torch.Tensor]:
    """Return one tensor of each sparse layout."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eye = torch.eye(4)
        blocks = [eye.to_sparse_bsr((2, 2)), eye.to_sparse_bsc((2, 2))]
        return [eye.to_sparse(), eye.to_sparse_csr(), eye.to_sparse_csc(), *blocks]


def torture() -> dict[Any, Any]:
    """Return a state with every kind of thing that can be stored."""
    torch.manual_seed(1)
    wide = torch.randn(6, 8)
    rng = np.random.default_rng(3)
    return {
        "dtypes": {str(dtype): of_dtype(dtype) for dtype in ALL_DTYPES},
        "shapes": [torch.tensor(3.5), torch.empty(0, 3), torch.empty(2, 0), torch.ones(1, 1, 1)],
        "layouts": [torch.randn(4, 5).t(), torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)],
        "gaps": [torch.randn(4, 6)[:, ::2], torch.randn(4, 6)[1:, 2:]],
        "expanded": torch.randn(1, 4).expand(3, 4),
        "flags": [torch.randn(3, dtype=torch.complex64).conj(), torch.randn(3, dtype=torch.complex64).imag],
        "aliases": [wide, wide.t(), wide[2:4], wide.view(-1)[5:9], wide],
        "overlap": [wide.clone()[0:4], "between"],
        "odd numbers": torch.tensor([float("inf"), float("-inf"), float("nan"), -0.0]),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "frozen": torch.nn.Parameter(torch.ones(2), requires_grad=False),
        "leaf": torch.ones(2, requires_grad=True),
        "sparse": sparse(),
        "generators": [torch.Generator().manual_seed(5), rng, np.random.RandomState(4), random.Random(3)],
        "streams": [torch.get_rng_state(), np.random.RandomState(1).get_state(), random.Random(1).getstate()],
        7: "int key",
        (1, "a"): "tuple key",
        None: "none key",
        True: "true key",
        2.5: "float key",
        b"k": "bytes key",
        "": {"$": "dollar", "a/b": 1, "__metadata__": 2, "\ud800": 3, "../..": 4},
        "numbers": [0, -1, 1 << 53, (1 << 53) + 1, -(1 << 200), 1.5, -0.0, float("inf"), float("nan"), 2 + 3j],
        "many ints": list(range(1000)),
        "few ints": tuple(range(10)),
        "bytes": [b"", b"ab", b"x" * 300, bytearray(b"y" * 300), bytearray(b"z")],
        "containers": [
            (1, (2,)),
            {1, "a", (2, 3)},
            frozenset({1.5, None}),
            deque([1, 2], maxlen=5),
            OrderedDict([("b", 1), ("a", 2)]),
            Counter("abca"),
            defaultdict(list, {1: [2]}),
            defaultdict(None, {1: 2}),
            [],
            (),
            {},
            slice(1, None, 2),
            range(1 << 70),
        ],
        "numpy": [
            np.arange(6, dtype=np.int16).reshape(2, 3),
            np.asfortranarray(np.arange(6.0).reshape(2, 3)),
            np.array(["a", "bc"]),
            np.array([b"a"]),
            np.zeros((0, 2)),
            np.array(3.5),
            np.array(["2020-01-01"], dtype="datetime64[D]"),
            np.array([(1, 2.5)], dtype=[("a", "<i4"), ("b", "<f8")]),
            np.array([1, "x", None], dtype=object),
            np.array([1, 2], dtype=">i4"),
            np.float32(1.5),
            np.int64(3),
            np.bool_(True),
            np.str_("s"),
            np.datetime64("2020-01-01"),
            np.dtype("<f4"),
        ],
        "torch": [torch.float32, torch.device("cpu"), torch.Size([1, 2]), torch.strided, torch.channels_last],
        "times": [
            datetime.datetime(2020, 1, 2, 3, 4, 5, 6),
            datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC),
            datetime.datetime(2020, 10, 25, 2, 30, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"), fold=1),
            datetime.date(2020, 1, 2),
            datetime.time(3, 4, 5, 6),
            datetime.timedelta(days=-1, microseconds=5),
        ],
        "text": [pathlib.Path("/a/b"), pathlib.PurePosixPath("c"), decimal.Decimal("1.50"), fractions.Fraction(2, 3)],
        "others": [uuid.UUID(int=5), ..., None, True],
        "classes": [Color.RED, Point(1, [Color.BLUE]), Pair(1, torch.ones(2))],
    }
