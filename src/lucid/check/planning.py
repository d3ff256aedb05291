"""The plan: what the run will do, when, and what it needs, before it begins."""

from __future__ import annotations

import shutil
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lucid.check.report import Section
from lucid.check.script import Script
from lucid.check.target import Target
from lucid.plan import Plan
from lucid.serialization import unwrap
from lucid.utils.data import Feed

if TYPE_CHECKING:
    from lucid.check.inspection import Inspection

_COLUMNS, _ROWS = 60, 6
_SECONDS_FOR_RATES = 5.0


def plan_section(target: Target, plan: Plan, feed: Feed) -> Section:
    """Return what is known before a step is made."""
    section = Section("plan", "what will the run do, and when?")
    trainer = target.trainer
    facts: dict[str, Any] = {**plan.to_dict(), "rows": feed.num_rows, "dropped_rows": _dropped(feed, plan)}
    facts["eval_steps"] = plan.steps(trainer.config.eval_every) if target.eval_loader is not None else []
    facts["save_steps"] = plan.steps(trainer.config.save_every)
    facts["log_steps"] = plan.steps(trainer.config.log_every)
    facts |= _parameters(target)
    facts["lr"] = learning_rates(target, plan)
    section.facts = facts
    section.lines = _lines(facts)
    if facts["not_in_optimizer"]:
        section.note("not in the optimizer", f"{', '.join(facts['not_in_optimizer'][:5])} will not change.")
    for note in feed.notes():
        section.note("data", note)
    return section


def _dropped(feed: Feed, plan: Plan) -> int:
    loader = feed.loader
    if not getattr(loader, "drop_last", False) or feed.batch_size is None or plan.batches_per_epoch is None:
        return 0
    try:
        rows = len(loader.sampler)
    except TypeError:
        return 0
    return int(rows - plan.batches_per_epoch * feed.batch_size)


def _parameters(target: Target) -> dict[str, Any]:
    model = unwrap(target.trainer.model)
    known = {id(p) for o in target.trainer.optimizers for group in o.param_groups for p in group["params"]}
    named = dict(model.named_parameters())
    return {
        "parameters": sum(p.numel() for p in named.values()),
        "trained": sum(p.numel() for p in named.values() if p.requires_grad and id(p) in known),
        "frozen": sum(p.numel() for p in named.values() if not p.requires_grad),
        "frozen_names": [name for name, p in named.items() if not p.requires_grad],
        "not_in_optimizer": [name for name, p in named.items() if p.requires_grad and id(p) not in known],
    }


def learning_rates(target: Target, plan: Plan) -> list[tuple[int, float]]:
    """Return (step, learning rate of the first group) at up to 60 steps: the schedules are stepped without training."""
    trainer, total = target.trainer, plan.total_steps
    if total is None:
        return []
    schedulers = trainer.schedulers(plan)
    optimizer: Optimizer = trainer.optimizers[0]
    wanted = sorted({1 + round(i * (total - 1) / max(_COLUMNS - 1, 1)) for i in range(_COLUMNS)})
    found: list[tuple[int, float]] = []
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no optimizer steps are made here
        for step in range(1, total + 1):
            if step == wanted[len(found)]:
                found.append((step, float(optimizer.param_groups[0]["lr"])))
                if len(found) == len(wanted) or time.perf_counter() - started > _SECONDS_FOR_RATES:
                    break
            for scheduler in schedulers:
                if not isinstance(scheduler, ReduceLROnPlateau):
                    scheduler.step()
    return found


def finish(section: Section, whole: Script, seen: Inspection) -> None:
    """Add what the first steps have shown: seconds, bytes, memory."""
    facts = section.facts
    total = facts["total_steps"]
    evals = len(facts["eval_steps"])
    facts["seconds_per_step"] = whole.step_seconds
    facts["checkpoint_bytes"] = whole.checkpoint_bytes
    facts["memory_bytes"] = whole.memory_bytes
    facts["free_disk_bytes"] = _free(seen.run_dir)
    kept = seen.kept_checkpoints
    facts["kept_checkpoints"] = kept
    if total is not None:
        evaluation = whole.eval_batch_seconds * (seen.eval_batches or 0)
        saves = whole.save_seconds * len(facts["save_steps"])
        facts["estimated_seconds"] = total * whole.step_seconds + evals * evaluation + saves
    need = whole.checkpoint_bytes * (kept + 1)
    time_line = f"about {_duration(facts['estimated_seconds'])}" if total is not None else "no end is known"
    section.lines += [
        f"{time_line} at {whole.step_seconds:.3g} s a step; {_size(whole.memory_bytes)} of memory in the first steps",
        f"a checkpoint has {_size(whole.checkpoint_bytes)}; with up to {kept} kept and one being written "
        f"{_size(need)} of {_size(facts['free_disk_bytes'])} free",
    ]
    if need > facts["free_disk_bytes"]:
        section.fault(
            "disk",
            f"the checkpoints need {_size(need)}, and {_size(facts['free_disk_bytes'])} are free.",
            "Free some space, lower keep_last, keep_best or keep_every, or choose another run_dir.",
        )


def _free(run_dir: str | None) -> int:
    folder = Path(run_dir or ".").resolve()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _lines(facts: dict[str, Any]) -> list[str]:
    total = facts["total_steps"]
    steps = "steps: unknown" if total is None else f"{total} steps"
    windows = f"{facts['steps_per_epoch']} an epoch in {facts['epochs']} epochs"
    size = facts["gradient_accumulation_steps"]
    short = f", the last of an epoch {facts['short_window']}" if facts["short_window"] else ""
    lines = [f"{steps}, {windows}; {size} micro-batch{'es' if size > 1 else ''} a step{short}"]
    if facts["dropped_rows"]:
        lines.append(f"{facts['dropped_rows']} of {facts['rows']} rows are left out of each epoch (drop_last)")
    for what in ("log", "eval", "save"):
        found = facts[f"{what}_steps"]
        lines.append(f"{what:<5} {len(found):>4} x at steps {_steps(found)}" if found else f"{what:<5} never")
    names = f" ({', '.join(facts['frozen_names'][:4])}...)" if facts["frozen"] else ""
    lines.append(
        f"{facts['trained']:,} of {facts['parameters']:,} parameters are trained, {facts['frozen']:,} frozen{names}"
    )
    return lines + plot(facts["lr"])


def _steps(found: list[int]) -> str:
    return ", ".join(map(str, found)) if len(found) <= 8 else f"{', '.join(map(str, found[:5]))}, ..., {found[-1]}"


def plot(rates: list[tuple[int, float]], room: int = 80) -> list[str]:
    """Return the learning rate as a small picture of text, at most `room` characters wide: it is thinned to fit."""
    every = -(-len(rates) // max(1, room - len(f"lr {0:>9.2e} |")))
    values = [value for _, value in rates[::every]]
    if not values:
        return []
    top, low = max(values), min(values)
    if top == low:
        return [f"lr {top:.3g} throughout"]
    height = [round((value - low) / (top - low) * (_ROWS - 1)) for value in values]
    rows = []
    for level in range(_ROWS - 1, -1, -1):
        mark = f"{low + (top - low) * level / (_ROWS - 1):>9.2e}"
        rows.append(f"lr {mark} |" + "".join("*" if h == level else " " for h in height))
    points = ", ".join(
        f"{value:.3g} at {step}" for step, value in (rates[0], max(rates, key=lambda r: r[1]), rates[-1])
    )
    return [*rows, f"   {'':>9} +{'-' * len(values)}", f"   lr {points}"]


def _size(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
