"""Parameter groups follow rules and can be read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lucid import optim
from lucid.errors import ConfigError
from lucid.optim import describe_groups, param_groups


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm([2, 2])
        self.linear = nn.Linear(4, 4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 4))
        self.embed = nn.Embedding(5, 4)
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.heads = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 3)])


def names(groups: list[dict[str, Any]]) -> list[set[str]]:
    return [{name for name, _ in group["params"]} for group in groups]


def test_biases_norms_and_vectors_get_no_decay() -> None:
    """By default weight decay falls on matrices alone; a two-dimensional norm is still a norm."""
    groups = param_groups(Net(), weight_decay=0.1)
    plain = next(group for group in groups if group["weight_decay"] == 0.0)
    decayed = next(group for group in groups if group["weight_decay"] == 0.1)
    assert {"blocks.0.norm.weight", "blocks.0.norm.bias", "blocks.0.linear.bias", "heads.0.bias"} <= names([plain])[0]
    assert {"blocks.0.linear.weight", "embed.weight", "token", "heads.1.weight"} <= names([decayed])[0]


def test_every_trainable_parameter_is_in_one_group() -> None:
    """Nothing is lost or doubled, and what is frozen is left out."""
    model = Net()
    model.embed.requires_grad_(False)
    for options in ({}, {"lr": 1.0, "layer_decay": 0.5, "lr_by_pattern": {"heads.*": 10.0}}):
        listed = [name for group in param_groups(model, **options) for name, _ in group["params"]]  # type: ignore[arg-type]
        assert sorted(listed) == sorted(name for name, p in model.named_parameters() if p.requires_grad)


def test_the_rule_is_the_callers() -> None:
    """A rule of one's own decides alone; None lets everything decay; the model's own list is kept by default."""
    model = Net()
    by_rule = param_groups(model, weight_decay=0.1, no_decay=lambda name, param: name.startswith("embed"))
    assert {"embed.weight"} in names([group for group in by_rule if not group["weight_decay"]])
    assert [group["weight_decay"] for group in param_groups(model, weight_decay=0.1, no_decay=None)] == [0.1]
    model.no_weight_decay = lambda: {"token"}  # type: ignore[assignment]
    assert "token" in names([group for group in param_groups(model) if not group["weight_decay"]])[0]


def test_layer_decay_lowers_the_rate_towards_the_input() -> None:
    """What stands before the blocks moves least, each block more, what stands after them at the full rate."""
    rates = {name: group["lr"] for group in param_groups(Net(), lr=8.0, layer_decay=0.5) for name, _ in group["params"]}
    assert [rates[name] for name in ("token", "embed.weight", "heads.0.weight", "heads.1.bias")] == [0.5, 0.5, 8.0, 8.0]
    assert [rates[f"blocks.{n}.linear.weight"] for n in range(3)] == [1.0, 2.0, 4.0]


def test_layer_decay_finds_blocks_of_a_sequential() -> None:
    """A model that is nothing but a numbered list has its layers there."""
    groups = param_groups(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)), lr=1.0, layer_decay=0.1)
    assert sorted({group["lr"] for group in groups}) == [0.1, 1.0]


def test_patterns_scale_the_rate_and_the_first_counts() -> None:
    """A pattern of names gives a factor on the rate, on top of the layer's."""
    groups = param_groups(Net(), lr=1.0, lr_by_pattern={"heads.0.*": 10.0, "heads.*": 5.0})
    rates = {name: group["lr"] for group in groups for name, _ in group["params"]}
    assert (rates["heads.0.weight"], rates["heads.1.weight"], rates["embed.weight"]) == (10.0, 5.0, 1.0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"layer_decay": 0.5}, r"needs lr=... for layer_decay and lr_by_pattern"),
        ({"lr_by_pattern": {"a": 1.0}}, r"needs lr=..."),
        ({"lr": 1.0, "layer_decay": 2}, r"layer_decay must lie above 0 and be at most 1, got 2"),
        ({"lr": 1.0, "lr_by_pattern": "a"}, r"lr_by_pattern must be a mapping of patterns to factors, got 'a'"),
        ({"lr": 1.0, "lr_by_pattern": {"head": 1.0}}, r"lr_by_pattern 'head' fits no trainable parameter.*'token'"),
    ],
)
def test_rules_that_cannot_work_are_errors(options: dict[str, Any], text: str) -> None:
    """A factor without a rate, or a pattern that fits nothing, is an error."""
    with pytest.raises(ConfigError, match=text):
        param_groups(Net(), **options)


def test_models_without_what_is_needed_are_errors() -> None:
    """Nothing to train, or no list of blocks to decay over, is an error."""
    with pytest.raises(ConfigError, match="Linear has no trainable parameter"):
        param_groups(nn.Linear(1, 1).requires_grad_(False))
    with pytest.raises(ConfigError, match="layer_decay needs a model with a numbered list of blocks"):
        param_groups(nn.Linear(1, 1), lr=1.0, layer_decay=0.5)


def test_optimizers_take_the_groups_and_keep_the_names() -> None:
    """The groups build an optimizer that trains, and whose groups know their names and parameters."""
    model = Net()
    optimizer = optim.AdamW(param_groups(model, lr=0.1, layer_decay=0.5))
    assert all(len(group["param_names"]) == len(group["params"]) for group in optimizer.param_groups)
    model.blocks[0].linear(torch.ones(1, 4)).sum().backward()
    before = model.blocks[0].linear.weight.clone()
    optimizer.step()
    assert not torch.equal(before, model.blocks[0].linear.weight)
    optimizer.load_state_dict(optimizer.state_dict())


def test_listing_shows_each_group() -> None:
    """The table has a line per group, the same before and after an optimizer took them."""
    groups = param_groups(nn.Linear(100, 20), lr=0.1, weight_decay=0.01)
    optimizer = torch.optim.SGD(param_groups(nn.Linear(100, 20), lr=0.1, weight_decay=0.01))
    expected = [
        "group              lr  weight_decay  tensors  parameters",
        "lr x 1, no decay  0.1             0        1          20",
        "lr x 1            0.1          0.01        1       2,000",
    ]
    assert describe_groups(groups).splitlines() == expected
    assert describe_groups(optimizer.param_groups).splitlines() == expected
    plain = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.5)
    assert describe_groups(plain.param_groups).splitlines()[1].split() == ["0", "0.5", "0", "2", "2"]
