"""`lucid check`: proves on the user's own model and data that a run can be broken anywhere, and looks for loop faults.

    target      the user's factory, and how it is found by name
    child       a call in a new process, with another hash seed
    digest      names and hashes of all that a run is made of
    hidden      state in the user's objects that no checkpoint holds
    script      a short run that writes down what happened, step by step
    compare     the first thing that differs between two such runs, and why
    planning, resuming, gradients, faults      the sections of the report
    report      findings, as text and as JSON

The module can be called: `lucid.check(make_trainer)` is `lucid.check.run(make_trainer)`.
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lucid.check.report import Report

__all__ = ["run"]


def run(
    factory: Any,
    *,
    steps: int = 6,
    start: str = "auto",
    run_dir: str | None = None,
) -> Report:
    """Check a trainer and its data in a scratch folder; the user's own run directory is not touched.

    Args:
        factory: called without arguments in each new process; returns `(trainer, train_loader)`,
            `(trainer, train_loader, eval_loader)`, or an object with these three as attributes.
        steps: steps of the short runs; the break comes after half of them.
        start: how new processes begin. "spawn": from nothing, as a real resume does; the factory must be importable.
            "fork": as a copy of this one. "auto": spawn if the factory can be imported, else fork.
        run_dir: folder whose disk is looked at. None: the trainer's own run directory.

    Returns:
        What was found; `report.ok`, `report.exit_code` (0 or 1), `report.text()`, `report.to_dict()`.

    Raises:
        ConfigError: if the factory does not return what it must.
    """
    from lucid.check.checking import check_all

    return check_all(factory, steps=steps, start=start, run_dir=run_dir)


class CallableModule(types.ModuleType):
    """This module, which can be called as `run`."""

    def __call__(self, factory: Any, *, steps: int = 6, start: str = "auto", run_dir: str | None = None) -> Report:
        """Do what `run` does."""
        return run(factory, steps=steps, start=start, run_dir=run_dir)


sys.modules[__name__].__class__ = CallableModule
