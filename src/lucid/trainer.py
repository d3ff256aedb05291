"""The trainer: model, optimizer, loss and settings in; a trained model and a run directory out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau

from lucid import kernels
from lucid.amp import Precision
from lucid.callbacks import EMA, EarlyStopping
from lucid.closures import step_for
from lucid.compilations import _Compilations
from lucid.compiled import arrange, compiled
from lucid.config import TrainConfig
from lucid.devices import choose_device
from lucid.distributed import current
from lucid.errors import ConfigError, nearest
from lucid.evaluation import evaluate
from lucid.loop import Step, fit
from lucid.losses import Supervised, UserStep
from lucid.plan import Plan, make_plan
from lucid.report import ConsoleReport
from lucid.session import Result, Session
from lucid.state import Scheduler, TrainState, check_optimizers
from lucid.utils.data import Feed

__all__ = ["Result", "Trainer"]


class Trainer:
    """Trains a model the way a serious loop does; the loop itself stands in `lucid/loop.py`.

    Args:
        model: any `nn.Module`; moved to the device in place.
        optimizer: one torch optimizer, or several that all step together.
        loss: takes (output, target), returns a mean, 0-d. None where the model returns `.loss`, or for `train_step`.
        scheduler: torch schedules, stepped once per optimizer step (`ReduceLROnPlateau` once per evaluation); or a
            function of (optimizer, total_steps) that makes one, for schedules that must know their end.
        metrics: name to a torchmetrics object or a callable of (output, target).
        train_step: replaces `loss(model(inputs), target)`: takes (model, batch) and returns the mean loss over the
            rows, or (sum, count), or a dict of losses.
        eval_step: the same for evaluation: takes (model, batch), returns (output, target) or a loss.
        callbacks: see `lucid.Callback`.
        config: settings of the run. None: the defaults.
        run_dir: folder of the run. The same folder again resumes. None: nothing is kept.
        reports: where records go besides `records.jsonl`. "auto": the console.
        extra_config: more sections for `config.toml` and the checkpoints, as plain values.

    Raises:
        ConfigError: for settings, model and optimizer that cannot work together, before any work.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> rows = torch.utils.data.TensorDataset(torch.randn(8, 2), torch.zeros(8, 1))
        >>> trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=nn.functional.mse_loss,
        ...                   config=TrainConfig(epochs=2), reports=())
        >>> trainer.fit(torch.utils.data.DataLoader(rows, batch_size=4)).step
        4
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        loss: Callable[[Any, Any], torch.Tensor] | None = None,
        scheduler: Scheduler | Sequence[Scheduler] | Callable[[Optimizer, int], Scheduler] | None = None,
        metrics: Mapping[str, Any] | None = None,
        train_step: Callable[[nn.Module, Any], Any] | None = None,
        eval_step: Callable[[nn.Module, Any], Any] | None = None,
        callbacks: Sequence[Any] = (),
        config: TrainConfig | None = None,
        run_dir: str | Path | None = None,
        reports: Sequence[Any] | Literal["auto"] = "auto",
        extra_config: Mapping[str, Any] | None = None,
    ) -> None:
        self.config = TrainConfig() if config is None else config
        self.model, self.metrics = model, dict(metrics or {})
        self.optimizers = tuple(optimizer) if isinstance(optimizer, Sequence) else (optimizer,)
        _check_kinds(model, self.optimizers, self.config)
        check_optimizers(model, self.optimizers)
        self.forward = UserStep(train_step, eval_step) if train_step else Supervised(loss)
        self.callbacks = [*callbacks, *_callbacks_of(self.config)]
        self.run_dir = None if run_dir is None else Path(run_dir)
        self.reports: Sequence[Any] = [ConsoleReport()] if reports == "auto" else reports
        self.extra_config = dict(extra_config or {})
        self.device = choose_device(self.config.device)
        kernels.check(self.config, model, self.device)
        self.precision = Precision.choose(self.config.precision, self.device)
        self.precision.check_model(model)
        self._step = step_for(self.forward, self.optimizers, self.precision)
        self._compilations = _Compilations() if self.config.compile else None
        if self._compilations is not None:
            self._step = compiled(self._step, self.device, self._compilations.tell)
        self._scheduler = scheduler
        self.profile: Any = None
        """A `lucid.profiling.Profile` to measure the next fit with; None: nothing is measured."""
        self.state: TrainState | None = None
        """State of the last run of this trainer; None before the first."""
        if current().world_size > 1:
            raise ConfigError("more than one process is not supported yet: start one process, without torchrun.")

    def fit(self, train_loader: Any, eval_loader: Any = None) -> Result:
        """Train to the end of the plan, from the beginning or from where the run directory stands.

        Args:
            train_loader: a DataLoader; its order and position become the run's own. For a stream that cannot go to a
                position, `Feed(loader, on_stream="skip")`: a resume then reads up to it.
            eval_loader: evaluated every `config.eval_every`. None: no evaluation.

        Returns:
            How the run ended.

        Raises:
            Stopped: after SIGTERM, SIGUSR1 or the time limit, with a checkpoint (a SystemExit with code 75).
            KeyboardInterrupt: after Ctrl-C, with a checkpoint.
            NonFiniteError: if NaN or inf came and the policy says stop.
        """
        with self.session(train_loader, eval_loader) as session:
            if not session.is_done:
                run = fit if self.profile is None else self.profile.fit
                run(session.state, session.windows(), self.step(), session.plan, session.services)
        session.leave_if_interrupted()
        return session.result()

    def step(self) -> Step:
        """Return what does one step: the whole of a window, from its forward passes to the update."""
        return self._step

    def evaluate(self, loader: Any) -> dict[str, float]:
        """Return the metrics of the model as it is on all rows of a loader."""
        self.model.to(self.device)
        return evaluate(
            self.model, loader, self.metrics, eval_step=self.forward.evaluate, precision=self.precision,
            device=self.device,
        )  # fmt: skip

    def plan(self, train_loader: Any, eval_loader: Any = None) -> Plan:
        """Return how many steps `fit` would take and on which of them things happen, without training."""
        feed = self._train_feed(train_loader)
        return make_plan(feed.num_batches(0), self.config, eval_loader is not None)

    def session(self, train_loader: Any, eval_loader: Any = None, by_hand: bool = False) -> Session:
        """Return the session in which `fit` would train: everything set up and checked, nothing begun.

        Args:
            train_loader: as for `fit`.
            eval_loader: as for `fit`.
            by_hand: the loop is the user's, who evaluates in it.
        """
        kernels.choose(self.config, self.model)
        self.model.to(self.device)
        if not self.model.training:
            self.model.train()
        feed = self._train_feed(train_loader)
        eval_feed = None if eval_loader is None else Feed(eval_loader, seed=0, device=self.device, role="eval")
        plan = make_plan(feed.num_batches(0), self.config, by_hand or eval_feed is not None)
        schedulers = self.schedulers(plan)
        if not by_hand:
            self._check_monitor(eval_feed, schedulers)
        _check_schedulers(schedulers, self.optimizers, plan)
        state = TrainState(self.model, self.optimizers, schedulers, self.precision, self.config, self.device)
        self.state = state
        facts, watch = self._facts(state, feed, plan), self._compilations
        if watch is not None:
            facts["compiled"] = arrange(self._step, self.model, self.precision, by_hand)
        session = Session(
            state,
            feed,
            plan,
            evaluate=None if eval_feed is None else self._evaluator(eval_feed),
            eval_feed=eval_feed,
            callbacks=self.callbacks if watch is None else [*self.callbacks, watch],
            run_dir=self.run_dir,
            reports=self.reports,
            settings={**self.extra_config, "train": self.config.to_dict()},
            facts=facts,
        )
        if watch is not None:
            watch.write, session.closing = session.write, watch.summary
        return session

    def _train_feed(self, loader: Any) -> Feed:
        """Return the feed of a loader; a `Feed` is taken as it is, but for the seed and the device of this run."""
        options = {"on_stream": loader.on_stream} if isinstance(loader, Feed) else {}
        loader = loader.loader if isinstance(loader, Feed) else loader
        return Feed(loader, seed=self.config.seed, device=self.device, role="train", **options)

    def schedulers(self, plan: Plan) -> tuple[Scheduler, ...]:
        """Return the schedules; those given as a function are made anew, for the plan's total."""
        given = self._scheduler
        if given is None:
            return ()
        if isinstance(given, Scheduler):
            return (given,)
        if not callable(given):
            return tuple(given)
        if plan.total_steps is None:
            raise ConfigError("a schedule made from total_steps needs it: set max_steps for data without a length.")
        return tuple(given(optimizer, plan.total_steps) for optimizer in self.optimizers)

    def _evaluator(self, feed: Feed) -> Callable[[TrainState], dict[str, float]]:
        def run(state: TrainState) -> dict[str, float]:
            return evaluate(
                state.model, feed, self.metrics, eval_step=self.forward.evaluate, precision=state.precision,
                device=state.device, should_stop=lambda: state.interrupt is not None,
            )  # fmt: skip

        return run

    def _check_monitor(self, eval_feed: Feed | None, schedulers: Sequence[Scheduler]) -> None:
        monitor = self.config.monitor
        watchers = [one for one in (*self.callbacks, *schedulers) if isinstance(one, EarlyStopping | ReduceLROnPlateau)]
        if eval_feed is None and (monitor is not None or watchers):
            what = f"train.monitor is {monitor!r}, which" if monitor is not None else type(watchers[0]).__name__
            raise ConfigError(f"{what} needs evaluation data: give fit an eval_loader.")
        if monitor is None:
            return
        known = ["eval/loss", *(f"eval/{name}" for name in self.metrics)]
        if monitor not in known:
            raise ConfigError(
                f"train.monitor must be one of {', '.join(known)}, got {monitor!r}.{nearest(monitor, known)}"
            )

    def _facts(self, state: TrainState, feed: Feed, plan: Plan) -> dict[str, Any]:
        parameters = list(self.model.parameters())
        notes = [*plan.notes(), *feed.notes(), *self._step.notes, *state.verdict.notes(state)]
        return {
            "name": None if self.run_dir is None else self.run_dir.name,
            "monitor": self.config.monitor or "eval/loss",
            "model": type(self.model).__name__,
            "parameters": sum(p.numel() for p in parameters),
            "trainable_parameters": sum(p.numel() for p in parameters if p.requires_grad),
            "optimizer": ", ".join(type(optimizer).__name__ for optimizer in self.optimizers),
            "rows": feed.num_rows,
            "batch_size": feed.batch_size,
            "device": str(self.device),
            "precision": self.precision.mode,
            "loss_is_mean_over": self.forward.rule,
            "notes": [*notes, *_norm_notes(self.model, feed)],
            "run_dir": None if self.run_dir is None else str(self.run_dir),
        }


def _check_kinds(model: Any, optimizers: Sequence[Any], config: Any) -> None:
    """Raise `ConfigError` for an argument of another kind, such as a class instead of an object of it."""
    wanted = [("model", model, nn.Module), ("config", config, TrainConfig)]
    for what, value, kind in [*wanted, *(("optimizer", optimizer, Optimizer) for optimizer in optimizers)]:
        if not isinstance(value, kind):
            raise ConfigError(f"{what} must be an object of the class {kind.__name__}, got {value!r:.80}.")
    if not optimizers:
        raise ConfigError("optimizer must be a torch optimizer or a list of some, got none.")
    config.check()  # settings may have been changed since it was made


def _norm_notes(model: nn.Module, feed: Feed) -> list[str]:
    """Say that BatchNorm1d will refuse the epoch's last micro-batch; those of images take a mean over one row."""
    norms = [name for name, one in model.named_modules() if isinstance(one, nn.BatchNorm1d) and one.training]
    if feed.last_batch_size != 1 or not norms:
        return []
    return [
        f"the last micro-batch of an epoch has one row, over which BatchNorm1d ({norms[0]}) takes no mean: torch "
        "raises an error there unless that row has a length. Give the loader drop_last=True or another batch_size"
    ]


def _check_schedulers(schedulers: Sequence[Scheduler], optimizers: Sequence[Optimizer], plan: Plan) -> None:
    """Raise `ConfigError` for a schedule that would move nothing here, or ends before the run does."""
    for scheduler in schedulers:
        name = type(scheduler).__name__
        if all(scheduler.optimizer is not optimizer for optimizer in optimizers):
            raise ConfigError(
                f"{name} moves another optimizer than the one that trains, whose learning rate would never change: "
                "make it from the optimizer that the trainer gets."
            )
        if isinstance(scheduler, OneCycleLR) and scheduler.total_steps < (plan.total_steps or 0):
            raise ConfigError(
                f"{name} must last for the run's {plan.total_steps} steps, got total_steps={scheduler.total_steps}. "
                "scheduler= also takes a function of (optimizer, total_steps) that makes one."
            )


def _callbacks_of(config: TrainConfig) -> list[Any]:
    """Return the callbacks that settings ask for."""
    found: list[Any] = []
    if config.ema_decay is not None:
        found.append(EMA(config.ema_decay))
    if config.patience:
        found.append(EarlyStopping(config.patience))
    return found
