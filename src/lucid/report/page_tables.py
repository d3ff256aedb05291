"""The words and tables of the report page, as HTML. Everything from files goes through `escape`."""

from __future__ import annotations

import json
import statistics
import time
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from lucid.records import Record, words
from lucid.records.curves import Curves
from lucid.records.outcome import DIED, RUNNING, last_life, outcome, status_of

_MAX_ROWS = 200
_MAX_TEXT_BYTES = 1 << 20


@dataclass(slots=True)
class Run:
    """What is known of a run. Of its `log` records only the last is kept, if nothing came after it."""

    folder: Path
    records: list[Record]
    curves: Curves
    num_broken: int

    def last(self, kind: str) -> Record | None:
        """Return the newest record of a kind."""
        return next((record for record in reversed(self.records) if record.kind == kind), None)

    def all(self, *kinds: str) -> list[Record]:
        """Return the records of these kinds in order."""
        return [record for record in self.records if record.kind in kinds]

    @property
    def plan(self) -> dict[str, Any]:
        """The newest plan; that of a process that went on stands in its `resume` record."""
        return words.newest_plan(self.records)

    @property
    def monitor(self) -> str:
        """The value that decides what is best."""
        return words.monitor(self.plan, read_file(self.folder / "config.toml"))


def title(run: Run) -> str:
    """Return the name of the run, or of its folder."""
    return str(run.plan.get("name") or run.folder.resolve().name)


def subtitle(run: Run) -> str:
    """Return in one line what happened."""
    if not run.records:
        return "nothing was recorded yet"
    last = run.records[-1]
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(last.time))
    return f"{status(run)} · last record {when} · {run.folder.resolve()}"


def status(run: Run) -> str:
    """Return how the run stands and why."""
    last = last_life(run.records)
    if last is not None and status_of(last) is not None:
        return outcome(last)
    return f"it was still {RUNNING}, or {DIED}"


def cards(run: Run) -> str:
    """Return the key figures, and what the plan has to say."""
    shown: list[tuple[str, str, str]] = []
    last = run.records[-1] if run.records else None
    if last is not None:
        total = run.plan.get("total_steps")
        shown.append(("steps", words.number(last.step), f"of {words.number(total)}" if total else ""))
    best = next((record for record in reversed(run.all("eval")) if words.is_best(record)), None)
    if best is not None:
        name = run.monitor
        name = name if name in best.values else next(iter(best.values), "")
        if name:
            shown.append((f"best {name}", words.number(best.values[name]), f"at step {words.number(best.step)}"))
    for name in ("train/loss", "eval/loss"):
        value = run.curves.last(name)
        if value is not None:
            shown.append((f"last {name}", words.number(value), ""))
    if run.curves.seconds:
        shown.append(("running time", words.duration(run.curves.seconds[-1]), ""))
    rates = run.curves.numbers("train/rows_per_second")
    if rates:
        shown.append(("rows per second", words.number(round(statistics.median(rates))), "median"))
    skips = len(run.all("skip"))
    shown.append(("left-out steps", words.number(skips), ""))
    rows = (
        f"<div><dt>{escape(label)}</dt><dd>{escape(text)}<small>{escape(more)}</small></dd></div>"
        for label, text, more in shown
    )
    notes = "".join(f'<p class="warn">{escape(note)}</p>' for note in words.notes(run.plan))
    return f'<dl class="cards">{"".join(rows)}</dl>{notes}'


def tables(run: Run) -> str:
    """Return everything below the curves."""
    parts = [_evals(run), _events(run), '<div class="tables">']
    parts.append(_section("Plan", _pairs(words.pairs(run.plan, words.PLAN_LABELS))))
    end = run.last("end")
    if end is not None:
        parts.append(_section("Where things lie", _pairs(words.pairs(end.info, words.END_LABELS))))
    parts.append(_section("Config", _file_table(run.folder / "config.toml")))
    parts.append(_section("Environment", _environment(run.folder / "environment.json")))
    parts.append("</div>")
    parts.append(_section("Checkpoints", _checkpoints(run)))
    if run.num_broken:
        parts.append(f'<p class="warn">{run.num_broken} lines of records.jsonl are broken and were left out.</p>')
    return "".join(parts)


def _flat(content: Any) -> list[tuple[str, str]]:
    return [(key, words.exact(value)) for key, value in words.flat(content).items()]


def _section(heading: str, body: str) -> str:
    return f"<section><h2>{escape(heading)}</h2>{body}</section>" if body else ""


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    rows = "".join(f'<tr><th scope="row">{escape(label)}</th><td>{_text(text)}</td></tr>' for label, text in pairs)
    return f"<table>{rows}</table>" if rows else ""


def _text(text: str) -> str:
    """Return a short text as it is, a long one folded."""
    if "\n" not in text and len(text) < 400:
        return escape(text)
    return f"<details><summary>{len(text.splitlines())} lines</summary><pre>{escape(text)}</pre></details>"


def _grid(heads: list[str], rows: list[list[str]]) -> str:
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows[-_MAX_ROWS:])
    left_out = len(rows) - _MAX_ROWS
    note = f'<p class="muted">The first {left_out} are left out.</p>' if left_out > 0 else ""
    return f'{note}<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _evals(run: Run) -> str:
    records = run.all("eval")[-20:]
    names = list(dict.fromkeys(name for record in records for name in record.values))
    rows = [
        [words.number(record.step), str(record.epoch)]
        + [words.number(record.values[name]) if name in record.values else "" for name in names]
        + ["best" if words.is_best(record) else ""]
        for record in records
    ]
    return _section("Last evaluations", _grid(["step", "epoch", *names, ""], rows))


def _events(run: Run) -> str:
    rows = [
        [
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.time)),
            record.kind,
            words.line(record).removeprefix(f"{record.kind}  "),
        ]
        for record in run.all("skip", "resume", "stop")
    ]
    return _section("What happened on the way", _grid(["time", "kind", "what"], rows))


def _checkpoints(run: Run) -> str:
    folder = run.folder / "checkpoints"
    files = sorted(path for path in folder.glob("*.lcs") if path.is_file()) if folder.is_dir() else []
    saved = {Path(str(record.info.get("path", ""))).name: record for record in run.all("save")}
    rows = []
    for path in files:
        record = saved.get(path.name)
        rows.append([path.name, words.size(path.stat().st_size), words.number(record.step) if record else ""])
    return _grid(["file", "size", "step"], rows)


def _file_table(path: Path) -> str:
    """Return a TOML or JSON file as a table, or as it is if it cannot be read as such."""
    content = read_file(path)
    return f"<pre>{escape(content)}</pre>" if isinstance(content, str) else _pairs(_flat(content))


def _environment(path: Path) -> str:
    """Return the environment of the last start."""
    content = read_file(path)
    starts = content.get("starts") if isinstance(content, dict) else None
    if not isinstance(starts, list) or not starts:
        return _file_table(path)
    return _pairs([*_flat(starts[-1]), ("starts", str(len(starts)))])


def read_file(path: Path) -> Any:
    """Return what a TOML or JSON file holds; its text if it is broken, {} if it is not there."""
    try:
        text = path.read_bytes()[:_MAX_TEXT_BYTES].decode("utf-8", "replace")
    except OSError:
        return {}
    try:
        return tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (ValueError, RecursionError):
        return text
