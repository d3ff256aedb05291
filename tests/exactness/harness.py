"""Runs a configuration unbroken and broken, and compares everything that a run leaves behind."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lucid import Callback, rng
from lucid.records import CLOCK_PREFIXES, read_records
from lucid.signals import Stopped

from .parts import digest
from .settings import Built, Settings


class Crash(BaseException):
    """Ends a run without a word, as a kill would, but inside this process."""


class Breaker(Callback):
    """Breaks the run when a hook is called at a step: by a crash, or by a signal that asks it to stop."""

    def __init__(self, step: int, hook: str = "on_step_end", how: str = "crash") -> None:
        self.at, self.hook, self.how, self.is_spent = step, hook, how, False

    def _maybe(self, hook: str, state: Any) -> None:
        if hook != self.hook or state.step != self.at or self.is_spent:
            return
        self.is_spent = True
        if self.how == "crash":
            raise Crash
        os.kill(os.getpid(), getattr(signal, self.how))

    def on_epoch_start(self, state: Any) -> None:
        self._maybe("on_epoch_start", state)

    def on_step_end(self, state: Any) -> None:
        self._maybe("on_step_end", state)

    def on_eval_start(self, state: Any) -> None:
        self._maybe("on_eval_start", state)

    def on_eval_end(self, state: Any, metrics: Any) -> None:
        self._maybe("on_eval_end", state)

    def on_epoch_end(self, state: Any) -> None:
        self._maybe("on_epoch_end", state)


def run(settings: Settings, run_dir: Path, breakers: Sequence[Breaker] = (), **changes: Any) -> Built:
    """Run to the end, starting anew after every break with a model built from scratch under other random streams."""
    for life, breaker in enumerate([*breakers, None]):
        with rng.fork(1000 + life):
            if not any((run_dir / "checkpoints").glob("*.lcs")):
                rng.seed_all(7)  # nothing to go on from: the same weights as the first life began with
            built = Built(settings, run_dir, () if breaker is None else (breaker,), **changes)
            try:
                built.fit()
            except (Crash, Stopped, KeyboardInterrupt):
                assert breaker is not None
                assert breaker.is_spent
                continue
            assert breaker is None or not breaker.is_spent or breaker.how != "crash"
            return built
    raise AssertionError("no life came to its end")


def left_behind(built: Built, run_dir: Path) -> dict[str, Any]:
    """Return everything that must be equal, by name, as plain values."""
    session_state = built.net.state_dict()
    return {
        "log": built.log.lines,
        "weights": {name: digest(value) for name, value in session_state.items()},
        "optimizers": [optimizer_state(optimizer) for optimizer in built.optimizers],
        "schedulers": [repr(s.state_dict()) for s in built.trainer.state.schedulers if not _has_lambda(s)],
        "callbacks": {
            type(c).__name__: digest(c.state_dict()) for c in built.trainer.callbacks if not isinstance(c, Breaker)
        },
        "precision": repr(built.trainer.precision.state_dict()),
        "records": records(run_dir),
    }


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return values and dtypes of an optimizer's state."""
    tree = optimizer.state_dict()
    state = {
        f"{index}.{name}": (str(getattr(value, "dtype", type(value))), digest(value))
        for index, values in tree["state"].items()
        for name, value in values.items()
    }
    return {"state": state, "groups": [{k: repr(v) for k, v in g.items()} for g in tree["param_groups"]]}


def records(run_dir: Path) -> list[Any]:
    """Return the records of training itself, without what the clock says."""
    found = []
    for record in read_records(run_dir / "records.jsonl"):
        if record.kind in ("log", "eval", "skip"):
            values = {k: repr(v) for k, v in record.values.items() if not k.startswith(CLOCK_PREFIXES)}
            found.append((record.kind, record.step, record.epoch, values, record.info))
    return found


def compare(settings: Settings, tmp: Path, breakers: Sequence[Breaker], **changes: Any) -> dict[str, Any]:
    """Assert that a broken run leaves behind what the unbroken one does; return that."""
    shutil.rmtree(tmp, ignore_errors=True)
    whole = left_behind(run(settings, tmp / "whole"), tmp / "whole")
    broken = left_behind(run(settings, tmp / "broken", breakers, **changes), tmp / "broken")
    for name, value in whole.items():
        assert broken[name] == value, f"{name}: {first_difference(value, broken[name])}"
    return whole


def first_difference(one: Any, other: Any) -> str:
    """Say where two nested values part."""
    if isinstance(one, dict) and isinstance(other, dict) and list(one) == list(other):
        return next(f"{k}: {first_difference(one[k], other[k])}" for k in one if one[k] != other[k])
    if isinstance(one, list) and isinstance(other, list):
        for index, (a, b) in enumerate(zip(one, other, strict=False)):
            if a != b:
                return f"[{index}] {first_difference(a, b)}"
        return f"{len(one)} against {len(other)} entries"
    return f"\n  unbroken {one!r}\n  broken   {other!r}"


def _has_lambda(scheduler: Any) -> bool:
    return hasattr(scheduler, "lr_lambdas") or hasattr(scheduler, "_scale_fn_ref") or hasattr(scheduler, "anneal_func")
