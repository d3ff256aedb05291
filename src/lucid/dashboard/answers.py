"""What the browser gets: the list of runs, one run, curves, differences, and the log as text."""

from __future__ import annotations

import hashlib
import json
import math
import time
from pathlib import Path
from typing import Any

from lucid.dashboard.checkpoints import Checkpoints, Verify
from lucid.dashboard.folder import RECORDS, Folder
from lucid.dashboard.reading import Glance, Reader, Readers, glance, log_lines
from lucid.dashboard.status import status
from lucid.records import Record, words
from lucid.records.outcome import DIED, RUNNING, last_life

_LIST_BUDGET_SECONDS = 0.5
_READ_BUDGET_SECONDS = 0.8
_FIRST_BUDGET_SECONDS = 0.2
_LOG_LINES = 200


class Answers:
    """Everything the page can ask for, as plain values.

    Args:
        folder: of the runs.
        verify: checks a checkpoint, or None.
    """

    def __init__(self, folder: Folder, verify: Verify | None = None) -> None:
        self.folder = folder
        self._checkpoints = Checkpoints(folder, verify)
        self._readers = Readers()
        self._rows: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {}

    # -- the list of runs

    def runs(self, have: str) -> dict[str, Any]:
        """Return one row per run, or `same` if the browser has these already.

        Runs that changed are looked at again; on the first look at very many runs this stops after half a second and
        goes on at the next call.
        """
        until = time.monotonic() + _LIST_BUDGET_SECONDS
        rows, waiting = [], 0
        for name, place in self.folder.runs().items():
            if time.monotonic() > until and name not in self._rows:
                waiting += 1
                continue
            row = self._row(name, place)
            if row is not None:
                rows.append(row)
        rows.sort(key=lambda row: (-(row["started"] or 0.0), row["id"]))
        body = {"runs": rows, "waiting": waiting, "folder": str(self.folder.root)}
        version = hashlib.blake2b(json.dumps(body, sort_keys=True).encode(), digest_size=8).hexdigest()
        return {"same": True, "version": version} if version == have else {**body, "version": version}

    def _row(self, name: str, place: Path) -> dict[str, Any] | None:
        path = place / RECORDS
        try:
            facts = path.stat()
            known = self._rows.get(name)
            at = (facts.st_size, facts.st_mtime_ns)
            if known is None or known[0] != at:
                known = self._rows[name] = (at, self._summary(name, place, glance(path)))
        except OSError:
            self._rows.pop(name, None)
            return None
        row = known[1]
        if row["status"] not in (RUNNING, DIED):
            return row
        return {**row, "status": status(path, None, self._environment(place), facts.st_mtime)}

    def _status(self, name: str, place: Path) -> str:
        row = self._row(name, place)
        return row["status"] if row is not None else DIED

    def _summary(self, name: str, place: Path, seen: Glance) -> dict[str, Any]:
        life, last = last_life(seen.records), seen.records[-1] if seen.records else None
        logs = [record for record in seen.records if record.kind == "log"]
        return {
            "id": name,
            "name": str(seen.plan.get("name") or (name if name != "." else place.name)),
            "status": status(place / RECORDS, life, self._environment(place), seen.changed),
            "reason": str(life.info.get("reason") or "") if life is not None else "",
            "model": words.text_of(seen.plan.get("model", "")),
            "step": last.step if last else 0,
            "total": _count(seen.plan.get("total_steps")),
            "best": self._best(place, seen.plan, [*filter(None, [seen.best]), *seen.records]),
            "loss": _shown(logs[-1].values.get("train/loss")) if logs else None,
            "started": seen.started,
            "changed": seen.changed,
        }

    def _best(self, place: Path, plan: dict[str, Any], records: list[Record]) -> dict[str, Any] | None:
        """Return the best evaluation among the records, or what the end says was best."""
        name = words.monitor(plan, self.folder.read(place / "config.toml"))
        for record in reversed(records):
            if record.kind == "eval" and words.is_best(record) and name in record.values:
                return {"name": name, "step": record.step, **_shown(record.values[name])}
        for record in reversed(records):
            value = record.info.get("best") if record.kind in ("end", "stop") else None
            if isinstance(value, int | float) and not isinstance(value, bool):
                return {"name": name, "step": _count(record.info.get("best_step")), **_shown(value)}
        return None

    # -- one run

    def run(self, name: str) -> dict[str, Any] | None:
        """Return all there is to say of a run besides its curves; None if there is no such run."""
        place = self.folder.run(name)
        row = self._row(name, place) if place is not None else None
        if place is None or row is None:
            return None
        reader = self._reader(place, 0.0)  # the curves are asked for too, and read on
        with reader.lock:
            plan, evals, events, broken = dict(reader.plan), reader.evals[-200:], list(reader.events), reader.num_broken
        return {
            **row,
            "path": str(place),
            "notes": words.notes(plan),
            "plan": words.pairs(plan, words.PLAN_LABELS),
            "config": _table(self.folder.read(place / "config.toml")),
            "environment": _table(self._environment(place)),
            "checkpoints": self._checkpoints.rows(place, events),
            "events": [_event(record) for record in events if record.kind not in ("plan", "save")][-200:],
            "evals": _evals(evals),
            "broken": broken,
            "can_verify": self._checkpoints.verify is not None,
        }

    def log(self, name: str, before: int | None) -> dict[str, Any] | None:
        """Return a page of a run's records as text, the newest or those before a place."""
        place = self.folder.run(name)
        if place is None:
            return None
        try:
            records, start = log_lines(place / RECORDS, before, _LOG_LINES)
        except OSError:
            return None
        lines = [
            f"{time.strftime('%H:%M:%S', time.localtime(record.time))}  {words.line(record)}" for record in records
        ]
        return {"lines": lines, "start": start}

    def check(self, name: str, file_name: str) -> dict[str, Any] | None:
        """Verify one checkpoint; None if there is no such file or nothing that verifies."""
        place = self.folder.run(name)
        return None if place is None else self._checkpoints.check(place, file_name)

    def _environment(self, place: Path) -> Any:
        content = self.folder.read(place / "environment.json")
        starts = content.get("starts") if isinstance(content, dict) else None
        return {**starts[-1], "starts": len(starts)} if starts and isinstance(starts[-1], dict) else content

    # -- curves and differences

    def curves(self, wanted: list[tuple[str, str]], window: int, max_points: int) -> list[dict[str, Any]]:
        """Return the curves of runs: for each run what changed since the version that the browser has.

        Args:
            wanted: names of runs and the version of each that the browser has; "" for none.
            window: records that a smoothed point is the mean of; 1 for none.
            max_points: per curve.
        """
        places = [(name, have, self.folder.run(name)) for name, have in wanted]
        budget = _READ_BUDGET_SECONDS / max(1, len(wanted))
        return [
            self._curves(name, place, have, window, max_points, budget)
            for name, have, place in places
            if place is not None
        ]

    def _curves(self, name: str, place: Path, have: str, window: int, max_points: int, budget: float) -> dict[str, Any]:
        reader = self._reader(place, budget)
        asked = f"~{window}-{max_points}"
        with reader.lock:
            version = reader.version + asked
            if version == have and reader.is_complete:
                return {"id": name, "same": True, "status": self._status(name, place)}
            since = reader.rows_at(have.removesuffix(asked)) if have.endswith(asked) else 0
            curves = reader.curves
            points = {
                value: curves.points(
                    value, window=window if _is_smoothed(value) else 1, max_points=max_points, since_row=since
                )
                for value in curves.names()
                if value not in ("train/rows", "train/skipped_steps")
            }
            events = _resumes(reader)
            best = self._best(place, reader.plan, reader.evals)
        return {
            "id": name,
            "version": version,
            "since": have if since else "",
            "status": self._status(name, place),
            "loaded": reader.progress,
            "records": reader.num_records,
            "points": points,
            "events": events,
            "best": best,
        }

    def difference(self, names: list[str]) -> dict[str, Any] | None:
        """Return the settings and facts in which runs differ; None if one of them is no run."""
        columns = []
        for name in names:
            place = self.folder.run(name)
            if place is None:
                return None
            config = words.flat(self.folder.read(place / "config.toml") or {})
            environment = words.flat(self._environment(place) or {})
            kept = {
                key: environment[key] for key in environment if key.startswith(("versions.", "git.commit", "device"))
            }
            columns.append({**config, **{f"environment.{key}": value for key, value in kept.items()}})
        keys = list(dict.fromkeys(key for column in columns for key in column))
        rows = [(key, [words.exact(column[key]) if key in column else "—" for column in columns]) for key in keys]
        return {"ids": names, "rows": [row for row in rows if len(set(row[1])) > 1], "num_same": _num_same(rows)}

    def _reader(self, place: Path, budget: float) -> Reader:
        """Return the reader of a run. The first look is short, so that there is something to see at once."""
        reader = self._readers.get(place / RECORDS)
        reader.update(budget if reader.offset else min(budget, _FIRST_BUDGET_SECONDS))
        return reader


def _num_same(rows: list[tuple[str, list[str]]]) -> int:
    return sum(len(set(values)) == 1 for _, values in rows)


def _is_smoothed(name: str) -> bool:
    return not name.startswith("eval/") and name != "train/lr"


def _resumes(reader: Reader) -> list[dict[str, Any]]:
    """Return where the run went on, for the lines in the charts."""
    found = [record for record in reader.events if record.kind == "resume"][-20:]
    return [{**reader.curves.place(record.step), "text": "resumed"} for record in found]


def _evals(records: list[Record]) -> dict[str, Any]:
    names = list(dict.fromkeys(name for record in records for name in record.values))
    rows = []
    for record in records:
        values = [words.number(record.values[name]) if name in record.values else "" for name in names]
        rows.append([words.number(record.step), *values, "best" if words.is_best(record) else ""])
    return {"names": names, "rows": rows}


def _event(record: Record) -> dict[str, Any]:
    text = words.line(record).removeprefix(record.kind).strip().replace("  ", " · ")
    return {"time": record.time, "kind": record.kind, "step": record.step, "text": text}


def _table(content: Any) -> list[tuple[str, str]]:
    """Return a file's content as rows; one that could not be parsed as one row of text."""
    if content is None:
        return []
    return [(key, words.exact(value)) for key, value in words.flat(content).items()]


def _shown(value: Any) -> dict[str, Any]:
    """Return a number as the browser needs it: to sort by, and to show. JSON has no NaN."""
    if value is None:
        return {"value": None, "text": ""}
    is_finite = isinstance(value, int | float) and math.isfinite(value)
    return {"value": value if is_finite else None, "text": words.number(value)}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
