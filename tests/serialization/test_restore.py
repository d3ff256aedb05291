"""`load_into`: live tensors are filled in place, and nothing is touched before everything fits."""

from __future__ import annotations

import re
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from lucid.errors import ChecksumError, MismatchError
from lucid.serialization import load_into, save

from .states import TYPES, bits, of_dtype, same, torture


def zeros(state: Any) -> Any:
    """Return a state of the same structure with other values in its strided tensors."""
    if isinstance(state, torch.Tensor):
        if state.layout is not torch.strided:
            return None
        empty = of_dtype(state.dtype, tuple(state.shape))
        if isinstance(state, torch.nn.Parameter):
            return torch.nn.Parameter(empty, requires_grad=state.requires_grad)
        return empty.requires_grad_(state.requires_grad)
    if isinstance(state, OrderedDict | dict):
        return (
            type(state)((key, zeros(value)) for key, value in state.items())
            if type(state) in (dict, OrderedDict)
            else None
        )
    if isinstance(state, list):
        return [zeros(value) for value in state]
    return None


def test_whole_torture_state_is_read_into_live_tensors(tmp_path: Path) -> None:
    """Every dtype, layout, alias and parameter; the result holds the very objects that were given."""
    state = torture()
    save(state, tmp_path / "a.lcs", types=TYPES)
    live = zeros(state)
    result = load_into(tmp_path / "a.lcs", live, types=TYPES, strict=False)
    assert same(state, result)
    assert all(result["dtypes"][name] is tensor for name, tensor in live["dtypes"].items())
    assert result["parameter"] is live["parameter"]
    assert bits(live["layouts"][1]) == bits(state["layouts"][1])


def test_live_tensors_of_other_layouts_are_filled(tmp_path: Path) -> None:
    """A transposed view, a slice and a channels-last tensor keep their memory and get the values."""
    values = {"t": torch.randn(5, 4), "s": torch.randn(3, 3), "c": torch.randn(2, 3, 4, 5)}
    save(values, tmp_path / "a.lcs")
    wide = torch.zeros(6, 6)
    live = {
        "t": torch.zeros(4, 5).t(),
        "s": wide[:3, ::2],
        "c": torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
    }
    places = {name: (tensor.data_ptr(), tensor.stride()) for name, tensor in live.items()}
    load_into(tmp_path / "a.lcs", live)
    assert all(torch.equal(live[name], values[name]) for name in values)
    assert {name: (tensor.data_ptr(), tensor.stride()) for name, tensor in live.items()} == places
    assert wide[3:].abs().sum() == wide[:, 1::2].abs().sum() == 0


def test_many_small_and_some_large_tensors(tmp_path: Path) -> None:
    """Tensors that share chunks, and ones that span many, are all read right."""
    torch.manual_seed(2)
    state = {f"s{n}": torch.randn(n % 90) for n in range(3000)} | {f"l{n}": torch.randn(700_001) for n in range(3)}
    save(state, tmp_path / "a.lcs")
    live = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    load_into(tmp_path / "a.lcs", live)
    assert all(torch.equal(live[name], state[name]) for name in state)


def test_mismatches_are_listed_with_the_nearest_name_and_touch_nothing(tmp_path: Path) -> None:
    """Missing, unexpected, wrong shape, wrong dtype: one error with all of them, no tensor changed."""
    save(
        {"m": {"weight": torch.ones(2), "bias": torch.ones(3), "scale": torch.ones(1), "same": torch.ones(2)}},
        tmp_path / "a.lcs",
    )
    live = {
        "m": {
            "wieght": torch.zeros(2),
            "bias": torch.zeros(4),
            "scale": torch.zeros(1).double(),
            "same": torch.zeros(2),
        }
    }
    with pytest.raises(MismatchError) as caught:
        load_into(tmp_path / "a.lcs", live)
    assert re.split(r"\n  ", str(caught.value))[1:] == [
        "tensor 'm/bias' has shape (3,), the live state expects (4,)",
        "tensor 'm/scale' has dtype torch.float32, the live state expects torch.float64",
        "tensor 'm/wieght' of the live state is not in the file. Did you mean 'm/weight'?",
        "tensor 'm/weight' of the file is not in the live state",
    ]
    assert all(tensor.abs().sum() == 0 for tensor in live["m"].values())


def test_not_strict_fills_what_both_have(tmp_path: Path) -> None:
    """The file's other tensors are loaded fresh, the live state's others stay; shapes must fit all the same."""
    save({"a": torch.ones(2), "b": torch.ones(3)}, tmp_path / "a.lcs")
    live = {"a": torch.zeros(2), "c": torch.zeros(1)}
    result = load_into(tmp_path / "a.lcs", live, strict=False)
    assert (result["a"] is live["a"], live["a"].sum(), result["b"].sum(), live["c"].sum()) == (True, 2, 3, 0)
    with pytest.raises(MismatchError, match="shape"):
        load_into(tmp_path / "a.lcs", {"a": torch.zeros(5)}, strict=False)


def test_empty_part_of_the_live_state_is_loaded_fresh(tmp_path: Path) -> None:
    """The state of an optimizer that has made no step yet comes from the file, in strict mode too."""
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "a.lcs")
    other = torch.nn.Linear(3, 2)
    fresh = torch.optim.AdamW(other.parameters())
    result = load_into(tmp_path / "a.lcs", {"model": other.state_dict(), "optimizer": fresh.state_dict()})
    fresh.load_state_dict(result["optimizer"])
    assert torch.equal(other.weight, model.weight)
    assert same(fresh.state_dict(), optimizer.state_dict())


def test_tied_tensors(tmp_path: Path) -> None:
    """Tied in both: read once. Tied in the file only: both get the values. Tied live only: equal values or an error."""
    tied = torch.randn(4)
    save({"a": tied, "b": tied}, tmp_path / "tied.lcs")
    live = {"a": torch.zeros(4), "b": torch.zeros(4)}
    load_into(tmp_path / "tied.lcs", live)
    assert torch.equal(live["a"], tied)
    assert torch.equal(live["b"], tied)
    one = torch.zeros(4)
    load_into(tmp_path / "tied.lcs", {"a": one, "b": one})
    assert torch.equal(one, tied)
    save({"a": tied, "b": tied.clone()}, tmp_path / "equal.lcs")
    load_into(tmp_path / "equal.lcs", {"a": one, "b": one})
    save({"a": tied, "b": tied + 1}, tmp_path / "differ.lcs")
    with pytest.raises(MismatchError, match="the live model is tied, the saved one was not"):
        load_into(tmp_path / "differ.lcs", {"a": one, "b": one})


def test_part_by_path(tmp_path: Path) -> None:
    """`select` takes one part of the file for the live state."""
    save({"model": {"w": torch.ones(2)}, "rest": torch.ones(9)}, tmp_path / "a.lcs")
    live = {"w": torch.zeros(2)}
    load_into(tmp_path / "a.lcs", live, select="model")
    assert torch.equal(live["w"], torch.ones(2))
    with pytest.raises(MismatchError, match=r"nothing at 'modle'\. Did you mean 'model'\?"):
        load_into(tmp_path / "a.lcs", live, select="modle")


def test_autograd_notices_the_change(tmp_path: Path) -> None:
    """A graph over the old values cannot be used for a backward pass over the new ones."""
    save({"w": torch.ones(2)}, tmp_path / "a.lcs")
    weight = torch.zeros(2, requires_grad=True)
    loss = (weight * weight).sum()
    before = weight._version
    load_into(tmp_path / "a.lcs", {"w": weight})
    assert weight._version > before
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_damage_is_found_while_reading(tmp_path: Path) -> None:
    """A flipped bit in the data of a large tensor raises and names it."""
    path = tmp_path / "a.lcs"
    save({"w": torch.zeros(3 << 20)}, path)
    raw = bytearray(path.read_bytes())
    raw[4096 + (7 << 20)] ^= 1
    path.write_bytes(raw)
    with pytest.raises(ChecksumError, match="'w'"):
        load_into(path, {"w": torch.zeros(3 << 20)})


def test_no_second_copy_of_the_state(tmp_path: Path) -> None:
    """Reading 64 MB into live tensors allocates no tensor memory at all."""
    state = {str(n): torch.ones(1 << 20) for n in range(16)}
    save(state, tmp_path / "a.lcs")
    with torch.profiler.profile(profile_memory=True) as profile:
        load_into(tmp_path / "a.lcs", state)
    largest = max((event.self_cpu_memory_usage for event in profile.key_averages()), default=0)
    assert largest < 1 << 20
