"""Metrics are sums and counts: exact on any split into batches, read once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lucid import metrics
from lucid.errors import ConfigError, DataError
from lucid.metrics import MetricSet


class Mean:
    """A metric in the way of torchmetrics."""

    def __init__(self) -> None:
        self.reset()

    def update(self, output: torch.Tensor, target: torch.Tensor) -> None:
        self.total += float(output.sum())
        self.count += len(output)

    def compute(self) -> torch.Tensor:
        return torch.tensor(self.total / self.count)

    def reset(self) -> None:
        self.total, self.count = 0.0, 0


FORMS: dict[str, Any] = {
    "rows": lambda output, target: output,
    "mean": lambda output, target: output.mean(),
    "number": lambda output, target: float(output.mean()),
    "sum and count": lambda output, target: (output.sum(), len(output)),
    "numbers": lambda output, target: (float(output.sum()), float(len(output))),
    "tensors": lambda output, target: (output.sum(), torch.tensor(len(output))),
    "object": Mean(),
}


@pytest.mark.parametrize("form", FORMS)
def test_one_row_of_two_and_nine_of_ten_give_nine_point_two(form: str) -> None:
    """In every form a metric may have, rows count, not batches: (2, 1) and (90, 9) give 9.2."""
    values = MetricSet({"score": FORMS[form]})
    values.reset()
    values.update(torch.full((1,), 2.0), torch.zeros(1))
    values.update(torch.full((9,), 10.0), torch.zeros(9))
    assert values.compute() == {"score": pytest.approx(9.2, abs=1e-6)}
    values.reset()
    values.update(torch.full((3,), 5.0), torch.zeros(3))
    assert values.compute() == {"score": 5.0}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 2**31))
def test_any_split_gives_the_value_of_one_batch(sizes: list[int], seed: int) -> None:
    """Property: accuracy, top-k, errors and R2 do not depend on how rows are split into batches."""
    torch.manual_seed(seed)
    total = sum(sizes)
    logits, classes = torch.randn(total, 4), torch.randint(0, 4, (total,))
    x, y = torch.randn(total, 1) + 100, torch.randn(total, 1) + 100
    for named, output, target in (
        ({"accuracy": metrics.accuracy, "top2": metrics.top_k(2)}, logits, classes),
        ({"mae": metrics.mean_absolute_error, "mse": metrics.mean_squared_error, "r2": metrics.R2()}, x, y),
    ):
        values = MetricSet(named)
        values.update(output, target)
        whole = values.compute()
        values.reset()
        for part, other in zip(output.split(sizes), target.split(sizes), strict=True):
            values.update(part, other)
        assert values.compute() == pytest.approx(whole, rel=1e-9, nan_ok=True)


def test_accuracy_counts_rows_and_positions() -> None:
    """One value per row, or per position of a row."""
    output = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]])
    assert metrics.accuracy(output, torch.tensor([1, 1, 1])).tolist() == [1, 0, 1]
    positions = output.T.unsqueeze(0)
    assert metrics.accuracy(positions, torch.tensor([[1, 1, 1]])).tolist() == [1, 0, 1]
    assert metrics.top_k(2)(output, torch.tensor([0, 1, 0])).tolist() == [1, 1, 1]
    assert metrics.top_k(1)(positions, torch.tensor([[1, 1, 1]])).tolist() == [1, 0, 1]


def test_accuracy_is_exact_over_many_rows() -> None:
    """A million ones stay a million: counted in float64, where float32 would stop at 2**24 and lose before."""
    values = MetricSet({"accuracy": lambda output, target: (output.sum() * 0 + 1.0, 1)})
    values._sums["accuracy"] = (torch.tensor(2.0**24, dtype=torch.float64), 2**24)
    values.update(torch.ones(1), torch.ones(1))
    assert values._sums["accuracy"][0].item() == 2**24 + 1


def test_errors_and_r2_agree_with_numpy() -> None:
    """The sums give numpy's values, also far from zero."""
    target, output = torch.randn(50) + 1e4, torch.randn(50) + 1e4
    values = MetricSet({"mae": metrics.mean_absolute_error, "mse": metrics.mean_squared_error, "r2": metrics.R2()})
    for part in range(0, 50, 7):
        values.update(output[part : part + 7], target[part : part + 7])
    y, error = target.double().numpy(), (output - target).double().numpy()
    expected = {
        "mae": np.abs(error).mean(),
        "mse": (error**2).mean(),
        "r2": 1 - (error**2).sum() / ((y - y.mean()) ** 2).sum(),
    }
    assert values.compute() == pytest.approx(expected, rel=1e-6)


def test_r2_keeps_its_digits_far_from_zero() -> None:
    """Where plain sums of squares would have none left, a spread of 1 around 1e9 is still seen."""
    target, noise = torch.randn(50, dtype=torch.float64), torch.randn(50, dtype=torch.float64)
    expected = 1 - noise.square().sum() / (target - target.mean()).square().sum()
    score = metrics.R2()
    for part in range(0, 50, 7):
        far = target[part : part + 7] + 1e9
        score.update(far + noise[part : part + 7], far)
    assert score.compute().item() == pytest.approx(expected.item(), rel=1e-5)


def test_r2_of_a_constant_target_is_nan() -> None:
    """Where nothing varies there is no share of variance: NaN, not an infinite number; the same before any batch."""
    score = metrics.R2()
    assert score.compute().isnan()
    score.update(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 3.0]))
    assert score.compute().isnan()


def test_values_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many metrics and batches, the host reads one tensor, in compute."""
    reads: list[str] = []
    for name in ("item", "tolist", "__float__", "__bool__", "numpy", "cpu"):
        method = getattr(torch.Tensor, name)
        monkeypatch.setattr(
            torch.Tensor, name, lambda t, *a, _n=name, _m=method, **k: (reads.append(_n), _m(t, *a, **k))[1]
        )
    values = MetricSet({"a": metrics.accuracy, "b": metrics.top_k(2), "m": lambda output, target: output.mean()})
    for _ in range(3):
        values.update(torch.randn(4, 3), torch.randint(0, 3, (4,)))
    assert reads == []
    values.compute()
    assert reads == ["tolist"]


def test_metrics_keep_no_graph() -> None:
    """Sums of outputs that need gradients do not hold on to them."""
    values = MetricSet({"m": lambda output, target: output.mean()})
    values.update(torch.ones(2, requires_grad=True), torch.ones(2))
    assert not values._sums["m"][0].requires_grad


def test_nan_shows_as_nan_and_nothing_counted_too() -> None:
    """A NaN among the rows is in the value; without any batch, and with none that counts, the value is NaN."""
    values = MetricSet({"rows": FORMS["rows"], "object": Mean(), "none": lambda output, target: (0.0, 0)})
    assert [str(value) for value in values.compute().values()] == ["nan"] * 3
    values.update(torch.tensor([1.0, torch.nan]), torch.zeros(2))
    computed = values.compute()
    assert list(computed) == ["rows", "object", "none"]
    assert [str(value) for value in computed.values()] == ["nan"] * 3


def test_a_reduction_adds_up_processes() -> None:
    """With the sums and counts of another process added, the value is that of all rows; one may have none."""
    values = MetricSet({"score": FORMS["rows"], "other": FORMS["mean"]})
    values.update(torch.full((1,), 2.0), torch.zeros(1))
    elsewhere = torch.tensor([[90.0, 9.0], [90.0, 9.0]])
    assert values.compute(lambda sums: sums + elsewhere) == {"score": 9.2, "other": 9.2}
    values.reset()
    assert values.compute(lambda sums: sums + elsewhere) == {"score": 10.0, "other": 10.0}


def test_rows_are_found_in_structured_batches() -> None:
    """The mean of a batch weighs as many rows as its target has, whatever container holds it."""
    values = MetricSet({"m": lambda output, target: output["loss"]})
    values.update({"loss": torch.tensor(2.0)}, {"labels": [torch.zeros(1, 5)]})
    values.update({"loss": torch.tensor(10.0)}, {"labels": [torch.zeros(9, 5)]})
    assert values.compute() == {"m": 9.2}


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (torch.ones(2, 3), r"metric 'm' must return one value per row .*got a tensor of shape \(2, 3\)"),
        ("good", r"got a str. Reduce it to one of these"),
        (None, r"got a NoneType"),
        ((torch.ones(2), 2), r"pair of numbers \(sum, count\), got a tensor of shape \(2,\) in it"),
        ((1, 2, 3), r"got a tuple"),
    ],
)
def test_a_metric_that_returns_something_else_is_an_error(returned: Any, text: str) -> None:
    """What is none of the three forms is refused with the metric's name and what came."""
    with pytest.raises(DataError, match=text):
        MetricSet({"m": lambda output, target: returned}).update(torch.ones(2), torch.ones(2))


def test_a_mean_of_unknown_rows_is_an_error() -> None:
    """One number for a batch that has no rows cannot be weighed."""
    with pytest.raises(DataError, match="neither target nor output tells how many rows"):
        MetricSet({"m": lambda output, target: 1.0}).update("a", None)


def test_an_object_must_compute_one_number() -> None:
    """An object with several values is refused by name."""
    several = Mean()
    several.compute = lambda: torch.ones(3)  # type: ignore[method-assign]
    values = MetricSet({"m": several})
    values.update(torch.ones(1), torch.ones(1))
    with pytest.raises(DataError, match=r"metric 'm' must compute one number, got a tensor of shape \(3,\)"):
        values.compute()


@pytest.mark.parametrize(("metric", "text"), [(3, "got a int"), (Mean, "got the class Mean")])
def test_what_is_no_metric_is_an_error(metric: Any, text: str) -> None:
    """Neither a function nor an object with the three methods: refused at set-up; so is a class not yet made."""
    with pytest.raises(ConfigError, match=rf"metric 'm' must be a function .*{text}"):
        MetricSet({"m": metric})


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: metrics.accuracy(torch.ones(2, 3), torch.ones(2, 3)),
            r"class numbers \(N, ...\), got output \(2, 3\)",
        ),
        (lambda: metrics.accuracy(torch.ones(2), torch.ones(2)), r"One logit per row: stack it to two"),
        (lambda: metrics.mean_absolute_error(torch.ones(2, 1), torch.ones(2)), r"got \(2, 1\) and \(2,\)"),
        (lambda: metrics.mean_squared_error(torch.ones(2, 1), torch.ones(2)), r"got \(2, 1\) and \(2,\)"),
        (lambda: metrics.top_k(1)(torch.ones(2, 3), torch.ones(2, 1)), r"top_k\(1\) needs output \(N, C"),
        (lambda: metrics.R2().update(torch.ones(2, 1), torch.ones(2)), r"R2 needs output and target of one shape"),
    ],
)
def test_shapes_that_do_not_fit_are_errors(call: Any, text: str) -> None:
    """Shapes that would broadcast into nonsense are refused with both shapes."""
    with pytest.raises(DataError, match=text):
        call()


def test_top_k_needs_as_many_classes() -> None:
    """More places than classes, or none, is an error."""
    with pytest.raises(ConfigError, match="k of at least 1, got 0"):
        metrics.top_k(0)
    with pytest.raises(ConfigError, match=r"top_k\(5\) needs at least 5 classes, the output has 3"):
        metrics.top_k(5)(torch.ones(2, 3), torch.zeros(2, dtype=torch.long))


def test_modules_among_the_metrics_follow_the_output() -> None:
    """A metric that is a module is moved to the device of the first output."""

    class Module(torch.nn.Module, Mean):
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)
            Mean.__init__(self)
            self.register_buffer("seen", torch.zeros(()))

        def update(self, output: torch.Tensor, target: torch.Tensor) -> None:
            self.count = 1

    module = Module()
    MetricSet({"m": module}).update(torch.ones(2, device="meta"), torch.ones(2, device="meta"))
    assert module.seen.device.type == "meta"


def test_metrics_of_torchmetrics_fit() -> None:
    """A metric of torchmetrics gives its own value, over ragged batches, next to ours; without data it is NaN."""
    torchmetrics = pytest.importorskip("torchmetrics")
    values = MetricSet({"theirs": torchmetrics.Accuracy(task="multiclass", num_classes=4), "ours": metrics.accuracy})
    assert [str(value) for value in values.compute().values()] == ["nan", "nan"]
    output, target = torch.randn(10, 4), torch.randint(0, 4, (10,))
    for rows in (slice(0, 1), slice(1, 10)):
        values.update(output[rows], target[rows])
    assert values.compute()["theirs"] == pytest.approx((output.argmax(1) == target).double().mean().item())
    values.reset()
    values.update(output[:3], target[:3])
    assert values.compute()["ours"] == pytest.approx(metrics.accuracy(output[:3], target[:3]).mean().item())
