"""Names of tensors are the plain model's under every wrapper, and loading is strict."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed

from lucid.errors import MismatchError
from lucid.serialization import load, load_into, load_model_state, model_state, save

NAMES = ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight"]
KINDS = ["plain", "compiled", "part compiled", "data parallel", "ddp", "ddp compiled"]


class Transposed(torch.nn.Module):
    """Has a parameter that is a transposed view."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3, 4).t())


@pytest.fixture(autouse=True)
def _group(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def make(kind: str) -> torch.nn.Module:
    """Return a model with tied weights and a transposed one, wrapped."""
    model: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), Transposed())
    model[1].weight = model[0].weight  # type: ignore[index]
    if kind == "part compiled":
        model[1] = torch.compile(model[1], backend="eager")  # type: ignore[index,operator]
    if kind == "data parallel":
        return torch.nn.DataParallel(model)
    if kind.startswith("ddp"):
        model = torch.nn.parallel.DistributedDataParallel(model)
    if kind.endswith("compiled") and kind != "part compiled":
        model = torch.compile(model, backend="eager")  # type: ignore[assignment]
    return model


@pytest.mark.parametrize(("first", "second"), list(itertools.product(KINDS, KINDS)), ids="-".join)
def test_any_wrapping_loads_into_any_other(first: str, second: str, tmp_path: Path) -> None:
    """Same names in the file, same values after loading both ways, ties kept, the transposed layout kept."""
    source, target, third = make(first), make(second), make(second)
    save({"model": model_state(source)}, tmp_path / "a.lcs")
    state = load(tmp_path / "a.lcs", select="model")
    assert list(state) == NAMES
    assert state["0.weight"] is state["1.weight"]
    assert state["2.weight"].stride() == (1, 4)
    load_model_state(target, state)
    load_into(tmp_path / "a.lcs", {"model": model_state(third)})
    for a, b, c in zip(source.parameters(), target.parameters(), third.parameters(), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


def test_missing_and_unexpected_names_are_errors_and_load_nothing() -> None:
    """All problems at once, each with the nearest name."""
    model = make("compiled")
    before = {name: value.clone() for name, value in model_state(model).items()}
    state = dict(model_state(make("plain")))
    state["0.wieght"] = state.pop("0.weight")
    state["2.weight"] = torch.ones(9, 9)
    with pytest.raises(MismatchError) as caught:
        load_model_state(model, state)
    assert str(caught.value).split("\n  ")[1:] == [
        "missing: '0.weight'. Did you mean '0.wieght'?",
        "unexpected: '0.wieght'. Did you mean '0.weight'?",
        "'2.weight' has shape (9, 9), the model expects (4, 3)",
    ]
    assert all(torch.equal(before[name], value) for name, value in model_state(model).items())


def test_state_has_the_live_tensors() -> None:
    """Reading into the state of a model changes the model."""
    model = make("ddp compiled")
    model_state(model)["0.weight"].fill_(5)
    assert next(model.parameters())[0, 0].item() == 5
