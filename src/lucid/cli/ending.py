"""What a person reads before and after a run: the plan; what was reached, where things lie, what to type next."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lucid.build import Built
from lucid.callbacks import Callback
from lucid.cli.pictures import pictures
from lucid.cli.settings import program
from lucid.evaluation import evaluate
from lucid.optim import describe_groups
from lucid.records.outcome import FINISHED
from lucid.session import Result
from lucid.state import TrainState
from lucid.trained import find_checkpoint, load_trained


def test(built: Built) -> dict[str, Any] | None:
    """Judge the best checkpoint on the rows kept for the test, and keep the values in `test.json`.

    Returns:
        Metrics by name with "checkpoint" and "rows"; None where no rows were kept.
    """
    if built.test_loader is None:
        return None
    trained = load_trained(str(built.config.run_dir))
    device = built.trainer.device
    values = evaluate(
        trained.model.to(device),
        built.test_loader,
        built.task.metrics,
        eval_step=built.trainer.forward.evaluate,
        precision=built.trainer.precision,
        device=device,
    )
    tested: dict[str, Any] = {name.replace("eval/", "test/"): value for name, value in values.items()}
    tested |= {"rows": len(built.data.test or ()), "checkpoint": trained.path.name}  # type: ignore[arg-type]
    tested["pictures"] = pictures(built, trained.model.to("cpu"))
    (Path(str(built.config.run_dir)) / "test.json").write_text(json.dumps(tested) + "\n")
    return tested


class _Started(Callback):
    """Remembers whether there was something left to train."""

    is_true = False

    def on_train_start(self, state: TrainState) -> None:
        """Remember it."""
        self.is_true = True


def text(built: Built, result: Result, tested: dict[str, Any] | None, was_trained: bool = True) -> str:
    """Return the closing lines; of a run that was finished already, the console told what it reached."""
    folder = Path(str(built.config.run_dir))
    reached = f"{_counted(result.step, 'step')}, {_counted(result.epoch, 'epoch')}"
    lines = [f"Run {folder.name} {_how(result)}: {reached}."] if was_trained else []
    if _targets(built):
        lines.append(f"Predicts {_targets(built)}.")
    if result.best is not None and was_trained:
        monitor = built.config.train.monitor or "eval/loss"
        lines.append(f"Best {monitor}: {result.best:.4g} at step {result.best_step}.")
    if tested:
        values = ", ".join(f"{name.removeprefix('test/')} {_number(name, value)}" for name, value in _metrics(tested))
        lines.append(f"Test on {tested['rows']:,} rows that training never saw: {values}.")
    places = [
        ("checkpoint", find_checkpoint(folder)),
        ("config", folder / "config.toml"),
        ("records", folder / "records.jsonl"),
        ("report", folder / "report.html"),
    ]
    lines = ["", *lines] if lines else []
    lines += ["", *(f"  {name:<11} {path}" for name, path in places if path.exists()), "", "Next:"]
    return "\n".join([*lines, *_commands(_next(built, folder))])


def _how(result: Result) -> str:
    return "finished" if result.stopped == FINISHED else f"finished ({result.stopped})"


def _targets(built: Built) -> str:
    """Return the columns of a table that are predicted; the last one where nobody said which."""
    return ", ".join(map(str, built.data.transform_state.get("targets", ())))


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _metrics(tested: dict[str, Any]) -> list[tuple[str, float]]:
    found = [(name, value) for name, value in tested.items() if name.startswith("test/")]
    return sorted(found, key=lambda item: item[0] == "test/loss")


def _number(name: str, value: float) -> str:
    return f"{100 * value:.2f} %" if name.endswith("accuracy") else f"{value:.4g}"


def _next(built: Built, folder: Path) -> list[tuple[str, str]]:
    rows = {"image": "IMAGE.png", "table": "ROWS.csv", "columns": "ROWS.csv", "text": "TEXT.txt"}
    example = rows.get(str(built.data.transform_state.get("kind")), "ROWS.npy")
    lucid, train = program(), built.config.train
    longer = (
        f"--train.epochs {2 * train.epochs}" if train.max_steps is None else f"--train.max_steps {2 * train.max_steps}"
    )
    return [
        (f"{lucid} ui {folder.parent}", "see its curves in a browser"),
        (f"{lucid} predict {folder} {example}", "answers for new rows"),
        (f"{lucid} resume {folder} {longer}", "train longer"),
        (f"{lucid} new my_project", "a project with your own model and data"),
    ]


def _commands(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Return what to type with what it is for, beside it, or below it where the terminal is too narrow."""
    lines = _columns(rows)
    if max(map(len, lines)) <= shutil.get_terminal_size((120, 24)).columns:
        return lines
    return [line for left, right in rows for line in (f"  {left}", f"      {right}")]


def _columns(rows: Sequence[tuple[str, str]]) -> list[str]:
    width = max(len(left) for left, _ in rows)
    return [f"  {left:<{width}}   {right}" for left, right in rows]


def rates_text(built: Built) -> str:
    """Return the learning rate over the run as a small picture of text."""
    from lucid.check.planning import learning_rates, plot
    from lucid.check.target import Target

    plan = built.trainer.plan(built.train_loader, built.validation_loader)
    room = shutil.get_terminal_size((120, 24)).columns
    return "\n".join(plot(learning_rates(Target(built.trainer, built.train_loader), plan), room))


def missing_rows(built: Built) -> str | None:
    """Return what to know about a data set that is too small for the parts that were asked for; None if it is not.

    A source that made the parts itself, or that has no length, has no counts here: no share was taken of it.
    """
    if "train" not in built.data.split:
        return None
    asked = {"validation": built.config.data.validation, "test": built.config.data.test}
    missing = {name: share for name, share in asked.items() if share and getattr(built.data, name) is None}
    if not missing:
        return None
    count = sum(int(built.data.split.get(name, 0)) for name in ("train", *asked))
    names = " and ".join(f"{name} (data.{name} {share:g})" for name, share in missing.items())
    effect = "nothing is evaluated" if "validation" in missing else "the model is not tested at the end"
    return f"{_counted(count, 'row')} are too few to keep any for {names}: {effect}. Add rows or raise the share."


def plan_text(built: Built) -> str:
    """Return the plan of a run.

    Raises:
        ConfigError: the schedule does not fit the run's steps.
    """
    plan = built.trainer.plan(built.train_loader, built.validation_loader)
    groups = describe_groups(built.trainer.optimizers[0].param_groups).splitlines()
    built.trainer.schedulers(plan)  # as the run would: what does not fit is said now
    config, data, split = built.config, built.data, built.data.split
    parameters = sum(p.numel() for p in built.model.parameters())
    rows = ", ".join(f"{name} {split[name]:,}" for name in ("train", "validation", "test") if name in split)
    lines = [
        ("data", f"{config.data.name}: {data.task}, rows of shape {data.input_shape}, {data.num_outputs} outputs"),
        *([("target", _targets(built))] if _targets(built) else []),
        ("rows", rows or "not counted"),
        ("model", f"{config.model.name}: {type(built.model).__name__}, {parameters:,} parameters"),
        ("optimizer", f"{type(built.trainer.optimizers[0]).__name__}, lr {config.optimizer.lr:g}"),
        *(("" if number else "parameters", line) for number, line in enumerate(groups)),
        ("schedule", config.scheduler.name),
        ("loss", _loss(built)),
        ("device", f"{built.trainer.device}, {built.trainer.precision.describe()}"),
        ("epochs", str(plan.epochs)),
        ("steps", f"{plan.total_steps or 'as many as the data gives'}; per epoch {plan.steps_per_epoch or 'unknown'}"),
        ("rows a step", str(config.data.batch_size * config.train.gradient_accumulation_steps)),
        ("log at", _steps(plan.steps(plan.log_every))),
        ("evaluate at", _steps(plan.steps(plan.eval_every)) if plan.has_eval else "never: no rows for validation"),
        ("save at", _steps(plan.steps(plan.save_every))),
        ("folder", str(config.run_dir)),
    ]
    if plan.short_window:
        lines.insert(-4, ("short window", f"the last step of an epoch has {plan.short_window} micro-batches"))
    missing = missing_rows(built)
    if missing:
        lines.append(("note", missing))
    return "\n".join(_columns(lines))


def _loss(built: Built) -> str:
    loss, rule = built.task.loss, built.trainer.forward.rule
    return rule if loss is None else f"{getattr(loss, '__name__', type(loss).__name__)}, the mean over {rule}"


def _steps(steps: list[int]) -> str:
    if len(steps) <= 8:
        return ", ".join(map(str, steps)) or "never"
    return f"{', '.join(map(str, steps[:3]))}, ..., {steps[-2]}, {steps[-1]} ({len(steps)} times)"
