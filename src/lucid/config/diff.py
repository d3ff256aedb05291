"""Differences between two configurations, as a person reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that differs. `old` or `new` is None where it is absent; see `text`."""

    key: str
    old: Any
    new: Any
    text: str


def diff(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Compare two nested dictionaries of plain values.

    Returns:
        Changes in the order of the keys, empty when both say the same. NaN equals NaN.

    Example:
        >>> [c.text for c in diff({"train": {"epochs": 1}}, {"train": {"epochs": 2}})]
        ['train.epochs: 1 -> 2']
    """
    before, after = _flat(old), _flat(new)
    changes = []
    for key in [*before, *(key for key in after if key not in before)]:
        left, right = before.get(key, _ABSENT), after.get(key, _ABSENT)
        if not _same(left, right):
            text = f"{key}: {_show(left)} -> {_show(right)}"
            changes.append(Change(key, _or_none(left), _or_none(right), text))
    return changes


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        path = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, Mapping):
            flat.update(_flat(value, path))
        else:
            flat[path] = list(value) if isinstance(value, tuple) else value
    return flat


def _same(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    return bool(left == right or (left != left and right != right))


def _show(value: Any) -> str:
    return "(not set)" if value is _ABSENT else "none" if value is None else repr(value)


def _or_none(value: Any) -> Any:
    return None if value is _ABSENT else value
