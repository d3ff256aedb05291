"""The order of a step in every precision: scale, backward, unscale once, clip once, step or nothing, schedule."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import lucid
from lucid.amp import GradScaler, Precision
from lucid.errors import ConfigError, PrecisionError


class Dot(nn.Module):
    """`x @ w`: the gradient of the mean over rows is the mean of the inputs."""

    def __init__(self, size: int = 2) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


def mean_of_output(output: Tensor, target: Tensor) -> Tensor:
    """A loss linear in the output."""
    return output.float().mean()


class Watch(lucid.Callback):
    """Keeps norms, gradients, weights and the learning rate of each step."""

    def __init__(self) -> None:
        self.gradients: list[list[float]] = []
        self.weights: list[list[float]] = []
        self.lrs: list[float] = []

    def on_step_end(self, state: Any) -> None:
        first = next(state.model.parameters())
        self.gradients.append([] if first.grad is None else first.grad.to_dense().flatten().tolist())
        self.weights.append(first.detach().flatten().tolist())
        self.lrs.append(state.lr())


def run(model: nn.Module, data: Any, optimizer: Any = None, loss: Any = mean_of_output, **options: Any) -> Any:
    """Train silently on the CPU; return (trainer, watch)."""
    watch = Watch()
    precision = options.pop("precision_object", None)
    names = ("run_dir", "scheduler", "train_step")
    given = {name: options.pop(name) for name in names if name in options}
    config = lucid.TrainConfig(**{"epochs": 1, "device": "cpu", "log_every": 1, "max_grad_norm": None, **options})
    given.setdefault("loss", None if "train_step" in given else loss)
    trainer = lucid.Trainer(
        model, optimizer or torch.optim.SGD(model.parameters(), lr=0.1), config=config, reports=(), callbacks=[watch],
        **given,
    )  # fmt: skip
    if precision is not None:
        trainer.precision = precision
    trainer.fit(data)
    return trainer, watch


def batches(*inputs: list[float]) -> list[Any]:
    """Return micro-batches of one row each."""
    return [(torch.tensor([x]), torch.zeros(1)) for x in inputs]


def logged(folder: Path, name: str) -> list[float]:
    """Return a value of every log record."""
    lines = map(json.loads, (folder / "records.jsonl").read_text().splitlines())
    return [record["values"][name] for record in lines if record["kind"] == "log"]


FIVE = ([8.0, 0.0], [0.0, 6.0], [3.0, 4.0])  # windows of 2: mean (4, 3), then (3, 4): norm 5 both


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_clip_sees_the_true_gradient_once_per_window(tmp_path: Path, precision: str) -> None:
    """Norm 5 is logged unscaled and before the clip; the step sees norm 1; the weights are those of plain fp32."""
    norms: list[float] = []
    model = Dot()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: norms.append(float(model.w.grad.norm())))  # type: ignore[union-attr]
    scaled = Precision("fp16", scaler=GradScaler("cpu", init_scale=2.0**10)) if precision == "fp16" else None
    run(model, batches(*FIVE), optimizer, gradient_accumulation_steps=2, max_grad_norm=1.0, epochs=3, run_dir=tmp_path,
        precision=precision, precision_object=scaled)  # fmt: skip
    assert logged(tmp_path, "train/grad_norm") == [5.0] * 6
    assert norms == pytest.approx([1.0] * 6, abs=1e-6)
    expected = torch.ones(2)
    for _ in range(3):
        expected -= 0.1 * (torch.tensor([4.0, 3.0]) + torch.tensor([3.0, 4.0])) / (5.0 + 1e-6)
    torch.testing.assert_close(model.w.detach(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("how", "expected"), [("value", [1.0, 1.0]), ("norm", [0.8, 0.6]), ("adaptive", [1.1314, 0.8485])]
)
def test_each_way_to_clip_applies_after_unscaling(how: str, expected: list[float]) -> None:
    """By value, by norm, and against the weight's norm (sqrt 2 here), under a scaler."""
    scaled = Precision("fp16", scaler=GradScaler("cpu", init_scale=2.0**10))
    _, watch = run(Dot(), batches([4.0, 3.0]), clip=how, max_grad_norm=1.0, precision="fp16", precision_object=scaled)
    assert watch.gradients[0] == pytest.approx(expected, abs=1e-3)


def test_without_a_limit_the_norm_is_still_reported(tmp_path: Path) -> None:
    """max_grad_norm=None clips nothing."""
    _, watch = run(Dot(), batches([4.0, 3.0]), run_dir=tmp_path)
    assert logged(tmp_path, "train/grad_norm") == [5.0]
    assert watch.gradients == [[4.0, 3.0]]


def test_a_short_last_window_is_the_mean_of_what_it_holds() -> None:
    """5 batches by 2 over 2 epochs: 3 steps per epoch, the third with the gradient of its one batch."""
    data = batches([1.0, 0.0], [3.0, 0.0], [5.0, 0.0], [7.0, 0.0], [9.0, 0.0])
    trainer, watch = run(Dot(), data, gradient_accumulation_steps=2, epochs=2)
    assert [gradient[0] for gradient in watch.gradients] == [2.0, 6.0, 9.0] * 2
    assert trainer.plan(data).total_steps == 6
    assert trainer.plan(data).short_window == 1
    assert trainer.plan(data).notes() == ["the last step of an epoch has 1 of 2 micro-batches and is their mean"]
    assert all(parameter.grad is None for parameter in trainer.model.parameters())


def test_a_window_longer_than_the_epoch_ends_with_it() -> None:
    """3 batches by 4: one step per epoch, the mean over 3, and nothing is carried over."""
    data = batches([1.0, 0.0], [3.0, 0.0], [8.0, 0.0])
    trainer, watch = run(Dot(), data, gradient_accumulation_steps=4, epochs=2)
    assert [gradient[0] for gradient in watch.gradients] == [4.0, 4.0]
    assert trainer.plan(data).notes() == ["every step has 3 micro-batches, not 4: the epoch has no more"]
    assert trainer.plan(data).total_steps == 2


def test_the_logged_loss_is_the_mean_of_all_rows(tmp_path: Path) -> None:
    """Micro-batches of 1 and 3 rows weigh 1 to 3, with a scale as without."""
    data = [(torch.tensor([[4.0, 0.0]]), torch.zeros(1)), (torch.tensor([[8.0, 0.0]] * 3), torch.zeros(3))]
    run(Dot(), data, gradient_accumulation_steps=2, run_dir=tmp_path / "a")
    scaled = Precision("fp16", scaler=GradScaler("cpu", init_scale=2.0**8))
    run(Dot(), data, gradient_accumulation_steps=2, run_dir=tmp_path / "b", precision="fp16", precision_object=scaled)
    assert logged(tmp_path / "a", "train/loss") == [7.0]
    assert logged(tmp_path / "b", "train/loss") == [7.0]


def adam(model: nn.Module, fused: bool) -> torch.optim.Optimizer:
    """Return AdamW, fused or not."""
    return torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused)


@pytest.mark.parametrize("fused", [False, True])
def test_overflow_at_the_first_steps_moves_nothing(fused: bool) -> None:
    """The scaler halves three times; weights, moments and schedule stay, no order warning comes; it is no fault."""
    scaled = Precision("fp16", scaler=GradScaler("cpu", init_scale=2.0**16))
    model = Dot()
    trainer, watch = run(
        model, batches(*[[4.0, 3.0]] * 8), adam(model, fused), precision="fp16", precision_object=scaled,
        scheduler=lambda optimizer, total: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5), non_finite="raise",
    )  # fmt: skip
    skips = sum(weights == [1.0, 1.0] for weights in watch.weights)
    assert skips == 3
    assert watch.lrs[: skips + 2] == [0.1] * skips + [0.05, 0.025]
    state = next(iter(trainer.optimizers[0].state.values()))
    assert float(state["step"]) == 8 - skips


def test_an_idle_second_optimizer_is_no_error() -> None:
    """One optimizer has no gradient in some steps: the other goes on, under a scaler too."""
    for precision in ("fp32", "fp16"):
        model = nn.ModuleDict({"a": nn.Linear(2, 1), "b": nn.Linear(2, 1)})
        optimizers = [torch.optim.AdamW(model[name].parameters(), lr=0.1) for name in ("a", "b")]
        calls: list[int] = []

        def step(model: Any, batch: Any, calls: list[int] = calls) -> Tensor:
            calls.append(1)
            out = model["a"](batch[0])
            return (out + model["b"](batch[0]) if len(calls) % 2 else out).square().mean()

        scaled = Precision("fp16", scaler=GradScaler("cpu", init_scale=2.0**8)) if precision == "fp16" else None
        trainer, _ = run(model, batches(*[[1.0, 2.0]] * 4), optimizers, train_step=step, precision=precision,
                         precision_object=scaled)  # fmt: skip
        steps = [float(next(iter(optimizer.state.values()))["step"]) for optimizer in trainer.optimizers]
        assert steps == [4.0, 2.0]


def test_a_missing_gradient_leaves_its_parameter_alone() -> None:
    """A parameter that took no part in the step has no gradient, no moment and no decay."""
    model = nn.ModuleDict({"used": nn.Linear(2, 1), "unused": nn.Linear(2, 1)})
    before = model["unused"].weight.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    run(model, batches(*[[1.0, 2.0]] * 3), optimizer, max_grad_norm=1.0,
        train_step=lambda model, batch: model["used"](batch[0]).mean())  # fmt: skip
    assert torch.equal(before, model["unused"].weight)
    assert model["unused"].weight not in optimizer.state


class Words(nn.Module):
    """Sparse embeddings, averaged."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(10, 3, sparse=sparse, mode="sum")

    def forward(self, rows: Tensor) -> Tensor:
        return self.table(rows)


@pytest.mark.parametrize("settings", [{}, {"max_grad_norm": 0.5}, {"max_grad_norm": 0.1, "clip": "value"}])
def test_sparse_gradients_train_like_dense_ones(settings: dict[str, Any]) -> None:
    """Norm, clip and windows of unequal size give sparse gradients the dense ones' weights."""
    rows = torch.randint(0, 10, (14, 4))
    data = [(part, torch.zeros(len(part), 3)) for part in rows.split([4, 2, 4, 4])]
    weights = []
    for sparse in (True, False):
        torch.manual_seed(0)
        model = Words(sparse)
        run(
            model,
            data,
            torch.optim.SGD(model.parameters(), lr=0.5),
            F.mse_loss,
            gradient_accumulation_steps=2,
            **settings,
        )
        weights.append(model.table.weight.detach())
    torch.testing.assert_close(*weights, rtol=1e-6, atol=1e-6)


def test_nan_in_a_sparse_gradient_is_found() -> None:
    """SparseAdam: the step is left out, nothing moves."""
    model = Words(True)
    before = model.table.weight.detach().clone()
    data = [(torch.tensor([[1, 2]]), torch.full((1, 3), math.nan))]
    run(model, data, torch.optim.SparseAdam(list(model.parameters()), lr=0.1), F.mse_loss)
    assert torch.equal(before, model.table.weight)


# -- precision at set-up


def test_half_weights_under_a_scaler_are_refused_by_name() -> None:
    """model.half() with fp16 names the parameters and the cure before any work."""
    with pytest.raises(PrecisionError, match=r"fp32 parameters.*0\.weight.*model\.float\(\)"):
        run(nn.Sequential(nn.Linear(2, 1)).half(), batches([1.0, 2.0]), precision="fp16")


def test_bf16_has_no_scaler() -> None:
    """bf16 needs none, and its state holds none."""
    trainer, _ = run(Dot(), batches([1.0, 2.0]), precision="bf16")
    assert trainer.precision.scaler is None
    assert trainer.precision.state_dict()["scaler"] == {}


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a device that is not there")
def test_a_device_that_is_not_there_is_refused() -> None:
    """fp16 on a missing GPU is an error, never a silent no-op."""
    with pytest.raises(ConfigError, match="cuda"):
        run(Dot(), batches([1.0, 2.0]), precision="fp16", device="cuda")
    with pytest.raises(PrecisionError, match="cuda"):
        GradScaler("cuda")


def regression(rows: int = 32) -> DataLoader[Any]:
    """Return a small regression in batches of 4."""
    x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)


def fp16_run(folder: Path, precision: str = "fp16", max_steps: int = 8, scale: float = 2.0**10) -> dict[str, Any]:
    """Train to a step; return the precision's state in the newest checkpoint."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    chosen = (
        Precision("fp16", scaler=GradScaler("cpu", init_scale=scale, growth_interval=3))
        if precision == "fp16"
        else None
    )
    run(model, regression(), adam(model, False), F.mse_loss, run_dir=folder, precision=precision, save_every=1,
        epochs=9, max_steps=max_steps, precision_object=chosen, max_skips=500)  # fmt: skip
    newest = max((folder / "checkpoints").glob("step-*.lcs"))
    return lucid.load(newest, select="precision")  # type: ignore[no-any-return]


def test_scale_and_growth_tracker_survive_a_break(tmp_path: Path) -> None:
    """A run continued at any step has the scale and tracker of the unbroken run, after overflows too."""
    for scale in (2.0**10, 2.0**17):
        whole = fp16_run(tmp_path / f"whole-{scale}", scale=scale)
        assert whole["scaler"]["scale"] not in (scale, 64.0)
        for stop in range(1, 8):
            folder = tmp_path / f"{stop}-{scale}"
            fp16_run(folder, max_steps=stop, scale=scale)
            assert fp16_run(folder, scale=64.0) == whole


def test_the_scaler_survives_a_stretch_without_one(tmp_path: Path) -> None:
    """fp16 for 4 steps, fp32 for 4, fp16 again: the scale goes on where it was."""
    before = fp16_run(tmp_path, max_steps=4)
    between = fp16_run(tmp_path, "fp32", max_steps=8)
    assert between["scaler"] == before["scaler"]
    after = fp16_run(tmp_path, max_steps=9, scale=64.0)
    expected = dict(before["scaler"])
    assert after["scaler"]["scale"] in (expected["scale"], 2 * expected["scale"])
    assert (after["scaler"]["_growth_tracker"] - expected["_growth_tracker"]) % 3 == 1


def test_a_checkpoint_before_the_first_update_loads_with_its_scale(tmp_path: Path) -> None:
    """Scale and tracker are in the state of a scaler that never scaled."""
    first = Precision("fp16", scaler=GradScaler("cpu", init_scale=512.0))
    second = Precision("fp16")
    second.load_state_dict(first.state_dict())
    assert second.scaler is not None
    assert second.scaler.get_scale() == 512.0
