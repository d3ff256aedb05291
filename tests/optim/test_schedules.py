"""The named schedules are pure functions of the step, equal to torch's where torch has them."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import lr_scheduler as torchs

from lucid import optim
from lucid.errors import ConfigError
from lucid.optim import schedules
from lucid.optim.schedules import Schedule, build, make, preview

TABLE = {
    0: 0.01,
    100: 1,
    200: 0.97,
    300: 0.88,
    400: 0.75,
    500: 0.59,
    600: 0.42,
    700: 0.25,
    800: 0.12,
    900: 0.03,
    1000: 0,
}


def sgd(lr: Any = 0.1, groups: int = 1, **options: Any) -> torch.optim.Optimizer:
    params = [{"params": [torch.nn.Parameter(torch.ones(1))], "lr": lr * (n + 1)} for n in range(groups)]
    return torch.optim.SGD(params, **options)


def trace(scheduler: Any, steps: int) -> list[float]:
    """Rates used by updates 0 to `steps` - 1."""
    rates = []
    for _ in range(steps):
        rates.append(float(scheduler.optimizer.param_groups[0]["lr"]))
        scheduler.optimizer.step()
        scheduler.step()
    return rates


def test_warmup_cosine_gives_the_table() -> None:
    """1,000 steps with 100 of warm-up: every eleventh value, to 0.01."""
    factor = make("warmup_cosine", 1000, warmup_steps=100)
    assert {step: pytest.approx(value, abs=0.01) for step, value in TABLE.items()} == {s: factor(s) for s in TABLE}


def test_step_decay_gives_the_table() -> None:
    """1 until step 499, a tenth from step 500 on."""
    factor = make("step_decay", 1000)
    assert [factor(step) for step in range(0, 1001, 100)] == [1.0] * 5 + [0.1] * 6
    assert (factor(499), factor(500)) == (1.0, 0.1)


def test_warmup_cosine_equals_torchs_sequence() -> None:
    """LinearLR then CosineAnnealingLR in a SequentialLR give the same rates to 1e-12."""
    theirs = sgd()
    parts: list[Any] = [torchs.LinearLR(theirs, 0.01, total_iters=50), torchs.CosineAnnealingLR(theirs, T_max=150)]
    expected = trace(torchs.SequentialLR(theirs, parts, milestones=[50]), 200)
    assert pytest.approx(expected, abs=1e-12) == trace(build("warmup_cosine", sgd(), 200, warmup_steps=50), 200)


@pytest.mark.parametrize("total", [1, 2, 3, 4, 7, 100, 101])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.9])
def test_one_cycle_equals_torchs(total: int, share: float) -> None:
    """OneCycleLR with the base rate as its peak gives the same rates to 1e-12, whatever the length."""
    theirs = sgd()
    try:
        scheduler = torchs.OneCycleLR(theirs, max_lr=0.1, total_steps=total, pct_start=share, cycle_momentum=False)
    except ZeroDivisionError:
        assert make("one_cycle", total, warmup_ratio=share)(0) <= 1
        return
    expected = [float(theirs.param_groups[0]["lr"])]
    for _ in range(total - 1):
        theirs.step()
        scheduler.step()
        expected.append(float(theirs.param_groups[0]["lr"]))
    assert pytest.approx(expected, abs=1e-12) == trace(build("one_cycle", sgd(), total, warmup_ratio=share), total)


def test_step_decay_equals_torchs() -> None:
    """StepLR and MultiStepLR are step_decay with `every` and with `milestones`."""
    expected = trace(torchs.StepLR(sgd(), 7, 0.5), 40)
    assert pytest.approx(expected, abs=1e-12) == trace(build("step_decay", sgd(), 40, every=7, gamma=0.5), 40)
    expected = trace(torchs.MultiStepLR(sgd(), [5, 6, 30], 0.1), 40)
    assert pytest.approx(expected, abs=1e-12) == trace(build("step_decay", sgd(), 40, milestones=[5, 6, 30]), 40)


def test_warmup_linear_goes_down_in_a_straight_line() -> None:
    """Between warm-up and end, every step down has the same size."""
    factor = make("warmup_linear", 30, warmup_steps=10, min_lr_ratio=0.5)
    falls = [factor(step) - factor(step + 1) for step in range(10, 30)]
    assert [pytest.approx(0.025)] * 20 == falls


@pytest.mark.parametrize(("shape", "middle"), [("linear", 0.5), ("sqrt", 1 - 0.5**0.5), ("cosine", 0.5)])
def test_warmup_stable_decay_stays_and_then_falls(shape: str, middle: float) -> None:
    """Flat until the decay begins, half-way down the named shape in its middle, at the end from its last step on."""
    factor = make("warmup_stable_decay", 100, warmup_steps=10, decay_steps=20, decay=shape)
    assert {factor(step) for step in range(10, 81)} == {1.0}
    assert factor(90) == pytest.approx(middle)
    assert {factor(100), factor(1000)} == {0.0}


def test_warmup_stable_decay_does_not_depend_on_the_total_before_its_decay() -> None:
    """A longer run has the same rates until the shorter one's decay: what makes a run extendable exactly."""
    short, long = make("warmup_stable_decay", 100, warmup_steps=10), make("warmup_stable_decay", 500, warmup_steps=10)
    assert [short(step) for step in range(81)] == [long(step) for step in range(81)]
    assert short(82) < long(82)


@pytest.mark.parametrize("name", schedules.names())
@settings(max_examples=60, deadline=None)
@given(total=st.integers(1, 500), warmup=st.integers(0, 500), extra=st.integers(0, 600))
def test_every_factor_is_a_share_of_the_base_rate(name: str, total: int, warmup: int, extra: int) -> None:
    """Contract of the family: any step gives a factor in [0, 1], and after the last step nothing moves."""
    chosen = {"warmup_steps": min(warmup, total)} if "warmup_steps" in schedules.options(name) else {}
    factor = make(name, total, **chosen)
    assert 0 <= factor(extra) <= 1
    assert factor(total) == factor(total + extra)


@pytest.mark.parametrize("name", [name for name in schedules.names() if "warmup_steps" in schedules.options(name)])
def test_every_warm_up_rises_to_the_base_rate(name: str) -> None:
    """Contract of the family: a warm-up starts at its share, rises evenly, and reaches 1 when it ends."""
    factor = make(name, 100, warmup_steps=10, warmup_start_ratio=0.2)
    assert [pytest.approx(0.2 + 0.08 * step) for step in range(11)] == [factor(step) for step in range(11)]
    assert make(name, 100, warmup_steps=0)(0) == 1.0
    assert make(name, 100, warmup_steps=100)(99) < 1.0


@pytest.mark.parametrize("name", schedules.names())
def test_every_schedule_says_how_a_run_is_extended(name: str) -> None:
    """Contract of the family: a sentence says what a longer total does."""
    assert schedules.EXTENSION[name]
    assert set(schedules.EXTENSION) == set(schedules.names())


@pytest.mark.parametrize(
    ("name", "total", "chosen", "text"),
    [
        ("warmup_cosin", 10, {}, r"there is no schedule 'warmup_cosin'.*Did you mean 'warmup_cosine'\?"),
        ("constant", 10, {"warmup": 3}, r"schedule 'constant' has no option 'warmup'; it has warmup_steps"),
        ("warmup_cosine", 10, {"warmup_steps": 11}, r"at most total_steps \(10\), got 11. Lower it or train longer"),
        ("warmup_linear", 10, {"warmup_steps": -1}, r"warmup_steps must be at least 0"),
        ("warmup_cosine", 0, {}, r"total_steps must be at least 1, got 0"),
        ("warmup_cosine", 10, {"min_lr_ratio": 1.5}, r"min_lr_ratio must lie between 0 and 1, got 1.5"),
        ("warmup_stable_decay", 10, {"decay_steps": 11}, r"decay_steps must lie between 0 and .* \(10\), got 11"),
        ("warmup_stable_decay", 10, {"decay": "cubic"}, r"decay must be 'linear', 'sqrt' or 'cosine', got 'cubic'"),
        ("one_cycle", 10, {"warmup_ratio": 1.0}, r"warmup_ratio must lie between 0 and 1, got 1.0"),
        ("step_decay", 10, {"every": 0}, r"every must be at least 1 step, got 0"),
        ("step_decay", 10, {"gamma": -0.1}, r"gamma must be at least 0, got -0.1"),
    ],
)
def test_make_refuses_what_cannot_work(name: str, total: int, chosen: dict[str, Any], text: str) -> None:
    """A wrong name, option or value is an error before the first step."""
    with pytest.raises(ConfigError, match=text):
        make(name, total, **chosen)


def test_curves_refuse_a_step_below_zero() -> None:
    """There is no update before the first."""
    with pytest.raises(ConfigError, match="step must be at least 0, got -1"):
        schedules.warmup_cosine(-1, total_steps=10)


def test_schedule_sets_each_group_from_its_own_rate() -> None:
    """Groups with different rates keep their ratio, and report their rates as torch does."""
    optimizer = sgd(0.5, groups=2)
    scheduler = build("warmup_linear", optimizer, 10)
    for _ in range(5):
        scheduler.step()
    assert [0.25, 0.5] == [group["lr"] for group in optimizer.param_groups] == scheduler.get_last_lr()
    assert scheduler.get_lr() == scheduler.get_last_lr()
    assert isinstance(scheduler, torchs.LRScheduler)


def test_schedule_fills_a_rate_that_is_a_tensor() -> None:
    """A tensor stays the same object, so that a compiled step sees the new value."""
    lr = torch.tensor(0.5)
    scheduler = build("warmup_linear", optim.AdamW([torch.nn.Parameter(torch.ones(1))], lr=lr), 10)
    scheduler.step()
    assert scheduler.optimizer.param_groups[0]["lr"] is lr
    assert lr.item() == pytest.approx(0.45)
    assert scheduler.base_lrs == [0.5]


def test_schedule_warns_about_no_order() -> None:
    """Stepping the schedule without an optimizer step, as after a skipped one, is no warning; the rate just moves."""
    scheduler = build("warmup_linear", sgd(), 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler.step()
        scheduler.step()
    assert scheduler.last_epoch == 2


def test_schedule_lets_optimizer_step_alone() -> None:
    """The optimizer's step is not wrapped: no frame more per update."""
    optimizer = sgd()
    build("constant", optimizer, 10)
    assert "step" not in vars(optimizer)


def test_group_added_later_joins_with_its_own_rate() -> None:
    """A group added in the middle of a run follows the same curve from its own base."""
    optimizer = sgd(1.0)
    scheduler = build("warmup_linear", optimizer, 10)
    scheduler.step()
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))], "lr": 4.0})
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.8, 3.2]


def test_schedule_of_weight_decay_and_momentum() -> None:
    """Further values follow functions of their own; Adam's momentum is its first beta."""
    optimizer = optim.AdamW([torch.nn.Parameter(torch.ones(1))], lr=0.1, betas=(0.8, 0.999), weight_decay=0.2)
    others = {"weight_decay": make("warmup_linear", 10), "momentum": lambda step: 1 - step / 20}
    scheduler = build("constant", optimizer, 10, others=others)
    for _ in range(5):
        scheduler.step()
    group = optimizer.param_groups[0]
    assert (group["lr"], group["weight_decay"], group["betas"]) == (0.1, 0.1, (pytest.approx(0.6), 0.999))
    state, fresh = scheduler.state_dict(), build("constant", optimizer, 10, others=others)
    fresh.load_state_dict(state)
    assert fresh.state_dict() == {
        "last_epoch": 5,
        "base_lrs": [0.1],
        "other_bases": {"weight_decay": [0.2], "momentum": [0.8]},
    }


def test_schedule_of_a_value_that_is_not_there_is_an_error() -> None:
    """A misspelt value names the nearest one that the group has."""
    with pytest.raises(ConfigError, match=r"group 0 has no number 'weight_decy'.*Did you mean 'weight_decay'\?"):
        build("constant", sgd(), 10, others={"weight_decy": lambda step: 1.0})
    with pytest.raises(ConfigError, match="needs a torch optimizer, got int"):
        Schedule(3, lambda step: 1.0)  # type: ignore[arg-type]


def test_schedule_refuses_the_state_of_other_groups() -> None:
    """A state with another number of groups is an error, not a shorter zip."""
    state = build("constant", sgd(groups=2), 10).state_dict()
    with pytest.raises(ConfigError, match="state has 2 parameter groups, the optimizer has 1"):
        build("constant", sgd(), 10).load_state_dict(state)


def test_schedule_starts_where_it_is_told() -> None:
    """A schedule built for step 7 gives step 7's rate, and `apply` sets it again after a state was loaded."""
    optimizer = sgd(1.0)
    Schedule(optimizer, make("warmup_linear", 10), last_epoch=7)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.3)
    fresh = build("warmup_linear", sgd(1.0), 10)
    fresh.load_state_dict({"last_epoch": 4, "base_lrs": [1.0]})
    fresh.apply()
    assert fresh.get_last_lr() == [pytest.approx(0.6)]


SCHEDULERS: dict[str, Any] = {
    "ours": lambda o: build("warmup_cosine", o, 20, warmup_steps=5),
    "lambda": lambda o: torchs.LambdaLR(o, lambda step: 1 / (1 + step)),
    "one cycle": lambda o: torchs.OneCycleLR(o, max_lr=1.0, total_steps=20),
    "cyclic": lambda o: torchs.CyclicLR(o, 0.1, 1.0, step_size_up=3),
    "sequence": lambda o: torchs.SequentialLR(
        o, [torchs.LinearLR(o, 0.1, total_iters=5), torchs.CosineAnnealingLR(o, 15)], milestones=[5]
    ),
}


@pytest.mark.parametrize("kind", SCHEDULERS)
@pytest.mark.parametrize("done", [0, 3])
def test_preview_looks_ahead_without_a_trace(kind: str, done: int) -> None:
    """The rates foretold are those then used, and looking changed neither scheduler nor optimizer."""
    optimizer = sgd(0.1, groups=2, momentum=0.9)
    scheduler = SCHEDULERS[kind](optimizer)
    trace(scheduler, done)
    before = str((scheduler.state_dict(), optimizer.state_dict()))
    ahead = preview(scheduler, 15)
    assert before == str((scheduler.state_dict(), optimizer.state_dict()))
    assert trace(scheduler, 15) == ahead[0]
    assert len(ahead) == 2
