"""`lucid eject`: the run of a configuration as one plain PyTorch file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from lucid.cli.settings import ConfigFile, read_settings, show_help, wants_help
from lucid.config import RunConfig
from lucid.errors import ConfigError


def eject(words: Sequence[str]) -> int:
    """Write a run as one file."""
    if wants_help(words):
        return show_help(eject_config, "eject")
    settings = read_settings(words, ("out",))
    from lucid.build import build
    from lucid.cli.ejecting.whole import eject_text

    text = eject_text(build(settings.config, reports=()))
    if "out" not in settings.own:
        sys.stdout.write(text)
        return 0
    path = Path(settings.own["out"])
    if path.exists():
        raise ConfigError(f"{path} exists. Nothing was changed; choose another name.")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}.") from error
    print(f"{path}: {len(text.splitlines())} lines. Run it: python {path}")
    return 0


def eject_config(
    config: ConfigFile = None,
    out: Path | None = None,
    run: Annotated[RunConfig, tyro.conf.arg(name="")] = RunConfig(),  # noqa: B008 - shown, never changed
) -> None:
    """Write the run of a configuration as one plain PyTorch file, without lucid, that gives the same weights.

    Only what the configuration uses is in it.

    Example: lucid eject run.toml --out plain.py

    Args:
        config: TOML or YAML file.
        out: file to write. None: it is printed.
    """
