"""Devices are chosen from records, and a batch keeps its shape on the way to one."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lucid import devices
from lucid.devices import Capability, choose_device, metal_if_available, move
from lucid.errors import ConfigError, DataError

CPU = Capability("cpu")
GPUS = [Capability("cuda", 0, "A"), Capability("cuda", 1, "B"), CPU]
MAC = [Capability("mps", 0, "M"), CPU]
META = torch.device("meta")
Pair = namedtuple("Pair", ["x", "y"])


@pytest.mark.parametrize(
    ("features", "native"),
    [
        ({"avx512_bf16": True}, True),
        ({"bf16": True}, True),
        ({"avx512_f": True, "avx512_bf16": False}, False),
        ({}, False),
    ],
)
def test_probe_ends_with_the_cpu(features: dict[str, bool], native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine always has a CPU; its record says what the processor lists, and never that fp16 is worth it."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features)
    last = devices.probe()[-1]
    assert (last.type, last.native_bf16, last.fp16) == ("cpu", native, False)
    assert last.memory_bytes > 2**28


def test_probe_records_every_accelerator_in_use_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The accelerator that is current comes first, its siblings next, the CPU last."""
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 1)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 3)
    monkeypatch.setattr(devices, "_probe_accelerator", lambda kind, index: Capability(kind, index))
    assert [(r.type, r.index) for r in devices.probe()] == [("cuda", 1), ("cuda", 0), ("cuda", 2), ("cpu", None)]
    assert devices.best_type() == "cuda"


class Backend:
    """A torch module for two unlike devices, of which the second has bf16 in hardware."""

    current = 0

    @contextmanager
    def device(self, index: int) -> Iterator[None]:
        before, self.current = self.current, index
        yield
        self.current = before

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        return including_emulation or self.current == 1

    def get_device_name(self, index: int) -> str:
        return f"model {index}"

    def get_device_properties(self, index: int) -> SimpleNamespace:
        return SimpleNamespace(total_memory=1000 + index)


def test_probe_asks_each_device_for_its_own_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with unlike accelerators each has its own record, and emulated bf16 counts as none."""
    backend = Backend()
    monkeypatch.setattr(torch, "get_device_module", lambda device: backend)
    records = [devices._probe_accelerator("cuda", index) for index in (0, 1)]
    assert [record.native_bf16 for record in records] == [False, True]
    assert [(record.name, record.memory_bytes, record.fp16) for record in records] == [
        ("model 0", 1000, True),
        ("model 1", 1001, True),
    ]
    assert backend.current == 0


def test_probe_of_a_bare_backend_claims_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend that tells neither name nor memory nor bf16 gets a record that claims none of them."""
    monkeypatch.setattr(torch, "get_device_module", lambda device: SimpleNamespace())
    assert devices._probe_accelerator("xpu", 0) == Capability("xpu", 0, "xpu", False, True, 0)


@pytest.mark.parametrize(
    ("spec", "records", "expected"),
    [
        ("auto", [CPU], "cpu"),
        ("auto", GPUS, "cuda:0"),
        ("cpu", GPUS, "cpu"),
        ("cpu:0", GPUS, "cpu"),
        ("cuda", GPUS, "cuda:0"),
        ("cuda:1", GPUS, "cuda:1"),
        (torch.device("cuda", 1), GPUS, "cuda:1"),
        ("mps", MAC, "mps:0"),
    ],
)
def test_choose_device_takes_what_is_asked_for(spec: str, records: list[Capability], expected: str) -> None:
    """The choice is a pure function of the wish and the records."""
    assert torch.device(expected) == choose_device(spec, records)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("cuda:7", r"device 'cuda:7' is not on this machine, which has 'cuda:0', 'cuda:1', 'cpu'"),
        ("mps", r"device 'mps' is not on this machine"),
        ("gpu", r"device must be one of 'cuda:0', 'cuda:1', 'cpu' or 'auto', got 'gpu'"),
        ("cudo", r"Did you mean 'cuda'\?"),
        ("", r"device must be one of"),
    ],
)
def test_choose_device_says_what_there_is(spec: str, text: str) -> None:
    """A device that is not there is an error that lists those that are."""
    with pytest.raises(ConfigError, match=text):
        choose_device(spec, GPUS)


def test_metal_if_available_falls_back_to_the_best_device() -> None:
    """Metal where there is one, else the best there is, never an error."""
    records = ([CPU], GPUS, MAC, [*GPUS[:1], *MAC])
    assert [str(metal_if_available(record)) for record in records] == ["cpu", "cuda:0", "mps:0", "mps:0"]
    assert metal_if_available() == choose_device("auto")


def test_probe_device_gives_the_record_of_one_device() -> None:
    """A device's record is found by its name."""
    assert devices.probe_device("cpu").type == "cpu"
    with pytest.raises(ConfigError, match="not on this machine"):
        devices.probe_device("meta")


@dataclass(frozen=True)
class Sample:
    x: torch.Tensor
    name: str
    seen: list[torch.Tensor] = field(init=False, default_factory=list)


def tensor() -> torch.Tensor:
    return torch.ones(2)


@pytest.mark.parametrize(
    "batch",
    [
        {"x": tensor(), "n": 3},
        OrderedDict(x=tensor()),
        defaultdict(list, x=tensor()),
        UserDict(x=tensor()),
        MappingProxyType({"x": tensor()}),
        [tensor(), "text", None],
        (tensor(), 1.5, b"raw"),
        Pair(tensor(), {"deep": (tensor(),)}),
        Sample(tensor(), "first"),
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_move_keeps_the_type_of_containers(batch: Any) -> None:
    """Every container comes back as its own type with its tensors moved, and the given one is left alone."""
    before = repr(batch)
    moved = move(batch, META)
    assert type(batch) is type(moved)
    first = moved.x if hasattr(moved, "x") else moved["x"] if hasattr(moved, "keys") else moved[0]
    assert first.device == META
    assert before == repr(batch)


def test_move_reaches_every_depth() -> None:
    """Tensors inside containers inside containers are moved, everything else is the same object."""
    note = "a note"
    moved = move({"a": [Pair((tensor(), note), None)]}, META)
    assert moved["a"][0].x[0].device == META
    assert note is moved["a"][0].x[1]


def test_move_keeps_the_factory_of_a_defaultdict() -> None:
    """A defaultdict still makes its defaults after the move."""
    assert move(defaultdict(list, x=tensor()), META)["new"] == []


def test_move_returns_the_same_object_when_all_is_there() -> None:
    """Nothing is copied or rebuilt for a batch that is on the device already."""
    for batch in (tensor(), (tensor(), [tensor(), "t"]), {"x": tensor()}, Pair(1, tensor()), Sample(tensor(), "s")):
        assert batch is move(batch, torch.device("cpu"))


def test_move_asks_objects_with_a_method_to() -> None:
    """An object that can move itself does, and is told about non_blocking only when it is wanted."""
    calls: list[Any] = []

    class Graph:
        def to(self, *args: Any, **kwargs: Any) -> str:
            calls.append((args, kwargs))
            return "moved"

    assert move(Graph(), META) == "moved"  # type: ignore[comparison-overlap]
    assert move([Graph()], META, non_blocking=True) == ["moved"]
    assert calls == [((META,), {}), ((META,), {"non_blocking": True})]


def test_move_takes_packed_sequences() -> None:
    """A packed sequence is a named tuple with a method `to`, which is the one to use."""
    packed = nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    moved = move(packed, META)
    assert moved.data.device == META
    assert moved.batch_sizes.device.type == "cpu"


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        ({"a": [1, Path("x")]}, r"batch\['a'\]\[1\] must be a tensor.*got pathlib.PosixPath"),
        (Pair(np.ones(2), 0), r"batch\[0\] .*got numpy.ndarray. Make it a tensor in the data set"),
        (Sample(object(), "s"), r"batch.x .*got builtins.object"),  # type: ignore[arg-type]
        ({1, 2}, r"batch must be .*got builtins.set"),
        ([torch.Tensor], r"batch\[0\]"),
    ],
)
def test_move_names_the_place_of_what_it_cannot_move(batch: Any, text: str) -> None:
    """What is no tensor and no plain value is an error with its place in the batch."""
    with pytest.raises(DataError, match=text):
        move(batch, torch.device("cpu"))
