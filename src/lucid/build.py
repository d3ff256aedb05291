"""From a configuration to everything that trains.

build(config):
    seed every stream
    data   <- config.data        rows, split, what they mean
    task   <- config.task, loss  loss and metrics
    model  <- config.model       fresh weights, or those of a checkpoint
    optimizer, scheduler, loaders, trainer
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn

from lucid import datasets, models, optim, rng
from lucid.callbacks import Callback
from lucid.config import OptimizerConfig, RunConfig, to_dict
from lucid.config.names import bind, call, import_object
from lucid.datasets import DataBundle
from lucid.errors import ConfigError, ResumeError, nearest
from lucid.state import Scheduler
from lucid.tasks import Task, make_task
from lucid.trained import load_weights
from lucid.trainer import Trainer
from lucid.utils.data import DataLoader

SMALL_MODEL = 100_000
"""Parameters below which one CPU thread is quicker than several, and far quicker on a busy machine."""


@dataclass(kw_only=True)
class Built:
    """A run, ready to start: `built.trainer.fit(built.train_loader, built.validation_loader)`."""

    config: RunConfig
    data: DataBundle
    task: Task
    model: nn.Module
    trainer: Trainer
    train_loader: DataLoader
    validation_loader: DataLoader | None
    test_loader: DataLoader | None


def build(
    config: RunConfig, *, reports: Sequence[Any] | Literal["auto"] = "auto", callbacks: Sequence[Any] = ()
) -> Built:
    """Make everything that a configuration names. Nothing is written, and nothing trained.

    Args:
        config: all settings; see `lucid.config.load`.
        reports: where records go besides `records.jsonl`.
        callbacks: further callbacks.

    Raises:
        ConfigError: a name or an option that does not exist or does not fit.
        DataError: the data cannot be read or does not fit.
    """
    rng.seed_all(config.train.seed)
    data = build_data(config)
    rng.seed_all(config.train.seed)  # weights follow the seed, whatever the data drew
    task = make_task(config.task, config.loss, data.task, data.transform_state)
    config = _with_model(config, data)
    model = models.build(
        config.model.name, config.model.options, input_shape=data.input_shape, num_outputs=data.num_outputs
    )
    if config.model.weights:
        load_weights(model, config.model.weights)
    config = _with_threads(config, model)
    trainer = Trainer(
        model,
        build_optimizer(config, model),
        loss=task.loss,
        scheduler=build_scheduler(config),
        metrics=task.metrics,
        train_step=task.train_step,
        eval_step=task.eval_step,
        callbacks=[DataRecord(data), *callbacks],
        config=config.train,
        run_dir=config.run_dir,
        reports=reports,
        extra_config=to_dict(config),
    )
    size = config.data.eval_batch_size or 4 * config.data.batch_size
    return Built(
        config=config,
        data=data,
        task=task,
        model=model,
        trainer=trainer,
        train_loader=_loader(config, data.train, config.data.batch_size, train=True),
        validation_loader=None if data.validation is None else _loader(config, data.validation, size),
        test_loader=None if data.test is None else _loader(config, data.test, size),
    )


def _with_model(config: RunConfig, data: DataBundle) -> RunConfig:
    """Settle which model `auto` means, so that checkpoints name it.

    Raises:
        ConfigError: one of our models cannot read the rows: tokens want an embedding, numbers want none.
    """
    name, has_tokens = config.model.name, data.task == "language-modelling"
    if name == "auto":
        return replace(config, model=replace(config.model, name=models.choose(data.task, data.input_shape)))
    if name in models.OURS and (name == "gpt") != has_tokens:
        takes, comes, fit = ("tokens", "numbers", "mlp") if name == "gpt" else ("numbers", "tokens of a text", "gpt")
        raise ConfigError(
            f"model.name = {name!r} takes rows of {takes}, the data has rows of {comes}. "
            f"Take another model, such as {fit!r}."
        )
    return config


def _with_threads(config: RunConfig, model: nn.Module) -> RunConfig:
    """Settle the number of CPU threads: one for a small model, as its steps are too short to share."""
    small = sum(parameter.numel() for parameter in model.parameters()) < SMALL_MODEL
    if config.train.threads is not None or not small:
        return config
    return replace(config, train=replace(config.train, threads=1))


def build_data(config: RunConfig) -> DataBundle:
    """Load the data that a configuration names."""
    section = config.data
    return datasets.build(
        section.name,
        section.options,
        validation=section.validation,
        test=section.test,
        split_seed=section.split_seed,
    )


def _loader(config: RunConfig, rows: Any, batch_size: int, *, train: bool = False) -> DataLoader:
    shuffle = train and hasattr(rows, "__len__")
    return DataLoader(
        rows,
        batch_size=batch_size,
        shuffle=shuffle,
        num_workers=config.data.num_workers,
        drop_last=train and config.data.drop_last,
    )


def build_optimizer(config: RunConfig, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of a configuration over the model's trainable parameters.

    Biases and norms get no weight decay. `layer_decay` and `lr_by_pattern` among the options go to
    `lucid.optim.param_groups`.

    Raises:
        ConfigError: an unknown optimizer or option.
    """
    section = config.optimizer
    kind, arguments = optimizer_class(section.name), bind_optimizer(section)
    grouping = {name: section.options[name] for name in _GROUPING if name in section.options}
    groups = optim.param_groups(model, lr=section.lr, weight_decay=section.weight_decay, **grouping)
    if "weight_decay" not in arguments:
        for group in groups:
            del group["weight_decay"]
    try:
        return kind(groups, **arguments)
    except ValueError as error:
        if not kind.__module__.startswith(("torch.", "lucid.")):
            raise
        raise ConfigError(f"optimizer.options do not fit {section.name!r}: {error}.") from error


_GROUPING = ("layer_decay", "lr_by_pattern")


def bind_optimizer(section: OptimizerConfig) -> dict[str, Any]:
    """Return the arguments of an optimizer besides its parameters.

    Raises:
        ConfigError: an unknown option.
    """
    kind = optimizer_class(section.name)
    options = {name: value for name, value in section.options.items() if name not in _GROUPING}
    given = {"lr": section.lr, "weight_decay": section.weight_decay}
    return bind(kind, options, "optimizer.options", given, _parameters(kind))


def _parameters(kind: type[torch.optim.Optimizer]) -> Mapping[str, inspect.Parameter]:
    """Return the arguments of an optimizer but its parameters; those of torch's class where ours only passes on."""
    for cls in kind.__mro__:
        if "__init__" in vars(cls) and cls.__module__.startswith(("torch", kind.__module__)):
            found = dict(inspect.signature(vars(cls)["__init__"]).parameters)
            if not any(p.kind is p.VAR_KEYWORD for p in found.values()):
                return {name: p for name, p in found.items() if name not in ("self", "params")}
    return {}


def optimizer_class(name: str) -> type[torch.optim.Optimizer]:
    """Return the class of an optimizer's name."""
    if ":" in name:
        found = import_object(name, "optimizer.name")
        if not (isinstance(found, type) and issubclass(found, torch.optim.Optimizer)):
            raise ConfigError(f"optimizer.name = {name!r} must be a torch.optim.Optimizer class, got {found!r}.")
        return found
    known = {
        word.lower(): kind
        for word in dir(optim)
        if isinstance(kind := getattr(optim, word), type)
        and issubclass(kind, torch.optim.Optimizer)
        and word not in ("Optimizer", "LBFGS")
    }
    if name.lower() not in known:
        raise ConfigError(
            f"optimizer.name = {name!r} is not known.{nearest(name.lower(), known)} "
            f"Known: {', '.join(sorted(known))}, my_module:Class."
        )
    return known[name.lower()]


def build_scheduler(config: RunConfig) -> Callable[[torch.optim.Optimizer, int], Scheduler] | None:
    """Return a function that makes the schedule once the total of steps is known; None for `none`.

    Raises:
        ConfigError: an unknown schedule or option.
    """
    name, options = config.scheduler.name, config.scheduler.options
    if name == "none":
        if options:
            raise ConfigError("scheduler.name is 'none', which has no options. Remove scheduler.options.")
        return None
    if ":" in name:
        factory = import_object(name, "scheduler.name")
        return lambda optimizer, total: factory(optimizer, total, **options)
    if name == "plateau":
        mode = config.train.monitor_mode
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
        return lambda optimizer, total: call(
            functools.partial(plateau, optimizer), {"mode": mode, **options}, "scheduler.options"
        )
    known = optim.schedules.names()
    if name not in known:
        words = ", ".join([*known, "plateau", "none", "my_module:factory"])
        raise ConfigError(f"scheduler.name = {name!r} is not known.{nearest(name, known)} Known: {words}.")
    accepted = optim.schedules.options(name)
    for key in options:
        if key not in accepted:
            raise ConfigError(
                f"unknown key 'scheduler.options.{key}'.{nearest(key, accepted)} Known: {', '.join(accepted)}."
            )
    return lambda optimizer, total: optim.build_scheduler(optimizer, total, name, **options)


class DataRecord(Callback):
    """Keeps in each checkpoint what the rows mean, so that prediction needs nothing else; checks it on resume."""

    def __init__(self, data: DataBundle) -> None:
        """Keep a description of the data."""
        self.meta = data.meta()

    def state_dict(self) -> dict[str, Any]:
        """Return the description."""
        return self.meta

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Compare the description with the checkpoint's.

        Raises:
            ResumeError: the rows or their meaning changed.
        """
        for name, now in self.meta.items():
            if state.get(name) != now:
                raise ResumeError(
                    f"the data changed since the checkpoint was made: {name} was {_short(state.get(name))}, is "
                    f"{_short(now)}. Put the data back, or train into another run_dir."
                )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "..."
