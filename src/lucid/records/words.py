"""How numbers, durations and whole records read as text. Shared by the terminal, the page and the dashboard."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lucid.records.outcome import FINISHED, outcome
from lucid.records.record import Record

PLAN_LABELS = {
    "name": "run",
    "run_dir": "folder",
    "model": "model",
    "parameters": "parameters",
    "trainable_parameters": "trainable parameters",
    "task": "task",
    "data": "data",
    "rows": "training rows",
    "eval_rows": "evaluation rows",
    "batch_size": "batch size",
    "gradient_accumulation_steps": "micro-batches per step",
    "world_size": "processes",
    "device": "device",
    "precision": "precision",
    "compiled": "compiled",
    "optimizer": "optimizer",
    "schedule": "schedule",
    "lr": "learning rate",
    "loss_is_mean_over": "loss is the mean over",
    "epochs": "epochs",
    "batches_per_epoch": "micro-batches per epoch",
    "steps_per_epoch": "steps per epoch",
    "short_window": "micro-batches in the short last step",
    "total_steps": "total steps",
    "log_every": "log every",
    "eval_every": "evaluate every",
    "save_every": "save every",
    "monitor": "monitor",
    "mode": "better is",
    "seed": "seed",
    "notes": "notes",
}
"""Known keys of a plan in the order in which they are shown."""

END_LABELS = {
    "reason": "finished because",
    "best": "best",
    "best_step": "best at step",
    "metrics": "last evaluation",
    "compiled": "compiled",
    "run_dir": "folder",
    "checkpoint": "checkpoint",
    "config": "config",
    "records": "records",
    "report": "report",
    "next": "next",
}
"""Known keys of an `end` record in the order in which they are shown."""

_NOT_SHOWN = ("pid", "host", "changes", "refused", "from", "exit_code")
_NOT_IN_LINES = ("train/rows",)
_LONG = 120


def number(value: object) -> str:
    """Return a number in at most five significant digits; counts get thousands separators.

    Example:
        >>> number(0.123456), number(1234567), number(1e-5), number(float("nan"))
        ('0.1235', '1,234,567', '1e-05', 'nan')
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return str(value)
    return f"{value:,.1f}" if 1000 <= abs(value) < 1e7 else f"{value:.4g}"


def size(num_bytes: float) -> str:
    """Return a number of bytes with its unit.

    Example:
        >>> size(512), size(1_500_000)
        ('512 B', '1.5 MB')
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.3g} {unit}"
    return f"{num_bytes:.0f} B"


def duration(seconds: float) -> str:
    """Return a time span in its two largest units.

    Example:
        >>> duration(0.25), duration(75), duration(7260), duration(200000)
        ('0.2s', '1m15s', '2h01m', '2d07h')
    """
    if not math.isfinite(seconds):
        return "?"
    if seconds < 10:
        return f"{max(0.0, seconds):.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def pairs(info: Mapping[str, Any], labels: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return `info` as (label, text): known keys first and in order, then the others; nothing empty."""
    known = [key for key in labels if key in info]
    others = [key for key in info if key not in labels and key not in _NOT_SHOWN]
    shown = [key for key in known + others if info[key] not in (None, "", [], {}) and not _says_nothing(key, info)]
    return [(labels.get(key, key.replace("_", " ")), text_of(info[key])) for key in shown]


def exact(value: Any) -> str:
    """Return a setting as it is, every digit of it; lists by comma.

    Example:
        >>> exact(0.1000001), exact(12345), exact(True), exact([1, "a"]), exact(None)
        ('0.1000001', '12345', 'true', '1, a', 'none')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ", ".join(map(exact, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {exact(item)}" for key, item in value.items())
    return "none" if value is None else str(value)


def _says_nothing(key: str, info: Mapping[str, Any]) -> bool:
    if key == "trainable_parameters":
        return bool(info[key] == info.get("parameters"))
    if key == "reason":
        return bool(info[key] == FINISHED)
    return key == "short_window" and not info[key]


def text_of(value: Any) -> str:
    """Return any JSON value in words: mappings as `name value`, lists by comma."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key.replace('_', ' ')} {text_of(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(text_of(item) for item in value)
    return "none" if value is None else number(value)


def line(record: Record) -> str:
    """Return a record as one line for a log file."""
    body = _BODIES.get(record.kind, _any)(record)
    return " ".join(f"{_head(record)}{body}".replace("\r", " ").split("\n")).rstrip()


def finished_already(name: str, step: int, reached: Mapping[str, float], limit: str) -> str:
    """Return the line for a run that is started again although it is finished.

    Args:
        name: what the run is called.
        step: its last one.
        reached: numbers by name.
        limit: the setting that ended it and its value, as `epochs (3)`.
    """
    values = ", ".join(f"{key} {number(value)}" for key, value in reached.items())
    return (
        f"run {name} is finished at step {number(step)}{f' ({values})' if values else ''}, nothing was trained. "
        f"To go on, raise {limit}; for a new run, choose another run_dir."
    )


def newest_plan(records: list[Record]) -> dict[str, Any]:
    """Return the plan of the last process, {} if none is known."""
    plans = (record.info for record in reversed(records) if record.kind == "plan" or "total_steps" in record.info)
    return next(plans, {})


def notes(plan: Mapping[str, Any]) -> list[str]:
    """Return the sentences of a plan that a person should read."""
    found = plan.get("notes")
    return [str(note) for note in found] if isinstance(found, list) else []


def monitor(plan: Mapping[str, Any], config: Any = None) -> str:
    """Return the name of the value that decides what is best, as the plan or the run's config says it."""
    train = config.get("train") if isinstance(config, Mapping) else None
    known = (plan.get("monitor"), train.get("monitor") if isinstance(train, Mapping) else None)
    return next((name for name in known if isinstance(name, str) and name != "none"), "eval/loss")


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one level of dotted names.

    Example:
        >>> flat({"a": {"b": 1, "c": [1, 2]}, "d": {}})
        {'a.b': 1, 'a.c': [1, 2]}
    """
    if not isinstance(tree, Mapping):
        return {prefix or "value": tree}
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= flat(value, f"{prefix}.{key}" if prefix else str(key))
    return found


def is_best(record: Record) -> bool:
    """Return whether an `eval` record gave the best value so far."""
    return record.info.get("best") is True


def _head(record: Record) -> str:
    return f"epoch {record.epoch}  step {record.step}  " if record.kind in ("log", "eval") else f"{record.kind}  "


def _values(record: Record) -> str:
    return "  ".join(
        f"{name} {number(value)}"
        for name, value in record.values.items()
        if name not in _NOT_IN_LINES and (value or name != "train/skipped_steps")
    )


def _eval(record: Record) -> str:
    return _values(record) + ("  *best" if is_best(record) else "")


def _save(record: Record) -> str:
    num_bytes = record.values.get("bytes")
    text = f"step {record.step}  {record.info.get('path', '')}"
    return text if num_bytes is None else f"{text}  {size(num_bytes)}"


def _skip(record: Record) -> str:
    parts = [f"step {record.step}", str(record.info.get("reason", ""))]
    if record.info.get("parameter"):
        parts.append(f"parameter {record.info['parameter']}")
    if record.info.get("rows"):
        parts.append(f"rows {_rows(record.info['rows'])}")
    return "  ".join(part for part in parts if part)


def _rows(rows: Any) -> str:
    if not isinstance(rows, list) or len(rows) <= 8:
        return text_of(rows)
    return f"{', '.join(map(str, rows[:8]))} and {len(rows) - 8} more"


def _resume(record: Record) -> str:
    changes = record.info.get("changes") or []
    text = f"from step {record.info.get('from', record.step)}"
    text += "".join(f"; {change_text(change)}" for change in changes)
    return text + "".join(f"; {refused_text(entry)}" for entry in record.info.get("refused") or [])


def change_text(change: Any) -> str:
    """Return one entry of a `resume` record's `changes` as `setting: was -> now (rule)`."""
    if not isinstance(change, Mapping):
        return str(change)
    rule = f" ({change['rule']})" if change.get("rule") else ""
    return f"{change.get('setting', '?')}: {difference(change.get('was'), change.get('now'))}{rule}"


def difference(was: Any, now: Any) -> str:
    """Return what a setting was and is; of long lists only what went and what came.

    Example:
        >>> difference(0.1, 0.2), difference([f"layer.{n}" for n in range(30)], [f"layer.{n}" for n in range(31)])
        ('0.1 -> 0.2', 'with layer.30')
    """
    before, after = exact(was), exact(now)
    if isinstance(was, list) and isinstance(now, list) and len(before) + len(after) > _LONG:
        gone, come = [each for each in was if each not in now], [each for each in now if each not in was]
        parts = [f"{word} {_short(exact(each))}" for word, each in (("without", gone), ("with", come)) if each]
        return ", ".join(parts) or "the same in another order"
    return f"{_short(before)} -> {_short(after)}"


def _short(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[:_LONG]}... ({len(text):,} characters)"


def refused_text(entry: Any) -> str:
    """Return one entry of a `resume` record's `refused` as `not used: FILE (reason)`."""
    if isinstance(entry, list) and len(entry) == 2:
        return f"not used: {entry[0]} ({entry[1]})"
    return f"not used: {text_of(entry)}"


def _stop(record: Record) -> str:
    return f"step {record.step}  {outcome(record)}"


def _plan(record: Record) -> str:
    return "  ".join(f"{label}: {text}" for label, text in pairs(record.info, PLAN_LABELS))


def _end(record: Record) -> str:
    parts = [f"step {record.step}", outcome(record), _values(record)]
    parts += [f"{label}: {text}" for label, text in pairs(record.info, END_LABELS) if label != END_LABELS["reason"]]
    return "  ".join(part for part in parts if part)


def _compile(record: Record) -> str:
    """Return what was compiled after how many steps, or what is done instead."""
    info = record.info
    where = f"after step {record.step}" if record.step else "for the first step"
    if "instead" in info:
        return f"{where}  {info['instead']} instead of the whole passes: {info.get('reason', '')}"
    made = f"{info.get('graphs', '?')} graph{'s' * (info.get('graphs') != 1)} in {number(info.get('seconds', 0))}s"
    return f"{where}  {made}" + (f"; again, because {info['again']}" if info.get("again") else "")


def _any(record: Record) -> str:
    parts = [f"step {record.step}" if record.kind not in ("log", "eval") else "", _values(record)]
    parts.append(text_of(record.info) if record.info and record.kind != "log" else "")
    return "  ".join(part for part in parts if part)


_BODIES = {
    "log": _values,
    "eval": _eval,
    "save": _save,
    "skip": _skip,
    "compile": _compile,
    "resume": _resume,
    "stop": _stop,
    "plan": _plan,
    "end": _end,
}
