"""`lucid check`, `lr-find` and `replay`: a run looked at closely. `ui`: runs seen in a browser."""

from __future__ import annotations

import json as json_library
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from lucid.cli.settings import ConfigFile, arguments, program, read_settings, show_help, wants_help
from lucid.config import RunConfig, construct, to_dict
from lucid.config.schema import Text, convert
from lucid.errors import ConfigError


@dataclass(frozen=True)
class Configured:
    """Makes the trainer and the loaders of a configuration; can go to another process."""

    settings: dict[str, Any]

    def __call__(self) -> tuple[Any, ...]:
        """Return (trainer, train_loader, eval_loader)."""
        from lucid.build import build

        built = build(construct(RunConfig, self.settings), reports=())
        return built.trainer, built.train_loader, built.validation_loader


def check(words: Sequence[str]) -> int:
    """Prove that a run can be broken anywhere, and look for faults of the loop."""
    if wants_help(words):
        return show_help(check_run, "check")
    from lucid.check import run

    words = list(words)
    if words and ":" in words[0] and not words[0].startswith("-"):
        from lucid.check.target import Named

        factory: Any = Named(words[0])
        factory.find()
        own = read_settings(words[1:], ("json", "steps")).own
    else:
        settings = read_settings(words, ("json", "steps"))
        factory, own = Configured(to_dict(settings.config)), settings.own
        factory()  # bad input is told here, and not by another process
    report = run(factory, steps=_own(own, "steps", int, 6), start="spawn")
    print(json_library.dumps(report.to_dict(), indent=1) if _own(own, "json", bool, False) else report.text())
    return report.exit_code


def check_run(
    config: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="[CONFIG | FILE.py:FUNCTION]")] = None,
    steps: int = 6,
    json: bool = False,
    run: Annotated[RunConfig, tyro.conf.arg(name="")] = RunConfig(),  # noqa: B008 - shown, never changed
) -> None:
    """Prove on your own model and data that a run can be broken anywhere, print its plan, and look for faults.

    Exit code 1 if there is something to repair.

    Example: lucid check run.toml

    Example: lucid check train.py:make_trainer

    Args:
        config: TOML or YAML file, or file.py:function that returns (trainer, train_loader, eval_loader).
        steps: steps of the short runs.
        json: print JSON.
    """


def lr_find(words: Sequence[str]) -> int:
    """Try growing learning rates."""
    if wants_help(words):
        return show_help(lr_find_run, "lr-find")
    settings = read_settings(words, ("min_lr", "max_lr", "num_steps"))
    low, high = (_own(settings.own, name, float, value) for name, value in (("min_lr", 1e-7), ("max_lr", 10.0)))
    trainer, loader, _ = Configured(to_dict(settings.config))()
    from lucid.finders import lr_find

    found = lr_find(trainer, loader, min_lr=low, max_lr=high, num_steps=_own(settings.own, "num_steps", int, 100))
    for lr, loss in list(zip(found.lrs, found.losses, strict=True))[:: max(1, len(found.lrs) // 20)]:
        print(f"{lr:10.3g}  {loss:.4f}")
    print(found.describe())
    if found.suggestion is not None:
        print(f"Try:  {program()} train {settings.words('optimizer.lr', f'{found.suggestion:.2g}')}")
    return 0


def lr_find_run(
    config: ConfigFile = None,
    min_lr: float = 1e-7,
    max_lr: float = 10.0,
    num_steps: int = 100,
    run: Annotated[RunConfig, tyro.conf.arg(name="")] = RunConfig(),  # noqa: B008 - shown, never changed
) -> None:
    """Train a few steps with a growing learning rate, and name the one where the loss falls most steeply.

    Example: lucid lr-find run.toml

    Args:
        config: TOML or YAML file.
        min_lr: first rate.
        max_lr: last rate.
        num_steps: steps.
    """


def replay(words: Sequence[str]) -> int:
    """Run a bad step again."""
    return arguments(replay_step, words, "replay")


def replay_step(bundle: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="BUNDLE")]) -> int:
    """Run a step that gave NaN or inf again, bit for bit, and name the first module and tensor that are bad.

    Exit code 1 if the step could not be repeated exactly.

    Example: lucid replay runs/digits/replay/step-00000120

    Args:
        bundle: folder that the run left below its own `replay/`, or the run's folder for the newest of them.
    """
    from lucid.cli.folder import newest_settings
    from lucid.replay import replay

    run = bundle if (bundle / "replay").is_dir() else bundle.parent.parent
    found = sorted((run / "replay").glob("*")) if run == bundle else [bundle]
    if (bundle / "records.jsonl").is_file() and run != bundle:
        raise ConfigError(f"{bundle} has nothing to replay: no step of this run gave NaN or inf.")
    if not found or not found[-1].is_dir():
        raise ConfigError(f"{bundle} is neither a replay bundle nor a run that has one below replay/.")
    result = replay(found[-1], Configured({**newest_settings(run), "run_dir": str(run)}))
    print(result.describe())
    return 0 if result.is_exact else 1


def ui(words: Sequence[str]) -> int:
    """Serve the dashboard."""
    return arguments(serve_dashboard, words, "ui")


def serve_dashboard(
    runs: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="[RUNS]")] = Path("runs"),
    host: str = "127.0.0.1",
    port: int = 7117,
    open_browser: bool = False,
) -> int:
    """See runs in a browser while they train: curves, settings, checkpoints. Only reads; Ctrl-C ends.

    Example: lucid ui runs --port 8000

    Args:
        runs: folder of runs, or one run.
        host: address to listen on; there is no password.
        port: port to listen on; 0 takes a free one.
        open_browser: open the page.
    """
    from lucid.dashboard import serve

    serve(runs, host, port, open_browser, verify=_verify)
    return 0


def _verify(path: Path) -> str | None:
    """Return what is wrong with a checkpoint, or None."""
    from lucid.serialization import verify

    bad = [file.reason or "broken" for file in verify(path).files if not file.ok]
    return bad[0] if bad else None


_KINDS = {int: "a whole number", float: "a number", bool: "true or false"}


def _own(own: dict[str, str], name: str, kind: type, default: Any) -> Any:
    """Return an option of the command itself.

    Raises:
        ConfigError: it is not of its kind.
    """
    if name not in own:
        return default
    try:
        return convert(kind, Text(own[name]))
    except ValueError as error:
        raise ConfigError(f"--{name} must be {_KINDS[kind]}, got {own[name]!r}.") from error
