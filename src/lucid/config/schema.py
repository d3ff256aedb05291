"""Plain values to typed dataclasses, strictly: one place for files, environment and command line.

A string "none" stands for None, because TOML has no word for it. Every error names the key, what it must be, what
came, and where from.
"""

from __future__ import annotations

import tomllib
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from lucid.errors import ConfigError, nearest

T = TypeVar("T")
Where = Callable[[str], str]
"""Maps a dotted key to the place it was set, such as "run.toml, line 3"; "" when it was not set."""


SYNONYMS = {
    "learning_rate": "lr",
    "wd": "weight_decay",
    "bs": "batch_size",
    "num_epochs": "epochs",
    "max_epochs": "epochs",
    "num_train_epochs": "epochs",
    "max_iters": "max_steps",
    "accumulate_grad_batches": "gradient_accumulation_steps",
    "grad_accum": "gradient_accumulation_steps",
    "gradient_clip_val": "max_grad_norm",
    "grad_clip": "max_grad_norm",
    "output_dir": "run_dir",
    "workers": "num_workers",
}
"""Words that other libraries use for our settings; only for messages."""


@dataclass(frozen=True, slots=True)
class Text:
    """A value typed in a shell: its type is decided by the setting it is for."""

    text: str
    is_bare: bool = False
    """Whether only the option's name was typed, which means true where that is possible."""


def nowhere(key: str) -> str:
    """Return no place."""
    return ""


def construct(cls: type[T], values: Mapping[str, Any], *, where: Where = nowhere, prefix: str = "") -> T:
    """Build a dataclass from nested plain values.

    Args:
        cls: a dataclass; its fields may be dataclasses.
        values: keys must be fields of `cls`.
        where: says where a dotted key was set; for messages.
        prefix: dotted path of this section.

    Raises:
        ConfigError: all that is wrong with keys and types, one line each.
    """
    problems: list[str] = []
    result = _build(cls, values, prefix, cls, where, problems, None)
    if problems:
        raise ConfigError("\n".join(problems))
    return result  # type: ignore[no-any-return]


def _build(cls: Any, values: Any, prefix: str, root: Any, where: Where, problems: list[str], default: Any) -> Any:
    """Build a dataclass; what `values` leave out is as in `default`, the section as it would be without them."""
    if not isinstance(values, Mapping):
        problems.append(f"{prefix} must be a section with keys, got {values!r}{_at(where, prefix)}.")
        return None
    hints, before = hints_of(cls), len(problems)
    own = fields(cls)
    chosen = {f.name: getattr(default, f.name) for f in own if f.init} if type(default) is cls else {}
    sections = {f.name: _default_of(f) for f in own if is_dataclass(hints[f.name])} | chosen
    for key, value in values.items():
        path = f"{prefix}.{key}" if prefix else str(key)
        if key not in hints:
            problems.append(f"unknown key {path!r}{_at(where, path)}.{_hint(str(key), prefix, cls, root)}")
        elif is_dataclass(hints[key]):
            chosen[key] = _build(hints[key], value, path, root, where, problems, sections[key])
        else:
            try:
                chosen[key] = convert(hints[key], value)
            except ConfigError as error:
                problems.append(f"{path}: {error}")
            except ValueError:
                problems.append(f"{path} must be {describe(hints[key])}, got {_show(value)}{_at(where, path)}.")
    required = [f.name for f in own if f.default is MISSING and f.default_factory is MISSING]
    problems += [f"{prefix}.{name} must be given.".lstrip(".") for name in required if name not in {*values, *chosen}]
    if len(problems) > before:
        return None
    try:
        return cls(**chosen)
    except ConfigError as error:
        problems.append(_placed(str(error), where))
        return None


def _default_of(one: Field[Any]) -> Any:
    if one.default_factory is not MISSING:
        return one.default_factory()
    return None if one.default is MISSING else one.default


def hints_of(cls: Any) -> dict[str, Any]:
    """Return the type of each field, also for a dataclass made inside a function, where names cannot be looked up."""
    made_by: list[Any] = [f.default_factory for f in fields(cls) if isinstance(f.default_factory, type)]
    return get_type_hints(cls, localns={kind.__name__: kind for kind in made_by})


def convert(kind: Any, value: Any) -> Any:
    """Return `value` as the annotated type `kind`, or raise ValueError. In a file, "3" is not a number."""
    origin, arms = get_origin(kind), get_args(kind)
    if kind is Any:
        return _literal(value.text) if isinstance(value, Text) else _none_inside(value)
    if origin in (Union, types.UnionType):
        return _first_fit(arms, value)
    if origin is Literal:
        return _one_of(arms, value)
    if origin in (list, tuple, dict):
        value = _typed(origin, value.text) if isinstance(value, Text) else value
        return _container(origin, arms, value)
    if isinstance(value, Text):
        return _from_text(kind, value.text)
    if kind is type(None):
        return _require(value is None or value == "none", None)
    if kind is float:
        return float(_require(isinstance(value, int | float) and not isinstance(value, bool), value))
    if kind is int:
        return _require(isinstance(value, int) and not isinstance(value, bool), value)
    if is_dataclass(kind) and isinstance(kind, type):
        return value if isinstance(value, kind) else construct(kind, _require(isinstance(value, Mapping), value))
    return _require(not isinstance(kind, type) or isinstance(value, kind), value)


def _typed(origin: Any, text: str) -> Any:
    """Read a container typed in a shell: as TOML, or a list of words by commas."""
    return text.split(",") if origin is list and text and text[0] not in "[\"'" else _literal(text)


def _require(fits: bool, value: Any) -> Any:
    if not fits:
        raise ValueError(value)
    return value


def _first_fit(arms: tuple[Any, ...], value: Any) -> Any:
    """Try None first (so that "none" is None), text last."""
    for arm in sorted(arms, key=lambda arm: (arm is not type(None), arm is str)):
        try:
            return convert(arm, value)
        except ConfigError:  # a section of the right kind with a mistake inside
            raise
        except ValueError:
            continue
    raise ValueError(value)


def _one_of(arms: tuple[Any, ...], value: Any) -> Any:
    value = value.text if isinstance(value, Text) else value
    for arm in arms:
        if type(arm) is type(value) and arm == value:
            return arm
    raise ValueError(value)


def _container(origin: Any, arms: tuple[Any, ...], value: Any) -> Any:
    if origin is dict:
        _require(isinstance(value, Mapping), value)
        return {str(key): convert(arms[1] if arms else Any, item) for key, item in value.items()}
    _require(isinstance(value, list | tuple), value)
    return origin(convert(arms[0] if arms else Any, item) for item in value)


def _from_text(kind: Any, text: str) -> Any:
    if kind is str:
        return text
    if kind is type(None):
        return _require(text in ("none", "None", "null"), None)
    if kind is bool:
        return _require(text in ("true", "True", "false", "False"), text in ("true", "True"))
    if kind in (int, float):
        return kind(text)
    return convert(kind, _literal(text))


def _literal(text: str) -> Any:
    """Read a value typed in a shell as TOML would; what TOML cannot read is a string."""
    if text in ("None", "none", "null"):
        return None
    try:
        return _none_inside(tomllib.loads(f"x = {text if text not in ('True', 'False') else text.lower()}")["x"])
    except tomllib.TOMLDecodeError:
        return text


def _none_inside(value: Any) -> Any:
    """Turn "none" into None at any depth of a free value."""
    if isinstance(value, Mapping):
        return {key: _none_inside(convert(Any, item)) for key, item in value.items()}
    if isinstance(value, list):
        return [_none_inside(item) for item in value]
    return None if isinstance(value, str) and value == "none" else value


def describe(kind: Any) -> str:
    """Say in words what a type accepts."""
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): '"none"'}
    origin, arms = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(arm) for arm in arms)
    if origin is Literal:
        return ("one of " if len(arms) > 1 else "") + ", ".join(f'"{arm}"' for arm in arms)
    if origin in (list, tuple):
        return "a list"
    if origin is dict:
        return "a section with keys"
    return names.get(kind, getattr(kind, "__name__", str(kind)))


def leaf_keys(cls: Any, prefix: str = "") -> list[str]:
    """Return the dotted name of every setting of a dataclass."""
    keys: list[str] = []
    for name, kind in hints_of(cls).items():
        path = f"{prefix}.{name}" if prefix else name
        keys += leaf_keys(kind, path) if is_dataclass(kind) else [path]
    return keys


def _hint(key: str, prefix: str, cls: Any, root: Any) -> str:
    """Name the nearest key: same word elsewhere first, then a similar word here, then a similar word anywhere."""
    dotted = leaf_keys(root)
    word = SYNONYMS.get(key, key)
    elsewhere = [path for path in dotted if path.rpartition(".")[2] == word]
    if elsewhere:
        return f" Did you mean {elsewhere[0]!r}?"
    start = f"{prefix}." if prefix else ""
    here = nearest(key, hints_of(cls))
    if here:
        return here.replace("'", f"'{start}", 1)
    by_word = {path.rpartition(".")[2]: path for path in dotted}
    match = nearest(key, by_word)
    for word, path in by_word.items():
        match = path if match == f" Did you mean {word!r}?" else match
    known = ", ".join(f.name for f in fields(cls))
    return f" Did you mean {match!r}?" if match else f" Known here: {known}."


def _show(value: Any) -> str:
    if isinstance(value, Text):
        return "no value" if value.is_bare else repr(value.text)
    return repr(value)


def _at(where: Where, key: str) -> str:
    place = where(key)
    return f" ({place})" if place else ""


def _placed(message: str, where: Where) -> str:
    """Add the place of the key that a dataclass's own check names first."""
    key = message.split(" ", 1)[0]
    return message.rstrip(".") + f"{_at(where, key)}."


def to_dict(config: Any) -> dict[str, Any]:
    """Return a dataclass as nested plain values; the inverse of `construct`."""
    return {
        f.name: to_dict(value) if is_dataclass(value) else _plain(value)
        for f in fields(config)
        for value in [getattr(config, f.name)]
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
