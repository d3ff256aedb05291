"""Configuration files: read TOML and YAML with the line of every key, write TOML."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lucid.errors import ConfigError

SUFFIXES = (".toml", ".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class Document:
    """Values of a file and the line of each dotted key."""

    path: Path
    values: dict[str, Any]
    lines: dict[str, int] = field(default_factory=dict)

    def where(self, key: str) -> str:
        """Return "FILE, line N" for a dotted key; the section's line for a key inside a one-line table."""
        while key and key not in self.lines:
            key = key.rpartition(".")[0]
        return f"{self.path}, line {self.lines[key]}" if key else str(self.path)


def read(path: str | Path) -> Document:
    """Read a configuration file.

    Raises:
        ConfigError: no such file, another kind of file, or not valid TOML or YAML.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"a configuration file must end in {', '.join(SUFFIXES)}, got {path}.")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the configuration file {path} must be UTF-8 text: {error.reason}.") from error
    return _read_toml(path, text) if path.suffix == ".toml" else _read_yaml(path, text)


def _read_toml(path: Path, text: str) -> Document:
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error
    return Document(path, values, _toml_lines(text))


_HEADER = re.compile(r"^\s*\[+([^\[\]]+)\]+")
_KEY = re.compile(r"""^\s*([\w."'-]+(?:\s*\.\s*[\w"'-]+)*)\s*=""")


def _toml_lines(text: str) -> dict[str, int]:
    """Find the line of each key. The parser does not keep lines; a file that parsed can be read line by line."""
    lines: dict[str, int] = {}
    section, inside = "", False
    for number, line in enumerate(text.splitlines(), 1):
        fences = line.count('"""') + line.count("'''")
        if not inside:
            header, key = _HEADER.match(line), _KEY.match(line)
            if header:
                section = _clean(header[1])
                lines.setdefault(section, number)
            elif key:
                lines.setdefault(f"{section}.{_clean(key[1])}".lstrip("."), number)
        inside ^= fences % 2 == 1
    return lines


def _clean(dotted: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in dotted.split("."))


def _read_yaml(path: Path, text: str) -> Document:
    import yaml

    class Loader(yaml.SafeLoader):
        """YAML's plain types, with 1e-3 a number and yes/no/on/off words, as in YAML 1.2."""

    drop = ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")
    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in drop]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    number = r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|^[-+]?\.(inf|Inf)$|^\.(nan|NaN)$"
    Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(true|True|false|False)$"), list("tTfF"))
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(number), list("-+0123456789."))
    try:
        node = yaml.compose(text, Loader=Loader)
        values = yaml.load(text, Loader=Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}.") from error
    if values is None:
        return Document(path, {})
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold keys and values, got {type(values).__name__}.")
    lines: dict[str, int] = {}
    _yaml_lines(node, "", lines)
    return Document(path, values, lines)


def _yaml_lines(node: Any, prefix: str, lines: dict[str, int]) -> None:
    for key, value in node.value:
        path = f"{prefix}.{key.value}".lstrip(".")
        lines.setdefault(path, key.start_mark.line + 1)
        if value.id == "mapping":
            _yaml_lines(value, path, lines)


def toml_text(values: dict[str, Any]) -> str:
    """Return plain values as TOML. None is written "none"."""
    import tomli_w

    return tomli_w.dumps(_without_none(values))


def write(path: str | Path, values: dict[str, Any]) -> None:
    """Write plain values as a TOML file that `read` gives back."""
    Path(path).write_text(toml_text(values), encoding="utf-8")


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_none(item) for item in value]
    return "none" if value is None else value
