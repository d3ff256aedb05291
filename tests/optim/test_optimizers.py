"""The optimizers are torch's, with the kernel chosen."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import lucid.optim
from lucid import optim
from lucid.errors import ConfigError

NAMES = ["AdamW", "Adam", "SGD", "Adagrad"]
X = torch.linspace(-1, 1, 8).view(2, 4)


def train(optimizer: torch.optim.Optimizer, layer: nn.Module, steps: int = 3) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        layer(X).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("name", NAMES)
def test_is_torchs_class_and_fused(name: str) -> None:
    """It is torch's optimizer for whoever asks, under the same name, and takes the fused kernel."""
    optimizer = getattr(optim, name)(nn.Linear(4, 2).parameters(), lr=0.1)
    assert isinstance(optimizer, getattr(torch.optim, name))
    assert type(optimizer).__name__ == name
    assert optimizer.param_groups[0]["fused"] is True


@pytest.mark.parametrize("name", NAMES)
def test_computes_the_numbers_of_torchs_fused_kernel(name: str) -> None:
    """Weights after three steps are bit-equal to torch's own class with fused=True."""
    torch.manual_seed(0)
    ours, theirs = nn.Linear(4, 2), nn.Linear(4, 2)
    theirs.load_state_dict(ours.state_dict())
    train(getattr(optim, name)(ours.parameters(), lr=0.1), ours)
    train(getattr(torch.optim, name)(theirs.parameters(), lr=0.1, fused=True), theirs)
    assert torch.equal(ours.weight, theirs.weight)


@pytest.mark.parametrize(
    "choice", [{"fused": False}, {"foreach": True}, {"foreach": False}, {"differentiable": True}], ids=str
)
@pytest.mark.parametrize("name", NAMES)
def test_leaves_the_callers_choice_alone(name: str, choice: dict[str, bool]) -> None:
    """Who chose a kernel gets that kernel."""
    optimizer = getattr(optim, name)(nn.Linear(4, 2).parameters(), lr=0.1, **choice)
    group = optimizer.param_groups[0]
    assert not group["fused"]
    assert all(group[key] is value for key, value in choice.items())


def test_leaves_a_choice_given_by_place_alone() -> None:
    """Adagrad's foreach may be given without its name."""
    optimizer = optim.Adagrad(nn.Linear(4, 2).parameters(), 0.1, 0.0, 0.0, 0.0, 1e-10, True)
    assert (optimizer.param_groups[0]["foreach"], optimizer.param_groups[0]["fused"]) == (True, None)


@pytest.mark.parametrize(
    "kind", ["tensors", "named", "groups", "named groups", "one tensor in a group", "generator in a group"]
)
def test_takes_parameters_in_every_form(kind: str) -> None:
    """Whatever torch takes as parameters is looked through for the choice, generators included."""
    layer = nn.Linear(4, 2)
    forms: dict[str, Any] = {
        "tensors": layer.parameters(),
        "named": layer.named_parameters(),
        "groups": iter([{"params": [layer.weight]}, {"params": [layer.bias], "lr": 0.5}]),
        "named groups": [{"params": list(layer.named_parameters())}],
        "one tensor in a group": [{"params": layer.weight}, {"params": layer.bias}],
        "generator in a group": [{"params": layer.parameters()}],
    }
    optimizer = optim.AdamW(forms[kind], lr=0.1)
    assert {group["fused"] for group in optimizer.param_groups} == {True}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 2
    train(optimizer, layer)


@pytest.mark.parametrize("param", [torch.ones(2, dtype=torch.complex64), torch.ones(2, device="meta")])
def test_parameters_without_a_fused_kernel_take_torchs_choice(param: torch.Tensor) -> None:
    """Complex numbers, and devices without the kernel, are left to torch."""
    assert not optim.can_fuse([nn.Parameter(param)])
    optimizer = optim.AdamW([nn.Parameter(torch.ones(1)), nn.Parameter(param)])
    assert optimizer.param_groups[0]["fused"] is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_fused_kernel_takes_every_real_dtype(dtype: torch.dtype) -> None:
    """What `can_fuse` promises, the kernel does."""
    weight = nn.Parameter(torch.ones(4, dtype=dtype))
    optimizer = optim.AdamW([weight], lr=0.5)
    weight.square().sum().backward()
    optimizer.step()
    assert not torch.equal(torch.ones(4, dtype=dtype), weight)


def test_takes_a_tensor_as_learning_rate() -> None:
    """A learning rate that is a tensor gives the same step as a number."""
    torch.manual_seed(0)
    layers = [nn.Linear(4, 2), nn.Linear(4, 2)]
    layers[1].load_state_dict(layers[0].state_dict())
    for layer, lr in zip(layers, (torch.tensor(0.125), 0.125), strict=True):
        train(optim.AdamW(layer.parameters(), lr=lr), layer)
    torch.testing.assert_close(layers[0].weight, layers[1].weight)


@pytest.mark.parametrize("name", ["SGD", "Adagrad"])
def test_sparse_gradients_leave_the_fused_kernel(name: str) -> None:
    """Where gradients turn out sparse, torch's other kernel takes over and gives torch's numbers."""
    torch.manual_seed(0)
    ours, theirs = nn.Embedding(5, 2, sparse=True), nn.Embedding(5, 2, sparse=True)
    theirs.load_state_dict(ours.state_dict())
    pairs = [(ours, getattr(optim, name)), (theirs, getattr(torch.optim, name))]
    for layer, make in pairs:
        optimizer = make(layer.parameters(), lr=0.1)
        with torch.sparse.check_sparse_tensor_invariants(False):  # torch warns where nobody has said
            for _ in range(2):
                optimizer.zero_grad()
                layer(torch.tensor([1, 1, 3])).square().sum().backward()
                optimizer.step()
    assert torch.equal(ours.weight, theirs.weight)


@pytest.mark.parametrize("unscale_first", [True, False])
def test_sparse_gradients_from_a_scaler_are_refused(unscale_first: bool) -> None:
    """A scaler trusts the fused kernel to unscale and skip: sparse gradients are an error with the cure."""
    layer = nn.Embedding(5, 2, sparse=True)
    optimizer, scaler = optim.SGD(layer.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    scaler.scale(layer(torch.tensor([1])).sum()).backward()
    if unscale_first:
        scaler.unscale_(optimizer)
    with pytest.raises(ConfigError, match=r"Build it with SGD\(..., fused=False\)"):
        scaler.step(optimizer)


@pytest.mark.parametrize("name", NAMES)
def test_state_of_the_plain_class_is_taken_over_and_stays_fused(name: str) -> None:
    """A checkpoint written by torch's own optimizer goes on here, with its moments, in the kernel chosen here."""
    layer = nn.Linear(4, 2)
    plain = getattr(torch.optim, name)(layer.parameters(), lr=0.1)
    train(plain, layer)
    saved = copy.deepcopy(plain.state_dict())
    ours = getattr(optim, name)(layer.parameters(), lr=0.7)
    ours.load_state_dict(copy.deepcopy(saved))
    group = ours.param_groups[0]
    assert (group["fused"], group["foreach"], group["lr"]) == (True, None, 0.1)
    assert saved["param_groups"][0]["fused"] is None
    train(ours, layer)
    for key, value in saved["state"].get(0, {}).items():
        if key == "step":
            assert ours.state_dict()["state"][0]["step"] == value + 3


@pytest.mark.parametrize("name", NAMES)
def test_resumed_optimizer_gives_the_same_bits(name: str) -> None:
    """Saved after three steps and loaded into a new optimizer, the next three are bit-equal to going on."""
    layer = nn.Linear(4, 2)
    optimizer = getattr(optim, name)(layer.parameters(), lr=0.1)
    train(optimizer, layer)
    weights, state = copy.deepcopy(layer.state_dict()), copy.deepcopy(optimizer.state_dict())
    train(optimizer, layer)
    other = nn.Linear(4, 2)
    other.load_state_dict(weights)
    resumed = getattr(optim, name)(other.parameters(), lr=0.3)
    resumed.load_state_dict(state)
    train(resumed, other)
    assert torch.equal(layer.weight, other.weight)


def test_deep_copies_and_groups_added_later_work() -> None:
    """A copied optimizer steps and loads; a group added later joins the kernel."""
    layer = nn.Linear(4, 2)
    optimizer = optim.AdamW([layer.weight], lr=0.1)
    optimizer.add_param_group({"params": [layer.bias], "lr": 0.2})
    train(optimizer, layer)
    clone = copy.deepcopy(optimizer)
    clone.load_state_dict(optimizer.state_dict())
    clone.step()
    assert [group["fused"] for group in optimizer.param_groups] == [True, True]


def test_every_other_name_is_torchs_object() -> None:
    """Names that are not ours are torch's, and a name that neither has is an error."""
    assert lucid.optim.Adafactor is torch.optim.Adafactor
    assert lucid.optim.LBFGS is torch.optim.LBFGS
    assert lucid.optim.Optimizer is torch.optim.Optimizer
    assert "RMSprop" in dir(lucid.optim)
    with pytest.raises(AttributeError):
        lucid.optim.NoSuchName
