"""Configuration from the command line: `[CONFIG] [--section.key value ...]` and a command's own options.

tyro writes the help and the completion from the dataclasses and their texts; values are read by `lucid.config`, which
also reads files and the environment, so that one mistake has one message wherever it is made.
"""

from __future__ import annotations

import inspect
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tyro

from lucid.config import RunConfig, load, parse_overrides
from lucid.config.files import SUFFIXES
from lucid.config.schema import Text, hints_of, leaf_keys
from lucid.errors import ConfigError, nearest

ConfigFile = Annotated[tyro.conf.Positional[Path | None], tyro.conf.arg(metavar="[CONFIG]")]
"""The file of a configuration among the arguments of a command."""

Console = Literal["auto", "rich", "plain", "json", "quiet"]


@dataclass(frozen=True)
class Settings:
    """A configuration and a command's own options."""

    config: RunConfig
    source: Path | None
    own: dict[str, str]
    typed: dict[str, Text]
    """Settings that stood on the command line."""

    def words(self, key: str, value: str) -> str:
        """Return what to type for the same file and settings with one changed, which comes last."""
        found = [] if self.source is None else [str(self.source)]
        others = {name: one for name, one in self.typed.items() if name != key}
        for name, one in {**others, key: Text(value)}.items():
            separate = [] if one.is_bare else [one.text]
            found += [f"--{name}={one.text}"] if one.text.startswith("--") else [f"--{name}", *separate]
        return shlex.join(found)


def read_settings(
    words: Sequence[str],
    own: Sequence[str] = (),
    *,
    base: Callable[[dict[str, str]], dict[str, Any] | None] = lambda own: None,
) -> Settings:
    """Read a command line.

    Args:
        words: behind the command.
        own: options of the command itself, without dashes.
        base: gives settings below the file's from the command's own options.

    Raises:
        ConfigError: for anything that does not fit, with key, place and nearest known key.
    """
    rest = list(words)
    source = Path(rest.pop(0)) if rest and not rest[0].startswith("-") else None
    if source is not None and source.suffix not in SUFFIXES:
        hint = f"For a table: --data.name csv:{source}." if source.suffix in (".csv", ".tsv") else ""
        raise ConfigError(
            f"{str(source)!r} is not a configuration file ({', '.join(SUFFIXES)}). "
            f"{hint or 'Settings are given as --section.key value.'}"
        )
    found = parse_overrides(rest)
    mine = {key: found.pop(key).text for key in list(found) if key in own}
    _check_top(found, own)
    config = load(source, overrides=found, base=base(mine))
    return Settings(config.resolved(source), source, mine, found)


def _check_top(found: dict[str, Text], own: Sequence[str]) -> None:
    """A misspelt option of the command itself gets its own hint; everything else is a setting."""
    settings = {*hints_of(RunConfig), *(path.rpartition(".")[2] for path in leaf_keys(RunConfig))}
    for key in found:
        if "." not in key and key not in settings and nearest(key, own):
            raise ConfigError(f"unknown option --{key}.{nearest(key, own).replace(chr(39), chr(39) + '--', 1)}")


def show_help(function: Callable[..., Any], command: str) -> int:
    """Print the help of a command that takes a configuration; defaults are those in effect here."""
    options = (tyro.conf.FlagConversionOff,)  # --train.compile true, as in a file
    print(about(function))
    tyro.cli(function, args=["--help"], prog=f"lucid {command}", description="", use_underscores=True, config=options)
    return 0


def arguments(function: Callable[..., int], words: Sequence[str], command: str) -> int:
    """Read the arguments of a command without a configuration with tyro, and run it."""
    if wants_help(words):
        print(about(function))
    options = (tyro.conf.FlagCreatePairsOff,)  # --json, and no --no_json
    code: int = tyro.cli(
        function, args=list(words), prog=f"lucid {command}", description="", use_underscores=True, config=options
    )
    return code


def about(function: Callable[..., Any]) -> str:
    """Return what a command is for, wrapped to the terminal: tyro would leave each paragraph one long line."""
    text = (inspect.getdoc(function) or "").partition("\nArgs:")[0]
    width = min(100, shutil.get_terminal_size().columns)
    parts = [" ".join(part.split()) for part in text.split("\n\n")]
    return "\n\n".join(textwrap.fill(part, width) for part in parts if part) + "\n"


def program() -> str:
    """Return what to type for `lucid` here: its path where the shell would not find this one by its name."""
    called = sys.argv[0]
    if Path(called).name != "lucid":
        return "lucid"
    known = shutil.which("lucid")
    return "lucid" if known is not None and os.path.samefile(known, called) else called


def existing(path: Path) -> Path:
    """Return a path that is there.

    Raises:
        ConfigError: it is not.
    """
    if not path.exists():
        raise ConfigError(f"no such file or folder: {path}.")
    return path


def wants_help(words: Sequence[str]) -> bool:
    """Say whether help was asked for."""
    return "--help" in words or "-h" in words


def flag(own: dict[str, str], name: str) -> bool:
    """Return what an option of a command itself says that is true or false; left out: false.

    Raises:
        ConfigError: it is neither.
    """
    value = own.get(name, "false")
    if value.lower() not in ("true", "false"):
        raise ConfigError(f"--{name} must be true or false, or stand alone for true, got {value!r}.")
    return value.lower() == "true"


def console_mode(own: dict[str, str]) -> Console:
    """Return what `--console` says.

    Raises:
        ConfigError: a mode that there is not.
    """
    mode = own.get("console", "auto")
    for known in get_args(Console):
        if mode == known:
            return known  # type: ignore[no-any-return]
    raise ConfigError(
        f"--console must be one of {', '.join(get_args(Console))}, got {mode!r}.{nearest(mode, get_args(Console))}"
    )
