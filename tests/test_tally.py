"""A window is one big batch: gradient and loss do not depend on how the rows are split."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from lucid.amp import Precision
from lucid.config import TrainConfig
from lucid.errors import LossError
from lucid.evaluation import evaluate
from lucid.losses import Supervised, UserStep
from lucid.state import Meters, TrainState
from lucid.step import StepResult, TrainStep
from lucid.windows import Window

CLASSES = 5
CUTS = st.lists(st.integers(1, 4), min_size=1, max_size=5)
VALID = st.lists(st.booleans(), min_size=20, max_size=20)


class Net(nn.Module):
    """A small network with a head of several outputs."""

    def __init__(self, outputs: int = CLASSES) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x)))


class HfLike(nn.Module):
    """Returns `.loss` over labels that are not -100, as transformers models do."""

    def __init__(self, shift: bool) -> None:
        super().__init__()
        self.net, self.shift = Net(), shift

    def forward(self, x: Tensor, labels: Tensor) -> Any:
        logits = self.net(x)
        out, wanted = (logits[:, :-1], labels[:, 1:]) if self.shift else (logits, labels)
        return type("Result", (), {"logits": logits, "loss": F.cross_entropy(out.flatten(0, 1), wanted.flatten())})()


class TinyForCausalLM(HfLike):
    """Named as a model that predicts the next token."""

    def __init__(self) -> None:
        super().__init__(shift=True)


class TinyForMaskedLM(HfLike):
    """Named as a model that predicts each token."""

    def __init__(self) -> None:
        super().__init__(shift=False)


def step_on(model: nn.Module, forward: Any, batches: list[Any], precision: str = "fp32") -> StepResult:
    """Do a step that moves nothing; the gradients stay."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    config = TrainConfig(max_grad_norm=None, device="cpu")
    state = TrainState(model, (optimizer,), (), Precision(precision), config, torch.device("cpu"))  # type: ignore[arg-type]
    return TrainStep(forward)(state, Window(batches, 0, 0, True))


def cut(tensors: tuple[Tensor, ...] | dict[str, Tensor], sizes: list[int]) -> list[Any]:
    """Split all tensors into batches of these sizes."""
    total = sum(sizes)
    if isinstance(tensors, dict):
        parts = {name: value[:total].split(sizes) for name, value in tensors.items()}
        return [{name: part[i] for name, part in parts.items()} for i in range(len(sizes))]
    return list(zip(*(value[:total].split(sizes) for value in tensors), strict=True))


def assert_same_as_one_batch(model: nn.Module, make: Callable[[], Any], data: Any, sizes: list[int]) -> None:
    """Loss and gradients of the split window are those of the one big batch to 1e-6, or both are left out."""
    split_model = copy.deepcopy(model)
    whole = step_on(model, make(), cut(data, [sum(sizes)]))
    split = step_on(split_model, make(), cut(data, sizes))
    assert (split.skipped is None) == (whole.skipped is None)
    if whole.skipped:
        return
    assert float(split.loss) == pytest.approx(float(whole.loss), abs=1e-6, rel=1e-6)
    for one, other in zip(model.parameters(), split_model.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-6, atol=1e-6)
    for name, value in (whole.parts or {}).items():
        torch.testing.assert_close((split.parts or {})[name], value, rtol=1e-6, atol=1e-6, equal_nan=True)


def inputs(*shape: int) -> Tensor:
    """Return the same random tensor for a shape in every call."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def class_targets(valid: list[bool], ignore: int = -100) -> Tensor:
    """Return class numbers, ignored where not valid."""
    found = torch.randint(0, CLASSES, (20,), generator=torch.Generator().manual_seed(1))
    return found.where(torch.tensor(valid), ignore)


WEIGHT = torch.tensor([0.1, 0.2, 1.0, 3.0, 0.5])
CLASS_LOSSES = {
    "function": (F.cross_entropy, -100),
    "module": (nn.CrossEntropyLoss(), -100),
    "other index": (nn.CrossEntropyLoss(ignore_index=7), 7),
    "weights": (nn.CrossEntropyLoss(weight=WEIGHT), -100),
    "smoothing": (nn.CrossEntropyLoss(label_smoothing=0.1), -100),
    "weights, smoothing": (nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.3, ignore_index=9), 9),
    "partial": (partial(F.cross_entropy, weight=WEIGHT, ignore_index=6, label_smoothing=0.1), 6),
}


@pytest.mark.parametrize("name", CLASS_LOSSES)
@settings(max_examples=25, deadline=None)
@given(sizes=CUTS, valid=VALID)
def test_cross_entropy_split_anyhow_is_one_big_batch(name: str, sizes: list[int], valid: list[bool]) -> None:
    """Cross-entropy with ignored targets, class weights and smoothing: any split gives the big batch's gradient."""
    loss, ignore = CLASS_LOSSES[name]
    torch.manual_seed(3)
    assert_same_as_one_batch(Net(), lambda: Supervised(loss), (inputs(20, 3), class_targets(valid, ignore)), sizes)


@settings(max_examples=20, deadline=None)
@given(sizes=CUTS)
def test_class_probabilities_split_anyhow_are_one_big_batch(sizes: list[int]) -> None:
    """Cross-entropy against probabilities is a mean over rows, with class weights too."""
    loss = nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.1)
    data = (inputs(20, 3), inputs(20, CLASSES).softmax(1))
    assert_same_as_one_batch(Net(), lambda: Supervised(loss), data, sizes)


ELEMENT_LOSSES = [
    F.mse_loss, F.l1_loss, nn.SmoothL1Loss(), nn.HuberLoss(), F.binary_cross_entropy_with_logits,
    nn.BCEWithLogitsLoss(pos_weight=torch.rand(CLASSES) + 1), lambda a, b: ((a - b) ** 2).mean(),
]  # fmt: skip


@pytest.mark.parametrize("loss", ELEMENT_LOSSES)
@settings(max_examples=15, deadline=None)
@given(sizes=CUTS)
def test_element_losses_split_anyhow_are_one_big_batch(loss: Any, sizes: list[int]) -> None:
    """Squared, absolute and logistic losses, and an unknown mean over rows, split anyhow."""
    assert_same_as_one_batch(Net(), lambda: Supervised(loss), (inputs(20, 3), inputs(20, CLASSES).sigmoid()), sizes)


@pytest.mark.parametrize("kind", [TinyForCausalLM, TinyForMaskedLM])
@settings(max_examples=25, deadline=None)
@given(sizes=CUTS, valid=st.lists(st.booleans(), min_size=80, max_size=80))
def test_a_model_that_returns_its_loss_split_anyhow(kind: Any, sizes: list[int], valid: list[bool]) -> None:
    """Models with `.loss` weigh by the labels that count: all valid ones, or all but each row's first."""
    labels = torch.randint(0, CLASSES, (20, 4), generator=torch.Generator().manual_seed(2))
    labels = labels.where(torch.tensor(valid).view(20, 4), -100)
    torch.manual_seed(3)
    data = {"x": inputs(20, 4, 3), "labels": labels}
    assert_same_as_one_batch(kind(), lambda: Supervised(None), data, sizes)


def sum_and_count(model: nn.Module, batch: Any) -> Any:
    """Sum over valid targets, and how many there are."""
    x, y = batch
    return F.cross_entropy(model(x), y, reduction="sum"), (y != -100).sum()


def dict_of_three(model: nn.Module, batch: Any) -> Any:
    """Two losses over different counts, and one over rows."""
    x, y = batch
    out, valid = model(x), y != -100
    return {
        "classes": (F.cross_entropy(out, y, reduction="sum"), valid.sum()),
        "size": ((out[:, 0] ** 2 * (x[:, 0] > 0)).sum(), int((x[:, 0] > 0).sum())),
        "mean": out.abs().mean(),
    }


def dict_with_loss(model: nn.Module, batch: Any) -> Any:
    """One loss to minimise, another that is only logged over its own count."""
    x, y = batch
    out, valid = model(x), y != -100
    return {"loss": out.square().mean(), "seen": (valid.sum() * 3.0, valid.sum())}


@pytest.mark.parametrize("function", [sum_and_count, dict_of_three, dict_with_loss])
@settings(max_examples=40, deadline=None)
@given(sizes=CUTS, valid=VALID)
def test_a_users_losses_split_anyhow(function: Any, sizes: list[int], valid: list[bool]) -> None:
    """(sum, count), and dicts of several with counts of their own: each has one denominator per window."""
    torch.manual_seed(3)
    assert_same_as_one_batch(Net(), lambda: UserStep(function), (inputs(20, 3), class_targets(valid)), sizes)


@pytest.mark.parametrize("sizes", [[4], [2, 2], [1, 3]])
@pytest.mark.parametrize("function", [None, sum_and_count])
def test_a_window_without_targets_makes_no_update(sizes: list[int], function: Any) -> None:
    """All targets ignored: the step is left out and says why, whether the loss gives NaN or counts to 0."""
    forward = UserStep(function) if function else Supervised(F.cross_entropy)
    model = Net()
    result = step_on(model, forward, cut((inputs(20, 3), torch.full((20,), -100)), sizes))
    assert result.skipped == "no valid target in the window"
    assert math.isnan(float(result.loss))


def test_a_micro_batch_with_a_zero_int_count_weighs_nothing() -> None:
    """A count of 0 given as a number takes the micro-batch out of the window."""

    def step(model: nn.Module, batch: Any) -> Any:
        out = model(batch[0]).square().sum()
        return out, (0 if float(batch[1][0]) == 0 else len(batch[0]))

    one, other = Net(), Net()
    other.load_state_dict(one.state_dict())
    x = inputs(6, 3)
    step_on(one, UserStep(step), [(x[:3], torch.ones(3))])
    step_on(other, UserStep(step), [(x[3:], torch.zeros(3)), (x[:3], torch.ones(3))])
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-6, atol=1e-6)


def test_parts_that_come_and_go_are_refused() -> None:
    """Parts with counts of their own in the second micro-batch only cannot be weighed."""
    calls: list[int] = []

    def step(model: nn.Module, batch: Any) -> Any:
        calls.append(1)
        out = model(batch[0])
        return out.mean() if len(calls) == 1 else {"a": (out.sum(), 3), "b": (out.abs().sum(), 2)}

    with pytest.raises(LossError, match=r"the same kinds of losses .* got parts with counts of their own \(a, b\)"):
        step_on(Net(), UserStep(step), [(inputs(2, 3),), (inputs(2, 3),)])


@settings(max_examples=15, deadline=None)
@given(sizes=CUTS, valid=VALID)
def test_an_evaluation_has_one_denominator_per_part(sizes: list[int], valid: list[bool]) -> None:
    """The evaluation's loss of a dict of losses does not depend on its batches."""
    torch.manual_seed(3)
    model, data = Net(), (inputs(20, 3), class_targets([True, *valid[1:]]))
    values = [
        evaluate(model, cut(data, parts), eval_step=UserStep(dict_of_three).evaluate)["eval/loss"]
        for parts in (sizes, [sum(sizes)])
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-6, nan_ok=True)


@pytest.mark.parametrize("limit", [2, 3, 1024])
def test_meters_are_means_over_everything_since_the_last_read(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """Loss and parts weigh by their own counts, empty parts weigh nothing, folding changes nothing."""
    monkeypatch.setattr(Meters, "LIMIT", limit)
    meters = Meters()
    for loss, count, part, number in [
        (1.0, 2, 5.0, 1.0),
        (4.0, 6, math.nan, 0.0),
        (2.0, 2, 7.0, 3.0),
        (0.0, 2, 1.0, 4.0),
    ]:
        parts = {"part": torch.tensor([part, number], dtype=torch.float64)}
        meters.add(torch.tensor(loss), torch.tensor(loss), count, parts)
    assert meters.read() == {
        "train/loss": pytest.approx((2 + 24 + 4) / 12), "train/grad_norm": pytest.approx(7 / 4),
        "train/part": pytest.approx((5 + 21 + 4) / 8),
    }  # fmt: skip


def test_norms_are_kept_in_memory_that_was_taken_before() -> None:
    """100 norms stand in two blocks: none stays where it was made, in the middle of what activations have just left."""
    meters = Meters()
    for step in range(100):
        meters.add(torch.tensor(0.0), torch.tensor(float(step)), 1, None)
    assert len({norm.untyped_storage().data_ptr() for norm in meters.norms}) == 2
    assert meters.read()["train/grad_norm"] == 99 / 2


def test_a_state_of_the_meters_does_not_change_with_them() -> None:
    """What `state_dict` gave stays as it was when the memory of the norms is used again, and loads into new meters."""
    meters, other = Meters(), Meters()
    for norm in (1.0, 2.0):
        meters.add(torch.tensor(0.0), torch.tensor(norm), 1, None)
    state = meters.state_dict()
    meters.read()
    for _ in range(3):
        meters.add(torch.tensor(0.0), torch.tensor(9.0), 1, None)
    other.load_state_dict(state)
    other.add(torch.tensor(0.0), torch.tensor(6.0), 1, None)
    assert other.read()["train/grad_norm"] == 3.0


def test_apart_under_a_scaler_gives_the_fp32_gradient() -> None:
    """Losses kept apart are scaled and unscaled like any other."""
    data, one, other = (inputs(20, 3), class_targets([True, False] * 10)), Net(), Net()
    other.load_state_dict(one.state_dict())
    step_on(one, UserStep(dict_of_three), cut(data, [5, 3, 2]))
    scaled = Precision("fp16")
    scaled._context = Precision("fp32").autocast()  # the scaler alone: forward in fp32
    optimizer = torch.optim.SGD(other.parameters(), lr=0.0)
    config = TrainConfig(max_grad_norm=None, device="cpu")
    state = TrainState(other, (optimizer,), (), scaled, config, torch.device("cpu"))
    TrainStep(UserStep(dict_of_three))(state, Window(cut(data, [5, 3, 2]), 0, 0, True))
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-6, atol=1e-6)
