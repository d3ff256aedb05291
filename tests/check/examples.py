"""Models, data sets, callbacks and settings: healthy ones, and ones that each break one promise in a way people do."""

from __future__ import annotations

import itertools
import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset

import lucid
from lucid import Callback, TrainConfig, Trainer

GENERATOR = np.random.default_rng(0)
CALLS = [0]


class Rows(Dataset[Any]):
    """40 rows of 4 numbers in 3 classes."""

    def __init__(self, size: int = 40) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(size, 4, generator=generator)
        self.y = torch.randint(0, 3, (size,), generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> Any:
        return self.x[row], self.y[row]


def net(*last: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), *last)


def build(
    model: nn.Module | None = None,
    data: Any = None,
    callbacks: Any = (),
    loss: Any = F.cross_entropy,
    optimizer: Any = None,
    seed: int | None = 0,
    loader: Any = None,
    evaluation: Any = None,
    **options: Any,
) -> Any:
    """Return trainer, training data and evaluation data."""
    if seed is not None:
        lucid.seed_everything(seed)
    trainer_options = {k: options.pop(k) for k in ("train_step", "scheduler", "metrics") if k in options}
    model = net() if model is None else model() if isinstance(model, type) else model
    if seed is not None:  # the same weights in every process
        torch.manual_seed(seed)
        for part in model.modules():
            if isinstance(part, nn.Linear):
                part.reset_parameters()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01) if optimizer is None else optimizer(model)
    config = TrainConfig(**{"epochs": 2, "device": "cpu", **options})
    trainer = Trainer(model, optimizer, loss, callbacks=callbacks, config=config, reports=(), **trainer_options)
    data = Rows() if data is None else data
    return trainer, loader or DataLoader(data, 4, shuffle=True), DataLoader(evaluation or Rows(12), 4)


# -- healthy


def plain() -> Any:
    return build()


class Augmented(Rows):
    def __getitem__(self, row: int) -> Any:
        x, y = super().__getitem__(row)
        return x + 0.1 * torch.randn(4) + float(np.random.rand()) + random.random(), y


def augmented() -> Any:
    return build(data=Augmented(), evaluation=Augmented(12))


def everything() -> Any:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3))
    return build(
        model, ema_decay=0.9, patience=3,
        scheduler=lambda opt, total: torch.optim.lr_scheduler.OneCycleLR(opt, 0.05, total_steps=total + 1),
        metrics={"accuracy": lambda output, target: (output.argmax(1) == target).float().mean()},
    )  # fmt: skip


class Counter(Callback):
    """Counts steps, and says so to the checkpoint."""

    def __init__(self) -> None:
        self.count = 0

    def on_step_end(self, state: Any) -> None:
        self.count += 1

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def counting() -> Any:
    return build(callbacks=[Counter()])


def with_workers() -> Any:
    return build(loader=DataLoader(Augmented(), 4, shuffle=True, num_workers=2))


class Regression(Dataset[Any]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, row: int) -> Any:
        x = torch.tensor([row / 40.0, 1.0])
        return x, x.sum(0, keepdim=True) - 1


def regression() -> Any:
    model = nn.Linear(2, 1)
    data = Regression()
    return build(model, data, loss=nn.MSELoss(), evaluation=data, gradient_accumulation_steps=3)


def accumulating() -> Any:
    return build(gradient_accumulation_steps=2, optimizer=lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9))


def frozen_part() -> Any:
    model = net()
    model[0].requires_grad_(False)
    return build(model, optimizer=lambda m: torch.optim.SGD([p for p in m.parameters() if p.requires_grad], 0.1))


def plateau() -> Any:
    return build(scheduler=lambda opt, total: torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0))


class OwnGenerator(Rows):
    def __init__(self) -> None:
        super().__init__()
        self.noise = np.random.default_rng(3)

    def __getitem__(self, row: int) -> Any:
        x, y = super().__getitem__(row)
        return x + torch.from_numpy(self.noise.standard_normal(4).astype(np.float32)), y


def own_generator() -> Any:
    return build(data=OwnGenerator())


class TorchGenerator(Rows):
    def __init__(self) -> None:
        super().__init__()
        self.noise = torch.Generator().manual_seed(5)

    def __getitem__(self, row: int) -> Any:
        x, y = super().__getitem__(row)
        return x + torch.randn(4, generator=self.noise), y


def torch_generator() -> Any:
    return build(data=TorchGenerator())


class Timing(Callback):
    """Looks at the clock, which training does not depend on."""

    def __init__(self) -> None:
        self.started, self.last = time.time(), 0.0

    def on_step_end(self, state: Any) -> None:
        self.last = time.time() - self.started


def timing() -> Any:
    return build(callbacks=[Timing()])


HEALTHY = {f.__name__: f for f in (
    plain, augmented, everything, counting, with_workers, regression, accumulating, frozen_part, plateau, own_generator,
    torch_generator, timing
)}  # fmt: skip


# -- broken data sets


class ModuleGenerator(Rows):
    def __getitem__(self, row: int) -> Any:
        x, y = super().__getitem__(row)
        return x + torch.from_numpy(GENERATOR.standard_normal(4).astype(np.float32)), y


def module_generator() -> Any:
    return build(data=ModuleGenerator())


class HiddenCounter(Rows):
    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def __getitem__(self, row: int) -> Any:
        self.reads += 1
        x, y = super().__getitem__(row)
        return x * (1 + self.reads / 100), y


def hidden_counter() -> Any:
    return build(data=HiddenCounter())


class Clock(Rows):
    def __getitem__(self, row: int) -> Any:
        x, y = super().__getitem__(row)
        return x + (time.time_ns() % 1_000_003) / 1e6, y


def clock() -> Any:
    return build(data=Clock())


class Urandom(Rows):
    def __getitem__(self, row: int) -> Any:
        x, y = super().__getitem__(row)
        return x + os.urandom(1)[0] / 255, y


def urandom() -> Any:
    return build(data=Urandom())


class SetOrder(Rows):
    def __init__(self) -> None:
        super().__init__()
        names = list({f"class {i}" for i in range(30)})
        self.y = torch.tensor([names.index(f"class {i % 30}") % 3 for i in range(len(self.x))])


def set_order() -> Any:
    return build(data=SetOrder())


def unseeded_data() -> Any:
    lucid_free = TensorDataset(torch.randn(40, 4), torch.randint(0, 3, (40,)))
    return build(data=lucid_free)


def unseeded_split() -> Any:
    part, _ = torch.utils.data.random_split(Rows(60), [40, 20])
    return build(data=part)


class GrowingCache(Rows):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def __getitem__(self, row: int) -> Any:
        x, y = super().__getitem__(row)
        mixed = self.x[self.seen[-1]] if self.seen else x
        self.seen.append(row)
        return 0.8 * x + 0.2 * mixed, y


def growing_cache() -> Any:
    return build(data=GrowingCache())


class Cycling(Sampler[int]):
    """Goes on where the last epoch's iterator stood."""

    start = itertools.count(7)

    def __iter__(self) -> Any:
        first = next(self.start) * int(time.time_ns() % 13 + 1)
        return iter([(first + i) % 40 for i in range(40)])

    def __len__(self) -> int:
        return 40


def own_order() -> Any:
    return build(loader=DataLoader(Rows(), 4, sampler=Cycling()))


# -- broken models


class Projected(nn.Module):
    """Frozen random features kept as a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = torch.randn(4, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x @ self.projection)


def plain_tensor() -> Any:
    torch.seed()
    model = Projected()
    return build(model)


class Annealed(nn.Module):
    """A temperature counted in a Python attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = net(), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls += 1
        return self.inner(x) * (1 + 0.1 * self.calls)


def model_counter() -> Any:
    return build(Annealed())


class Forgetful(nn.Module):
    """A running mean that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()
        self.register_buffer("mean", torch.zeros(4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return self.inner(x - self.mean)


def not_persistent() -> Any:
    return build(Forgetful())


class Greedy(Forgetful):
    """A running mean that validation moves too."""

    def __init__(self) -> None:
        super().__init__()
        del self.mean
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return self.inner(x - self.mean)


def moved_by_validation() -> Any:
    return build(Greedy())


class AlwaysDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(F.dropout(x, 0.2))


def dropout_in_eval() -> Any:
    return build(AlwaysDropout())


class OwnNoise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.noise = net(), torch.Generator().manual_seed(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x + 0.1 * torch.randn(x.shape, generator=self.noise) if self.training else x)


def model_generator() -> Any:
    return build(OwnNoise())


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.extra = net(), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + self.extra(x).detach().sum()


def no_gradient() -> Any:
    return build(Unused())


def no_learning_rate() -> Any:
    def optimizer(m: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD([{"params": m[:1].parameters()}, {"params": m[1:].parameters(), "lr": 0.0}], 0.1)  # type: ignore[index]

    return build(optimizer=optimizer)


def softmax_twice() -> Any:
    return build(net(nn.Softmax(1)))


class Binary(Rows):
    def __getitem__(self, row: int) -> Any:
        return self.x[row], (self.y[row] > 0).float().reshape(1)


def sigmoid_twice() -> Any:
    model = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
    return build(model, Binary(), loss=nn.BCEWithLogitsLoss(), evaluation=Binary(12))


class Signed(Rows):
    def __getitem__(self, row: int) -> Any:
        return self.x[row], self.x[row, :1] * 2 - 1


def relu_at_the_end() -> Any:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1), nn.ReLU())
    return build(model, Signed(), loss=F.mse_loss, evaluation=Signed(12))


class Unscaled(Rows):
    def __getitem__(self, row: int) -> Any:
        x, y = super().__getitem__(row)
        return x * 1000, y


def inputs_not_scaled() -> Any:
    return build(data=Unscaled())


# -- broken callbacks, steps, optimizers


class Forgets(Callback):
    """Raises the learning rate by a count that it does not save."""

    def __init__(self) -> None:
        self.count = 0

    def on_step_end(self, state: Any) -> None:
        self.count += 1
        state.optimizers[0].param_groups[0]["lr"] = 0.01 + 0.001 * self.count


def callback_without_state() -> Any:
    return build(callbacks=[Forgets()])


class Silent(Callback):
    """Loses a count that nothing of training depends on."""

    def __init__(self) -> None:
        self.best_norms: list[float] = []

    def on_step_end(self, state: Any) -> None:
        self.best_norms.append(1.0)


def callback_history_lost() -> Any:
    return build(callbacks=[Silent()])


class Careless(Counter):
    """Saves its count and does not put it back."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def callback_does_not_load() -> Any:
    return build(callbacks=[Careless()])


class LeavesEval(Callback):
    """Looks at the model in eval mode and forgets to put the mode back."""

    def on_step_end(self, state: Any) -> None:
        if state.step == 2:
            state.model.eval()


def mode_left() -> Any:
    return build(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 3)), callbacks=[LeavesEval()])


def counted_in_a_global() -> Any:
    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        CALLS[0] += 1
        return F.cross_entropy(model(batch[0]), batch[1]) * (1 + CALLS[0] / 10)

    return build(train_step=step)


def batch_norm_in_windows() -> Any:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    return build(model, gradient_accumulation_steps=2)


class Masked(Rows):
    """Rows with 1 to 4 valid targets."""

    def __getitem__(self, row: int) -> Any:
        mask = torch.arange(4) < row % 4 + 1
        return self.x[row], torch.where(mask, self.x[row] * 2, torch.zeros(4)), mask


def unequal_counts() -> Any:
    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        x, y, mask = batch
        return ((model(x) - y).square() * mask).sum() / mask.sum()

    return build(
        nn.Linear(4, 4), Masked(), train_step=step, loss=None, evaluation=Masked(12), gradient_accumulation_steps=3,
        loader=DataLoader(Masked(), 3, shuffle=True),
    )  # fmt: skip


class HoardingSGD(torch.optim.SGD):
    """Momentum kept outside `state`, so it is not saved."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)
        self.memory: dict[int, torch.Tensor] = {}

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for index, p in enumerate(group["params"]):
                kept = self.memory.get(index, torch.zeros_like(p)) * 0.9 + p.grad
                self.memory[index] = kept
                p.data.add_(kept, alpha=-group["lr"])


def optimizer_outside_state() -> Any:
    return build(optimizer=lambda m: HoardingSGD(m.parameters(), 0.1))


class RandomLoss(nn.Module):
    """Label smoothing by a centre kept in the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(3))

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            self.centre = 0.9 * self.centre + 0.1 * output.detach().mean(0)
        return F.cross_entropy(output - self.centre, target)


def loss_with_state() -> Any:
    return build(loss=RandomLoss())


# -- for the report


def planned() -> Any:
    model = net()
    model[0].requires_grad_(False)
    loader = DataLoader(Rows(31), 4, shuffle=True, drop_last=True)
    return build(
        model, loader=loader, epochs=3, gradient_accumulation_steps=3, log_every=2, eval_every=4, save_every=3,
        optimizer=lambda m: torch.optim.SGD([p for p in m.parameters() if p.requires_grad], 0.1),
        scheduler=lambda opt, total: torch.optim.lr_scheduler.CosineAnnealingLR(opt, total),
    )  # fmt: skip


RUN_DIR = [""]


def with_run_dir() -> Any:
    trainer, *data = build()
    trainer.run_dir = Path(RUN_DIR[0])
    return trainer, *data


def raises() -> Any:
    return build(optimizer=lambda m: torch.optim.SGD(m[0].parameters(), 0.1))


def returns_nothing() -> Any:
    return None


BROKEN: dict[Any, tuple[str, str]] = {
    # factory -> section, what the report must name there
    module_generator: ("rows", "GENERATOR"),
    hidden_counter: ("rows", "dataset.reads"),
    clock: ("rows", "the clock"),
    urandom: ("rows", "os.urandom"),
    set_order: ("repeatable", "sets of strings"),
    unseeded_data: ("resume", "data set is another one"),
    unseeded_split: ("resume", "data set is another one"),
    growing_cache: ("rows", "dataset.seen"),
    own_order: ("repeatable", "data.position"),
    plain_tensor: ("repeatable", "model.projection"),
    model_counter: ("resume", "model.calls"),
    not_persistent: ("resume", "model.mean (not in state_dict)"),
    moved_by_validation: ("neutral", "model.mean"),
    dropout_in_eval: ("faults", "dropout"),
    model_generator: ("resume", "model.noise"),
    no_gradient: ("faults", "gradient of extra.weight"),
    no_learning_rate: ("faults", "model.2.weight"),
    softmax_twice: ("faults", "softmax"),
    sigmoid_twice: ("faults", "sigmoid"),
    relu_at_the_end: ("faults", "ReLU"),
    inputs_not_scaled: ("faults", "loss at the start"),
    callback_without_state: ("resume", "callback Forgets.count"),
    callback_history_lost: ("resume", "callback Silent.best_norms"),
    callback_does_not_load: ("resume", "callbacks.Careless.count"),
    mode_left: ("faults", "mode of"),
    counted_in_a_global: ("resume", "CALLS"),
    batch_norm_in_windows: ("accumulation", "BatchNorm"),
    unequal_counts: ("accumulation", "counts"),
    optimizer_outside_state: ("resume", "optimizer.memory"),
    loss_with_state: ("resume", "loss.centre"),
}
