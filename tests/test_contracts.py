"""Every optimizer and every schedule of torch trains through the trainer, and a broken run has the same bits."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import lr_scheduler as ls
from torch.utils.data import DataLoader, TensorDataset

import lucid

OPTIMIZERS = sorted(
    name for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
)  # fmt: skip
OURS = ["AdamW", "Adam", "SGD", "Adagrad"]

SCHEDULES: dict[str, Callable[[Any, int], Any]] = {
    "ChainedScheduler": lambda o, n: ls.ChainedScheduler([ls.ConstantLR(o, 0.5, 3), ls.ExponentialLR(o, 0.9)]),
    "ConstantLR": lambda o, n: ls.ConstantLR(o, 0.5, 4),
    "CosineAnnealingLR": lambda o, n: ls.CosineAnnealingLR(o, n),
    "CosineAnnealingWarmRestarts": lambda o, n: ls.CosineAnnealingWarmRestarts(o, 3, 2),
    "CyclicLR": lambda o, n: ls.CyclicLR(o, 0.001, 0.02, step_size_up=3, cycle_momentum=False),
    "ExponentialLR": lambda o, n: ls.ExponentialLR(o, 0.9),
    "LambdaLR": lambda o, n: ls.LambdaLR(o, lambda step: 1 / (1 + step)),
    "LinearLR": lambda o, n: ls.LinearLR(o, total_iters=n),
    "MultiStepLR": lambda o, n: ls.MultiStepLR(o, [2, 5], 0.3),
    "MultiplicativeLR": lambda o, n: ls.MultiplicativeLR(o, lambda step: 0.95),
    "OneCycleLR": lambda o, n: ls.OneCycleLR(o, 0.02, total_steps=n + 1),
    "PolynomialLR": lambda o, n: ls.PolynomialLR(o, n, 2.0),
    "ReduceLROnPlateau": lambda o, n: ls.ReduceLROnPlateau(o, factor=0.5, patience=0, threshold=0.5),
    "SequentialLR": lambda o, n: ls.SequentialLR(o, [ls.LinearLR(o, 0.1, 1.0, 3), ls.CosineAnnealingLR(o, n - 3)], [3]),
    "StepLR": lambda o, n: ls.StepLR(o, 2, 0.5),
    "lucid warmup_cosine": lambda o, n: lucid.optim.lr_scheduler.warmup_cosine(o, 2, n),
    "lucid weight decay": lambda o, n: lucid.optim.lr_scheduler.Schedule(
        o, lucid.optim.schedules.make("warmup_cosine", n, warmup_steps=2),
        others={"weight_decay": lucid.optim.schedules.make("warmup_linear", n, warmup_steps=1)},
    ),
    "momentum of one-cycle": lambda o, n: ls.OneCycleLR(o, 0.02, total_steps=n + 1, cycle_momentum=True),
}  # fmt: skip
SWALR = "SWALR"


def loaders(sparse: bool = False) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Return training and evaluation data."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(0, 9, (24, 3), generator=generator) if sparse else torch.randn(24, 3, generator=generator)
    rows = TensorDataset(x, x.float().sum(1, keepdim=True))
    return DataLoader(rows, batch_size=4, shuffle=True), DataLoader(rows, batch_size=12)


class Table(nn.Module):
    """A sparse embedding as a regression."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(9, 1, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x)


class Trace(lucid.Callback):
    """Keeps what each step used, and may interrupt the run."""

    def __init__(self, stop: int = 0) -> None:
        self.stop, self.values = stop, []  # type: ignore[var-annotated]

    def on_step_end(self, state: Any) -> None:
        self.values.append((state.step, state.lr(), float(state.optimizers[0].param_groups[0].get("weight_decay", 0))))
        if state.step == self.stop:
            state.interrupt = "max_time"


def train(folder: Path | None, optimizer: str, schedule: Any = None, stop: int = 0, **options: Any) -> Any:
    """Train 2 epochs of 6 steps; return (bits of weights and optimizer, trace)."""
    torch.manual_seed(0)
    sparse = optimizer == "SparseAdam"
    hidden = nn.Linear(3, 8, bias=optimizer != "Muon")
    model: nn.Module = Table() if sparse else nn.Sequential(
        hidden, nn.Dropout(0.2), nn.Tanh(), nn.Linear(8, 1, bias=optimizer != "Muon")
    )  # fmt: skip
    kind = getattr(lucid.optim if options.pop("ours", False) else torch.optim, optimizer)
    lr = options.pop("lr", 0.01)
    lr = lr.clone() if isinstance(lr, Tensor) else lr  # schedules move it in place
    made = kind(list(model.parameters()), lr=lr, **options.pop("made_with", {}))
    trace = Trace(stop)
    config = lucid.TrainConfig(**{"epochs": 2, "device": "cpu", "save_every": 0, "eval_every": 3, "changes": "accept",
                                  "precision": "fp32", **options})  # fmt: skip
    trainer = lucid.Trainer(
        model, made, loss=F.mse_loss, scheduler=schedule, config=config, run_dir=folder, reports=(), callbacks=[trace]
    )
    data = loaders(sparse)
    if stop:
        with pytest.raises(SystemExit):
            trainer.fit(*data)
        return None, trace.values
    trainer.fit(*data)
    return repr([_bits(model.state_dict()), _bits(made.state_dict())]), trace.values


def _bits(value: Any) -> Any:
    if isinstance(value, Tensor):
        return (str(value.dtype), value.detach().double().tolist())
    if isinstance(value, dict):
        return {name: _bits(item) for name, item in value.items()}
    return [_bits(item) for item in value] if isinstance(value, list | tuple) else value


def assert_exact(folder: Path, stops: tuple[int, ...], *arguments: Any, **options: Any) -> list[Any]:
    """A run broken after each of these steps has the bits and the trace of the unbroken one; return that."""
    whole, trace = train(None, *arguments, **options)
    for stop in stops:
        _, first = train(folder / str(stop), *arguments, stop=stop, **options)
        end, second = train(folder / str(stop), *arguments, **options)
        assert first + second == trace
        assert end == whole
    return trace


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_of_torch_resumes_exactly(tmp_path: Path, name: str) -> None:
    """Weights, moments (values and dtypes) and steps of the broken run are those of the unbroken one."""
    trace = assert_exact(tmp_path, (1, 7), name)
    assert [step for step, *_ in trace] == list(range(1, 13))


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {"amsgrad": True}])
@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_variants_of_adam_resume_exactly(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    """Fused, foreach and AMSGrad."""
    assert_exact(tmp_path, (5,), name, made_with=options)


@pytest.mark.parametrize("name", OURS)
def test_our_optimizers_have_torchs_fused_bits(tmp_path: Path, name: str) -> None:
    """The chosen kernel is torch's fused one, exactly, and resumes exactly."""
    assert_exact(tmp_path, (5,), name, ours=True)
    ours, _ = train(None, name, ours=True)
    fused, _ = train(None, name, made_with={"fused": True})
    assert ours.split("'param_groups'")[0] == fused.split("'param_groups'")[0]


def test_every_schedule_of_torch_is_here() -> None:
    """A schedule that torch adds must get its case."""
    kinds = {
        name for name, kind in vars(ls).items()
        if inspect.isclass(kind) and issubclass(kind, ls.LRScheduler) and not name.startswith("_")
    }  # fmt: skip
    assert kinds - {"LRScheduler"} - set(SCHEDULES) == set()


@pytest.mark.parametrize("tensor_lr", [False, True])
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_resumes_exactly(tmp_path: Path, name: str, tensor_lr: bool) -> None:
    """Learning rates, weight decay and weights over a break at 3 (a milestone) and 6 (the end of an epoch)."""
    kind, options = "AdamW", {}
    if name == "momentum of one-cycle":
        kind, options = "SGD", {"momentum": 0.9}
    lr: Any = torch.tensor(0.01) if tensor_lr else 0.01
    if tensor_lr and kind == "AdamW":
        options = {"capturable": False, "foreach": False}
    trace = assert_exact(tmp_path, (3, 6), kind, SCHEDULES[name], made_with=options, lr=lr)
    assert len({lr for _, lr, _ in trace}) > 1 or name == "lucid weight decay"


def test_swalr_resumes_exactly(tmp_path: Path) -> None:
    """The schedule of stochastic weight averaging."""
    assert_exact(tmp_path, (1, 6), "SGD", lambda o, n: torch.optim.swa_utils.SWALR(o, 0.05, anneal_epochs=4))


def test_a_schedule_of_weight_decay_moves_it(tmp_path: Path) -> None:
    """Weight decay follows its own curve beside the learning rate."""
    _, trace = train(None, "AdamW", SCHEDULES["lucid weight decay"], made_with={"weight_decay": 0.1})
    decays = [decay for *_, decay in trace]
    assert len(set(decays)) > 3
    assert decays[-1] < decays[1]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_precisions_resume_exactly(tmp_path: Path, precision: str) -> None:
    """Under autocast, with and without a scaler."""
    assert_exact(tmp_path, (1, 5), "AdamW", SCHEDULES["OneCycleLR"], precision=precision)
