"""What all trackers share: which records they take, the settings they show, and the memory of which run they are."""

from __future__ import annotations

import json
import os
import tomllib
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from lucid.records import Record, words
from lucid.records.curves import POINT_KINDS

_MEMORY = "trackers.json"


class Tracker(ABC):
    """A report to another program.

    Args:
        run_dir: folder of the run.
    """

    required = False
    tick_is_idle = True

    def __init__(self, run_dir: str | Path) -> None:
        self.folder = Path(run_dir)
        self._started = False

    def write(self, record: Record) -> None:
        """Take one record: a plan or a resume starts or goes on, values are points."""
        if not self._started or record.kind in ("plan", "resume"):
            self._started = True
            self._start(record, settings(self.folder, record))
        if record.kind in POINT_KINDS and record.values:
            self._log(record)
        if record.kind in ("stop", "end"):
            self._finish(record)

    def tick(self, step: int) -> None:  # noqa: B027  # no tracker draws progress
        """Do nothing."""

    def rewind(self, step: int) -> None:  # noqa: B027  # most programs cannot take points back
        """Take back the points after `step` if the program can; else they are there twice, with the same values."""

    @abstractmethod
    def close(self) -> None:
        """Finish, also when the run failed."""

    @abstractmethod
    def _start(self, record: Record, found: dict[str, Any]) -> None:
        """Open the run, or go on with it; called again when settings changed."""

    @abstractmethod
    def _log(self, record: Record) -> None:
        """Take the values of one record, at its step and time."""

    def _finish(self, record: Record) -> None:  # noqa: B027  # only some have a place for it
        """Take the end of the run."""


def settings(folder: Path, record: Record) -> dict[str, Any]:
    """Return the settings of a run as one level of dotted names: its `config.toml`, then what the plan adds."""
    try:
        found = words.flat(tomllib.loads((folder / "config.toml").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        found = {}
    plan = {key: value for key, value in record.info.items() if key not in ("changes", "refused")}
    found |= words.flat(plan, "plan")
    return {name: json.dumps(value) if isinstance(value, list) else value for name, value in found.items()}


def recall(folder: Path, tracker: str) -> str | None:
    """Return the id under which a tracker knows this run, None if it does not."""
    known = _memory(folder).get(tracker)
    return known if isinstance(known, str) else None


def remember(folder: Path, tracker: str, run_id: str) -> None:
    """Keep the id under which a tracker knows this run."""
    known = _memory(folder) | {tracker: run_id}
    scratch = folder / f".{_MEMORY}.{os.getpid()}"
    scratch.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    os.replace(scratch, folder / _MEMORY)


def _memory(folder: Path) -> dict[str, Any]:
    try:
        known = json.loads((folder / _MEMORY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
