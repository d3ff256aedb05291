"""`lucid completion`: a script that lets a shell complete commands and settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import tyro

from lucid.cli.settings import arguments, wants_help
from lucid.errors import ConfigError

Shell = Literal["bash", "zsh", "tcsh"]


def completion(words: Sequence[str]) -> int:
    """Print a completion script."""
    if wants_help(words):
        return arguments(print_completion, words, "completion")
    if len(words) != 1 or words[0] not in get_args(Shell):
        shells, fish = ", ".join(get_args(Shell)), " There is no script for fish." if "fish" in words else ""
        raise ConfigError(f"lucid completion needs one of {shells}, got {' '.join(words) or 'nothing'}.{fish}")

    tyro.extras.subcommand_cli_from_dict(
        _all(), prog="lucid", args=["--tyro-print-completion", words[0]], use_underscores=True
    )
    return 0


def print_completion(shell: tyro.conf.Positional[Shell]) -> int:
    """Print a script that completes lucid's commands and settings. There is none for fish.

    Example: lucid completion bash > ~/.local/share/bash-completion/completions/lucid

    Args:
        shell: which shell.
    """
    return 0


def _all() -> dict[str, Callable[..., Any]]:
    from lucid.cli import compare, files, health, new, train, use
    from lucid.cli import eject as ejection

    return {
        "train": train.train_run,
        "plan": train.plan_run,
        "resume": train.resume_run,
        "check": health.check_run,
        "lr-find": health.lr_find_run,
        "replay": health.replay_step,
        "ui": health.serve_dashboard,
        "config": train.print_config,
        "evaluate": use.evaluate_checkpoint,
        "predict": use.predict_rows,
        "inspect": files.inspect_path,
        "verify": files.verify_path,
        "export": files.export_weights,
        "diff": compare.diff_runs,
        "new": new.new_project,
        "eject": ejection.eject_config,
        "completion": print_completion,
    }
