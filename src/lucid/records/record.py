"""One record = one line of `records.jsonl`: the contract between a run and everything that looks at it.

`Record` holds one event, `to_line` and `from_line` turn it into strict JSON and back, `read_records` reads a file,
`tail` reads what was added since the last look. `docs/records.md` describes the format for other programs.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from lucid.errors import RecordError

KINDS = ("plan", "log", "eval", "save", "skip", "compile", "resume", "stop", "end")
"""Kinds that Lucid writes; a reader passes over kinds that it does not know."""

CLOCK_PREFIXES = ("time/", "train/rows_per_second")
"""Values that depend on the clock; all others are the same bits in a broken and an unbroken run."""

_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_CHUNK_BYTES = 1 << 20


@dataclass(slots=True)
class Record:
    """One event of a run.

    Args:
        kind: one of `KINDS`.
        step: optimizer updates done when it happened.
        epoch: passes over the data finished or under way, as the run counts them.
        time: seconds since 1970.
        values: numbers by name, NaN and infinities included.
        info: anything else that JSON has.
    """

    kind: str
    step: int
    epoch: int = 0
    time: float = field(default_factory=time.time)
    values: dict[str, float] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)

    def to_line(self) -> str:
        """Return the record as one line of strict JSON with its line end.

        Raises:
            RecordError: if a value is no number, or `info` holds what JSON does not have.
        """
        where = f"the {self.kind!r} record of step {self.step}"
        body = {
            "kind": self.kind,
            "step": self.step,
            "epoch": self.epoch,
            "time": self.time,
            "values": {name: _encode(name, value, where) for name, value in self.values.items()},
            "info": self.info,
        }
        try:
            return json.dumps(body, allow_nan=False, ensure_ascii=False, separators=(",", ":")) + "\n"
        except TypeError as error:
            raise RecordError(f"info must hold only what JSON has in {where}: {error}.") from error
        except ValueError:
            body["info"] = _plain(self.info)  # a NaN in `info` is written as the word
            return json.dumps(body, allow_nan=False, ensure_ascii=False, separators=(",", ":")) + "\n"

    @classmethod
    def from_line(cls, line: str | bytes) -> Record:
        """Return the record that a line holds.

        Raises:
            RecordError: if the line is not strict JSON or not a record.
        """
        try:
            body = _DECODER.decode(line.decode() if isinstance(line, bytes) else line)
        except (ValueError, RecursionError) as error:
            raise RecordError(f"a record must be one line of JSON, got {_start(line)}: {error}.") from error
        try:
            values = body.get("values", {})
            record = cls(body["kind"], body["step"], body.get("epoch", 0), body["time"], values, body.get("info", {}))
        except (TypeError, KeyError, AttributeError) as error:
            raise RecordError(f"a record must have kind, step and time, got {_start(line)}.") from error
        record._check(line)
        return record

    def without_clock(self) -> Record:
        """Return the record without its time and the values that depend on the clock, to compare two runs."""
        values = {name: value for name, value in self.values.items() if not name.startswith(CLOCK_PREFIXES)}
        return replace(self, time=0.0, values=values)

    def _check(self, line: str | bytes) -> None:
        """Raise `RecordError` unless every field read from a line has its type; turn words back into numbers."""
        right = (
            isinstance(self.kind, str)
            and type(self.step) is int
            and type(self.epoch) is int
            and type(self.time) in (int, float)
            and isinstance(self.values, dict)
            and isinstance(self.info, dict)
        )
        if not right:
            raise RecordError(f"a field of a record has the wrong type in {_start(line)}.")
        for name, value in self.values.items():
            if type(value) is float or type(value) is int:
                continue
            if not isinstance(value, str) or value not in _NON_FINITE:
                raise RecordError(f"value {name!r} of a record must be a number, got {value!r} in {_start(line)}.")
            self.values[name] = _NON_FINITE[value]


@dataclass(slots=True)
class Tail:
    """What `tail` found: the records, where the next look starts, and the lines that are no records."""

    records: list[Record]
    offset: int
    broken: list[str]


def read_records(path: str | Path, offset: int = 0) -> list[Record]:
    """Return the records of a file from byte `offset` on.

    A last line without its line end is still being written, or was torn by a kill: it is left out.

    Args:
        path: a `records.jsonl`.
        offset: byte at which a line starts.

    Raises:
        RecordError: if a whole line is no record; the message has the file and the line's text.
        OSError: if the file cannot be read.
    """
    found = tail(path, offset)
    if found.broken:
        raise RecordError(f"{path}: {found.broken[0]}")
    return found.records


def tail(path: str | Path, offset: int = 0, limit_bytes: int | None = None) -> Tail:
    """Read what was added to a file since `offset`; lines that are no records are passed over and told.

    Args:
        path: a `records.jsonl`.
        offset: where the last look ended. A file that became shorter is the caller's to notice.
        limit_bytes: stop after about this many bytes; at least one line is read. None: to the end.

    Raises:
        OSError: if the file cannot be read.
    """
    found = Tail([], offset, [])
    with open(path, "rb") as file:
        file.seek(offset)
        while line := file.readline():
            if not line.endswith(b"\n"):
                break
            found.offset += len(line)
            try:
                found.records.append(Record.from_line(line))
            except RecordError as error:
                found.broken.append(str(error))
            if limit_bytes is not None and found.offset - offset >= limit_bytes:
                break
    return found


def last_line_end(data_size: int, read_at: Any) -> int:
    """Return the offset just after the last line end in a file of `data_size` bytes, 0 if there is none.

    Args:
        data_size: bytes in the file.
        read_at: `read_at(offset, count) -> bytes`.
    """
    end = data_size
    while end > 0:
        start = max(0, end - _CHUNK_BYTES)
        at = read_at(start, end - start).rfind(b"\n")
        if at >= 0:
            return int(start + at + 1)
        end = start
    return 0


def _encode(name: str, value: object, where: str) -> float | int | str:
    if type(value) is float or type(value) is int:
        number: float | int = value
    elif isinstance(value, Real) and not isinstance(value, bool):
        number = int(value) if isinstance(value, Integral) else float(value)
    else:
        raise RecordError(
            f"value {name!r} must be a number in {where}, got {type(value).__name__}: "
            "take a tensor's number with .item(), and put anything else into info."
        )
    if math.isfinite(number):
        return number
    return "nan" if math.isnan(number) else ("inf" if number > 0 else "-inf")


def _plain(value: Any) -> Any:
    """Return `value` with every NaN and infinity as its word."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _no_constant(word: str) -> float:
    raise ValueError(f"{word} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)  # made once: json.loads would make one per line


def _start(line: str | bytes) -> str:
    text = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
    return repr(text[:80])
