"""What happens around a step that is left out: it is explained, kept for a replay, and by policy the run goes back."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lucid.bundle import Bundle, state_digest, streams_digest
from lucid.errors import ConfigError, DataError, NonFiniteError
from lucid.loop import after_step, is_over
from lucid.serialization import unwrap
from lucid.state import TrainState
from lucid.step import HARMLESS, OMITTED, UNSURE, StepResult
from lucid.utils.data import Feed
from lucid.windows import Window, windows

if TYPE_CHECKING:
    from lucid.session import Session

_ROWS_NAMED = 64
_MAX_ROLLBACKS = 3
_MAX_BUNDLES = 8


class Guard:
    """Looks after a session's bad steps.

    Args:
        session: the run.

    Raises:
        ConfigError: if the policy is to go back and there is no folder for checkpoints.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._turn = 0
        self._source: Generator[Window, None, None] | None = None
        if session.state.config.non_finite == "rollback" and session.run_dir is None:
            raise ConfigError('train.non_finite="rollback" must have a run_dir: it goes back to a checkpoint in it.')

    def _begin(self) -> None:
        """Make sure that there is a checkpoint to go back to, of callbacks that have begun."""
        session, state = self._session, self._session.state
        if state.config.non_finite == "rollback" and session.store is not None and state.saved_step is None:
            session.save(state, Window([], 0, 0, False))

    def explain(self, state: TrainState, window: Window, result: StepResult) -> dict[str, Any]:
        """Return what is known of a step that was left out, and leave a bundle to replay it."""
        info = explain(self._session.feed, state, window, result)
        if (result.skipped not in HARMLESS or result.skipped == UNSURE) and self._session.run_dir is not None:
            info |= self._leave_bundle(self._session.run_dir, state, window, result, info)
        return info

    def _leave_bundle(
        self, run_dir: Path, state: TrainState, window: Window, result: StepResult, info: dict[str, Any]
    ) -> dict[str, Any]:
        folder = run_dir / "replay" / f"step-{state.step:08d}"
        most = _MAX_BUNDLES // 2 if result.skipped == UNSURE else _MAX_BUNDLES
        if not folder.exists() and folder.parent.is_dir() and len(list(folder.parent.iterdir())) >= most:
            return {}
        session = self._session
        entry = None
        if session.store is not None:
            session.store.wait()
            entry = session.store.latest()
        bundle = Bundle(
            step=state.step,
            epoch=window.epoch,
            start=window.start,
            num_batches=len(window.batches),
            reason=str(result.skipped),
            loss=float(result.loss),
            grad_norm=float(result.grad_norm),
            state_digest=state_digest(state),
            streams_digest=streams_digest(),
            rows=rows_of(session.feed, window.epoch, range(window.start, window.start + len(window.batches))),
            info=dict(info),
            checkpoint_step=0 if entry is None else entry.step,
            omitted=list(state.progress.omitted),
            halvings=state.progress.halvings,
            compared=session.compared,
        )
        try:
            bundle.write(folder, None if entry is None else Path(entry.path))
        except OSError as error:  # a full disk must not end the run that went on without the step
            return {"replay": f"not written: {error}"}
        return {"replay": f"replay/{folder.name}"}

    def roll_back(self, state: TrainState, window: Window, info: dict[str, Any]) -> None:
        """Go back to the last good checkpoint; the window will be left out when the run comes to it again.

        Raises:
            NonFiniteError: if the run went back three times already.
        """
        session, failed_at = self._session, state.step
        where = f"step {failed_at} (epoch {window.epoch + 1}): {told(info)}"
        if state.progress.rollbacks >= _MAX_ROLLBACKS:
            raise NonFiniteError(
                f"the run went back to a checkpoint {_MAX_ROLLBACKS} times and failed again, the last at {where}. "
                "Lower the learning rate, or look at the rows and the replay bundles named in the records."
            )
        assert session.store is not None  # noqa: S101  # there is a folder: seen at set-up
        session.store.wait()
        restored = session.store.restore()
        if restored is None:
            raise NonFiniteError(f"no good checkpoint is left to go back to after {where}.")
        if self._source is not None:
            self._source.close()  # before a stream is told where to go on
        rollbacks = state.progress.rollbacks + 1
        omitted = [*state.progress.omitted, [window.epoch, window.start]]
        entry, tree = restored
        session.take(tree)
        state.progress.rollbacks, state.progress.omitted = rollbacks, omitted
        for parameter in state.parameters():
            parameter.grad = None
        self._turn += 1
        session.reports.rewind(state.step)
        session.write("resume", {"rollback": rollbacks, "failed_step": failed_at, "checkpoint": entry.step, **info})

    def windows(self) -> Iterator[Window]:
        """Return the windows that are left; after a rollback, those that follow from there."""
        session, turn = self._session, -1
        state, config = session.state, session.state.config
        self._begin()
        while turn != self._turn:
            turn = self._turn
            self._source = windows(session.feed, state.progress, config.gradient_accumulation_steps, config.epochs)
            for window in self._source:
                if [window.epoch, window.start] in state.progress.omitted:
                    self._omit(window)
                else:
                    yield window
                if turn != self._turn or is_over(state, session.plan):
                    break
            self._source.close()  # workers of the data end here

    def _omit(self, window: Window) -> None:
        """Count a window that is left out for good as a step that was left out."""
        session, nothing = self._session, torch.tensor(math.nan)
        if window.start == 0:
            session.callbacks.on_epoch_start(session.state)
        result = StepResult(nothing, nothing, 0, skipped=OMITTED)
        after_step(session.state, window, result, session.plan, session.services)

    def check_before_save(self, state: TrainState) -> bool:
        """Return whether the weights are good to save.

        With the policy to go back the next step will find bad ones and does so.

        Raises:
            NonFiniteError: if they are not and nobody will put that right.
        """
        name = bad_weight(state)
        if name is None:
            return True
        if state.config.non_finite == "rollback" and not state.progress.finished:
            return False
        raise NonFiniteError(
            f"step {state.step}: parameter {name!r} is NaN or inf after the update. This state is not saved; the "
            "checkpoints before it are untouched. Lower the learning rate, or clip the gradient (train.max_grad_norm)."
        )


def explain(feed: Feed, state: TrainState, window: Window, result: StepResult) -> dict[str, Any]:
    """Name what is bad in a step that was left out. Reads tensors: only called in that case.

    Args:
        feed: knows the numbers of the rows.
        state: its gradients are still those of the step.
        window: the micro-batches of the step.
        result: what the step gave.

    Returns:
        Any of "micro_batch" (place in the window, from 0), "parameter" (the first whose gradient is NaN or inf),
        "rows" (row numbers of that micro-batch or, if none is known to be bad, of the window).
    """
    info: dict[str, Any] = {}
    losses = result.micro_losses
    bad = [index for index, loss in enumerate(losses) if not torch.isfinite(loss)]
    if not bad and str(result.skipped).startswith("spike: loss"):
        bad = [int(torch.stack(losses).argmax())]
    if bad:
        info["micro_batch"] = bad[0]
    for name, parameter in unwrap(state.model).named_parameters():
        if parameter.grad is not None and not torch.isfinite(_values(parameter.grad)).all():
            info["parameter"] = name
            break
    places = [window.start + index for index in bad[:1]] or range(window.start, window.start + len(window.batches))
    rows = rows_of(feed, window.epoch, places)
    if rows:
        info["rows"] = rows[:_ROWS_NAMED]
    return info


def rows_of(feed: Feed, epoch: int, places: Any) -> list[Any]:
    """Return the row numbers of some micro-batches of an epoch; [] for a stream, whose rows have none."""
    try:
        return [row for place in places for row in feed.rows(epoch, place)]
    except DataError:
        return []


def told(info: dict[str, Any]) -> str:
    """Return what is known of a step in words, its reason first."""
    details = "".join(f"; {name}: {value}" for name, value in info.items() if name != "reason")
    return f"{info.get('reason', '')}{details}"


def bad_weight(state: TrainState) -> str | None:
    """Return the name of the first parameter with NaN or inf, or None (one host read if all are good)."""
    weights = [weight.detach() for weight in state.parameters() if weight.numel()]
    if all(weight.device == weights[0].device for weight in weights):
        norms = torch._foreach_norm(weights, math.inf) if weights else []
        if not norms or bool(torch.isfinite(torch.stack([norm.float() for norm in norms])).all()):
            return None
    named = unwrap(state.model).named_parameters()
    return next((name for name, weight in named if not bool(torch.isfinite(weight.detach()).all())), None)


def _values(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient
