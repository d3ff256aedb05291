"""Which checkpoints stay: pure functions of steps and values, never of file times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Mode = Literal["min", "max"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One checkpoint of a run."""

    path: Path
    step: int
    value: float | None = None
    """The monitored value, None if there was none or it was NaN."""
    meta: dict[str, Any] = field(default_factory=dict)
    url: str = ""
    """Where it is if not on a disk."""


def ranked(entries: Sequence[Entry], mode: Mode) -> list[Entry]:
    """Return the entries that have a value, best first; of equal ones the earliest first."""
    sign = 1.0 if mode == "min" else -1.0
    scored = [(sign * entry.value, entry.step, at) for at, entry in enumerate(entries) if entry.value is not None]
    return [entries[at] for _, _, at in sorted(scored)]


@dataclass(frozen=True, slots=True)
class Retention:
    """Keeps the newest, the best in slots of their own, and every so many steps."""

    keep_last: int = 2
    keep_every: int = 0
    keep_best: int = 1
    mode: Mode = "min"

    def to_delete(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return what is not kept, oldest first. The newest is always kept."""
        by_step = sorted(entries, key=lambda entry: entry.step)
        keep = {entry.path for entry in by_step[-max(self.keep_last, 1) :]}
        keep |= {entry.path for entry in ranked(by_step, self.mode)[: self.keep_best]}
        if self.keep_every:
            keep |= {entry.path for entry in by_step if entry.step % self.keep_every == 0}
        return [entry for entry in by_step if entry.path not in keep]
