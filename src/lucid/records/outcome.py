"""How a run stands: the words that the terminal, the report page, the dashboard and the command share."""

from __future__ import annotations

from lucid.records.record import Record

RUNNING, FINISHED, INTERRUPTED, FAILED, DIED = "running", "finished", "interrupted", "failed", "died"

STATUSES = {
    RUNNING: "its process is alive",
    FINISHED: "it reached its end",
    INTERRUPTED: "it was asked to stop; started again, it goes on",
    FAILED: "an error ended it; started again, it goes on from its last checkpoint",
    DIED: "its process is gone without a word; started again, it goes on from its last checkpoint",
}
"""Every status of a run, and what it means."""

_LIFE = ("plan", "resume", "stop", "end")


def last_life(records: list[Record]) -> Record | None:
    """Return the newest record that says whether a run goes on or is over."""
    return next((record for record in reversed(records) if record.kind in _LIFE), None)


def status_of(life: Record | None) -> str | None:
    """Return the status that a record of `last_life` gives; None where only the process can tell."""
    if life is None or life.kind not in ("stop", "end"):
        return None
    if life.kind == "end":
        return FINISHED
    return FAILED if life.info.get("exit_code") == 1 else INTERRUPTED


def outcome(life: Record) -> str:
    """Return the status with its reason, where there is one.

    Example:
        >>> outcome(Record("end", 8, info={"reason": "finished"}))
        'finished'
        >>> outcome(Record("stop", 8, info={"reason": "SIGTERM"}))
        'interrupted: SIGTERM'
    """
    status, reason = status_of(life) or DIED, str(life.info.get("reason") or "")
    return status if reason in ("", status) else f"{status}: {reason}"
