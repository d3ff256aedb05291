"""Every scheduler, ours and torch's: saved and loaded at any step, the rates go on bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import Optimizer
from torch.optim import lr_scheduler as torchs

import lucid.optim.lr_scheduler
from lucid import optim
from lucid.errors import ConfigError
from lucid.optim import lr_scheduler, schedules
from lucid.optim.schedules import build

STEPS = 20


def ours(name: str, **chosen: Any) -> Callable[[Optimizer], Any]:
    return lambda optimizer: build(name, optimizer, STEPS, **chosen)


def warm(optimizer: Optimizer, steps: int) -> Any:
    return torchs.LinearLR(optimizer, 0.1, total_iters=steps)


MAKERS: dict[str, Callable[[Optimizer], Any]] = {
    **{name: ours(name) for name in schedules.names()},
    **{f"{name} warm-up 5": ours(name, warmup_steps=5) for name in schedules.names() if name != "one_cycle"},
    "with momentum": lambda o: build("constant", o, STEPS, others={"momentum": schedules.make("warmup_linear", STEPS)}),
    "t_max": lambda o: lr_scheduler.CosineAnnealingLR(o, t_max=STEPS),
    "LambdaLR": lambda o: torchs.LambdaLR(o, lambda step: 0.9**step),
    "MultiplicativeLR": lambda o: torchs.MultiplicativeLR(o, lambda step: 0.9),
    "StepLR": lambda o: torchs.StepLR(o, 5),
    "MultiStepLR": lambda o: torchs.MultiStepLR(o, [5, 10]),
    "ConstantLR": lambda o: torchs.ConstantLR(o, total_iters=5),
    "LinearLR": lambda o: warm(o, 10),
    "ExponentialLR": lambda o: torchs.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: torchs.PolynomialLR(o, STEPS, 2.0),
    "CosineAnnealingLR": lambda o: torchs.CosineAnnealingLR(o, STEPS),
    "CosineAnnealingWarmRestarts": lambda o: torchs.CosineAnnealingWarmRestarts(o, 3, 2),
    "CyclicLR": lambda o: torchs.CyclicLR(o, 0.01, 0.1, step_size_up=4),
    "OneCycleLR": lambda o: torchs.OneCycleLR(o, 0.5, total_steps=STEPS + 1),
    "SequentialLR": lambda o: torchs.SequentialLR(o, [warm(o, 5), torchs.CosineAnnealingLR(o, 15)], [5]),
    "SequentialLR of ours": lambda o: torchs.SequentialLR(
        o, [ours("warmup_linear")(o), ours("warmup_cosine", warmup_steps=3)(o)], [5]
    ),
    "SequentialLR of both": lambda o: torchs.SequentialLR(o, [warm(o, 5), ours("warmup_cosine")(o)], [5]),
    "ChainedScheduler": lambda o: torchs.ChainedScheduler([torchs.ExponentialLR(o, 0.9), torchs.StepLR(o, 5)], o),
}


def make(name: str) -> tuple[Optimizer, Any]:
    params = [{"params": [torch.nn.Parameter(torch.ones(1))], "lr": lr} for lr in (0.1, 0.3)]
    optimizer = torch.optim.SGD(params, momentum=0.9)
    return optimizer, MAKERS[name](optimizer)


def go(optimizer: Optimizer, scheduler: Any, steps: int) -> list[tuple[float, ...]]:
    """Values used by the next updates."""
    used = []
    for _ in range(steps):
        used.append(tuple(float(group[key]) for group in optimizer.param_groups for key in ("lr", "momentum")))
        optimizer.step()
        scheduler.step()
    return used


@pytest.mark.parametrize("name", MAKERS)
def test_broken_at_any_step_the_trace_goes_on(name: str) -> None:
    """For a break after each step, milestones included, the rates after it are those of the unbroken run."""
    whole = go(*make(name), STEPS)
    for broken in range(STEPS + 1):
        optimizer, scheduler = make(name)
        first = go(optimizer, scheduler, broken)
        saved = copy.deepcopy((optimizer.state_dict(), scheduler.state_dict()))
        optimizer, scheduler = make(name)
        optimizer.load_state_dict(saved[0])
        scheduler.load_state_dict(saved[1])
        assert whole == first + go(optimizer, scheduler, STEPS - broken), f"broken after step {broken}"


@pytest.mark.parametrize("name", [name for name in MAKERS if "of" not in name and name[0].islower()])
def test_the_order_of_loading_does_not_matter(name: str) -> None:
    """Ours may be loaded before the optimizer, and before or after its first use."""
    optimizer, scheduler = make(name)
    go(optimizer, scheduler, 7)
    saved = copy.deepcopy((optimizer.state_dict(), scheduler.state_dict()))
    rest = go(optimizer, scheduler, 5)
    optimizer, scheduler = make(name)
    go(optimizer, scheduler, 2)
    scheduler.load_state_dict(saved[1])
    optimizer.load_state_dict(saved[0])
    assert rest == go(optimizer, scheduler, 5)


def test_sequence_of_ours_gives_each_its_own_start() -> None:
    """In torch's SequentialLR, the first of ours starts at once and the next at its milestone, both at their step 0."""
    rates = [used[0] for used in go(*make("SequentialLR of ours"), 10)]
    first = [schedules.warmup_linear(step, total_steps=STEPS) for step in range(5)]
    second = [schedules.warmup_cosine(step, total_steps=STEPS, warmup_steps=3) for step in range(5)]
    assert rates == [0.1 * factor for factor in first + second]


def test_plateau_goes_on_across_a_break() -> None:
    """ReduceLROnPlateau, stepped after each evaluation, keeps its best value and its count."""
    scripted = [1.0, 0.9, 0.9, 0.9, 0.9, 0.5, 0.6, float("nan"), 0.7, 0.8]

    def start() -> tuple[Optimizer, Any]:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
        return optimizer, lucid.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)

    def feed(optimizer: Optimizer, scheduler: Any, values: list[float]) -> list[float]:
        rates = []
        for value in values:
            scheduler.step(value)
            rates.append(optimizer.param_groups[0]["lr"])
        return rates

    whole = feed(*start(), scripted)
    assert len(set(whole)) > 2
    for broken in range(len(scripted)):
        optimizer, scheduler = start()
        first = feed(optimizer, scheduler, scripted[:broken])
        saved = copy.deepcopy((optimizer.state_dict(), scheduler.state_dict()))
        optimizer, scheduler = start()
        optimizer.load_state_dict(saved[0])
        scheduler.load_state_dict(saved[1])
        assert whole == first + feed(optimizer, scheduler, scripted[broken:])


def test_cosine_takes_both_spellings() -> None:
    """t_max, T_max and the second place all mean the same; none or both is an error."""
    rates = []
    for arguments, options in (((7,), {}), ((), {"T_max": 7}), ((), {"t_max": 7})):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
        rates.append(go(optimizer, lr_scheduler.CosineAnnealingLR(optimizer, *arguments, **options), 7))
    assert rates[0] == rates[1] == rates[2]
    for options in ({}, {"T_max": 7, "t_max": 7}):
        with pytest.raises(ConfigError, match="needs one of T_max and t_max"):
            lr_scheduler.CosineAnnealingLR(optimizer, **options)
    assert issubclass(lr_scheduler.CosineAnnealingLR, torchs.CosineAnnealingLR)


def test_helpers_have_the_two_shapes() -> None:
    """warmup_cosine(opt, warmup, total) and build_scheduler(opt, total) give ready schedulers."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    scheduler = optim.warmup_cosine(optimizer, 10, 100)
    assert [scheduler.factor(step) for step in (0, 10, 55, 100)] == [0.01, 1.0, pytest.approx(0.5), 0.0]
    scheduler = optim.build_scheduler(optimizer, 1000)
    assert [scheduler.factor(step) for step in (0, 50)] == [0.01, 1.0]
    assert optim.build_scheduler(optimizer, 1000, "step_decay", gamma=0.5).factor(500) == 0.5
    assert lr_scheduler.warmup_cosine is optim.warmup_cosine


def test_every_other_name_is_torchs_object() -> None:
    """Names that are not ours are torch's."""
    assert lr_scheduler.OneCycleLR is torchs.OneCycleLR
    assert lr_scheduler.ReduceLROnPlateau is torchs.ReduceLROnPlateau
    assert set(torchs.__all__) <= set(dir(lr_scheduler))
    with pytest.raises(AttributeError):
        lr_scheduler.NoSuchName
