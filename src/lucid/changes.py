"""What differs between a checkpoint and the run that wants to go on from it, and the rule for each difference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch.optim import Optimizer

from lucid.errors import ResumeError
from lucid.state import TrainState

# Rules, by the beginning of a setting's name; the longest that fits counts.
TAKES_EFFECT = "takes effect"
INEXACT = "goes on, but the bits may differ from the unbroken run"
REFUSED = "refused"

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
    "": REFUSED,
}

# Options of torch's optimizers that choose how, not what, is computed.
_KERNELS = ("fused", "foreach", "capturable")


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that differs, and what is done about it."""

    setting: str
    was: Any
    now: Any
    rule: str

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
    names = [*now, *(name for name in was if name not in now)]
    return [
        Change(name, was.get(name), now.get(name), rule_for(name)) for name in names if was.get(name) != now.get(name)
    ]


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
            f"{where} was made with other settings:\n{table(changes)}\n"
            f'Set {refused[0].setting} back, choose another run_dir, or accept the changes with train.changes="accept" '
            "(the run then goes on with the new settings and is no longer the unbroken one)."
        )


def table(changes: list[Change]) -> str:
    """Return the changes as aligned lines."""
    rows = [(change.setting, repr(change.was), repr(change.now), change.rule) for change in changes]
    rows.insert(0, ("setting", "in the checkpoint", "now", "rule"))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  " + "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]])
        for row in rows
    )


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


def hyperparameters(optimizers: tuple[Optimizer, ...]) -> list[list[dict[str, Any]]]:
    """Return the settings of each group of each optimizer, without its parameters."""
    return [
        [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
        for optimizer in optimizers
    ]


def set_hyperparameters(state: TrainState, changes: list[Change], now: list[list[dict[str, Any]]]) -> None:
    """Let accepted changes of optimizer settings take effect in a state that was just loaded.

    A new learning rate scales what the schedule has made of the old one, so the schedule goes on with it.

    Args:
        state: as the checkpoint has it.
        changes: all that differs.
        now: what `hyperparameters` returned before the load.
    """
    changed = {change.setting.rpartition(".")[2] for change in changes if change.setting.startswith("optimizer.")}
    for optimizer, groups in zip(state.optimizers, now, strict=True):
        for group, values in zip(optimizer.param_groups, groups, strict=False):
            for name in changed & set(values) - {"lr"}:
                group[name] = values[name]
            if "lr" in changed:
                wanted, had = values.get("initial_lr", values["lr"]), group.get("initial_lr", group["lr"])
                if "initial_lr" in group:
                    group["initial_lr"] = wanted
                group["lr"] = group["lr"] * (wanted / had) if had else wanted
    for scheduler in state.schedulers if "lr" in changed else ():
        _set_base_lrs(scheduler)


def _set_base_lrs(scheduler: Any) -> None:
    for inner in getattr(scheduler, "_schedulers", ()):
        _set_base_lrs(inner)
    if hasattr(scheduler, "base_lrs"):
        scheduler.base_lrs = [group["initial_lr"] for group in scheduler.optimizer.param_groups]


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):
        value = value.item()
    return list(value) if isinstance(value, tuple) else value
