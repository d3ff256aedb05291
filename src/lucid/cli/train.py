"""`lucid train`, `plan`, `resume` and `config`: the commands that take a configuration."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from lucid.cli import EXIT_INTERRUPTED
from lucid.cli.settings import ConfigFile, Console, console_mode, flag, program, read_settings, show_help, wants_help
from lucid.config import RunConfig, to_dict
from lucid.config.files import toml_text, write
from lucid.errors import ConfigError, NonFiniteError

if TYPE_CHECKING:
    from lucid.build import Built
    from lucid.session import Result


def train(words: Sequence[str]) -> int:
    """Train what a configuration says; in a folder that has a run, go on with it."""
    if wants_help(words):
        return show_help(train_run, "train")
    settings = read_settings(words, ("from", "console", "profile", "trace"), base=_from_checkpoint)
    profile, trace = (flag(settings.own, name) for name in ("profile", "trace"))
    return run(settings.config, console_mode(settings.own), profile or trace, trace)


def resume(words: Sequence[str]) -> int:
    """Go on with the run of a folder, with its own settings and those given here."""
    if wants_help(words):
        return show_help(resume_run, "resume")
    if not words or words[0].startswith("-"):
        raise ConfigError("lucid resume needs the folder of a run: lucid resume runs/digits.")
    folder = Path(words[0])
    if not folder.is_dir():
        raise ConfigError(f"no such folder: {folder}.")

    def base(own: dict[str, str]) -> dict[str, Any]:
        from lucid.cli.folder import newest_settings

        return {**newest_settings(folder), "run_dir": str(folder)}

    settings = read_settings(words[1:], ("console",), base=base)
    if Path(str(settings.config.run_dir)) != folder:
        raise ConfigError(
            f"lucid resume goes on in its folder {folder}, got run_dir {settings.config.run_dir!r}. "
            f"Leave it out, or start another run with its settings: lucid train --from {folder} --run_dir runs/NAME."
        )
    return run(settings.config, console_mode(settings.own))


def run(config: RunConfig, console: Console, profile: bool = False, trace: bool = False) -> int:
    """Train, then judge the best checkpoint on the rows kept for the test, and say where things lie."""
    from lucid.cli.folder import check_folder

    check_folder(config, tell=console in ("quiet", "json"))
    from lucid.build import build
    from lucid.cli.ending import _Started, missing_rows
    from lucid.records.outcome import INTERRUPTED
    from lucid.report import ConsoleReport
    from lucid.report.trackers import make
    from lucid.signals import Stopped

    started = _Started()
    trackers = [make(name, str(config.run_dir)) for name in config.trackers]
    built = build(config, reports=[ConsoleReport(console, ending=False), *trackers], callbacks=[started])
    missing = missing_rows(built)
    if missing and console not in ("quiet", "json"):
        print(f"lucid: {missing}", file=sys.stderr)
    if profile:
        from lucid.profiling import Profile

        built.trainer.profile = Profile(trace=Path(str(config.run_dir)) / "trace.json" if trace else None)
    try:
        result = built.trainer.fit(built.train_loader, built.validation_loader)
    except Stopped as stopped:
        if console not in ("quiet", "json"):
            print(f"{INTERRUPTED.capitalize()} by {stopped.reason}, with a checkpoint.")
            print(f"Go on:  {program()} resume {config.run_dir}")
        return int(stopped.code or 0)
    except KeyboardInterrupt:
        if console not in ("quiet", "json"):
            newest = max((Path(str(config.run_dir)) / "checkpoints").glob("step-*.lcs"), default=None)
            print(f"\n{INTERRUPTED.capitalize()} by Ctrl-C. Newest checkpoint: {newest or 'none yet'}.")
            print(f"Go on:  {program()} resume {config.run_dir}")
            return EXIT_INTERRUPTED
        raise
    except NonFiniteError:
        if console not in ("quiet", "json") and (Path(str(config.run_dir)) / "replay").is_dir():
            print(f"See what was bad in it:  {program()} replay {config.run_dir}", flush=True)
        raise
    _finish(built, result, console, started.is_true)
    return result.exit_code


def _finish(built: Built, result: Result, console: Console, was_trained: bool) -> None:
    from lucid.cli import ending
    from lucid.report.page import write_page

    folder = Path(str(built.config.run_dir))
    write(folder / "config.toml", to_dict(built.config))  # changes that took effect are part of the run now
    tested = ending.test(built)
    write_page(folder)
    if console not in ("quiet", "json"):
        print(ending.text(built, result, tested, was_trained))


def plan(words: Sequence[str]) -> int:
    """Say what a run would do: data, model, steps, and when it logs, evaluates and saves."""
    if wants_help(words):
        return show_help(plan_run, "plan")
    settings = read_settings(words, ("plot",))
    is_drawn = flag(settings.own, "plot")
    from lucid.build import build
    from lucid.cli.ending import plan_text, rates_text
    from lucid.report.trackers import check

    for name in settings.config.trackers:
        check(name)
    built = build(settings.config, reports=())
    print(plan_text(built))
    if is_drawn:
        print(rates_text(built))
    return 0


def config(words: Sequence[str]) -> int:
    """Print every setting in effect as TOML: a file to start from."""
    if wants_help(words):
        return show_help(print_config, "config")
    print(toml_text(to_dict(read_settings(words).config)), end="")
    return 0


def _from_checkpoint(own: dict[str, str]) -> dict[str, Any] | None:
    """Return the settings inside the checkpoint that `--from` names; the folder is chosen anew."""
    if "from" not in own:
        return None
    from lucid.cli.folder import settings_in

    return {**settings_in(Path(own["from"])), "run_dir": None}


def train_run(
    config: ConfigFile = None,
    from_: Annotated[Path | None, tyro.conf.arg(name="from")] = None,
    console: Console = "auto",
    profile: bool = False,
    trace: bool = False,
    run: Annotated[RunConfig, tyro.conf.arg(name="")] = RunConfig(),  # noqa: B008 - shown, never changed
) -> None:
    """Train what a configuration says, or handwritten digits; in a folder that has a run, go on with it.

    Settings come from defaults, then CONFIG, then the environment (LUCID_TRAIN__EPOCHS=3), then from here.

    What a model, data set, optimizer or schedule takes besides: --model.options.NAME VALUE, --data.options.NAME VALUE
    and so on; a name that there is not is answered with those that there are.

    Example: lucid train run.toml --optimizer.lr 1e-3 --model.options.width 32

    Args:
        config: TOML or YAML file.
        from_: take the settings inside this checkpoint (.lcs) as defaults.
        console: what the terminal shows; plain: a line per record; json: the records.
        profile: measure the time of each stage: data, forward, backward, optimizer, evaluation, save.
        trace: the same, and write a trace of torch's profiler over five steps to trace.json in the run's folder.
    """


def resume_run(
    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")], console: Console = "auto"
) -> None:
    """Go on with a run, exactly as if it had never stopped, with the settings of its newest checkpoint.

    Settings may be changed: lucid resume runs/digits --train.epochs 20. What a change does is said before it
    happens; changes that would make it another run are refused.

    Example: lucid resume runs/digits

    Args:
        run: folder of the run.
        console: what the terminal shows; plain: a line per record; json: the records.
    """


def plan_run(
    config: ConfigFile = None,
    plot: bool = False,
    run: Annotated[RunConfig, tyro.conf.arg(name="")] = RunConfig(),  # noqa: B008 - shown, never changed
) -> None:
    """Say what a run would do, without training: data, model, steps, and when it logs, evaluates and saves.

    Example: lucid plan run.toml --train.epochs 3 --plot

    Args:
        config: TOML or YAML file.
        plot: draw the learning rate over the steps.
    """


def print_config(
    config: ConfigFile = None,
    run: Annotated[RunConfig, tyro.conf.arg(name="")] = RunConfig(),  # noqa: B008 - shown, never changed
) -> None:
    """Print every setting in effect as TOML: a file to start from.

    Example: lucid config --data.name csv:houses.csv --model.options.width 64 > houses.toml

    Args:
        config: TOML or YAML file.
    """
