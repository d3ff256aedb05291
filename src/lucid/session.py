"""A run that is open: its folder, checkpoints, records, random streams and signals.

`Trainer.fit` and `Run` both work inside a session; it gives the loop its services and takes a run up where it was left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from lucid import changes, environment, rng
from lucid.callbacks import Callback, Callbacks
from lucid.errors import ConfigError
from lucid.guard import Guard
from lucid.loop import Services
from lucid.plan import Plan
from lucid.records import Record, words
from lucid.records.outcome import FINISHED
from lucid.report import JsonlReport, Reports
from lucid.run_folder import describe_run, make_folder
from lucid.serialization import Entry, Store
from lucid.signals import EXIT_INTERRUPTED, Deadline, Stopped, exit_code, listen
from lucid.state import TrainState
from lucid.utils.data import Feed
from lucid.windows import Window

_BESIDES = ("data", "callbacks", "config", "compared", "environment")
"""What a checkpoint holds besides `TrainState.state_dict`."""


@dataclass(frozen=True, slots=True)
class Result:
    """How a run ended.

    `stopped` is "finished", the reason of an early stop, or what interrupted the run; `exit_code` is 0 for a finished
    run, 130 after Ctrl-C and 75 for any other that wants to be started again.
    """

    step: int
    epoch: int
    best: float | None
    best_step: int | None
    metrics: dict[str, float]
    stopped: str
    exit_code: int
    run_dir: Path | None


class Session:
    """Opens a run directory, resumes from it, and closes it.

    Args:
        state: the run's state, fresh; filled from the newest good checkpoint if there is one.
        feed: training data.
        plan: the run's plan.
        evaluate: evaluates the state; None without evaluation data.
        eval_feed: the data that it evaluates on; closed with the session.
        callbacks: the user's and the run's.
        run_dir: the folder of the run. None: nothing is kept.
        reports: where records go besides `records.jsonl`.
        settings: sections of settings, for `config.toml` and for the comparison at resume.
        facts: what the plan record says besides the plan.
    """

    def __init__(
        self,
        state: TrainState,
        feed: Feed,
        plan: Plan,
        *,
        evaluate: Callable[[TrainState], dict[str, float]] | None = None,
        eval_feed: Feed | None = None,
        callbacks: Sequence[Any] = (),
        run_dir: str | Path | None = None,
        reports: Sequence[Any] = (),
        settings: Mapping[str, Any] | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.state, self.feed, self.plan = state, feed, plan
        self._feeds = [feed, *([] if eval_feed is None else [eval_feed])]
        self.run_dir = None if run_dir is None else make_folder(Path(run_dir))
        self.settings = dict(settings or {"train": state.config.to_dict()})
        self.facts = dict(facts or {})
        self.closing: Callable[[], Mapping[str, Any]] = dict  # gives what the last record says besides the result
        self.environment = environment.describe(state.device)
        self.deadline = Deadline(state.config.max_time)
        self.callbacks = Callbacks([*callbacks, *_own_callbacks(self)])
        self.compared = _compared(self)  # as given: schedules and callbacks may move settings later
        self.reports = Reports([*_own_reports(self), *reports])
        self.store: Store | None = None
        self.guard = Guard(self)
        self.windows = self.guard.windows  # those that are left
        self.services = Services(
            write=self.reports.write,
            save=self.save,
            evaluate=evaluate,
            callbacks=self.callbacks,
            tick=self.reports.tick,
            explain=self.guard.explain,
            roll_back=self.guard.roll_back,
        )
        self.is_done, self._stack = False, ExitStack()

    # -- opening and closing

    def __enter__(self) -> Session:
        self._stack.callback(rng.restore, rng.capture())
        try:
            self._open()
        except BaseException:
            self._stack.close()
            raise
        return self

    def _open(self) -> None:
        if self.run_dir is not None:
            run_id = describe_run(self.run_dir, self.environment, self.settings)
            config = self.state.config
            self.store = self._stack.enter_context(
                Store(
                    self.run_dir / "checkpoints",
                    run_id=run_id,
                    keep_last=config.keep_last,
                    keep_every=config.keep_every,
                    keep_best=config.keep_best,
                    mode=config.monitor_mode,
                    on_error=config.save_errors,
                )
            )
        self._stack.callback(self.reports.close)
        for feed in self._feeds:
            self._stack.callback(feed.close)
        rng.seed_all(rng.derive(self.state.config.seed, "train"))
        if not self._resume():
            self.reports.rewind(-1)  # what a run left that was killed before its first checkpoint
            self.write("plan", info={**self.plan.to_dict(), **self.facts, "notes": self._notes()})
        self._stack.enter_context(listen(self.state))
        self._stack.enter_context(self.deadline.watch(self.state))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self.store is not None:
                self.store.wait()
            if kind is None:
                self._say_goodbye()
            elif not self.is_done:
                with suppress(Exception):  # the error that ends the run is the one to see
                    self.write("stop", info=_failure(kind, error))
        finally:
            self._stack.close()

    def result(self) -> Result:
        """Return how the run stands."""
        state = self.state
        interrupted = state.interrupt is not None and not state.progress.finished
        reason = (state.interrupt if interrupted else state.stop_reason) or FINISHED
        return Result(
            state.progress.step,
            state.progress.epoch,
            state.best.value,
            state.best.step,
            dict(state.metrics),
            reason,
            exit_code(state.interrupt) if interrupted else 0,
            self.run_dir,
        )

    def leave_if_interrupted(self) -> None:
        """Raise what an interrupted run ends with: KeyboardInterrupt after Ctrl-C, else `Stopped` (exit code 75)."""
        reason = None if self.state.progress.finished else self.state.interrupt
        if reason == "SIGINT":
            raise KeyboardInterrupt
        if reason is not None:
            raise Stopped(reason)

    # -- checkpoints

    def save(self, state: TrainState, window: Window) -> None:
        """Make a checkpoint; the store copies the state and writes it beside the training."""
        if not self.guard.check_before_save(state) or self.store is None:
            return
        monitor = state.config.monitor or "eval/loss"
        fresh = state.progress.evaluated == state.progress.step
        value = state.metrics.get(monitor) if fresh else None
        started = time.monotonic()
        path = self.store.save(
            self.tree(window.data_state or self.feed.state_dict()),
            step=state.progress.step,
            value=value,
            meta={"epoch": state.progress.epoch, "metrics": state.metrics if fresh else {}},
        )
        self.write("save", info={"path": f"checkpoints/{path.name}", "value": value}, epoch=window.epoch)
        if self.deadline.wants_save_time():
            self.store.wait()
        self.deadline.save_seconds = max(self.deadline.save_seconds, time.monotonic() - started)

    def tree(self, data_state: dict[str, Any]) -> dict[str, Any]:
        """Return all that a checkpoint holds."""
        return {
            **self.state.state_dict(),
            "data": data_state,
            "callbacks": self.callbacks.state_dict(),
            "config": self.settings,
            "compared": self.compared,
            "environment": environment.without_diff(self.environment),
        }

    def _resume(self) -> bool:
        store = self.store
        if store is None:
            return False
        found: list[changes.Change] = []

        def compare(entry: Entry) -> None:
            found[:] = changes.compare(store.load(entry, select="compared"), self.compared)
            if self.state.config.changes == "refuse":
                changes.refuse(found, str(entry.path))

        # The model is read in place, without a second copy of its weights; for the rest there is nothing yet.
        now = self.state.state_dict()
        live = {**dict.fromkeys([*now, *_BESIDES]), "model": now["model"]}
        restored = store.restore(live, before=compare)
        if restored is None:
            self._refuse_foreign()
            return False
        given = changes.Given(self.state)
        self.take(restored[1])
        given.take_effect(self.state, found)
        self._go_on(found)
        return True

    def take(self, tree: dict[str, Any]) -> None:
        """Become what a checkpoint holds."""
        self.callbacks.load_state_dict(tree["callbacks"])
        self.state.load_state_dict(tree)
        self.state.saved_step = self.state.progress.step
        self.feed.load_state_dict(tree["data"])

    def _go_on(self, found: list[changes.Change]) -> None:
        """Say from where the run goes on, and whether it is already done."""
        assert self.store is not None  # noqa: S101  # only called after a resume
        progress = self.state.progress
        longer = {"train.epochs", "train.max_steps", "train.patience"} & {change.setting for change in found}
        total = self.plan.total_steps
        self.is_done = progress.finished and (not longer or (total is not None and progress.step >= total))
        if self.is_done:
            self.reports.tell(_finished_already(self.state, self.plan, self.run_dir))
            return
        progress.finished = False
        self.reports.rewind(progress.step)
        info = {
            "changes": [change.accepted().to_dict() for change in found],
            "refused": [[str(path), reason] for path, reason in self.store.refused],
            **self.plan.to_dict(),
            **self.facts,
        }
        self.write("resume", info=info)

    def _notes(self) -> list[str]:
        """Return what is out of the ordinary, with the checkpoints that a run cannot go on from, which begins anew."""
        broken = [] if self.store is None else self.store.refused
        return [*self.facts.get("notes", ()), *(f"begun anew, not from {path}: {why}" for path, why in broken)]

    def _refuse_foreign(self) -> None:
        if self.store is not None and self.store.foreign:
            raise ConfigError(
                f"run_dir {str(self.run_dir)!r} holds checkpoints of another run, such as {self.store.foreign[0]}: "
                "choose an empty folder."
            )

    # -- files of the run

    def _say_goodbye(self) -> None:
        result = self.result()
        info = {
            "reason": result.stopped,
            "best": result.best,
            "best_step": result.best_step,
            "metrics": result.metrics,
            "run_dir": None if self.run_dir is None else str(self.run_dir),
            "exit_code": result.exit_code,
            **self.closing(),
        }
        if not self.is_done:
            self.write("stop" if result.exit_code else "end", info=info)

    def write(self, kind: str, info: Mapping[str, Any], epoch: int | None = None) -> None:
        """Write a record of this moment; at the border of two epochs it is of the one that ended."""
        progress = self.state.progress
        if epoch is None:
            epoch = progress.epoch - (progress.batch == 0 and progress.epoch > 0)
        self.services.write(Record(kind, progress.step, epoch + 1, info=_plain(info)))


def _compared(session: Session) -> dict[str, Any]:
    """Return the settings that a resume compares."""
    flat = changes.flatten(session.settings)
    flat |= {f"optimizer.{k}": v for k, v in changes.optimizer_settings(session.state.optimizers).items()}
    flat |= {f"scheduler.{k}": v for k, v in changes.scheduler_settings(session.state.schedulers).items()}
    flat |= {f"data.{name}": value for name, value in session.feed.fingerprint().items()}
    flat |= {f"callbacks.{name}": "there" for name in session.callbacks.names()}
    flat |= {f"environment.{k}": v for k, v in environment.comparable(session.environment).items()}
    return flat


def _own_callbacks(session: Session) -> list[Callback]:
    config = session.state.config
    keeps_best = session.run_dir is not None and config.monitor is not None and config.keep_best > 0
    return [
        *([_TimeLimit(session.deadline)] if config.max_time else []),
        *([_SaveBest()] if keeps_best else []),
    ]


def _own_reports(session: Session) -> list[Any]:
    if session.run_dir is None:
        return []
    return [JsonlReport(session.run_dir / "records.jsonl", session.state.config.save_errors)]


def _finished_already(state: TrainState, plan: Plan, run_dir: Path | None) -> str:
    """Return what a run says that is started again although it is finished."""
    monitor, step = state.config.monitor or "eval/loss", state.progress.step
    reached = {f"last {name}": value for name, value in state.metrics.items() if name != monitor}
    if state.best.value is not None:
        reached = {f"best {monitor}": state.best.value, **reached}
    limit = f"epochs ({plan.epochs})"
    if plan.max_steps is not None and step >= plan.max_steps:
        limit = f"max_steps ({plan.max_steps})"
    elif plan.total_steps is not None and step < plan.total_steps and state.config.patience:
        limit = f"patience ({state.config.patience})"
    return words.finished_already(str(run_dir), step, reached, limit)


def _failure(kind: type[BaseException], error: BaseException | None) -> dict[str, Any]:
    if issubclass(kind, GeneratorExit):  # `break`, or an error of the user's that no generator gets to see
        return {"reason": "its loop was left before the end"}
    code = EXIT_INTERRUPTED if issubclass(kind, KeyboardInterrupt) else 1
    return {"reason": f"{kind.__name__}: {error}".removesuffix(": "), "exit_code": code}


class _TimeLimit(Callback):
    """Interrupts the run while there is time for one save; has the first step saved, to know how long one takes."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline

    def on_step_end(self, state: TrainState) -> None:
        if self._deadline.wants_save_time():
            state.request_save()
        if self._deadline.is_near():
            state.interrupt = state.interrupt or "max_time"


class _SaveBest(Callback):
    """Has the state that an evaluation finds best saved, whatever `save_every` says: else its weights would be gone."""

    def on_record(self, state: TrainState, record: Record) -> None:
        if record.kind == "eval" and record.info.get("best"):
            state.request_save()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
