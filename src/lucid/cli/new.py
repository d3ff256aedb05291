"""`lucid new`: a small project that the user owns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated

import tyro

from lucid.cli.settings import arguments
from lucid.errors import ConfigError


def new(words: Sequence[str]) -> int:
    """Make a project."""
    return arguments(new_project, words, "new")


def new_project(name: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="NAME")]) -> int:
    """Make a small project of your own: train.py, config.toml and a test. It runs without network.

    Example: lucid new my_project && cd my_project && python train.py

    Args:
        name: folder to make.
    """
    files = make_project(name)
    print("\n".join(f"  {path}" for path in files))
    print(f"\nNext:\n  cd {name}\n  python train.py\n  python -m pytest -q")
    return 0


def make_project(folder: Path) -> list[Path]:
    """Write the project into a new or empty folder.

    Raises:
        ConfigError: a name that is no word, or a folder with something in it.
    """
    if not re.fullmatch(r"[A-Za-z][\w.-]*", folder.name):
        raise ConfigError(f"the name of a project must be a word of letters, digits, - and _, got {folder.name!r}.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists and is not an empty folder. Nothing was changed; choose another name.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for source in sorted(resources.files("lucid.cli").joinpath("template").iterdir(), key=lambda file: file.name):
            if not source.is_file():
                continue
            path = folder / source.name
            path.write_text(source.read_text(encoding="utf-8").replace("NAME", folder.name), encoding="utf-8")
            written.append(path)
    except OSError as error:
        raise ConfigError(f"cannot write the project {folder}: {error.strerror}.") from error
    return written
