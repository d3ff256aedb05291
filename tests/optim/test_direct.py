"""The step that calls the fused kernel at once is torch's step in every number, and gives way to whoever watches."""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from lucid import optim
from lucid.optim import _direct

X = torch.linspace(-1, 1, 12).view(3, 4)
PAIRS = [(optim.AdamW, torch.optim.AdamW), (optim.Adam, torch.optim.Adam)]


def layers() -> tuple[nn.Module, nn.Module]:
    """Return two equal small models."""
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    return model, copy.deepcopy(model)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 4) -> None:
    """Train a few steps with a learning rate that changes."""
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
        model(X).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def same(a: Any, b: Any) -> bool:
    """Whether two state dicts hold the same bits; the way they are stored counts as well."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@pytest.fixture
def kernel_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the groups that were updated without torch's step."""
    calls: list[int] = []
    update = _direct._update

    def count(group: Any, params: Any, *rest: Any, **options: Any) -> None:
        calls.append(len(params))
        update(group, params, *rest, **options)

    monkeypatch.setattr(_direct, "_update", count)
    return calls


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1, "maximize": True}, {"betas": (0.5, 0.9), "eps": 1e-3}])
def test_weights_and_state_are_torchs(ours: Any, theirs: Any, options: Any, kernel_calls: list[int]) -> None:
    """Weights and the whole state after four steps have the bits of torch's fused step."""
    a, b = layers()
    one, other = ours(a.parameters(), **options), theirs(b.parameters(), fused=True, **options)
    train(a, one)
    train(b, other)
    assert same(a.state_dict(), b.state_dict())
    assert same(one.state_dict(), other.state_dict())
    assert kernel_calls == [4, 4, 4, 4]


def test_goes_on_from_torchs_state_and_back(kernel_calls: list[int]) -> None:
    """A state goes from torch's class into ours and back without a difference."""
    a, b = layers()
    one, other = optim.AdamW(a.parameters()), torch.optim.AdamW(b.parameters(), fused=True)
    train(b, other)
    a.load_state_dict(b.state_dict())
    one.load_state_dict(copy.deepcopy(other.state_dict()))
    train(a, one)
    train(b, other)
    assert same(one.state_dict(), other.state_dict())
    assert kernel_calls == [4] * 4


def test_parameters_without_gradient_are_left_alone(kernel_calls: list[int]) -> None:
    """A parameter that got no gradient keeps its bits and its count; a group without any costs no call."""
    a, b = layers()
    frozen = [list(model[0].parameters()) for model in (a, b)]
    groups = [[{"params": part}, {"params": model[2].parameters()}] for model, part in zip((a, b), frozen, strict=True)]
    one, other = optim.AdamW(groups[0]), torch.optim.AdamW(groups[1], fused=True)
    for model, optimizer in ((a, one), (b, other)):
        train(model, optimizer, 2)
        model[0].requires_grad_(False)
        train(model, optimizer, 2)
    assert same(one.state_dict(), other.state_dict())
    assert kernel_calls == [2, 2, 2, 2, 2, 2]  # both groups in two steps, one in the two others


def test_hooks_are_called(kernel_calls: list[int]) -> None:
    """Hooks of the optimizer and of all optimizers see every step, also if they come in the middle."""
    model, _ = layers()
    optimizer = optim.AdamW(model.parameters())
    train(model, optimizer, 2)
    seen: list[str] = []
    handles = [
        optimizer.register_step_pre_hook(lambda *_: seen.append("before")),
        optimizer.register_step_post_hook(lambda *_: seen.append("after")),
        register_optimizer_step_post_hook(lambda *_: seen.append("all")),
    ]
    train(model, optimizer, 1)
    for handle in handles:
        handle.remove()
    train(model, optimizer, 1)
    assert seen == ["before", "after", "all"]
    assert kernel_calls == [4, 4, 4]


def test_label_is_in_a_profile() -> None:
    """In a profile the step has torch's label."""
    model, _ = layers()
    optimizer = optim.AdamW(model.parameters())
    train(model, optimizer, 1)
    with torch.profiler.profile() as profile:
        train(model, optimizer, 3)
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts["Optimizer.step#AdamW.step"] == 3


@pytest.mark.parametrize("change", [{"amsgrad": True}, {"lr": torch.tensor(0.1)}, {"fused": False}], ids=str)
def test_unusual_settings_are_torchs(change: dict[str, Any], kernel_calls: list[int]) -> None:
    """Settings that the direct call does not know are left to torch's step."""
    model, _ = layers()
    optimizer = optim.AdamW(model.parameters(), **({"lr": 0.1} | change))
    for _ in range(2):
        model(X).square().mean().backward()
        optimizer.step()
    assert kernel_calls == []


def test_mixed_dtypes_are_torchs(kernel_calls: list[int]) -> None:
    """A group of two dtypes is sorted by torch's step."""
    weights = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, dtype=torch.float64))]
    optimizer = optim.AdamW(weights)
    for _ in range(2):
        sum(weight.double().square().sum() for weight in weights).backward()
        optimizer.step()
    assert kernel_calls == []


def test_closure_is_called_and_its_loss_returned() -> None:
    """A closure is run with gradients on, as in torch."""
    weight = nn.Parameter(torch.ones(2))
    optimizer = optim.AdamW([weight])
    for _ in range(2):
        loss = optimizer.step(lambda: weight.square().sum() if torch.is_grad_enabled() else None)
    assert loss.item() == 2


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("scale", [2.0, float("inf")])
def test_scaler_may_step_it(scale: float, unscale: bool, kernel_calls: list[int]) -> None:
    """With torch's GradScaler the bits are those of torch's class; called at once where nothing is to scale."""
    (a, b), states = layers(), []
    for model, optimizer in ((a, optim.AdamW(a.parameters())), (b, torch.optim.AdamW(b.parameters(), fused=True))):
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        for _ in range(3):
            scaler.scale(model(X).square().mean()).backward()
            if unscale:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        states.append(optimizer.state_dict())
    assert same(a.state_dict(), b.state_dict())
    assert same(*states)
    assert kernel_calls == ([4, 4, 4] if unscale else [])


def test_gradients_are_off_inside_and_back_afterwards() -> None:
    """The step needs no `no_grad` around it and leaves grad mode as it was, also after an error."""
    model, _ = layers()
    optimizer = optim.AdamW(model.parameters())
    train(model, optimizer, 2)
    assert torch.is_grad_enabled()
    model(X).sum().backward()
    optimizer.param_groups[0]["eps"] = "small"
    with pytest.raises(TypeError):
        optimizer.step()
    assert torch.is_grad_enabled()


def test_copy_steps_directly_too(kernel_calls: list[int]) -> None:
    """A deep copy takes the same steps."""
    model, _ = layers()
    optimizer = optim.AdamW(model.parameters())
    train(model, optimizer, 2)
    other_model, other = copy.deepcopy((model, optimizer))
    train(model, optimizer, 1)
    train(other_model, other, 1)
    assert same(model.state_dict(), other_model.state_dict())
    assert kernel_calls == [4, 4, 4, 4]


def test_schedulers_of_torch_see_the_step() -> None:
    """torch's schedules, which watch the step, do not warn about its order."""
    model, _ = layers()
    optimizer = optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(3):
        model(X).square().mean().backward()
        optimizer.step()
        scheduler.step()
    assert scheduler.last_epoch == 3


OTHERS = [
    (optim.SGD, torch.optim.SGD, {"lr": 0.1}),
    (optim.SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    (optim.SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5, "maximize": True}),
    (optim.Adagrad, torch.optim.Adagrad, {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1}),
]


@pytest.fixture
def torchs_steps(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Steps of ours that were left to torch."""
    steps: list[Any] = []
    step_of_torch = _direct.DirectStep._step_of_torch
    monkeypatch.setattr(
        _direct.DirectStep,
        "_step_of_torch",
        lambda self, closure: [steps.append(self), step_of_torch(self, closure)][1],
    )
    return steps


@pytest.mark.parametrize(("ours", "theirs", "options"), OTHERS)
def test_sgd_and_adagrad_are_torchs(ours: Any, theirs: Any, options: Any, torchs_steps: list[Any]) -> None:
    """Weights and the whole state have the bits of torch's fused step, before and after a resume."""
    a, b = layers()
    one, other = ours(a.parameters(), **options), theirs(b.parameters(), fused=True, **options)
    train(a, one)
    train(b, other)
    assert same(a.state_dict(), b.state_dict())
    assert same(one.state_dict(), other.state_dict())
    again = ours(a.parameters(), **options)
    again.load_state_dict(copy.deepcopy(other.state_dict()))
    train(a, again)
    train(b, other)
    assert same(a.state_dict(), b.state_dict())
    assert torchs_steps == []


@pytest.mark.parametrize(("ours", "theirs", "options"), OTHERS)
def test_sgd_and_adagrad_give_way(ours: Any, theirs: Any, options: Any, torchs_steps: list[Any]) -> None:
    """A group that is added later ends as with torch; a closure is for torch's step."""
    a, b = layers()
    pairs = [(a, ours(a[0].parameters(), **options)), (b, theirs(b[0].parameters(), fused=True, **options))]
    for model, optimizer in pairs:
        train(model, optimizer, 2)
        optimizer.add_param_group({"params": list(model[2].parameters())})
        train(model, optimizer, 2)
        optimizer.step(lambda: 0.0)
    assert same(a.state_dict(), b.state_dict())
    assert same(pairs[0][1].state_dict(), pairs[1][1].state_dict())
    assert len(torchs_steps) >= 1


@pytest.mark.parametrize("forbidden", [0.0, 1.0])
@pytest.mark.parametrize(("ours", "theirs", "options"), OTHERS)
def test_sgd_and_adagrad_heed_found_inf(ours: Any, theirs: Any, options: Any, forbidden: float) -> None:
    """Where the flag is 1 nothing changes, and steps are counted back, as in torch's step."""
    a, b = layers()
    for model, optimizer in ((a, ours(a.parameters(), **options)), (b, theirs(b.parameters(), fused=True, **options))):
        train(model, optimizer, 2)
        model(X).square().mean().backward()
        before = copy.deepcopy(model.state_dict())
        optimizer.found_inf = torch.tensor(forbidden)
        optimizer.step()
        assert same(before, model.state_dict()) is bool(forbidden)
    assert same(a.state_dict(), b.state_dict())


def test_a_momentum_that_begins_late_is_left_to_torch(torchs_steps: list[Any]) -> None:
    """Where only some parameters of a group have a momentum yet, torch's step has to know what to do."""
    model, _ = layers()
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model[0].bias.requires_grad_(False)
    train(model, optimizer, 1)
    model[0].bias.requires_grad_(True)
    with suppress(TypeError):  # torch 2.13 does not
        train(model, optimizer, 1)
    assert torchs_steps == [optimizer]
