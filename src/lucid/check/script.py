"""A short run that writes down what happened: before, in and after every step."""

from __future__ import annotations

import dataclasses
import itertools
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from lucid import rng
from lucid.callbacks import Callback
from lucid.check import hidden
from lucid.check.digest import Digests, digest, gradients, leaves, modes, streams, weights, whole
from lucid.check.target import Target, make
from lucid.evaluation import evaluate
from lucid.loop import fit
from lucid.serialization import unwrap
from lucid.session import Session
from lucid.state import TrainState
from lucid.step import StepResult
from lucid.utils.data import Feed
from lucid.windows import Window

EVAL_BATCHES = 2


@dataclass(frozen=True, slots=True)
class Order:
    """What to run."""

    factory: Callable[[], Any]
    run_dir: str
    steps: int
    """Leave after this step."""
    ambient: int
    """Seed of the random streams in which the factory is called."""
    extra_evaluations: bool = False
    """Evaluate after every step, besides the run's own evaluations."""


@dataclass(slots=True)
class Script:
    """What happened."""

    steps: dict[int, Digests] = field(default_factory=dict)
    """By step: data, streams, modes, learning rate, loss and gradients, in that order."""
    ends: dict[int, Digests] = field(default_factory=dict)
    """By step: all that the run is made of after it. 0: before the first step of this process."""
    hidden: dict[int, Digests] = field(default_factory=dict)
    """By step: state in the user's own objects."""
    initial: Digests = field(default_factory=dict)
    """Weights as the factory made them."""
    with_gradient: list[str] = field(default_factory=list)
    """Parameters that had a gradient other than 0 in some step."""
    rates: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    moved_by_evaluation: list[str] = field(default_factory=list)
    step_seconds: float = 0.0
    eval_batch_seconds: float = 0.0
    save_seconds: float = 0.0
    checkpoint_bytes: int = 0
    memory_bytes: int = 0


class ShortFeed(Feed):
    """The first batches of an evaluation."""

    def batches(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield at most `EVAL_BATCHES`."""
        return itertools.islice(super().batches(epoch, start), EVAL_BATCHES)


def play(order: Order) -> Script:
    """Run to a step of the run's own plan, and leave as a signal would have it left."""
    rng.seed_all(order.ambient)
    target = make(order.factory)
    trainer = target.trainer
    script = Script(initial=weights(trainer.model))
    trainer.run_dir, trainer.reports = Path(order.run_dir), ()
    trainer.config = dataclasses.replace(
        trainer.config, log_every=2, eval_every=2, save_every=0, max_time=None, changes="refuse"
    )
    trainer.callbacks = [*trainer.callbacks, _Leave(order.steps)]
    with trainer.session(target.train_loader, target.eval_loader) as session:
        witness = _Witness(script, session, target, trainer.step(), order)
        if not session.is_done:
            fit(session.state, session.windows(), witness, session.plan, session.services)
    for path in Path(order.run_dir).glob("checkpoints/*.lcs"):
        script.checkpoint_bytes = max(script.checkpoint_bytes, path.stat().st_size)
    script.memory_bytes = _memory(trainer.device)
    return script


class _Leave(Callback):
    """Interrupts the run after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, state: TrainState) -> None:
        if state.step >= self.step:
            state.interrupt = "check"


class _Witness:
    """The run's own step, with everything around it written down."""

    def __init__(self, script: Script, session: Session, target: Target, step: Any, order: Order) -> None:
        self._script, self._session, self._target, self._inner, self._order = script, session, target, step, order
        self._seconds: list[float] = []
        self._since = time.perf_counter()
        session.services.tick = self._after
        session.services.save = self._timed_save
        if session.services.evaluate is not None:
            session.services.evaluate = self._evaluate
        self._write_end(0)
        self._since = time.perf_counter()

    def __call__(self, state: TrainState, window: Window) -> StepResult:
        """Do the step."""
        seconds = time.perf_counter() - self._since
        number = state.progress.step + 1
        during = {"data.position": _position(self._session.feed, window)}
        for index, batch in enumerate(window.batches):
            during |= leaves(batch, f"data.values.{index}" if len(window.batches) > 1 else "data.values")
        during |= streams() | modes(state.model)
        rates = [group["lr"] for optimizer in state.optimizers for group in optimizer.param_groups]
        during["lr"] = repr([float(rate) for rate in rates])
        self._script.rates.append(float(rates[0]))
        started = time.perf_counter()
        result: StepResult = self._inner(state, window)
        self._seconds.append(seconds + time.perf_counter() - started)
        self._script.losses.append(float(result.loss))
        during |= {"loss": digest(result.loss)} | gradients(state)
        self._script.steps[number] = during
        known = set(self._script.with_gradient)
        for name, parameter in unwrap(state.model).named_parameters():
            if name not in known and parameter.grad is not None and bool((parameter.grad != 0).any()):
                self._script.with_gradient.append(name)
        return result

    def _after(self, step: int) -> None:
        self._write_end(step)
        services, state = self._session.services, self._session.state
        if self._order.extra_evaluations and services.evaluate is not None and state.interrupt is None:
            before = whole(state, self._session.callbacks) | hidden.scan(self._target)
            self._evaluate(state)
            after = whole(state, self._session.callbacks) | hidden.scan(self._target)
            moved = [name for name in after if before.get(name) != after[name]]
            self._script.moved_by_evaluation += [n for n in moved if n not in self._script.moved_by_evaluation]
        self._script.step_seconds = statistics.median(self._seconds[1:] or self._seconds)
        self._since = time.perf_counter()

    def _write_end(self, step: int) -> None:
        self._script.ends[step] = whole(self._session.state, self._session.callbacks)
        self._script.hidden[step] = hidden.scan(self._target)

    def _evaluate(self, state: TrainState) -> dict[str, float]:
        trainer, started = self._target.trainer, time.perf_counter()
        feed = ShortFeed(self._target.eval_loader, seed=0, device=state.device, role="eval")
        values = evaluate(
            state.model, feed, trainer.metrics, eval_step=trainer.forward.evaluate, precision=state.precision,
            device=state.device, should_stop=lambda: state.interrupt is not None,
        )  # fmt: skip
        self._script.eval_batch_seconds = (time.perf_counter() - started) / EVAL_BATCHES
        return values

    def _timed_save(self, state: TrainState, window: Window) -> None:
        started = time.perf_counter()
        self._session.save(state, window)
        if self._session.store is not None:
            self._session.store.wait()
        self._script.save_seconds = time.perf_counter() - started


def _position(feed: Feed, window: Window) -> str:
    try:
        rows = [feed.rows(window.epoch, window.start + index) for index in range(len(window.batches))]
    except Exception:  # a stream has no row numbers
        rows = []
    return f"epoch {window.epoch + 1}, batch {window.start}, rows {rows}"


def _memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
