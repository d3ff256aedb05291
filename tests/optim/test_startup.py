"""Optimizers do what torch's do, with and without its compiler in the process."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch
from torch import nn

from lucid import optim
from lucid.optim import _startup


@pytest.mark.parametrize("loaded", [False, True])
def test_methods_are_torchs(loaded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """State out and in, a further group, gradients dropped or zeroed: as in torch, compiler loaded or not."""
    if loaded:
        importlib.import_module("torch._dynamo")
    else:
        monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    weight, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    optimizer = optim.SGD([weight], lr=0.5, momentum=0.5)
    optimizer.add_param_group({"params": [other], "lr": 0.25})
    (weight.sum() + other.sum()).backward()
    optimizer.zero_grad(set_to_none=False)
    assert [weight.grad.tolist(), other.grad.tolist()] == [[0, 0], [0, 0, 0]]
    optimizer.zero_grad()
    assert weight.grad is None
    again = optim.SGD([{"params": [weight]}, {"params": [other]}])
    again.load_state_dict(optimizer.state_dict())
    assert [group["lr"] for group in again.param_groups] == [0.5, 0.25]


def test_a_wrapper_of_somebody_else_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who wraps torch's method in a function of theirs is called."""
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    calls = []
    zero_grad = torch.optim.Optimizer.zero_grad

    def patched(self: torch.optim.Optimizer, set_to_none: bool = True) -> None:
        calls.append(set_to_none)

    patched.__wrapped__ = zero_grad  # type: ignore[attr-defined]  # as functools.wraps leaves it
    monkeypatch.setattr(torch.optim.Optimizer, "zero_grad", patched)
    optim.SGD([nn.Parameter(torch.ones(1))], lr=0.5).zero_grad()
    assert calls == [True]


def test_wrapper_is_where_torch_has_it() -> None:
    """Torch still wraps the four methods in the file that is looked for."""
    for name in ("state_dict", "load_state_dict", "zero_grad", "add_param_group"):
        method = getattr(torch.optim.Optimizer, name)
        assert method.__code__.co_filename == _startup._WRAPPERS
        assert method.__wrapped__.__name__ == name
