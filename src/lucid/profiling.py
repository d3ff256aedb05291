"""Where the time of a run goes: seconds per stage that add up to wall time, and a trace of torch's profiler on request.

    trainer.profile = Profile()          # what `lucid train --profile` does
    trainer.fit(loader)                  # log records gain time/data, time/forward, ...; a table at the end
    run.profile = Profile()              # the same for a loop of your own

A run without a profile has nothing of this in its loop: step, windows and services are wrapped from outside.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import torch

from lucid import loop
from lucid.loop import Services, Step
from lucid.plan import Plan
from lucid.records import Record
from lucid.state import TrainState
from lucid.windows import Window

STAGES = ("data", "forward", "backward", "optimizer", "evaluation", "save", "other")
_BOTTLENECK = 0.3  # share of the training time in which a loader is waited for that is worth a word
_TRACE_AFTER, _TRACE_STEPS = 10, 5


class Stages:
    """One stop-watch that always runs for exactly one stage, so that the stages add up to wall time.

    Args:
        synchronize: called before each reading, so that work still queued on a device counts for its own stage.
    """

    def __init__(self, synchronize: Callable[[], None] | None = None) -> None:
        self._synchronize = synchronize
        self._open = ["other"]
        self._since = time.perf_counter()
        self._seconds = dict.fromkeys(STAGES, 0.0)
        self.total = dict.fromkeys(STAGES, 0.0)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Inside, time counts for this stage and not for the one around it."""
        self._read()
        self._open.append(name)
        try:
            yield
        finally:
            self._read()
            self._open.pop()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its time counted for a stage."""

        def call(*arguments: Any, **options: Any) -> Any:
            with self.stage(name):
                return function(*arguments, **options)

        return call

    def take(self) -> dict[str, float]:
        """Return the seconds of each stage since the last call, and begin anew."""
        self._read()
        taken, self._seconds = self._seconds, dict.fromkeys(STAGES, 0.0)
        for name, seconds in taken.items():
            self.total[name] += seconds
        return taken

    def _read(self) -> None:
        if self._synchronize is not None:
            self._synchronize()
        now = time.perf_counter()
        self._seconds[self._open[-1]] += now - self._since
        self._since = now


class Profile:
    """Measures one fit of a trainer.

    Every stage ends with a wait for the device, so a run on an accelerator is a little slower while it is measured.

    Args:
        trace: file for a trace of torch's profiler over 5 steps (after the first 10), for chrome://tracing or Perfetto.
            None: no trace.
        stream: where the table goes at the end. None: standard error.
    """

    def __init__(self, trace: str | Path | None = None, stream: TextIO | None = None) -> None:
        self.trace = None if trace is None else Path(trace)
        self.stages = Stages()
        self._stream = stream
        self._tracer: torch.profiler.profile | None = None

    def fit(self, state: TrainState, windows: Iterator[Window], step: Step, plan: Plan, services: Services) -> None:
        """Do what `lucid.loop.fit` does, measured."""
        stages = self._begin(state, services)
        if services.evaluate is not None:
            services.evaluate = stages.timed("evaluation", services.evaluate)
        try:
            loop.fit(state, self._data(windows), self._step(step), plan, services)
        finally:
            self._end_trace()

    def loop(self, run: Any, services: Services, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the micro-batches of a `lucid.Run`, measured: what its loop does outside the run counts as forward.

        Args:
            run: its backward pass, update and evaluation are measured while its loop goes on.
            services: what is called when something is due.
            batches: what the run gives.
        """
        stages = self._begin(run.state, services)
        names = {"step": "other", "_backward": "backward", "_update": "optimizer", "evaluate": "evaluation"}
        for name, stage in names.items():
            setattr(run, name, stages.timed(stage, getattr(run, name)))
        run.step = self._traced(run.step)
        try:
            for batch in self._data(batches):
                with stages.stage("forward"):
                    yield batch
        finally:
            for name in names:
                delattr(run, name)
            self._end_trace()

    def _begin(self, state: TrainState, services: Services) -> Stages:
        device = state.device
        self.stages = Stages(None if device.type == "cpu" else lambda: torch.accelerator.synchronize(device))
        services.save = self.stages.timed("save", services.save)
        services.write = self._writing(services.write)
        return self.stages

    def _end_trace(self) -> None:
        if self._tracer is not None:
            self._tracer.stop()
            self._tracer = None

    def _step(self, step: Step) -> Step:
        """The forward pass is inside the gradients, and they are inside the step: what is left of each is its own."""
        inner = copy.copy(step)
        if hasattr(inner, "forward") and hasattr(inner, "gradients"):
            inner.forward = self.stages.timed("forward", inner.forward)
            inner.gradients = self.stages.timed("backward", inner.gradients)
        return self._traced(self.stages.timed("optimizer", inner))

    def _traced(self, timed: Callable[..., Any]) -> Callable[..., Any]:
        """Return the step with its part in the trace, if there is to be one."""
        if self.trace is None:
            return timed
        self._tracer = torch.profiler.profile(
            schedule=torch.profiler.schedule(
                skip_first=_TRACE_AFTER - 1, wait=0, warmup=1, active=_TRACE_STEPS, repeat=1
            ),
            on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(self.trace)),
        )
        tracer = self._tracer
        tracer.start()

        def traced(*arguments: Any) -> Any:
            result = timed(*arguments)
            tracer.step()
            return result

        return traced

    def _data(self, source: Iterator[Any]) -> Iterator[Any]:
        while True:
            with self.stages.stage("data"):
                found = next(source, None)
            if found is None:
                return
            yield found

    def _writing(self, write: Callable[[Record], None]) -> Callable[[Record], None]:
        def measured(record: Record) -> None:
            if record.kind in ("log", "end", "stop"):
                seconds = self.stages.take()
                record.values.update({f"time/{name}": value for name, value in seconds.items()})
            write(record)
            if record.kind in ("end", "stop"):  # the last one: the end of the workers and of the last save is in it
                print(self.table(), file=self._stream or sys.stderr)

        return measured

    def table(self) -> str:
        """Return the stages with seconds and shares, and what to do if the loader is the bottleneck."""
        total = sum(self.stages.total.values())
        lines = ["stage         seconds   share"]
        for name, seconds in sorted(self.stages.total.items(), key=lambda item: -item[1]):
            lines.append(f"{name:<12}{seconds:9.2f}{seconds / max(total, 1e-9):8.1%}")
        lines.append(f"{'sum':<12}{total:9.2f}")
        advice = bottleneck(self.stages.total)
        return "\n".join([*lines, advice] if advice else lines)


def bottleneck(seconds: dict[str, float]) -> str | None:
    """Return a word on the loader if training waits for it; None if it does not.

    Args:
        seconds: seconds of each stage.

    Example:
        >>> bottleneck({"data": 6.0, "forward": 2.0, "backward": 2.0, "optimizer": 0.0})
        'Your loader is the bottleneck: 60 % of the training time is spent waiting for data. Raise num_workers of the \
loader, do costly work on rows once instead of in every epoch, or give it data sets that are in memory.'
        >>> bottleneck({"data": 1.0, "forward": 5.0, "backward": 5.0, "optimizer": 1.0})
    """
    training = sum(seconds.get(name, 0.0) for name in ("data", "forward", "backward", "optimizer"))
    share = seconds.get("data", 0.0) / training if training else 0.0
    if share < _BOTTLENECK:
        return None
    return (
        f"Your loader is the bottleneck: {share * 100:.0f} % of the training time is spent waiting for data. "
        "Raise num_workers of the loader, do costly work on rows once instead of in every epoch, or give it data sets "
        "that are in memory."
    )
