"""Put a configuration together: defaults < file < environment < command line.

load(path, environ, overrides):
    values = file's values, environment's, overrides' laid over each other, key by key
    return the dataclass built strictly from them; errors say which layer set the key
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, overload

from lucid.config.files import Document, read
from lucid.config.run import RunConfig
from lucid.config.schema import Text, construct, hints_of
from lucid.errors import ConfigError

T = TypeVar("T")
ENV_PREFIX = "LUCID_"


@dataclass(frozen=True, slots=True)
class Layer:
    """Settings by dotted key, and the name of where they came from."""

    values: dict[str, Any]
    names: dict[str, str]


@overload
def load(
    path: str | Path | None = ...,
    *,
    overrides: Mapping[str, Any] | None = ...,
    environ: Mapping[str, str] | None = ...,
    base: Mapping[str, Any] | None = ...,
) -> RunConfig: ...


@overload
def load(
    path: str | Path | None = ...,
    *,
    overrides: Mapping[str, Any] | None = ...,
    environ: Mapping[str, str] | None = ...,
    base: Mapping[str, Any] | None = ...,
    cls: type[T],
) -> T: ...


def load(
    path: str | Path | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    base: Mapping[str, Any] | None = None,
    cls: Any = RunConfig,
) -> Any:
    """Build a configuration.

    Args:
        path: TOML or YAML file. None: defaults.
        overrides: dotted keys to values, strongest; `Text` for what was typed in a shell.
        environ: variables such as LUCID_TRAIN__EPOCHS. None: the process's own.
        cls: dataclass to build, such as your own subclass of `RunConfig` with more fields.
        base: nested plain values below the file, such as the configuration inside a checkpoint.

    Raises:
        ConfigError: what is wrong, with key, file, line and the nearest known key.

    Example:
        >>> load(overrides={"train.epochs": 3}, environ={}).train.epochs
        3
    """
    target = cls
    document = read(path) if path is not None else Document(Path("defaults"), {})
    environment = _from_environment(os.environ if environ is None else environ, target)
    typed = Layer(dict(overrides or {}), {key: _option(key, value) for key, value in (overrides or {}).items()})
    values = copy.deepcopy(dict(base or {}))
    _merge(values, copy.deepcopy(document.values))
    for layer in (environment, typed):
        for key, value in layer.values.items():
            _set(values, key, value, layer.names[key])

    def where(key: str) -> str:
        for layer in (typed, environment):
            if key in layer.names:
                return layer.names[key]
        return document.where(key) if path is not None else ""

    return construct(target, values, where=where)


def parse_overrides(arguments: Sequence[str]) -> dict[str, Text]:
    """Read `--section.key value`, `--section.key=value` and `--section.flag` (true).

    Raises:
        ConfigError: a word that belongs to no option.
    """
    found: dict[str, Text] = {}
    queue = list(arguments)
    while queue:
        word = queue.pop(0)
        if not word.startswith("--") or len(word) < 3:
            raise ConfigError(f"{word!r} belongs to no option. Settings are given as --section.key value.")
        key, equals, text = word[2:].partition("=")
        is_bare = not equals and (not queue or queue[0].startswith("--"))
        if not equals:
            text = "true" if is_bare else queue.pop(0)
        found[key.replace("-", "_")] = Text(text, is_bare)
    return found


def _from_environment(environ: Mapping[str, str], target: Any) -> Layer:
    """LUCID_TRAIN__EPOCHS -> train.epochs. Other programs' LUCID_ variables are left alone."""
    values: dict[str, Any] = {}
    names: dict[str, str] = {}
    for variable, text in sorted(environ.items()):
        if not variable.startswith(ENV_PREFIX):
            continue
        key = variable.removeprefix(ENV_PREFIX).lower().replace("__", ".")
        if key.partition(".")[0] in hints_of(target):
            values[key], names[key] = Text(text), f"environment variable {variable}"
    return Layer(values, names)


def _option(key: str, value: Any) -> str:
    return f"option --{key}" if isinstance(value, Text) else "overrides"


def _merge(target: dict[str, Any], source: Mapping[str, Any]) -> None:
    for key, value in source.items():
        if isinstance(value, Mapping) and isinstance(target.get(key), dict):
            _merge(target[key], value)
        else:
            target[key] = value


def _set(values: dict[str, Any], key: str, value: Any, name: str) -> None:
    *sections, last = key.split(".")
    at = values
    for section in sections:
        at = at.setdefault(section, {})
        if not isinstance(at, dict):
            raise ConfigError(f"{key!r} ({name}): {section!r} is a value, not a section.")
    at[last] = value
