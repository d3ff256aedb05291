"""`lucid diff`: how two runs differ."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from lucid.cli.settings import arguments
from lucid.config import diff as compare
from lucid.config import read
from lucid.errors import ConfigError

if TYPE_CHECKING:
    from lucid.records import Record

SHOWN = 20
"""Differences of one kind that are printed before the rest is counted."""


def diff(words: Sequence[str]) -> int:
    """Compare two runs."""
    return arguments(diff_runs, words, "diff")


_Folder = tyro.conf.Positional[Path]


def diff_runs(
    a: Annotated[_Folder, tyro.conf.arg(metavar="RUN")], b: Annotated[_Folder, tyro.conf.arg(metavar="RUN")]
) -> int:
    """How two runs differ: settings, environment, last values, and the first step whose records differ.

    Exit code 0, whether they differ or not.

    Example: lucid diff runs/digits runs/digits-2

    Args:
        a: folder of the first run.
        b: folder of the second run.
    """
    for title, lines in sections(a, b):
        print(f"{title}:" if lines else f"{title}: {'none' if title.startswith('first') else 'the same'}")
        print("".join(f"  {line}\n" for line in lines[:SHOWN]), end="")
        if len(lines) > SHOWN:
            print(f"  ... and {len(lines) - SHOWN} more")
    return 0


def sections(a: Path, b: Path) -> list[tuple[str, list[str]]]:
    """Return each kind of difference and its lines, empty where the runs are the same.

    Raises:
        ConfigError: a folder that holds no run.
    """
    for folder in (a, b):
        if not (folder / "records.jsonl").is_file():
            raise ConfigError(f"{folder} is not the folder of a run: it has no records.jsonl.")
    from lucid.records import read_records

    left, right = read_records(a / "records.jsonl"), read_records(b / "records.jsonl")
    return [
        ("settings", _texts(_settings(a), _settings(b))),
        ("environment", _texts(_environment(a), _environment(b))),
        ("last values", _texts(_last(left), _last(right))),
        ("first difference in the records", first_difference(left, right)),
    ]


def _texts(left: dict[str, Any], right: dict[str, Any]) -> list[str]:
    return [change.text for change in compare(left, right)]


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / "config.toml"
    return read(path).values if path.is_file() else {}


def _environment(folder: Path) -> dict[str, Any]:
    """Return what the run last stood on, without what differs between any two starts."""
    path = folder / "environment.json"
    try:
        starts = json.loads(path.read_text(encoding="utf-8"))["starts"] if path.is_file() else []
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not the description of a run: {error}.") from error
    moving = ("time", "pid", "command")
    return {name: value for name, value in starts[-1].items() if name not in moving} if starts else {}


def _last(records: list[Record]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for record in records:
        values |= {"step": record.step, **record.without_clock().values}
    return values


def first_difference(left: list[Record], right: list[Record]) -> list[str]:
    """Return the first log or evaluation whose values differ, value by value; what depends on the clock is left out."""
    pairs = zip(_numbers(left), _numbers(right), strict=False)
    for one, other in pairs:
        if (one.kind, one.step) != (other.kind, other.step):
            return [f"step {one.step} ({one.kind}) -> step {other.step} ({other.kind})"]
        texts = _texts(one.values, other.values)
        if texts:
            return [f"step {one.step} ({one.kind})  {text}" for text in texts]
    shorter, longer = sorted((len(_numbers(left)), len(_numbers(right))))
    if shorter == longer:
        return []
    which = left if len(_numbers(left)) > len(_numbers(right)) else right
    return [f"the same up to record {shorter}; one run goes on, with step {_numbers(which)[shorter].step}"]


def _numbers(records: list[Record]) -> list[Record]:
    return [record.without_clock() for record in records if record.kind in ("log", "eval", "skip")]
