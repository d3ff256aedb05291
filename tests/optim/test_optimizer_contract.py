"""Every optimizer that `lucid.optim` offers, ours and torch's: saved and loaded at any step, it goes on bit for bit."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lucid.optim
from lucid.optim.schedules import build

NAMES = sorted(
    name
    for name in dir(lucid.optim)
    if isinstance(found := getattr(lucid.optim, name), type)
    and issubclass(found, torch.optim.Optimizer)
    and found is not torch.optim.Optimizer
)
X, Y = torch.linspace(-1, 1, 12).view(4, 3), torch.linspace(0, 1, 8).view(4, 2)
IDS = torch.tensor([0, 2, 2])


class Net(nn.Module):
    """A matrix for all, a sparse table for the one optimizer that takes nothing else."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.weight = nn.Embedding(4, 2, sparse=True).weight if sparse else nn.Parameter(torch.randn(2, 3))
        self.sparse = sparse

    def loss(self) -> Tensor:
        if self.sparse:
            return nn.functional.embedding(IDS, self.weight, sparse=True).square().mean()
        return nn.functional.mse_loss(X @ self.weight.T, Y)


def make(name: str) -> tuple[Net, Any, Any]:
    torch.manual_seed(0)
    model = Net(sparse=name == "SparseAdam")
    optimizer = getattr(lucid.optim, name)(model.parameters(), lr=0.05)
    return model, optimizer, build("warmup_cosine", optimizer, 6, warmup_steps=2)


def go(model: Net, optimizer: Any, scheduler: Any, steps: int) -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model.loss()
        loss.backward()
        return loss

    with torch.sparse.check_sparse_tensor_invariants(False):  # torch warns where nobody has said
        for _ in range(steps):
            optimizer.step(closure)
            scheduler.step()


@pytest.mark.parametrize("name", NAMES)
def test_broken_at_any_step_the_weights_go_on(name: str) -> None:
    """For a break after each of six steps, the weights at the end are those of the unbroken run, which did train."""
    whole = make(name)
    before = whole[0].weight.detach().clone()
    go(*whole, 6)
    assert not torch.equal(before, whole[0].weight)
    for broken in range(6):
        run = make(name)
        go(*run, broken)
        saved = copy.deepcopy([part.state_dict() for part in run])
        run = make(name)
        for part, state in zip(run, saved, strict=True):
            part.load_state_dict(state)
        go(*run, 6 - broken)
        assert torch.equal(whole[0].weight, run[0].weight), f"broken after step {broken}"


def test_the_list_is_torchs() -> None:
    """No optimizer of torch is missing."""
    theirs = {name for name in torch.optim.__all__ if isinstance(getattr(torch.optim, name), type)} - {"Optimizer"}
    assert theirs <= set(NAMES)
