"""A run for a hand-written loop: the machinery of the trainer around a loop that the user owns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from lucid import rng
from lucid.config import TrainConfig
from lucid.errors import ConfigError, LossError
from lucid.evaluation import evaluate
from lucid.loop import accept, end_step, is_eval_due, is_over
from lucid.loop import count as count_step
from lucid.loop import evaluate as evaluate_now
from lucid.loss_rules import Count
from lucid.losses import Loss, Supervised, checked
from lucid.pieces import is_out_of_memory
from lucid.session import Result, Session
from lucid.state import TrainState
from lucid.step import TrainStep, update
from lucid.tally import Tally
from lucid.trainer import Trainer
from lucid.windows import Window

_OUT_OF_MEMORY = (
    "Lucid: step {step} ran out of memory with {rows} rows at once, and in a hand-written loop the micro-batch is "
    "yours. Make batch_size smaller and gradient_accumulation_steps larger by the same factor, in a new run_dir: the "
    "gradient stays. Or go on in this one with Trainer(..., train_step=), which halves micro-batches by itself."
)


class Run:
    """Iterates over a loader's micro-batches, moved to the device, counted, resumed, and saved when due.

    The loop calls `step(loss)` once for each micro-batch. At the end of a window that clips, updates and schedules. For
    the same settings the weights are bit for bit those of `Trainer.fit`.

    Memory is the loop's: the forward pass is not the run's to repeat, so a micro-batch that does not fit is not
    halved as in `Trainer.fit`. The error ends the loop, nothing of its window is counted, and the last checkpoint
    stands. A new run with smaller batches and more `gradient_accumulation_steps` has the same gradient; or
    `Trainer.fit` with the loop's body as `train_step` goes on in the same `run_dir` and halves by itself.

    Args:
        model: any `nn.Module`; moved to the device in place.
        optimizer: one torch optimizer, or several that all step together.
        train_loader: a DataLoader; its order and position become the run's own.
        scheduler: as for `Trainer`.
        callbacks: as for `Trainer`.
        config: settings of the run. None: the defaults.
        run_dir: folder of the run. The same folder again resumes. None: nothing is kept.
        reports: as for `Trainer`.
        extra_config: as for `Trainer`.

    Example:
        >>> from torch.nn import functional as F
        >>> model = nn.Linear(2, 1)
        >>> rows = torch.utils.data.TensorDataset(torch.randn(8, 2), torch.zeros(8, 1))
        >>> loader = torch.utils.data.DataLoader(rows, batch_size=4)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> run = Run(model, optimizer, loader, config=TrainConfig(epochs=2), reports=())
        >>> for x, y in run:
        ...     with run.autocast():
        ...         loss = F.mse_loss(model(x), y)
        ...     run.step(loss)
        >>> run.result.step
        4
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        train_loader: Any,
        scheduler: Any = None,
        callbacks: Sequence[Any] = (),
        config: TrainConfig | None = None,
        run_dir: str | Path | None = None,
        reports: Sequence[Any] | Literal["auto"] = "auto",
        extra_config: Mapping[str, Any] | None = None,
    ) -> None:
        self._trainer = Trainer(
            model, optimizer, None, scheduler, {}, None, None, callbacks, config, run_dir, reports, extra_config
        )  # fmt: skip
        if not isinstance(self._trainer.step(), TrainStep):
            raise ConfigError(
                "this optimizer evaluates the loss itself, which only Trainer.fit can let it do: use that."
            )
        self._loader = train_loader
        self._session: Session | None = None
        self._window: Window | None = None
        self._tally: Tally | None = None
        self._is_stepped = False
        self._end: Result | None = None
        self.profile: Any = None
        """A `lucid.profiling.Profile` to measure the loop with; None: nothing is measured."""

    @property
    def state(self) -> TrainState:
        """The run's state; there is one while the loop runs."""
        return self._open.state

    @property
    def result(self) -> Result:
        """How the run ended; there once the loop is over."""
        if self._end is None:
            raise ConfigError("a run has a result once its loop is over: iterate over it first.")
        return self._end

    @property
    def eval_due(self) -> bool:
        """Whether `config.eval_every` says to evaluate after the step just done; always after the last."""
        return self._is_stepped and is_eval_due(self.state, self._held, self._open.plan)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the autocast of the run's precision; does nothing in fp32."""
        return self._trainer.precision.autocast()

    def step(self, loss: torch.Tensor, count: Count | None = None) -> bool:
        """Take the loss of the micro-batch in hand: backward, and at the end of a window clip, update and schedule.

        Args:
            loss: 0-d mean over `count` targets, undivided and unscaled.
            count: targets the loss is a mean over. None: the rows of the micro-batch.

        Returns:
            Whether this ended a window.

        Raises:
            LossError: if the loss is not a scalar with a graph, or there is no micro-batch in hand.
            torch.OutOfMemoryError: if the backward pass does not fit; a note on the error says what to do.
        """
        tally = self._tally
        if tally is None or tally.is_full:
            raise LossError("run.step(loss) must be called once for each micro-batch that the run gives.")
        self._backward(tally, Loss(loss, count))
        if not tally.is_full:
            return False
        session = self._open
        result = self._update(session.state, tally)
        self._is_stepped = count_step(session.state, self._held, result, session.plan, session.services)
        return True

    def report(self, metrics: Mapping[str, float]) -> None:
        """Take the values of an evaluation of the state as it is: best, plateau schedules, record.

        Args:
            metrics: names beginning with "eval/", as `lucid.evaluate` returns them.
        """
        session = self._open
        accept(session.state, self._held.epoch, dict(metrics), session.services)

    def evaluate(self, loader: Any, metrics: Mapping[str, Any] | None = None, loss: Any = None) -> dict[str, float]:
        """Evaluate with the run's precision and averaged weights (if it keeps them), and report the values.

        Args:
            loader: as for `lucid.evaluate`.
            metrics: as for `lucid.evaluate`.
            loss: as for `lucid.evaluate`.
        """
        session = self._open

        def values(state: TrainState) -> dict[str, float]:
            return evaluate(
                state.model, loader, metrics, eval_step=Supervised(loss).evaluate, precision=state.precision,
                device=state.device,
            )  # fmt: skip

        try:
            evaluate_now(session.state, self._held.epoch, replace(session.services, evaluate=values))
        finally:
            session.state.progress.pending = False  # also after an error: the loop is the user's, who may go on
        return dict(session.state.metrics)

    def __iter__(self) -> Iterator[Any]:
        with self._trainer.session(self._loader, by_hand=True) as session:
            self._session = session
            with rng.fork():
                session.callbacks.on_train_start(session.state)
            try:
                if not session.is_done:
                    batches = self._batches(session)
                    yield from batches if self.profile is None else self.profile.loop(self, session.services, batches)
            finally:
                session.callbacks.on_train_end(session.state)
                self._session = self._window = self._tally = None
        self._end = session.result()
        session.leave_if_interrupted()

    _update = staticmethod(update)

    def _backward(self, tally: Tally, loss: Loss) -> None:
        try:
            self._trainer.precision.scale(tally.share(checked(loss))).backward()
        except (RuntimeError, MemoryError) as error:
            self._tally = None  # a part of its gradient may be there: the window cannot be finished
            if is_out_of_memory(error):
                error.add_note(_OUT_OF_MEMORY.format(step=self.state.step + 1, rows=max(self._held.rows)))
            raise

    def _batches(self, session: Session) -> Iterator[Any]:
        state, plan, services = session.state, session.plan, session.services
        windows = session.windows()
        while not is_over(state, plan):
            window = next(windows, None)
            if window is None:
                return
            if window.start == 0:
                services.callbacks.on_epoch_start(state)
            self._window, self._tally, self._is_stepped = window, Tally(state, window), False
            try:
                for number, batch in enumerate(window.batches, 1):
                    yield batch
                    self._check_stepped(number)
            finally:  # also when the loop is left with `break`: the step just done is whole, so it is ended
                if self._is_stepped:
                    end_step(state, window, plan, services)
                    services.tick(state.step)

    def _check_stepped(self, number: int) -> None:
        taken = 0 if self._tally is None else len(self._tally.losses)
        if taken != number:
            raise LossError(
                f"run.step(loss) must be called once for each micro-batch that the run gives: {number} were given, "
                f"{taken} losses came."
            )

    @property
    def _held(self) -> Window:
        if self._window is None:
            raise ConfigError("there is no micro-batch in hand: this works inside the loop over the run.")
        return self._window

    @property
    def _open(self) -> Session:
        if self._session is None:
            raise ConfigError("this is there only while the loop over the run is under way.")
        return self._session
