"""`autocast` and `GradScaler` keep torch's semantics and find their device."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import lucid.amp
from lucid import devices, optim
from lucid.amp import GradScaler, autocast
from lucid.errors import PrecisionError

X = torch.randn(2, 4)


def test_they_are_torchs_classes() -> None:
    """Whoever asks for torch's classes gets them, and torch's other names are torch's objects."""
    assert issubclass(autocast, torch.autocast)
    assert issubclass(GradScaler, torch.amp.GradScaler)
    assert torch.amp.custom_fwd is lucid.amp.custom_fwd
    assert torch.amp.is_autocast_available is lucid.amp.is_autocast_available
    with pytest.raises(AttributeError):
        lucid.amp.no_such_name


def test_autocast_finds_the_device() -> None:
    """Without a device named, the best one there is lowers its operations."""
    with autocast(dtype=torch.bfloat16) as entered:
        assert devices.best_type() == entered.device
    with autocast("cpu"):
        assert torch.bfloat16 == (X @ X.T).dtype


def test_autocast_works_as_a_decorator() -> None:
    """A decorated function runs lowered, every time."""

    @autocast("cpu", dtype=torch.float16)
    def product() -> torch.Tensor:
        return X @ X.T

    assert [torch.float16] * 2 == [product().dtype, product().dtype]


def test_autocast_object_nests_in_itself() -> None:
    """Entered while entered, it is on until the outermost exit and off after it; torch's own would stay on."""
    context = autocast("cpu", dtype=torch.bfloat16)
    with context:
        with context:
            pass
        assert torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("cpu")


def test_autocast_is_left_after_an_error() -> None:
    """An error inside leaves autocast off outside."""
    with pytest.raises(ZeroDivisionError), autocast("cpu"):
        1 / 0
    assert not torch.is_autocast_enabled("cpu")


def test_autocast_nests_with_other_dtypes() -> None:
    """The inner region's dtype counts inside, the outer one's after it; disabled regions are islands of fp32."""
    with autocast("cpu", dtype=torch.bfloat16):
        with autocast("cpu", dtype=torch.float16):
            assert torch.float16 == (X @ X.T).dtype
        with autocast("cpu", enabled=False):
            assert torch.float32 == (X @ X.T).dtype
        assert torch.bfloat16 == (X @ X.T).dtype


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"device_type": "mps"}, "asked for device 'mps', but this machine has only 'cpu'"),
        ({"device_type": "cpu", "dtype": torch.float64}, "must be torch.bfloat16 or torch.float16, got torch.float64"),
    ],
)
def test_autocast_never_turns_itself_off(arguments: dict[str, Any], text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch would answer with a warning and fp32 is an error."""
    monkeypatch.setattr(devices, "best_type", lambda: "cpu")
    with pytest.raises(PrecisionError, match=text):
        autocast(**arguments)
    autocast(**arguments, enabled=False)


def test_scaler_refuses_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA scaler on a CPU machine would scale nothing: refused instead."""
    monkeypatch.setattr(devices, "best_type", lambda: "cpu")
    with pytest.raises(PrecisionError, match="a scaler was asked for device 'cuda', but this machine has only 'cpu'"):
        GradScaler("cuda")
    assert not GradScaler("cuda", enabled=False).is_enabled()
    assert GradScaler().is_enabled()


def test_disabled_scaler_passes_everything_through() -> None:
    """Disabled, scaling returns the loss itself and stepping is the optimizer's own."""
    scaler, layer = GradScaler("cpu", enabled=False), nn.Linear(1, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    loss = layer(torch.ones(1, 1)).sum()
    assert loss is scaler.scale(loss)
    assert (scaler.get_scale(), scaler.state_dict()) == (1.0, {})
    loss.backward()
    before = layer.bias.item()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert before - 1.0 == layer.bias.item()


def test_state_goes_from_disabled_to_enabled_and_back() -> None:
    """An empty state leaves an enabled scaler as it is; a disabled one hands on the state it was given."""
    enabled, disabled = GradScaler("cpu", init_scale=256.0), GradScaler("cpu", enabled=False)
    enabled.load_state_dict(disabled.state_dict())
    assert enabled.get_scale() == 256.0
    disabled.load_state_dict(enabled.state_dict())
    back = GradScaler("cpu")
    back.load_state_dict(disabled.state_dict())
    assert back.get_scale() == 256.0


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("clone", [copy.deepcopy, lambda scaler: pickle.loads(pickle.dumps(scaler))])
def test_scaler_is_copied_and_pickled_with_its_state(clone: Any, used: bool) -> None:
    """A copy scales as the original does, before and after the first use."""
    scaler = GradScaler("cpu", init_scale=8.0, growth_interval=3)
    if used:
        scaler.scale(torch.ones(()))
    twin = clone(scaler)
    assert scaler.state_dict() == twin.state_dict()
    assert twin.scale(torch.ones(())).item() == 8.0


def test_scaler_scales_nested_outputs() -> None:
    """Lists and tuples of tensors are scaled and keep their type."""
    scaler = GradScaler("cpu", init_scale=2.0)
    one = torch.ones(())
    scaled = scaler.scale([one, (one, one)])  # type: ignore[list-item]
    assert (2.0, tuple, 2.0) == (scaled[0].item(), type(scaled[1]), scaled[1][1].item())


def test_scaler_grows_after_its_interval() -> None:
    """After `growth_interval` good steps in a row the scale doubles, and the count starts again."""
    layer = nn.Linear(1, 1)
    scaler = GradScaler("cpu", init_scale=4.0, growth_interval=2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.0)
    scales = []
    for _ in range(4):
        scaler.scale(layer(torch.ones(1, 1)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    assert scales == [4.0, 8.0, 8.0, 16.0]


def test_update_takes_a_new_scale() -> None:
    """A scale given by hand is taken, as a number or a tensor."""
    scaler = GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.ones(()))
    scaler.update(2.0)
    assert scaler.get_scale() == 2.0
    scaler.update(torch.tensor(16.0))
    assert scaler.get_scale() == 16.0


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("unscale_first", [True, False])
@pytest.mark.parametrize("name", ["AdamW", "Adam", "SGD", "Adagrad"])
def test_skipped_step_changes_nothing(name: str, fused: bool, unscale_first: bool) -> None:
    """After inf in a gradient, weights, moments and step counts are bit-equal, fused or not."""
    layer = nn.Linear(3, 2)
    extra = {"momentum": 0.9} if name == "SGD" else {}
    optimizer = getattr(optim, name)(layer.parameters(), lr=0.1, fused=fused, **extra)
    scaler = GradScaler("cpu")

    def train(factor: float) -> Any:
        optimizer.zero_grad()
        scaler.scale(layer(torch.ones(1, 3)).sum() * factor).backward()
        if unscale_first:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        return copy.deepcopy((layer.state_dict(), optimizer.state_dict()["state"]))

    before, after = train(1.0), train(torch.inf)
    assert torch.equal(before[0]["weight"], after[0]["weight"])
    for index, state in before[1].items():
        for key, value in state.items():
            assert value is None or torch.equal(value, after[1][index][key]), key
    assert not torch.equal(after[0]["weight"], train(1.0)[0]["weight"])


@pytest.mark.parametrize("fused", [True, False])
def test_scaled_training_equals_plain_training(fused: bool) -> None:
    """Scaling by a power of two changes no bit of fp32 training, whoever unscales."""
    weights = []
    for scaler in (GradScaler("cpu"), GradScaler("cpu", enabled=False)):
        torch.manual_seed(1)
        layer = nn.Linear(4, 2)
        optimizer = optim.SGD(layer.parameters(), lr=0.1, momentum=0.9, fused=fused)
        for _ in range(5):
            optimizer.zero_grad()
            scaler.scale(layer(X).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        weights.append(layer.weight.detach())
    assert torch.equal(*weights)


def test_gradients_are_unscaled_before_clipping() -> None:
    """A norm of 5 clipped to 1 under a scale of 1024 gives a norm of 1, not of 1/1024."""
    weight = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = GradScaler("cpu", init_scale=1024.0)
    scaler.scale((weight * torch.tensor([3.0, 4.0])).sum()).backward()
    scaler.unscale_(optimizer)
    assert nn.utils.clip_grad_norm_([weight], 1.0).item() == 5.0
    scaler.step(optimizer)
    torch.testing.assert_close(weight.detach(), torch.tensor([-0.6, -0.8]), atol=1e-6, rtol=0)


def test_gradient_penalty_works_with_scaled_gradients() -> None:
    """Gradients of gradients: scale the outer loss, unscale what autograd.grad gives."""
    layer, scaler = nn.Linear(2, 1), GradScaler("cpu", init_scale=64.0)
    x = torch.ones(1, 2, requires_grad=True)
    loss = layer(x).square().sum()
    (scaled,) = torch.autograd.grad(scaler.scale(loss), x, create_graph=True)
    grad = scaled / scaler.get_scale()
    (plain,) = torch.autograd.grad(loss, x, retain_graph=True)
    assert torch.equal(plain, grad.detach())
    scaler.scale(grad.norm()).backward()
    assert layer.weight.grad is not None


def test_one_bad_loss_of_two_backs_off_once_and_skips_only_its_optimizer() -> None:
    """With two optimizers, inf in one leaves the other's step alone and halves the scale once."""
    layers = [nn.Linear(1, 1), nn.Linear(1, 1)]
    optimizers = [torch.optim.SGD(layer.parameters(), lr=1.0) for layer in layers]
    scaler = GradScaler("cpu", init_scale=8.0)
    before = [layer.bias.item() for layer in layers]
    for layer, factor in zip(layers, (1.0, torch.inf), strict=True):
        scaler.scale(layer(torch.ones(1, 1)).sum() * factor).backward()
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    assert [before[0] - 1.0, before[1]] == [layer.bias.item() for layer in layers]
    assert scaler.get_scale() == 4.0


def test_unscaling_half_gradients_is_refused() -> None:
    """fp16 gradients would lose what the scale saved: torch's refusal stays."""
    weight = nn.Parameter(torch.ones(2, dtype=torch.float16))
    scaler = GradScaler("cpu")
    scaler.scale(weight.sum()).backward()
    with pytest.raises(ValueError, match="FP16 gradients"):
        scaler.unscale_(torch.optim.SGD([weight]))
