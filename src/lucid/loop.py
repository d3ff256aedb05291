"""The loop. The whole life of a run stands on this page:

fit(state, windows, step, plan, services):
    train_start
    what a stop left undone (an evaluation) is done first
    for window in windows:                  # the micro-batches of one step; never straddles epochs
        first window of an epoch?  epoch_start
        result = step(state, window)        # forward, backward, unscale, clip, update, schedule
        state counts it; result joins the meters        # results stay on the device
        step_end
        log due?    report the meters       # the only host read
        eval due?   evaluate, report, remember the best; eval_end
        last window of an epoch?  epoch_end
        save due?   save                    # the last act of a step: nothing of it is left to do
        leave if done or a stop was requested
    train_end
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from lucid import rng
from lucid.callbacks import Callbacks
from lucid.errors import ConfigError, NonFiniteError, nearest
from lucid.evaluation import Interrupted
from lucid.plan import Plan
from lucid.records import Record
from lucid.state import TrainState
from lucid.step import HARMLESS, OMITTED, StepResult
from lucid.windows import Window

Step = Callable[[TrainState, Window], StepResult]


@dataclass(slots=True)
class Services:
    """What the loop calls when something is due."""

    write: Callable[[Record], None]
    """Takes each record."""
    save: Callable[[TrainState, Window], None]
    """Makes a checkpoint of the state after this window."""
    evaluate: Callable[[TrainState], dict[str, float]] | None = None
    """None: there is nothing to evaluate on."""
    callbacks: Callbacks = field(default_factory=Callbacks)
    tick: Callable[[int], None] = lambda step: None
    """Told each step, for progress displays."""
    explain: Callable[[TrainState, Window, StepResult], dict[str, Any]] = lambda state, window, result: {}
    """Says what is known about a step that was left out."""
    roll_back: Callable[[TrainState, Window, dict[str, Any]], None] = lambda state, window, info: None
    """Takes the state back to the last good checkpoint after a bad step."""
    clock: Clock = field(default_factory=lambda: Clock())


@dataclass(slots=True)
class Clock:
    """Rows and seconds since the last log record, of this process alone."""

    since: float = field(default_factory=time.perf_counter)
    rows: int = 0
    idle: float = 0.0
    """Seconds since then that went to evaluations and checkpoints."""

    def rows_per_second(self) -> float:
        """Return the throughput of training and start anew."""
        now = time.perf_counter()
        rate = self.rows / max(now - self.since - self.idle, 1e-9)
        self.since, self.rows, self.idle = now, 0, 0.0
        return rate


def fit(state: TrainState, windows: Iterator[Window], step: Step, plan: Plan, services: Services) -> None:
    """Run the steps that are left, and whatever is due after each."""
    callbacks, progress = services.callbacks, state.progress
    with rng.fork():
        callbacks.on_train_start(state)
    try:
        finish_pending(state, plan, services)
        while not is_over(state, plan):
            window = next(windows, None)
            if window is None:
                break
            if window.start == 0:
                callbacks.on_epoch_start(state)
            result = step(state, window)
            after_step(state, window, result, plan, services)
            services.tick(progress.step)
    finally:
        callbacks.on_train_end(state)


def is_over(state: TrainState, plan: Plan) -> bool:
    """Whether the run is done, or has to be left."""
    if state.stop_reason:
        return True
    if state.interrupt and state.saved_step == state.progress.step:
        return True  # never between a step and its checkpoint: a signal that comes there gets one more step
    total = plan.total_steps
    return state.progress.step >= total if total is not None else state.progress.epoch >= plan.epochs


def after_step(state: TrainState, window: Window, result: StepResult, plan: Plan, services: Services) -> None:
    """Do all that is due after a step."""
    if not count(state, window, result, plan, services):
        return
    if services.evaluate is not None and is_eval_due(state, window, plan):
        evaluate(state, window.epoch, services)
    end_step(state, window, plan, services)


def count(state: TrainState, window: Window, result: StepResult, plan: Plan, services: Services) -> bool:
    """Count a step, tell the callbacks, and log where it is due; False if the run went back to a checkpoint instead."""
    progress, callbacks = state.progress, services.callbacks
    rows = sum(window.rows)
    progress.step += 1
    progress.batch += len(window.batches)
    progress.rows += rows
    progress.epoch_ended = window.last
    services.clock.rows += rows
    if result.skipped is None:
        progress.skipped_in_row = 0
        state.meters.add(result.loss, result.grad_norm, result.count, result.parts)
    elif not left_out(state, window, result, services):
        return False
    callbacks.on_step_end(state)
    for parameter in state.parameters():
        parameter.grad = None
    if plan.is_due(plan.log_every, progress.step, window.last, is_last(state, window, plan)):
        log(state, window.epoch, services)
    return True


def is_eval_due(state: TrainState, window: Window, plan: Plan) -> bool:
    """Whether the step just done is followed by an evaluation."""
    return plan.is_due(plan.eval_every, state.progress.step, window.last, is_last(state, window, plan))


def end_step(state: TrainState, window: Window, plan: Plan, services: Services) -> None:
    """End the epoch where it ends, and save where it is due: the last act of a step."""
    progress = state.progress
    if window.last and not progress.pending:
        services.callbacks.on_epoch_end(state)
        progress.epoch, progress.batch, progress.epoch_ended = window.epoch + 1, 0, False
    last = is_last(state, window, plan)
    if last:
        end_run(state, window, services)
    progress.finished = last and not progress.pending
    due = plan.is_due(plan.save_every, progress.step, window.last, last)
    if due or state.interrupt or state.save_requested:
        started = time.perf_counter()
        state.save_requested = False
        services.save(state, window)
        state.saved_step = progress.step
        services.clock.idle += time.perf_counter() - started


def end_run(state: TrainState, window: Window, services: Services) -> None:
    """Log and evaluate the last step if that was not done yet: the stop may have been asked for after both."""
    if state.meters.losses:
        log(state, window.epoch, services)
    progress = state.progress
    if services.evaluate is not None and progress.evaluated != progress.step and not progress.pending:
        evaluate(state, window.epoch, services)


def is_last(state: TrainState, window: Window, plan: Plan) -> bool:
    """Whether the step just done is the last of the run; a run that is interrupted goes on later."""
    if state.stop_reason:
        return True
    if plan.total_steps is not None:
        return state.progress.step >= plan.total_steps
    return window.last and window.epoch + 1 >= plan.epochs


def log(state: TrainState, epoch: int, services: Services) -> None:
    """Report the means of the steps since the last record."""
    values = state.meters.read()
    values["train/lr"] = state.lr()
    values["train/skipped_steps"] = state.progress.skipped
    values["train/rows"] = state.progress.rows
    values["train/rows_per_second"] = services.clock.rows_per_second()
    write(state, services, "log", epoch, values)


def evaluate(state: TrainState, epoch: int, services: Services) -> None:
    """Evaluate, report, remember the best, and leave the random streams as they were, whatever a callback draws.

    If the run has to be left meanwhile, the evaluation waits for the resume, and the checkpoint holds the callbacks as
    they were before it.
    """
    if services.evaluate is None:
        return
    started = time.perf_counter()
    metrics: dict[str, float] | None = None
    state.progress.pending = True
    with rng.fork(), services.callbacks.undone_unless(lambda: not state.progress.pending):
        services.callbacks.on_eval_start(state)
        try:
            metrics = services.evaluate(state)
            accept(state, epoch, metrics, services)
        except Interrupted:
            pass
        finally:
            services.callbacks.on_eval_end(state, metrics)
    services.clock.idle += time.perf_counter() - started


def accept(state: TrainState, epoch: int, metrics: dict[str, float], services: Services) -> None:
    """Take the values of an evaluation: best, plateau schedules, record."""
    state.metrics = dict(metrics)
    state.progress.evaluated, state.progress.pending = state.progress.step, False
    monitor = state.config.monitor or "eval/loss"
    is_best = False
    has_plateau = any(isinstance(scheduler, ReduceLROnPlateau) for scheduler in state.schedulers)
    if monitor not in metrics and (state.config.monitor is not None or has_plateau):
        known = ", ".join(metrics)
        raise ConfigError(f"train.monitor must be one of {known}, got {monitor!r}.{nearest(monitor, metrics)}")
    if monitor in metrics:
        is_best = state.best.update(metrics[monitor], state.progress.step)
        state.step_plateaus(metrics[monitor])
    write(state, services, "eval", epoch, metrics, {"best": is_best})


def left_out(state: TrainState, window: Window, result: StepResult, services: Services) -> bool:
    """Count and report a step that was left out; too many in a row end the run.

    Returns:
        False if by policy the run went back to a checkpoint.

    Raises:
        NonFiniteError: by policy at once, or after `max_skips` in a row.
    """
    progress = state.progress
    progress.skipped += 1
    progress.skipped_in_row += 1
    info = {"reason": result.skipped, **services.explain(state, window, result)}
    values = {"train/loss": float(result.loss), "train/grad_norm": float(result.grad_norm)}
    write(state, services, "skip", window.epoch, values, info)
    where = f"step {progress.step} (epoch {window.epoch + 1}): {result.skipped}"
    details = "".join(f"; {name}: {value}" for name, value in info.items() if name != "reason")
    policy = "skip" if result.skipped in HARMLESS else state.config.non_finite
    if policy == "raise":
        raise NonFiniteError(f"{where}{details}. The weights are those of the step before.")
    if policy == "rollback":
        services.roll_back(state, window, info)
        return False
    if progress.skipped_in_row >= state.config.max_skips and result.skipped != OMITTED:
        raise NonFiniteError(
            f"{progress.skipped_in_row} steps in a row were left out, the last at {where}{details}. "
            "Lower the learning rate, look at these rows, or raise train.max_skips."
        )
    return True


def finish_pending(state: TrainState, plan: Plan, services: Services) -> None:
    """Do what the step before a stop left undone: its evaluation, the end of its epoch, its checkpoint."""
    progress = state.progress
    if not progress.pending:
        return
    if services.evaluate is None:
        progress.pending = False
        return
    window = Window([], progress.epoch, progress.batch, progress.epoch_ended)
    evaluate(state, window.epoch, services)
    end_step(state, window, plan, services)


def write(
    state: TrainState,
    services: Services,
    kind: str,
    epoch: int,
    values: dict[str, float],
    info: dict[str, Any] | None = None,
) -> None:
    """Write a record of this moment; epochs are counted from 1 for people."""
    record = Record(kind, state.progress.step, epoch + 1, time.time(), values, info or {})
    services.write(record)
    services.callbacks.on_record(state, record)
