"""Whether a run is still running, or how it is over."""

from __future__ import annotations

import platform
import time
from pathlib import Path
from typing import Any

from lucid.records import Record
from lucid.records.outcome import DIED, RUNNING, status_of

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_FRESH_SECONDS = 120.0
"""How old the last line of a run on another machine may be while it still counts as running."""


def status(path: Path, last_life: Record | None, environment: Any, changed: float) -> str:
    """Return one of `lucid.records.outcome.STATUSES`.

    A run that wrote its `end` or `stop` says it itself. Else it runs if its process still holds
    the records file. Where that cannot be seen, because the process is on another machine, a fresh line is enough.

    Args:
        path: of the records.
        last_life: the newest record of a start, resume, stop or end.
        environment: what `environment.json` holds.
        changed: when the file last changed, in seconds since 1970.
    """
    known = status_of(last_life)
    if known is not None:
        return known
    held = is_held(path)
    if held:
        return RUNNING
    is_ours = _host(environment) == platform.node()
    if held is False and is_ours:
        return DIED
    return RUNNING if time.time() - changed < _FRESH_SECONDS else DIED


def is_held(path: Path) -> bool | None:
    """Return whether a live process has the records open for writing; None if that cannot be seen."""
    if fcntl is None:
        return None
    try:
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            fcntl.flock(file, fcntl.LOCK_UN)
            return False
    except OSError:
        return None


def _host(environment: Any) -> str | None:
    """Return the machine of the last start."""
    if not isinstance(environment, dict):
        return None
    starts = environment.get("starts")
    last = starts[-1] if isinstance(starts, list) and starts else environment
    host = last.get("host") if isinstance(last, dict) else None
    return host if isinstance(host, str) else None
