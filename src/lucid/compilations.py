"""What was compiled in a run, told while it happens: how many graphs, how long it took, and why again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from lucid.callbacks import Callback
from lucid.state import TrainState

_LONGEST_REASON = 200


class _Compilations(Callback):
    """Writes a record of kind "compile" after each step in which Dynamo made graphs.

    Counts whatever is compiled in this process while the run goes on. The name keeps it out of checkpoints and out of
    what a resume compares.

    Attributes:
        write: takes kind and info of a record; set by whoever opens the session.
    """

    def __init__(self) -> None:
        self.write: Callable[[str, dict[str, Any]], None] = lambda kind, info: None
        self._newest: Any = None
        self._graphs, self._again, self._seconds = 0, 0, 0.0

    def tell(self, why: str) -> None:
        """Say why forward and backward passes are not one graph."""
        self.write("compile", {"instead": "model.compile()", "reason": why[:_LONGEST_REASON]})

    def on_train_start(self, state: TrainState) -> None:
        """Count from here."""
        made = _made()
        self._newest = made[-1] if made else None
        self._graphs, self._again, self._seconds = 0, 0, 0.0

    def on_step_end(self, state: TrainState) -> None:
        """Report what was compiled for this step, if anything was."""
        made = _made()
        if made and made[-1] is not self._newest:
            self._report(made)

    on_train_end = on_step_end

    def _report(self, made: list[Any]) -> None:
        new = made
        for index, one in enumerate(made):
            if one is self._newest:
                new = made[index + 1 :]
        self._newest = made[-1]
        graphs = [one for one in new if one.has_guarded_code and not one.fail_type]
        reasons = [one.recompile_reason for one in graphs if one.recompile_reason]
        seconds = sum(one.duration_us or 0 for one in new) / 1e6
        self._graphs, self._again, self._seconds = (
            self._graphs + len(graphs), self._again + len(reasons), self._seconds + seconds,
        )  # fmt: skip
        if graphs:
            info = {"graphs": len(graphs), "seconds": round(seconds, 3)}
            self.write("compile", info | ({"again": _plain(reasons[0])} if reasons else {}))

    def summary(self) -> dict[str, Any]:
        """Return what the end of the run says about it."""
        if not self._graphs:
            return {}
        text = f"{self._graphs} graph{'s' * (self._graphs > 1)} in {self._seconds:.1f}s"
        return {"compiled": text + (f", {self._again} of them again" if self._again else "")}


def _made() -> list[Any]:
    """Return torch's own account of its last 64 compilations, oldest first."""
    utils = sys.modules.get("torch._dynamo.utils")
    return [] if utils is None else utils.get_compilation_metrics()


def _plain(reason: str) -> str:
    """Return torch's reason for another graph in one line: which guard failed, without the number of the graph."""
    first = reason.strip().partition("\n")[0]
    return first.partition(": ")[2][:_LONGEST_REASON] or first[:_LONGEST_REASON]
