"""What differs between a checkpoint and the run that wants to go on from it, and the rule for each difference."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lucid.errors import ResumeError
from lucid.state import TrainState

# Rules, by the beginning of a setting's name; the longest that fits counts.
TAKES_EFFECT = "takes effect"
INEXACT = "goes on, but the bits may differ from the unbroken run"
REFUSED = "refused"
ACCEPTED = "accepted: the run is no longer the unbroken one"

_RULES = {
    "train.epochs": TAKES_EFFECT,
    "train.max_steps": TAKES_EFFECT,
    "train.log_every": TAKES_EFFECT,
    "train.eval_every": TAKES_EFFECT,
    "train.save_every": TAKES_EFFECT,
    "train.keep_": TAKES_EFFECT,
    "train.patience": TAKES_EFFECT,
    "train.max_": TAKES_EFFECT,
    "train.max_grad_norm": REFUSED,
    "train.non_finite": TAKES_EFFECT,
    "train.spike_": TAKES_EFFECT,
    "train.save_errors": TAKES_EFFECT,
    "train.changes": TAKES_EFFECT,
    "train.device": INEXACT,
    "train.threads": INEXACT,
    "train.precision": INEXACT,
    "train.compile": INEXACT,
    "train.deterministic": INEXACT,
    "train.matmul_precision": INEXACT,
    "train.cudnn_benchmark": INEXACT,
    "train.channels_last": INEXACT,
    "train.": REFUSED,
    "optimizer.": REFUSED,
    "scheduler.total_steps": TAKES_EFFECT,
    "scheduler.": REFUSED,
    "data.num_workers": TAKES_EFFECT,
    "data.eval_batch_size": TAKES_EFFECT,
    "data.": REFUSED,
    "callbacks.": INEXACT,
    "environment.": INEXACT,
    "run.": TAKES_EFFECT,
    "run_dir": TAKES_EFFECT,
    "name": TAKES_EFFECT,
    "trackers": TAKES_EFFECT,
    "": REFUSED,
}

_WIDEST_CELL = 44
# Options of torch's optimizers that choose how, not what, is computed.
_KERNELS = ("fused", "foreach", "capturable")


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that differs, and what is done about it."""

    setting: str
    was: Any
    now: Any
    rule: str

    def accepted(self) -> Change:
        """Return the change as a run that goes on has taken it."""
        return replace(self, rule=ACCEPTED) if self.rule == REFUSED else self

    def to_dict(self) -> dict[str, Any]:
        """Return the change as plain values."""
        return asdict(self)


def rule_for(setting: str) -> str:
    """Return the rule of a setting: `TAKES_EFFECT`, `INEXACT` or `REFUSED`."""
    if setting.startswith("optimizer.") and setting.rpartition(".")[2] in _KERNELS:
        return INEXACT
    return _RULES[max((start for start in _RULES if setting.startswith(start)), key=len)]


def compare(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """Return every setting that differs between two flat descriptions, in the order of the second."""
    names = [name for name in dict.fromkeys([*now, *was]) if was.get(name) != now.get(name)]
    is_longer = any(name in _LENGTH for name in names)  # then a schedule made from the total has another one
    return [
        Change(
            name, was.get(name), now.get(name),
            TAKES_EFFECT if is_longer and name.startswith("scheduler.") and name.count(".") > 1 else rule_for(name),
        )
        for name in names
    ]  # fmt: skip


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings as one level of dotted names."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = list(value) if isinstance(value, tuple) else value
    return flat


def refuse(changes: list[Change], where: str) -> None:
    """Raise `ResumeError` with the table of all changes if one of them is refused."""
    refused = [change for change in changes if change.rule == REFUSED]
    if refused:
        raise ResumeError(
            f"{where} was made with other settings:\n{table(changes)}\n{_of_the_model(refused)}"
            f'Set {refused[0].setting} back, choose another run_dir, or accept the changes with train.changes="accept" '
            "(the run then goes on with the new settings and is no longer the unbroken one)."
        )


def _of_the_model(refused: list[Change]) -> str:
    """Say that the model is another one, where that is why the optimizer has other parameters."""
    names = [change for change in refused if change.setting.endswith(".param_names")]
    was, now = ({name for change in names for name in getattr(change, side) or ()} for side in ("was", "now"))
    parts = [
        f"{kind} {', '.join(sorted(some)[:4])}" + (f" and {len(some) - 4} more" if len(some) > 4 else "")
        for kind, some in (("new are", now - was), ("gone are", was - now))
        if some
    ]
    return f"The model has other parameters than the checkpoint: {'; '.join(parts)}. " if parts else ""


def table(changes: list[Change]) -> str:
    """Return the changes as aligned lines."""
    rows = [(change.setting, _cell(change.was), _cell(change.now), change.rule) for change in changes]
    rows.insert(0, ("setting", "in the checkpoint", "now", "rule"))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  " + "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]])
        for row in rows
    )


def _cell(value: Any) -> str:
    """Return a value as it is written in Python, and of a long one its beginning and its end."""
    text = repr(value)
    return text if len(text) <= _WIDEST_CELL else f"{text[: _WIDEST_CELL - 12]} ... {text[-7:]}"


def optimizer_settings(optimizers: tuple[Optimizer, ...]) -> dict[str, Any]:
    """Return class and hyper-parameters of each optimizer as given at its making, flat."""
    flat: dict[str, Any] = {}
    for number, optimizer in enumerate(optimizers):
        prefix = "" if len(optimizers) == 1 else f"{number}."
        flat[f"{prefix}name"] = type(optimizer).__name__
        for index, group in enumerate(optimizer.param_groups):
            place = prefix if len(optimizer.param_groups) == 1 else f"{prefix}group{index}."
            for name, value in group.items():
                if name in ("params", "initial_lr") or (name == "lr" and "initial_lr" in group):
                    continue
                flat[f"{place}{name}"] = _plain(value)
            flat[f"{place}lr"] = _plain(group.get("initial_lr", group["lr"]))
    return flat


def scheduler_settings(schedulers: Sequence[Any]) -> dict[str, Any]:
    """Return class and settings of each schedule as given at its making, flat."""
    flat: dict[str, Any] = {}
    for number, scheduler in enumerate(schedulers):
        flat[str(number)] = type(scheduler).__name__
        _flatten_schedule(scheduler.state_dict(), f"{number}.", flat)
    return flat


def _flatten_schedule(state: Mapping[str, Any], prefix: str, flat: dict[str, Any]) -> None:
    for index, inner in enumerate(state.get("_schedulers", ())):
        _flatten_schedule(inner, f"{prefix}{index}.", flat)
    for name, value in state.items():
        items = value if isinstance(value, list | tuple) else [value]
        plain = all(isinstance(item, int | float | str | bool) for item in items)
        if plain and name not in _POSITION and (not name.startswith("_") or name == "_milestones"):
            flat[f"{prefix}{name}"] = _plain(value)


# What moves while a schedule runs, or follows from the optimizer's settings.
_POSITION = (
    "last_epoch", "base_lrs", "base_momentums", "max_momentums", "max_lrs", "other_bases", "best", "num_bad_epochs",
    "cooldown_counter", "T_cur", "T_i", "mode_worse", "optimizer",
)  # fmt: skip


class Given:
    """Settings of optimizers and schedules as they were given, kept while a checkpoint is loaded over them.

    Args:
        state: fresh, before the load.
    """

    def __init__(self, state: TrainState) -> None:
        self._groups = [
            [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
            for optimizer in state.optimizers
        ]
        self._schedules = [copy.deepcopy(scheduler.state_dict()) for scheduler in state.schedulers]

    def take_effect(self, state: TrainState, changes: list[Change]) -> None:
        """Let what differs, and was not refused, take effect in a state that was just loaded.

        A new learning rate scales what a schedule has made of the old one. Where the schedule itself, or the length of
        the run, is another, the schedule is gone through again up to where it stands: from there on it is as if the run
        had always been the new one.
        """
        changed = {change.setting.rpartition(".")[2] for change in changes if change.setting.startswith("optimizer.")}
        for optimizer, groups in zip(state.optimizers, self._groups, strict=True):
            for group, values in zip(optimizer.param_groups, groups, strict=False):
                _set_group(group, values, changed)
        for scheduler in state.schedulers if "lr" in changed else ():
            _set_base_lrs(scheduler)
        if any(change.setting in _LENGTH or change.setting.startswith("scheduler.") for change in changes):
            self._go_through_again(state)

    def _go_through_again(self, state: TrainState) -> None:
        pairs = [
            (scheduler, fresh)
            for scheduler, fresh in zip(state.schedulers, self._schedules, strict=True)
            if not isinstance(scheduler, ReduceLROnPlateau)
        ]
        steps = [_steps_done(scheduler) for scheduler, _ in pairs]
        moved = {id(scheduler.optimizer) for scheduler, _ in pairs}
        for optimizer, groups in zip(state.optimizers, self._groups, strict=True):
            for group, values in zip(optimizer.param_groups, groups, strict=False):
                if id(optimizer) in moved:
                    group.update({name: values[name] for name in _MOVED_BY_SCHEDULES if name in values})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of a schedule that is stepped before its optimizer
            for (scheduler, fresh), count in zip(pairs, steps, strict=True):
                scheduler.load_state_dict(fresh)
                for _ in range(count):
                    scheduler.step()


_LENGTH = ("train.epochs", "train.max_steps")
_MOVED_BY_SCHEDULES = (
    "lr", "initial_lr", "momentum", "betas", "max_lr", "min_lr", "max_momentum", "base_momentum",
)  # fmt: skip


def _steps_done(scheduler: Any) -> int:
    inner = getattr(scheduler, "_schedulers", None)
    return int(scheduler.last_epoch) if hasattr(scheduler, "last_epoch") else _steps_done(inner[0])  # type: ignore[index]


def _set_group(group: dict[str, Any], values: dict[str, Any], changed: set[str]) -> None:
    for name in changed & set(values) - {"lr"}:
        group[name] = values[name]
    if "lr" in changed:
        wanted, had = values.get("initial_lr", values["lr"]), group.get("initial_lr", group["lr"])
        if "initial_lr" in group:
            group["initial_lr"] = wanted
        group["lr"] = group["lr"] * (wanted / had) if had else wanted


def _set_base_lrs(scheduler: Any) -> None:
    for inner in getattr(scheduler, "_schedulers", ()):
        _set_base_lrs(inner)
    if hasattr(scheduler, "base_lrs"):
        scheduler.base_lrs = [group["initial_lr"] for group in scheduler.optimizer.param_groups]


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):
        value = value.item()
    return list(value) if isinstance(value, tuple) else value
