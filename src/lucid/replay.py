"""Replay: run a step that went wrong again, bit for bit, and name the first module and tensor that are bad.

take the state of the bundle's checkpoint, or begin anew
run the steps that lead to the bad one, in the ordinary loop
compare the state with the bundle's digest
run the bad step with a probe on every module
compare loss, norm and random streams with what the run recorded
compiled, or perhaps an overflow in fp16?  the probe looks at its passes as they are written, the loss not scaled
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from lucid import changes, rng
from lucid.bundle import Bundle, state_digest, streams_digest
from lucid.errors import ReplayError
from lucid.loop import fit
from lucid.pieces import cut, joined
from lucid.probe import Finding, Probe
from lucid.serialization import load, unwrap
from lucid.state import TrainState
from lucid.step import UNSURE, StepResult, TrainStep
from lucid.trainer import Trainer
from lucid.windows import Window

Build = Callable[[], tuple[Any, ...]]


@dataclass(slots=True)
class Replay:
    """What a replay found."""

    step: int
    reason: str
    finding: Finding | None
    """The first that is NaN or inf; None if nothing is, as in a spike."""
    differs: list[str]
    """What is not, bit for bit, what the run recorded; [] is the rule."""
    loss: float
    grad_norm: float
    rows: list[Any] = field(default_factory=list)
    largest: list[tuple[str, float]] = field(default_factory=list)
    """The parameters with the largest gradient norms, and these norms."""

    @property
    def is_exact(self) -> bool:
        """Whether the step was the recorded one in every bit."""
        return not self.differs

    @property
    def verdict(self) -> str | None:
        """Whether a step that may have been an overflow in fp16 was one, in words; None if it was none for sure."""
        if self.reason != UNSURE:
            return None
        if self.finding is None:
            return "no fault: without the scale every gradient is finite, the scale was too high"
        return "a fault, no overflow: it is there without the scale, too"

    def describe(self) -> str:
        """Return the result as a few lines of text."""
        lines = [f"step {self.step}: {self.reason}", f"rows {self.rows}" if self.rows else "rows have no numbers"]
        lines.append(f"loss {self.loss:.6g}, gradient norm {self.grad_norm:.6g}")
        if self.finding is not None:
            lines.append(f"first NaN or inf: {self.finding.describe()}")
        else:
            named = ", ".join(f"{name} ({norm:.4g})" for name, norm in self.largest)
            what = "no output or gradient holds NaN or inf, a norm may overflow; " if self.verdict is None else ""
            lines.append(f"{what}largest norms: {named}")
        if self.verdict is not None:
            lines.append(self.verdict)
        same = "the replayed step has the same bits as the recorded one"
        lines.append(same if self.is_exact else f"not the recorded step, these differ: {', '.join(self.differs)}")
        return "\n".join(lines)


def replay(bundle: str | Path | Bundle, build: Build) -> Replay:
    """Run the step of a bundle again and name what is bad in it. Nothing is written anywhere.

    Args:
        bundle: a folder below `run_dir/replay`, or what `Bundle.read` gave.
        build: makes everything anew, as the run did: returns (trainer, train_loader) or (trainer, train_loader,
            eval_loader).

    Returns:
        What was found; `describe()` says it in words.

    Raises:
        ReplayError: if the bundle cannot be read, was made with other settings or data, or its step is never reached.

    Example:
        `print(replay("runs/mine/replay/step-00000120", lambda: (make_trainer(), train_loader)).describe())`
    """
    if not isinstance(bundle, Bundle):
        bundle = Bundle.read(bundle)
    trainer, train_loader, *rest = build()
    _without_traces(trainer)
    step = _ProbedStep(trainer, bundle)
    with trainer.session(train_loader, rest[0] if rest else None) as session:
        state = session.state
        _check_same_run(bundle, session.compared)
        if bundle.checkpoint is not None:
            session.take(load(bundle.checkpoint))
        _merge(state, bundle)
        with suppress(_Reached):
            fit(state, session.windows(), step, session.plan, session.services)
    if step.result is None:
        raise ReplayError(
            f"the run that was built ended at step {state.step}, before step {bundle.step} of the bundle."
        )
    return step.result


def _without_traces(trainer: Trainer) -> None:
    """The replayed run has no folder, no reports, and goes on past bad steps as the recorded one did."""
    trainer.run_dir, trainer.reports = None, ()
    trainer.config = replace(trainer.config, non_finite="skip", max_skips=2**31, max_time=None)


def _merge(state: TrainState, bundle: Bundle) -> None:
    progress = state.progress
    progress.omitted = [list(place) for place in {tuple(p) for p in [*progress.omitted, *bundle.omitted]}]
    progress.finished = False
    state.stop_reason = None


def _check_same_run(bundle: Bundle, now: dict[str, Any]) -> None:
    found = [change for change in changes.compare(bundle.compared, now) if change.rule == changes.REFUSED]
    if found:
        raise ReplayError(f"the step was recorded with other settings:\n{changes.table(found)}\nSet them back.")


class _Reached(Exception):  # noqa: N818 - no error
    """The bad step was run; the loop is left."""


class _ProbedStep:
    """A step that watches the modules at the bundle's step, and leaves the loop after it."""

    def __init__(self, trainer: Trainer, bundle: Bundle) -> None:
        self._step, self._bundle = trainer.step(), bundle
        self._passes = TrainStep(trainer.forward)
        self._is_compiled = trainer.config.compile
        self.result: Replay | None = None

    def __call__(self, state: TrainState, window: Window) -> StepResult:
        """Do one step of the path, or the bad one."""
        if state.progress.step + 1 < self._bundle.step:
            return self._step(state, window)
        bundle, differs = self._bundle, []
        if state_digest(state) != bundle.state_digest:
            differs.append("weights or optimizer before the step")
        if (window.epoch, window.start, len(window.batches)) != (bundle.epoch, bundle.start, bundle.num_batches):
            differs.append("rows")
        streams, looks_again = rng.capture(), self._is_compiled or bundle.reason == UNSURE
        # A compiled model does not run the probe's hooks, or does not compile with them.
        with nullcontext() if looks_again else Probe(unwrap(state.model), window) as probe:
            result = self._step(state, window)
        loss, norm = float(result.loss), float(result.grad_norm)
        differs += ["loss"] * (not _same(loss, bundle.loss)) + ["gradient norm"] * (not _same(norm, bundle.grad_norm))
        if streams_digest() != bundle.streams_digest:
            differs.append("random streams after the step")
        finding = self._look_again(state, window, streams) if probe is None else probe.finding(result.micro_losses)
        self.result = Replay(
            bundle.step, bundle.reason, finding, differs, loss, norm, bundle.rows, _largest_gradients(state)
        )  # fmt: skip
        raise _Reached

    def _look_again(self, state: TrainState, window: Window, streams: dict[str, Any]) -> Finding | None:
        """Run the passes of the step that was left out as they are written: not compiled, the loss not scaled."""
        for parameter in state.parameters():
            parameter.grad = None
        if state.precision.scaler is not None:
            state.precision.scaler.load_state_dict({**state.precision.scaler.state_dict(), "scale": 1.0})
        rng.restore(streams)
        eagerly = torch.compiler.set_stance("force_eager") if self._is_compiled else nullcontext()
        with eagerly, Probe(unwrap(state.model), window) as probe:
            tally = self._passes.gradients(state, cut(window, state.progress.halvings))
        _, _, correction = tally.result()
        if correction is not None:
            torch._foreach_mul_([p.grad for p in state.parameters() if p.grad is not None], correction)
        return probe.finding(joined(tally.losses, window, state.progress.halvings))


def _same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def _largest_gradients(state: TrainState) -> list[tuple[str, float]]:
    named = unwrap(state.model).named_parameters()
    norms = [(name, float(torch.linalg.vector_norm(p.grad.float()))) for name, p in named if _is_dense(p.grad)]  # type: ignore[union-attr]
    return sorted(norms, key=lambda item: -item[1])[:3]


def _is_dense(gradient: torch.Tensor | None) -> bool:
    return gradient is not None and gradient.layout is torch.strided
