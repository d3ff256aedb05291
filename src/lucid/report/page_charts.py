"""Which curves the report page draws, and how they are grouped."""

from __future__ import annotations

from typing import Any

from lucid.records import Record, words
from lucid.records.curves import ROWS, Curves

_LOSSES = ("train/loss", "eval/loss")
_OWN_CHARTS = {
    "train/lr": "Learning rate",
    "train/grad_norm": "Gradient norm before clipping",
    "train/rows_per_second": "Throughput, rows per second",
}
_NOT_DRAWN = (ROWS, "train/skipped_steps")
_STAGES = "time/"
_SMOOTH_FROM = 60
_SMOOTH_SHARE = 40


def charts(records: list[Record], curves: Curves, monitor: str) -> list[dict[str, Any]]:
    """Return the charts of a run as plain values for the page's script.

    Args:
        records: all of the run.
        curves: of these records.
        monitor: the value that decides what is best.
    """
    events = _events(records, curves)
    names = [name for name in curves.names() if name not in _NOT_DRAWN]
    groups: list[tuple[str, list[str], dict[str, Any]]] = []
    losses = [name for name in _LOSSES if name in names]
    if losses:
        groups.append(("Loss", losses, {"wide": True}))
    metrics = [name for name in names if name.startswith("eval/") and name not in _LOSSES]
    groups += [(name.removeprefix("eval/"), [name], {}) for name in metrics]
    groups += [(title, [name], {}) for name, title in _OWN_CHARTS.items() if name in names]
    stages = [name for name in names if name.startswith(_STAGES)]
    if stages:
        groups.append(("Time per stage, seconds between two records", stages, {}))
    shown = {name for _, group, _ in groups for name in group}
    groups += [(name, [name], {}) for name in names if name not in shown]
    drawn = [_chart(title, group, extra, curves, events) for title, group, extra in groups]
    _mark_best(drawn, records, monitor)
    return drawn


def _chart(
    title: str, names: list[str], extra: dict[str, Any], curves: Curves, events: list[dict[str, Any]]
) -> dict[str, Any]:
    lines = []
    for name in names:
        count = len(curves.numbers(name))
        smooth = count >= _SMOOTH_FROM and name.startswith("train/") and name != "train/lr"
        points = curves.points(name, window=max(2, count // _SMOOTH_SHARE) if smooth else 1)
        short = name.removeprefix(_STAGES) if name.startswith(_STAGES) else name
        lines.append({"name": short, "points": points})
    note = f"last {words.number(curves.last(names[0]))}" if len(names) == 1 else ""
    return {"title": title, "lines": lines, "events": events, "note": note, **extra}


def _mark_best(drawn: list[dict[str, Any]], records: list[Record], monitor: str) -> None:
    """Put a star on the best evaluation of the value that decides."""
    best = next((record for record in reversed(records) if record.kind == "eval" and words.is_best(record)), None)
    for line in [line for chart in drawn for line in chart["lines"] if line["name"] == monitor]:
        if best is not None and best.step in line["points"]["step"]:
            line["best"] = line["points"]["step"].index(best.step)


def _events(records: list[Record], curves: Curves) -> list[dict[str, Any]]:
    """Return the resumes, placed on the axes."""
    steps = [record.step for record in records if record.kind == "resume"][-20:]
    return [{**curves.place(step), "text": "resumed"} for step in steps]
