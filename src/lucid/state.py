"""The state of a run: everything that a checkpoint holds and that training changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from lucid import rng
from lucid.amp import Precision
from lucid.config import TrainConfig
from lucid.errors import ConfigError, MismatchError
from lucid.serialization import load_model_state, model_state, unwrap
from lucid.spikes import Watch, make_watch
from lucid.undo import Buffers
from lucid.verdict import Verdict, make_verdict
from lucid.windows import Progress

Scheduler = LRScheduler | ReduceLROnPlateau


@dataclass(slots=True)
class Best:
    """The best value of the monitor so far. NaN is never best."""

    mode: Literal["min", "max"]
    value: float | None = None
    step: int | None = None
    evals_since: int = 0
    """Evaluations since the best one, which patience counts."""

    def update(self, value: float, step: int) -> bool:
        """Take the value of an evaluation; return whether it is the new best."""
        if not math.isnan(value) and (self.value is None or self._is_better(value, self.value)):
            self.value, self.step, self.evals_since = value, step, 0
            return True
        self.evals_since += 1
        return False

    def _is_better(self, value: float, than: float) -> bool:
        return value < than if self.mode == "min" else value > than


@dataclass(slots=True)
class Meters:
    """Results of the steps since the last log record. They stay on the device until they are read, all at once."""

    losses: list[torch.Tensor] = field(default_factory=list)
    norms: list[torch.Tensor] = field(default_factory=list)
    counts: list[Any] = field(default_factory=list)
    parts: list[dict[str, torch.Tensor]] = field(default_factory=list)
    """Mean and count of each logged part of each step, `(2,)`."""
    folded: int = 0
    """Steps that the first norm is the mean of, if there are more than one."""
    _slots: list[torch.Tensor] = field(default_factory=list, repr=False, compare=False)

    # Without a log record for long, results are folded so that memory does not grow with steps.
    LIMIT = 1024

    def add(self, loss: torch.Tensor, norm: torch.Tensor, count: Any, parts: dict[str, torch.Tensor] | None) -> None:
        """Take one step's result: its mean loss over `count` rows or targets, and its gradient norm."""
        self.losses.append(loss)
        self.norms.append(self._slot(norm) if norm.is_cpu else norm)
        self.counts.append(count)
        if parts:
            self.parts.append(parts)
        if len(self.losses) >= self.LIMIT:
            self._fold()

    def _slot(self, norm: torch.Tensor) -> torch.Tensor:
        """Return a copy of a norm in memory that was taken before.

        A norm is made when the activations have just been freed. One that stays there splits the block that the next
        step needs again, and malloc asks the system for another: some small CNNs took 130 MB more.
        """
        place = len(self.norms)
        if place >= len(self._slots):
            self._slots.extend(norm.new_empty(max(64, place + 1 - len(self._slots))).unbind())
        return self._slots[place].copy_(norm)

    def read(self) -> dict[str, float]:
        """Return the means since the last read in one copy to the host, and start anew."""
        if not self.losses:
            return {"train/loss": math.nan, "train/grad_norm": math.nan}
        names = ["train/loss", "train/grad_norm", *(f"train/{name}" for name in self._part_names())]
        values = dict(zip(names, torch.stack(self._means()).tolist(), strict=True))
        self.losses, self.norms, self.counts, self.parts, self.folded = [], [], [], [], 0
        return values

    def _means(self) -> list[torch.Tensor]:
        counts = self._counts()
        total = counts.sum()
        means = [(torch.stack(self.losses).double() * counts).sum() / total]
        norms = torch.stack(self.norms).double()
        means.append((norms.sum() + norms[0] * (max(self.folded, 1) - 1)) / self._num_steps())
        for name in self._part_names():
            found = torch.stack([part[name] for part in self.parts if name in part])
            means.append((found[:, 0].where(found[:, 1] > 0, 0.0) * found[:, 1]).sum() / found[:, 1].sum())
        return means

    def _num_steps(self) -> int:
        return len(self.norms) + max(self.folded, 1) - 1

    def _part_names(self) -> list[str]:
        return list(dict.fromkeys(name for part in self.parts for name in part))

    def _counts(self) -> torch.Tensor:
        device = self.losses[0].device
        if any(isinstance(count, torch.Tensor) for count in self.counts):
            return torch.stack([torch.as_tensor(count, device=device).double() for count in self.counts])
        return torch.tensor(self.counts, dtype=torch.float64, device=device)

    def _fold(self) -> None:
        """Replace the results by their mean, which weighs as much as they did together."""
        counts, (loss, norm, *parts) = self._counts(), self._means()
        names = self._part_names()
        totals = [torch.stack([part[name][1] for part in self.parts if name in part]).sum() for name in names]
        folded = [torch.stack([part, total]) for part, total in zip(parts, totals, strict=True)]
        self.folded = self._num_steps()
        self.losses, self.norms, self.counts = [loss.float()], [norm.float()], [counts.sum()]
        self.parts = [dict(zip(names, folded, strict=True))] if names else []

    def state_dict(self) -> dict[str, Any]:
        """Return what the next record will be made of."""
        state = {name: getattr(self, name) for name in ("losses", "norms", "counts", "parts", "folded")}
        return state | {"norms": [norm.clone() for norm in self.norms]}  # a slot is written again after a record

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.losses, self.norms = list(state["losses"]), list(state["norms"])
        self.counts, self.parts = list(state["counts"]), list(state["parts"])
        self.folded = state["folded"]


@dataclass(slots=True)
class TrainState:
    """Model, optimizers, schedules, precision, counters, best: what a run is made of at a moment.

    Callbacks get it in every hook. `request_stop` is the one thing that they may ask of the loop.
    """

    model: nn.Module
    optimizers: tuple[Optimizer, ...]
    schedulers: tuple[Scheduler, ...]
    precision: Precision
    config: TrainConfig
    device: torch.device
    progress: Progress = field(default_factory=Progress)
    meters: Meters = field(default_factory=Meters)
    best: Best = field(init=False)
    buffers: Buffers = field(init=False)
    watch: Watch = field(init=False)
    verdict: Verdict = field(init=False)
    metrics: dict[str, float] = field(default_factory=dict)
    """Values of the last evaluation."""
    stop_reason: str | None = None
    interrupt: str | None = None
    """Why the run must be left soon and gone on with later: a signal or the time limit."""
    saved_step: int | None = None
    """Step of the last checkpoint of this process, or of the one it went on from: an interrupted run is left there."""
    save_requested: bool = False
    _parameters: list[nn.Parameter] = field(default_factory=list)
    _num_groups: int = -1

    def __post_init__(self) -> None:
        self.best = Best(self.config.monitor_mode)
        self.buffers = Buffers(self.model)
        self.watch = make_watch(self.config.spike_factor, self.config.spike_window)
        self.verdict = make_verdict(self.device)

    @property
    def step(self) -> int:
        """Optimizer steps tried so far."""
        return self.progress.step

    @property
    def epoch(self) -> int:
        """Epoch of the next micro-batch, from 0."""
        return self.progress.epoch

    def request_stop(self, reason: str) -> None:
        """Ask the loop to end the run after this step, as finished: it is evaluated, saved and logged."""
        self.stop_reason = self.stop_reason or reason

    def request_save(self) -> None:
        """Ask the loop for a checkpoint at the end of this step."""
        self.save_requested = True

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters of every group of every optimizer, groups added in mid-run included."""
        num_groups = 0
        for optimizer in self.optimizers:
            num_groups += len(optimizer.param_groups)
        if num_groups != self._num_groups:
            self._num_groups = num_groups
            self._parameters = [
                parameter
                for optimizer in self.optimizers
                for group in optimizer.param_groups
                for parameter in group["params"]
            ]
        return self._parameters

    def step_schedulers(self) -> None:
        """Move every schedule on by one optimizer step; plateau schedules wait for an evaluation."""
        for scheduler in self.schedulers:
            if not isinstance(scheduler, ReduceLROnPlateau):
                scheduler.step()

    def step_plateaus(self, value: float) -> None:
        """Give the monitor's value to every plateau schedule."""
        for scheduler in self.schedulers:
            if isinstance(scheduler, ReduceLROnPlateau):
                scheduler.step(value)

    def lr(self) -> float:
        """Return the learning rate of the first group."""
        return float(self.optimizers[0].param_groups[0]["lr"])

    def state_dict(self) -> dict[str, Any]:
        """Return the tree that a checkpoint holds; tensors are the live ones, not copies."""
        return {
            "model": dict(model_state(self.model)),
            "optimizer": [optimizer.state_dict() for optimizer in self.optimizers],
            "scheduler": [scheduler.state_dict() for scheduler in self.schedulers],
            "precision": self.precision.state_dict(),
            "rng": rng.capture(),
            "progress": asdict(self.progress),
            "meters": self.meters.state_dict(),
            "best": asdict(self.best),
            "metrics": dict(self.metrics),
            "spikes": self.watch.state_dict(),
            "stop_reason": self.stop_reason,
        }

    def load_state_dict(self, tree: dict[str, Any]) -> None:
        """Take back a tree that `state_dict` gave; the random streams are set last.

        Raises:
            MismatchError: if the model or the optimizers are not those of the checkpoint.
        """
        load_model_state(self.model, tree["model"])
        _same_number("optimizers", self.optimizers, tree["optimizer"])
        _same_number("schedulers", self.schedulers, tree["scheduler"])
        for optimizer, saved in zip(self.optimizers, tree["optimizer"], strict=True):
            _load_optimizer(optimizer, saved)
        for scheduler, saved in zip(self.schedulers, tree["scheduler"], strict=True):
            scheduler.load_state_dict(saved)
        self.precision.load_state_dict(tree["precision"])
        _set_fields(self.progress, tree["progress"])
        _set_fields(self.best, tree["best"])
        self.meters.load_state_dict(tree["meters"])
        self.metrics = dict(tree["metrics"])
        self.watch.load_state_dict(tree["spikes"])
        # A finished run that is made longer goes on; one that was interrupted while it was about to end still ends.
        self.stop_reason = None if self.progress.finished else tree.get("stop_reason")
        rng.restore(tree["rng"])


def _same_number(what: str, live: Sequence[Any], saved: Sequence[Any]) -> None:
    if len(live) != len(saved):
        raise MismatchError(f"the checkpoint has {len(saved)} {what}, this run has {len(live)}: give the same ones.")


def _load_optimizer(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    have = [len(group["params"]) for group in optimizer.param_groups]
    want = [len(group["params"]) for group in saved["param_groups"]]
    if have != want:
        raise MismatchError(
            f"the checkpoint's {type(optimizer).__name__} has parameter groups of {want} tensors, this one of {have}. "
            "Groups added in mid-run must be added again before the resume, "
            "for example in a callback's `load_state_dict`."
        )
    optimizer.load_state_dict(saved)
    _keep_dtypes(optimizer, saved)
    _follow_layouts(optimizer)


def _follow_layouts(optimizer: Optimizer) -> None:
    """Lay out state as its parameter is: torch's fused kernels pair numbers by their place in memory, and do not look.

    They differ where a model was given channels last since the checkpoint.
    """
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            is_alike = isinstance(value, torch.Tensor) and value.shape == parameter.shape
            if is_alike and value.stride() != parameter.stride():
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _keep_dtypes(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """Undo the cast of torch's `load_state_dict`, which gives state the dtype of its parameter, whatever it had."""
    indices = (index for group in saved["param_groups"] for index in group["params"])
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    for index, parameter in zip(indices, parameters, strict=True):
        for name, value in saved["state"].get(index, {}).items():
            live = optimizer.state[parameter].get(name)
            if isinstance(value, torch.Tensor) and isinstance(live, torch.Tensor) and live.dtype != value.dtype:
                optimizer.state[parameter][name] = value.to(live.device)


def _set_fields(target: Any, values: dict[str, Any]) -> None:
    for one in fields(target):
        if one.name in values:
            setattr(target, one.name, values[one.name])


def check_optimizers(model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
    """Raise `ConfigError` if a trainable parameter belongs to no optimizer, or there is nothing to train."""
    named = dict(unwrap(model).named_parameters())
    trainable = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
    if not trainable:
        raise ConfigError(
            f"{type(model).__name__} has no trainable parameters: at least one must have requires_grad=True."
        )
    known = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    left_out = [name for name, parameter in trainable.items() if id(parameter) not in known]
    if left_out:
        raise ConfigError(
            f"{len(left_out)} trainable parameters are in no optimizer and would never change: "
            f"{', '.join(left_out[:5])}. Add them to the optimizer, or freeze them with requires_grad_(False)."
        )
