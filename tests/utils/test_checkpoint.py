"""Gradient checkpointing changes memory, never numbers."""

from __future__ import annotations

import copy
import importlib
import pickle
import sys
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

import lucid.utils
from lucid.errors import ConfigError
from lucid.utils import checkpoint, checkpoint_blocks


class Block(nn.Module):
    def __init__(self, dropout: float = 0.5) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.dropout = nn.Dropout(dropout)
        self.calls = 0

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        self.calls += 1
        return x + scale * self.dropout(torch.tanh(self.linear(x)))


class Net(nn.Module):
    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.embed = nn.Linear(2, 4)
        self.blocks = nn.ModuleList([Block() for _ in range(depth)])
        self.head = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out


X = torch.randn(3, 2)


def gradients(model: nn.Module, x: torch.Tensor = X) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Loss and gradients of one pass from a fixed seed."""
    torch.manual_seed(7)
    loss = model(x).square().mean()
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def test_checkpoint_is_the_function_and_the_rest_is_torchs() -> None:
    """`from lucid.utils import checkpoint` gives a function; other names are torch.utils' own."""
    module = importlib.import_module("lucid.utils.checkpoint")  # as torch's is imported
    assert module.checkpoint is lucid.utils.checkpoint
    assert module.CheckpointError is torch.utils.checkpoint.CheckpointError
    assert lucid.utils.benchmark is __import__("torch.utils.benchmark").utils.benchmark
    assert "data" in dir(lucid.utils)
    with pytest.raises(AttributeError, match=r"neither has torch\.utils"):
        lucid.utils.no_such_name


@pytest.mark.parametrize("needs_grad", [True, False])
def test_gradients_of_parameters_and_input_are_bit_equal(needs_grad: bool) -> None:
    """The block's own parameters get their gradients, also where the input needs none; dropout replays."""
    plain = Block()
    other = copy.deepcopy(plain)
    results = []
    for block, call in ((plain, plain), (other, lambda *a, **k: checkpoint(other, *a, **k))):
        torch.manual_seed(3)
        x = torch.ones(2, 4, requires_grad=needs_grad)
        out = call(x, scale=0.5)
        out.sum().backward()
        results.append([out.detach(), block.linear.weight.grad, block.linear.bias.grad, x.grad])
    for expected, actual in zip(*results, strict=True):
        assert (expected is actual is None) or torch.equal(expected, actual)  # type: ignore[arg-type]
    assert (plain.calls, other.calls) == (1, 2)


def test_random_numbers_after_it_are_those_without_it() -> None:
    """Replaying dropout in the backward pass leaves the random stream where it was."""
    draws = []
    for wrapped in (False, True):
        block = Block()
        torch.manual_seed(3)
        x = torch.ones(2, 4)
        (checkpoint(block, x) if wrapped else block(x)).sum().backward()
        draws.append(torch.rand(3))
    assert torch.equal(*draws)


def test_autocast_is_kept_for_the_second_pass() -> None:
    """The recomputation runs in the precision of the first pass, though backward stands outside autocast."""
    seen = []
    layer = nn.Linear(4, 4)

    def block(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = layer(x)
        seen.append(out.dtype)
        return torch.tanh(out)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = checkpoint(block, torch.ones(1, 4))
    out.float().sum().backward()
    assert seen == [torch.bfloat16, torch.bfloat16]


def test_results_may_be_nested_and_torchs_options_go_through() -> None:
    """Whatever the function returns comes back, and torch's own options are passed on."""
    x = torch.ones(2, requires_grad=True)
    out = checkpoint(lambda a, b: {"sum": a + b, "n": 3}, x, b=x, preserve_rng_state=False, determinism_check="none")
    assert out["n"] == 3
    out["sum"].sum().backward()
    assert torch.equal(torch.full((2,), 2.0), x.grad)  # type: ignore[arg-type]


def test_a_function_that_changes_between_passes_is_caught() -> None:
    """If the second pass computes something else, torch says so instead of giving wrong gradients."""
    widths = iter((4, 5))
    x = torch.ones(1, requires_grad=True)
    out = checkpoint(lambda a: a.expand(next(widths)).exp(), x)
    with pytest.raises(torch.utils.checkpoint.CheckpointError):
        out.sum().backward()


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("all", [0, 1, 2, 3]),
        (1, [0, 1, 2, 3]),
        (2, [1, 3]),
        (3, [2]),
        (lambda name, block: name.endswith("0"), [0]),
    ],
)
def test_checkpoint_blocks_changes_memory_not_numbers(policy: Any, expected: list[int]) -> None:
    """By any policy: the chosen blocks run twice, loss, gradients and names are as before."""
    plain = Net()
    model = copy.deepcopy(plain)
    assert checkpoint_blocks(model, policy) == [f"blocks.{index}" for index in expected]
    assert list(plain.state_dict()) == list(model.state_dict())
    (loss, grads), (loss_after, grads_after) = gradients(plain), gradients(model)
    assert torch.equal(loss, loss_after)
    assert grads.keys() == grads_after.keys()
    assert all(torch.equal(grads[name], grads_after[name]) for name in grads)
    assert [block.calls for block in model.blocks] == [2 if index in expected else 1 for index in range(4)]


def test_checkpoint_blocks_keeps_fewer_tensors() -> None:
    """What backward has to keep shrinks: counted by the tensors saved in the forward pass."""

    def num_saved(model: nn.Module) -> int:
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):  # type: ignore[func-returns-value]
            model(X)
        return sum(saved)

    model = Net(depth=8)
    before = num_saved(model)
    checkpoint_blocks(model)
    assert num_saved(model) < before / 2


def test_checkpoint_blocks_can_be_called_again() -> None:
    """New settings replace the old ones: no block is checkpointed twice, and none stays by mistake."""
    model = Net()
    checkpoint_blocks(model)
    checkpoint_blocks(model)
    gradients(model)
    assert [block.calls for block in model.blocks] == [2, 2, 2, 2]
    assert checkpoint_blocks(model, lambda name, block: False) == []
    assert {type(block) for block in model.blocks} == {Block}


def test_checkpoint_blocks_finds_blocks_by_class() -> None:
    """Classes named by the caller count, wherever they stand; a Sequential of equal members is found by itself."""
    model = Net()
    assert checkpoint_blocks(model, blocks=nn.Linear)[:2] == ["embed", "blocks.0.linear"]
    layers = nn.Sequential(*[nn.TransformerEncoderLayer(4, 1, 8, batch_first=True) for _ in range(3)])
    assert checkpoint_blocks(layers) == ["0", "1", "2"]
    gradients(layers, torch.randn(1, 2, 4))


def test_checkpointed_blocks_are_still_their_class() -> None:
    """isinstance, deep copies and pickles of a checkpointed model work, and the copy is checkpointed itself."""
    model = Net()
    checkpoint_blocks(model)
    assert isinstance(model.blocks[0], Block)
    for clone in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with torch.no_grad():
            clone.blocks[0].linear.weight.zero_()
        _, grads = gradients(clone)
        assert [block.calls for block in clone.blocks] == [2, 2, 2, 2]
        assert grads["blocks.0.linear.weight"].abs().sum() > 0
        assert model.blocks[0].linear.weight.grad is None


def test_checkpointed_blocks_run_plainly_without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluation costs nothing extra: no second pass, and no random state captured for one."""
    model = Net()
    checkpoint_blocks(model)
    monkeypatch.setattr(sys.modules["lucid.utils.checkpoint"], "checkpoint", None)
    with torch.no_grad():
        model(X)
    assert [block.calls for block in model.blocks] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("model", "options", "text"),
    [
        (nn.Linear(1, 1), {}, "found no list of equal blocks in Linear. Name their class with `blocks=`"),
        (Net(), {"blocks": nn.Conv2d}, "found no module of class"),
        (Net(), {"policy": 0}, "policy must be 'all', a number from 1, or a function, got 0"),
        (Net(), {"policy": "some"}, "got 'some'"),
    ],
)
def test_what_cannot_be_checkpointed_is_an_error(model: nn.Module, options: dict[str, Any], text: str) -> None:
    """No blocks, or no policy, is an error that says so."""
    with pytest.raises(ConfigError, match=text):
        checkpoint_blocks(model, **options)
