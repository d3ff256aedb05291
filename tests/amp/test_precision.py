"""Precision is chosen from a record, and a step does the same through it in every mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lucid import optim
from lucid.amp import GradScaler, Precision
from lucid.amp.precision import choose_mode
from lucid.devices import Capability
from lucid.errors import ConfigError, PrecisionError

AMPERE = Capability("cuda", 0, "new", native_bf16=True, fp16=True)
TURING = Capability("cuda", 0, "old", fp16=True)
BARE = Capability("xpu", 0, "bare")
CPU = Capability("cpu")
CPU_BF16 = Capability("cpu", native_bf16=True)


@pytest.mark.parametrize(
    ("spec", "record", "expected"),
    [
        ("auto", AMPERE, "bf16"),
        ("auto", TURING, "fp16"),
        ("auto", BARE, "fp32"),
        ("auto", CPU, "fp32"),
        ("auto", CPU_BF16, "fp32"),
        ("fp32", AMPERE, "fp32"),
        ("fp16", AMPERE, "fp16"),
        ("bf16", CPU, "bf16"),
        ("fp16", CPU, "fp16"),
    ],
)
def test_choose_mode_is_a_function_of_the_record(spec: str, record: Capability, expected: str) -> None:
    """Native bf16 first, then an accelerator's fp16, then fp32; a CPU only lowers when asked to."""
    assert expected == choose_mode(spec, record)


@pytest.mark.parametrize(
    ("spec", "record", "text"),
    [
        ("bf16", TURING, r"precision 'bf16' is not in the hardware of 'cuda:0' \(old\); it has fp32, fp16"),
        ("fp16", BARE, r"precision 'fp16' is not in the hardware of 'xpu:0' \(bare\); it has fp32\."),
    ],
)
def test_choose_mode_refuses_what_the_device_lacks(spec: str, record: Capability, text: str) -> None:
    """A precision that the hardware lacks is an error that says what it has."""
    with pytest.raises(PrecisionError, match=text):
        choose_mode(spec, record)


def test_choose_mode_names_the_nearest_precision() -> None:
    """A misspelt precision is an error that names the nearest one."""
    with pytest.raises(ConfigError, match=r"must be one of auto, fp32, bf16, fp16, got 'fp-16'. Did you mean 'fp16'\?"):
        choose_mode("fp-16", CPU)


@pytest.mark.parametrize(("mode", "has_scaler"), [("fp32", False), ("bf16", False), ("fp16", True)])
def test_only_fp16_has_a_scaler(mode: Any, has_scaler: bool) -> None:
    """bf16 has the range of fp32 and needs no scaler."""
    assert has_scaler == (Precision.choose(mode, "cpu").scaler is not None)


def test_constructor_refuses_what_does_not_go_together() -> None:
    """An unknown mode, or a scaler without fp16, is an error."""
    with pytest.raises(ConfigError, match="'fp64'"):
        Precision("fp64")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a scaler belongs to fp16"):
        Precision("bf16", scaler=GradScaler("cpu"))


@pytest.mark.parametrize(("mode", "dtype"), [("fp32", None), ("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_autocast_sets_the_dtype_inside_and_nests(mode: Any, dtype: torch.dtype | None) -> None:
    """The same context may be entered twice, and outside everything is as it was."""
    precision, layer, x = Precision(mode), nn.Linear(4, 4), torch.randn(2, 4)
    expected = dtype or torch.float32
    with precision.autocast():
        with precision.autocast():
            assert expected == layer(x).dtype
        assert expected == layer(x).dtype
    assert torch.float32 == layer(x).dtype == layer.weight.dtype
    assert not torch.is_autocast_enabled("cpu")
    assert precision.autocast() is precision.autocast()


def test_autocast_respects_islands_of_fp32() -> None:
    """A region with autocast off inside a lowered one computes in fp32."""
    x = torch.randn(2, 4)
    with Precision("bf16").autocast():
        with torch.autocast("cpu", enabled=False):
            assert torch.float32 == (x @ x.T).dtype
        assert torch.bfloat16 == (x @ x.T).dtype


@pytest.mark.parametrize("mode", ["fp32", "bf16"])
def test_scale_returns_the_loss_itself_without_a_scaler(mode: Any) -> None:
    """Without a scaler the calls of a step change nothing, not even the object."""
    precision, loss = Precision(mode), torch.ones((), requires_grad=True)
    assert loss is precision.scale(loss)
    precision.unscale([])
    precision.update()


def step(precision: Precision, model: nn.Module, optimizers: list[torch.optim.Optimizer], x: torch.Tensor) -> None:
    with precision.autocast():
        loss = model(x).square().mean()
    precision.scale(loss).backward()
    precision.unscale(optimizers)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    precision.update()


def test_fp16_scales_and_unscales_to_the_same_gradient() -> None:
    """Gradients of a loss in fp32 are bit-equal with a scaler, whose factor is a power of two."""
    layer, other, x = nn.Linear(3, 2), nn.Linear(3, 2), torch.randn(4, 3)
    other.load_state_dict(layer.state_dict())
    precision = Precision("fp16", scaler=GradScaler("cpu", init_scale=1024.0))
    precision.scale(layer(x).square().mean()).backward()
    other(x).square().mean().backward()
    assert torch.equal(1024 * other.weight.grad, layer.weight.grad)  # type: ignore[operator,arg-type]
    precision.unscale([torch.optim.SGD(layer.parameters())])
    assert torch.equal(other.weight.grad, layer.weight.grad)  # type: ignore[arg-type]


def test_scale_halves_after_inf_and_counts_up_after_good_steps() -> None:
    """The scale goes down after inf, also when the step was skipped, and the tracker counts good steps."""
    layer = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    precision = Precision("fp16", scaler=GradScaler("cpu", init_scale=1024.0))
    for expected in (1, 2):
        step(precision, layer, [optimizer], torch.randn(4, 3))
        assert expected == precision.state_dict()["scaler"]["_growth_tracker"]
    precision.scale(layer(torch.randn(4, 3)).sum() * torch.inf).backward()
    precision.unscale([optimizer])
    precision.update()
    assert tuple(precision.state_dict()["scaler"][key] for key in ("scale", "_growth_tracker")) == (512.0, 0)


def test_update_without_any_gradient_changes_nothing() -> None:
    """A step in which no parameter got a gradient is no failure and does not touch the scale."""
    precision = Precision("fp16")
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters())
    before = precision.state_dict()
    precision.update()
    precision.unscale([optimizer])
    precision.update()
    assert before == precision.state_dict()


def test_optimizer_without_gradients_is_left_out() -> None:
    """A second optimizer that is idle for a step causes no assertion, and takes part in the next."""
    layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    optimizers: list[torch.optim.Optimizer] = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in layers]
    precision = Precision("fp16", scaler=GradScaler("cpu", init_scale=4.0))
    step(precision, layers[0], optimizers, torch.ones(1, 2))
    before = layers[1].weight.clone()
    step(precision, layers[1], optimizers, torch.ones(1, 2))
    assert not torch.equal(before, layers[1].weight)


def test_unscale_twice_in_a_step_is_an_error() -> None:
    """Torch's own guard stays: gradients are unscaled once per step."""
    layer, precision = nn.Linear(2, 2), Precision("fp16")
    optimizer = torch.optim.SGD(layer.parameters())
    precision.scale(layer(torch.ones(1, 2)).sum()).backward()
    precision.unscale([optimizer])
    with pytest.raises(RuntimeError, match="already been called"):
        precision.unscale([optimizer])


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("mode", "cure"), [("fp32", "take 'bf16' or 'fp16', whose"), ("bf16", ""), ("fp16", "")])
def test_check_model_refuses_half_parameters_by_name(mode: Any, cure: str, half: torch.dtype) -> None:
    """Trainable half-precision parameters are refused by their names, with the cure; frozen ones pass."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).to(half))
    text = rf"precision '{mode}' needs fp32 .* half precision: 1.weight, 1.bias\. Leave out `model.half\(\)`.*{cure}"
    with pytest.raises(PrecisionError, match=text):
        Precision(mode).check_model(model)
    model[1].requires_grad_(False)
    Precision(mode).check_model(model)


def test_check_model_shortens_a_long_list() -> None:
    """Five names are enough to find the place."""
    with pytest.raises(PrecisionError, match=r"2\.weight and 3 more"):
        Precision("fp16").check_model(nn.Sequential(*[nn.Linear(1, 1) for _ in range(4)]).half())


def test_state_passes_through_a_machine_without_fp16() -> None:
    """fp16 -> fp32 -> fp16: the scale arrives; fp32 -> fp16: the scaler starts as new."""
    saved = {**GradScaler("cpu").state_dict(), "scale": 2.0**10, "_growth_tracker": 7}
    fp32 = Precision("fp32")
    fp32.load_state_dict({"mode": "fp16", "scaler": saved})
    back = Precision("fp16")
    back.load_state_dict(fp32.state_dict())
    assert saved == back.state_dict()["scaler"]
    fresh = Precision("fp16")
    fresh.load_state_dict(Precision("fp32").state_dict())
    assert fresh.state_dict()["scaler"]["scale"] == 2.0**16


def test_state_round_trips_before_the_first_step_and_after_a_skip() -> None:
    """The state is whole at every point where a run can be saved."""
    layer = nn.Linear(2, 2)
    optimizer = optim.AdamW(layer.parameters())
    precision, copy = Precision("fp16"), Precision("fp16")
    for poison in (1.0, torch.inf):
        copy.load_state_dict(precision.state_dict())
        assert precision.state_dict() == copy.state_dict()
        precision.scale(layer(torch.ones(1, 2)).sum() * poison).backward()
        precision.unscale([optimizer])
        precision.update()
        optimizer.zero_grad()
    assert precision.state_dict()["scaler"]["scale"] == 2.0**15
    assert copy.state_dict()["scaler"]["scale"] == 2.0**16


def test_describe_states_the_precision_of_matrix_products() -> None:
    """The plan can say in words what arithmetic a run uses."""
    assert Precision("fp32").describe() == "fp32 (matrix products: highest)"
    assert "on a CPU this can be slower than fp32" in Precision("bf16").describe()
    torch.set_float32_matmul_precision("high")
    try:
        assert "TF32 allowed" in Precision("fp32").describe()
    finally:
        torch.set_float32_matmul_precision("highest")
