"""Names in a configuration that stand for the user's own code, and the options that go to it."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from lucid.config.schema import convert, describe
from lucid.errors import ConfigError, nearest


def import_object(name: str, what: str) -> Any:
    """Import `my_module:attribute`, looking in the current folder as `python -m` does.

    Args:
        name: module and attribute with a colon between.
        what: the setting that holds the name, for messages.

    Raises:
        ConfigError: no such module or attribute. An error inside the module is not caught: it is the user's.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise ConfigError(f"{what} must be a known name or my_module:name, got {name!r}.")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise
        raise ConfigError(
            f"{what} = {name!r}: no module {error.name!r} in {here} or among the installed packages. "
            "Start the command in the folder that holds it."
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{what} = {name!r}: {module_name} has no {part!r}.{nearest(part, dir(found))}")
        found = getattr(found, part)
    return found


def call(
    function: Callable[..., Any],
    options: Mapping[str, Any],
    what: str,
    given: Mapping[str, Any] | None = None,
    signature: Mapping[str, inspect.Parameter] | None = None,
) -> Any:
    """Call a factory with the user's options and with those of `given` that it accepts.

    Args:
        function: its parameters are the known options; annotations are checked, dataclasses built.
        options: the user's; they win over `given`.
        what: the section they stand in, such as "model.options".
        given: what the caller knows, such as `num_classes`; left out where the function has no such parameter.
        signature: the parameters, where those of `function` do not tell.

    Raises:
        ConfigError: an unknown or missing option, or one of the wrong type.
    """
    return function(**bind(function, options, what, given, signature))


def bind(
    function: Callable[..., Any],
    options: Mapping[str, Any],
    what: str,
    given: Mapping[str, Any] | None = None,
    signature: Mapping[str, inspect.Parameter] | None = None,
) -> dict[str, Any]:
    """Return the arguments with which `call` calls; the same errors."""
    parameters = inspect.signature(function).parameters if signature is None else signature
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    known = [n for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    arguments = {key: value for key, value in (given or {}).items() if key in known}
    for key, value in options.items():
        if key not in known and not open_ended:
            raise ConfigError(f"unknown key '{what}.{key}'.{nearest(key, known)} Known: {', '.join(known) or 'none'}.")
        arguments[key] = _typed(function, key, value, what)
    missing = [n for n in known if parameters[n].default is inspect.Parameter.empty and n not in arguments]
    if missing:
        raise ConfigError(f"{what}.{missing[0]} must be given. Known: {', '.join(known)}.")
    return arguments


def _typed(function: Callable[..., Any], key: str, value: Any, what: str) -> Any:
    try:
        hints = get_type_hints(function.__init__ if isinstance(function, type) else function)  # type: ignore[misc]
    except Exception:  # annotations that cannot be evaluated are the user's own business
        return value
    if key not in hints:
        return value
    try:
        return convert(hints[key], value)
    except ConfigError as error:
        raise ConfigError(f"{what}.{key}: {error}") from error
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{what}.{key} must be {describe(hints[key])}, got {value!r}.") from error
