"""What a run's folder says before anything is loaded: its settings, and whether they may change."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from lucid.cli.settings import program
from lucid.config import RunConfig, diff, read, to_dict
from lucid.errors import CheckpointError, ConfigError, ResumeError


def check_folder(config: RunConfig, tell: bool = True) -> None:
    """Compare the settings with those of the run in the folder; say every difference and what it does.

    Args:
        config: the settings.
        tell: say differences that are no error on stderr. False: the console says them when the run goes on.

    Raises:
        ResumeError: a difference would make it another run, and `train.changes` does not accept that.
        ConfigError: the folder is a file, or holds something else, such as the run of a script.
    """
    folder = Path(str(config.run_dir))
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"run_dir {str(folder)!r} is a file. Choose a folder: --run_dir runs/NAME.")
    if not any((folder / "checkpoints").glob("*.lcs")):
        _refuse_other_content(folder)
        return
    if not (folder / "config.toml").is_file():
        return
    old = {key: value for key, value in _read(folder).items() if key in to_dict(config)}
    changes = [change for change in diff(old, to_dict(config)) if not _is_settled(change.key, config)]
    if not changes:
        return
    from lucid.changes import REFUSED, rule_for

    lines = [f"  {change.text}  ({rule_for(change.key)})" for change in changes]
    refused = [change.key for change in changes if rule_for(change.key) == REFUSED]
    text = f"{folder} has a run with other settings:\n" + "\n".join(lines)
    if refused and config.train.changes == "refuse":
        raise ResumeError(
            f"{text}\nNothing was changed. Start another run with --run_dir runs/NAME, go on as it was with "
            f"`{program()} resume {folder}`, or go on with the new settings with --train.changes accept."
        )
    if tell:
        print(text, file=sys.stderr)


def _is_settled(key: str, config: RunConfig) -> bool:
    """Whether a setting says nothing about the run, or was left open and settled when the run was built."""
    left_open = {"train.threads": config.train.threads is None, "model.name": config.model.name == "auto"}
    return key in ("run_dir", "train.changes") or left_open.get(key, False)


def _refuse_other_content(folder: Path) -> None:
    """A folder without a run may hold what a run writes, and nothing else: nothing of a person's is overwritten."""
    ours = {"config.toml", "environment.json", "records.jsonl", "checkpoints", "report.html", "test.json", "trace.json"}
    others = [path.name for path in folder.iterdir() if path.name not in ours] if folder.is_dir() else []
    if others and not (folder / "environment.json").is_file():
        raise ConfigError(
            f"run_dir {str(folder)!r} holds other things ({', '.join(sorted(others)[:3])}) and no run. "
            "Choose an empty or a new folder: --run_dir runs/NAME."
        )


def _read(folder: Path) -> dict[str, Any]:
    """Read the settings of a run of the command: a script's would come out as those of the digits."""
    from lucid.config import construct

    document = read(folder / "config.toml")
    if "model" not in document.values:
        raise ConfigError(
            f"{folder} has the run of a script, which built model and data itself. To go on with it, start the script "
            "again; for a run of the command, choose another folder: --run_dir runs/NAME."
        )
    return to_dict(construct(RunConfig, document.values, where=document.where))


def settings_in(checkpoint: Path) -> dict[str, Any]:
    """Return the settings inside a checkpoint.

    Raises:
        CheckpointError: it cannot be read, or was not made by the command.
    """
    from lucid.serialization import load
    from lucid.trained import config_of, find_checkpoint

    path = find_checkpoint(checkpoint)
    settings = load(path, select="config")
    if not isinstance(settings, dict) or "model" not in settings:
        raise CheckpointError(f"{path} has no settings of a run inside: it was not made by `lucid train`.")
    return to_dict(config_of({"config": settings}))


def newest_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of a run: those inside its newest good checkpoint, else its `config.toml`.

    Raises:
        ConfigError: the folder holds no run, or that of a script.
    """
    for path in sorted((folder / "checkpoints").glob("step-*.lcs"), reverse=True):
        try:
            return settings_in(path)
        except CheckpointError:
            continue  # the store names it when the run opens
    if not (folder / "config.toml").is_file():
        raise ConfigError(f"{folder} holds no run: neither checkpoints nor config.toml. `lucid train` starts one.")
    return _read(folder)
