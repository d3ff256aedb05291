"""`lucid completion`: a script that lets a shell complete commands and settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

from lucid.cli.settings import arguments, wants_help
from lucid.errors import ConfigError

Shell = Literal["bash", "zsh", "tcsh"]


def completion(words: Sequence[str]) -> int:
    """Print a completion script."""
    if wants_help(words):
        return arguments(_completion(), words, "completion")
    if len(words) != 1 or words[0] not in get_args(Shell):
        raise ConfigError(f"lucid completion needs one of {', '.join(get_args(Shell))}.")
    import tyro

    tyro.extras.subcommand_cli_from_dict(
        _all(), prog="lucid", args=["--tyro-print-completion", words[0]], use_underscores=True
    )
    return 0


def _completion() -> Any:
    import tyro

    def completion(shell: tyro.conf.Positional[Shell]) -> int:
        """Print a script that completes lucid's commands and settings.

        Example: lucid completion bash > ~/.local/share/bash-completion/completions/lucid

        Args:
            shell: which shell.
        """
        return 0

    return completion


def _all() -> dict[str, Callable[..., Any]]:
    from lucid.cli import compare, eject, files, new, train, use

    return {
        "train": train._train_help(),
        "plan": train._plan_help(),
        "resume": train._resume_help(),
        "config": train._config_help(),
        "evaluate": use._evaluate(),
        "predict": use._predict(),
        "inspect": files._inspect(),
        "verify": files._verify(),
        "export": files._export(),
        "diff": compare._diff(),
        "new": new._new(),
        "eject": eject._eject(),
        "completion": _completion(),
    }
