"""Settings of an exact run, and how a trainer is built from them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR, AveragedModel
from torch.utils.data import DataLoader, Subset, SubsetRandomSampler, WeightedRandomSampler

from lucid import Callback, TrainConfig, Trainer
from lucid import optim as lucid_optim

from .parts import Backwards, Log, Net, Ragged, Rows, Stream

SAMPLERS = ("shuffle", "in order", "weighted", "subset", "subset sampler", "own", "batch sampler", "stream")
SCHEDULES = (
    "none", "step", "cosine", "one-cycle", "plateau", "sequential", "warm restarts", "cyclic", "lambda", "swa",
    "exponential", "polynomial", "chained", "lucid cosine",
)  # fmt: skip
OPTIMIZERS = ("sgd", "adamw", "adamw fused", "lucid adamw", "two", "added group", "rmsprop", "adagrad", "wide")


@dataclass(frozen=True)
class Settings:
    """One combination of everything that must not matter to a break."""

    rows: int = 22
    batch_size: int = 3
    accumulation: int = 1
    epochs: int = 3
    drop_last: bool = False
    sampler: str = "shuffle"
    workers: int = 0
    persistent: bool = False
    prefetch: int | None = None
    noisy: bool = True
    norm: bool = True
    schedule: str = "one-cycle"
    optimizer: str = "adamw"
    precision: str = "fp32"
    ema: float | None = None
    swa: bool = False
    patience: int = 0
    clip: float | None = 1.0
    log_every: Any = 2
    eval_every: Any = 3
    save_every: Any = 1
    poison: tuple[int, ...] = ()
    max_steps: int | None = None


class Averaged(Callback):
    """Stochastic weight averaging with torch's own class, as a user would attach it."""

    def __init__(self, net: nn.Module) -> None:
        self.average = AveragedModel(net)

    def on_step_end(self, state: Any) -> None:
        if state.step % 2 == 0:
            self.average.update_parameters(state.model)

    def state_dict(self) -> dict[str, Any]:
        return dict(self.average.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.average.load_state_dict(state)


class AddsGroup(Callback):
    """Adds the head to the optimizer after step 4, and again before a later checkpoint is loaded."""

    def __init__(self, net: Net, optimizer: torch.optim.Optimizer) -> None:
        self.net, self.optimizer, self.added = net, optimizer, False

    def _add(self) -> None:
        self.net.head.requires_grad_(True)
        self.optimizer.add_param_group({"params": list(self.net.head.parameters()), "lr": 0.02})
        self.added = True

    def on_step_end(self, state: Any) -> None:
        if state.step == 4 and not self.added:
            self._add()

    def state_dict(self) -> dict[str, Any]:
        return {"added": self.added}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["added"]:
            self._add()


class Wide(torch.optim.Optimizer):
    """SGD whose state has other dtypes than its parameters: float64 momentum, an int64 count, a bool mask."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p, dtype=torch.float64)
                    state["count"] = torch.zeros((), dtype=torch.int64)
                    state["mask"] = torch.zeros_like(p, dtype=torch.bool)
                state["count"] += 1
                state["momentum"].mul_(0.9).add_(p.grad.double() / int(state["count"]))
                state["mask"] = state["momentum"] > 0
                p.add_(state["momentum"].float() * state["mask"], alpha=-group["lr"])


class Built:
    """A trainer, its loaders and its log."""

    def __init__(self, settings: Settings, run_dir: Path | None, extra: tuple[Any, ...] = (), **changes: Any) -> None:
        self.settings = s = settings
        with torch.random.fork_rng():
            self.net = Net(s.norm)
        self.net.poison = set(s.poison)
        self.log = Log(self.net)
        callbacks: list[Any] = [*extra, self.log]
        self.optimizers = _optimizers(s, self.net, callbacks)
        if s.swa:
            callbacks.insert(0, Averaged(self.net))
        self.loader = _loader(s)
        rows = Rows(7, noisy=s.noisy)
        options = {
            "epochs": s.epochs, "gradient_accumulation_steps": s.accumulation, "log_every": s.log_every,
            "eval_every": s.eval_every, "save_every": s.save_every, "precision": s.precision, "seed": 5,
            "patience": s.patience, "ema_decay": s.ema, "max_grad_norm": s.clip, "device": "cpu",
            "max_steps": s.max_steps,
        }  # fmt: skip
        self.eval_loader = DataLoader(rows, batch_size=3, shuffle=True)
        self.trainer = Trainer(
            self.net, self.optimizers, loss=nn.functional.cross_entropy, scheduler=_schedule(s),
            metrics={"accuracy": lambda output, target: (output.argmax(1) == target).float().mean()},
            callbacks=callbacks, config=TrainConfig(**{**options, **changes}), run_dir=run_dir, reports=(),
        )  # fmt: skip

    def fit(self) -> Any:
        return self.trainer.fit(self.loader, self.eval_loader)


def _optimizers(s: Settings, net: Net, callbacks: list[Any]) -> list[torch.optim.Optimizer]:
    params, kind = list(net.parameters()), s.optimizer
    if kind == "two":
        body, head = list(net.body.parameters()), list(net.head.parameters())
        return [torch.optim.AdamW(body, lr=0.02), torch.optim.SGD(head, lr=0.05, momentum=0.9)]
    if kind == "added group":
        net.head.requires_grad_(False)
        optimizer = torch.optim.SGD(net.body.parameters(), lr=0.05, momentum=0.9)
        callbacks.insert(0, AddsGroup(net, optimizer))
        return [optimizer]
    make: dict[str, Any] = {
        "sgd": lambda: torch.optim.SGD(params, lr=0.05, momentum=0.9, nesterov=True),
        "adamw": lambda: torch.optim.AdamW(params, lr=0.02, amsgrad=True, fused=False),
        "adamw fused": lambda: torch.optim.AdamW(params, lr=0.02, fused=True),
        "lucid adamw": lambda: lucid_optim.AdamW(params, lr=0.02),
        "rmsprop": lambda: torch.optim.RMSprop(params, lr=0.01, momentum=0.5, centered=True),
        "adagrad": lambda: torch.optim.Adagrad(params, lr=0.05),
        "wide": lambda: Wide(params, lr=0.02),
    }
    return [make[kind]()]


def _schedule(s: Settings) -> Any:
    kind = s.schedule
    if kind == "none":
        return None
    if kind == "lucid cosine":
        return lambda opt, total: lucid_optim.schedules.build("warmup_cosine", opt, total, warmup_steps=min(3, total))
    moves_momentum = s.optimizer in ("sgd",)
    make: dict[str, Any] = {
        "step": lambda opt, total: lr_scheduler.StepLR(opt, 3, 0.5),
        "cosine": lambda opt, total: lr_scheduler.CosineAnnealingLR(opt, total),
        "one-cycle": lambda opt, total: lr_scheduler.OneCycleLR(
            opt, max_lr=0.05, total_steps=total + 1, cycle_momentum=moves_momentum
        ),
        "plateau": lambda opt, total: lr_scheduler.ReduceLROnPlateau(opt, patience=0, factor=0.5, threshold=0.1),
        "sequential": lambda opt, total: lr_scheduler.SequentialLR(
            opt, [lr_scheduler.LinearLR(opt, 0.1, total_iters=5), lr_scheduler.CosineAnnealingLR(opt, 15)], [5]
        ),
        "warm restarts": lambda opt, total: lr_scheduler.CosineAnnealingWarmRestarts(opt, 4, 2),
        "cyclic": lambda opt, total: lr_scheduler.CyclicLR(
            opt, 0.001, 0.05, step_size_up=3, mode="triangular2", cycle_momentum=moves_momentum
        ),
        "lambda": lambda opt, total: lr_scheduler.LambdaLR(opt, lambda step: 0.9**step),
        "swa": lambda opt, total: SWALR(opt, swa_lr=0.01, anneal_epochs=4),
        "exponential": lambda opt, total: lr_scheduler.ExponentialLR(opt, 0.9),
        "polynomial": lambda opt, total: lr_scheduler.PolynomialLR(opt, total, 2.0),
        "chained": lambda opt, total: lr_scheduler.ChainedScheduler(
            [lr_scheduler.ConstantLR(opt, 0.5, 4), lr_scheduler.ExponentialLR(opt, 0.95)], optimizer=opt
        ),
    }

    def build(optimizer: torch.optim.Optimizer, total: int) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return make[kind](optimizer, total)

    return build


def _loader(s: Settings) -> Any:
    data: Any = Rows(s.rows, s.noisy)
    options: dict[str, Any] = {"num_workers": s.workers}
    if s.workers:
        options |= {"persistent_workers": s.persistent, "prefetch_factor": s.prefetch}
    if s.sampler == "stream":
        return DataLoader(Stream(s.rows), batch_size=s.batch_size, drop_last=s.drop_last)
    if s.sampler == "batch sampler":
        return DataLoader(data, batch_sampler=Ragged(s.rows), **options)
    if s.sampler == "subset":
        data = Subset(data, list(range(0, s.rows, 2)))
    sampler: Any = {
        "weighted": lambda: WeightedRandomSampler([1.0 + i % 3 for i in range(s.rows)], s.rows),
        "subset sampler": lambda: SubsetRandomSampler(list(range(1, s.rows))),
        "own": lambda: Backwards(s.rows),
    }.get(s.sampler, lambda: None)()
    shuffle = s.sampler in ("shuffle", "subset")
    return DataLoader(
        data, s.batch_size, shuffle=shuffle or None, sampler=sampler, drop_last=s.drop_last, **options
    )  # fmt: skip
