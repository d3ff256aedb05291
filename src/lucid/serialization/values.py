"""Small values that JSON lacks, each with its tag: how it is written and how it is read back.

A row of `VALUES` is (tag, type, write, read): `write` gives one JSON value from the object, `read` gives the object.
Readers may raise anything on bad input; the decoder turns it into a `FormatError`.
"""

from __future__ import annotations

import datetime
import decimal
import fractions
import pathlib
import struct
import uuid
import zoneinfo
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from lucid.serialization import dtypes


class Value(NamedTuple):
    """One kind of small value."""

    tag: str
    type: type
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def write_float(value: float) -> str:
    """Return the 64 bits of a float in hex, so that inf and the payload of a NaN are kept."""
    return struct.pack(">d", value).hex()


def read_float(text: str) -> float:
    """Return the float of `write_float`."""
    return float(struct.unpack(">d", bytes.fromhex(text))[0])


def write_int(value: int) -> str:
    """Return an integer of any size in hex (linear time both ways; decimal is neither)."""
    return hex(value)


def _read_int(text: str) -> int:
    return int(text, 16)


def _write_zone(zone: datetime.tzinfo | None) -> Any:
    if zone is None or isinstance(zone, zoneinfo.ZoneInfo):
        return None if zone is None else zone.key
    if type(zone) is datetime.timezone:
        offset = zone.utcoffset(None)
        return [offset.days, offset.seconds, offset.microseconds, zone.tzname(None)]
    raise TypeError(f"a time zone of type {type(zone).__name__}")


def _read_zone(form: Any) -> datetime.tzinfo | None:
    if form is None:
        return None
    if isinstance(form, str):
        return zoneinfo.ZoneInfo(form)  # refuses names that lead out of the folder of time zones
    days, seconds, micros, name = form
    offset = datetime.timedelta(days, seconds, micros)
    plain = datetime.timezone(offset)
    return plain if plain.tzname(None) == name else datetime.timezone(offset, name)


# Reducing a fraction takes quadratic time, so a file may not hold one of any size.
FRACTION_BITS = 1 << 16


def _write_fraction(value: fractions.Fraction) -> Any:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > FRACTION_BITS:
        raise TypeError(f"a fraction of more than {FRACTION_BITS} bits")
    return [hex(value.numerator), hex(value.denominator)]


def _read_fraction(form: Any) -> fractions.Fraction:
    if len(form[0]) + len(form[1]) > FRACTION_BITS:
        raise ValueError("a fraction that is too long")
    return fractions.Fraction(_read_int(form[0]), _read_int(form[1]))


def _write_datetime(value: datetime.datetime) -> Any:
    return [value.replace(tzinfo=None, fold=0).isoformat(), _write_zone(value.tzinfo), value.fold]


def _read_datetime(form: Any) -> datetime.datetime:
    return datetime.datetime.fromisoformat(form[0]).replace(tzinfo=_read_zone(form[1]), fold=form[2])


def _write_time(value: datetime.time) -> Any:
    return [value.replace(tzinfo=None, fold=0).isoformat(), _write_zone(value.tzinfo), value.fold]


def _read_time(form: Any) -> datetime.time:
    return datetime.time.fromisoformat(form[0]).replace(tzinfo=_read_zone(form[1]), fold=form[2])


def _read_dtype(name: Any) -> torch.dtype:
    dtype = dtypes.by_name(name)
    if dtype is None:
        raise ValueError(f"unknown torch dtype {str(name)[:80]!r}")
    return dtype


def _read_named(kind: type) -> Callable[[Any], Any]:
    table = {str(value): value for value in vars(torch).values() if isinstance(value, kind)}
    return lambda name: table["torch." + name]


def write_numpy_dtype(dtype: np.dtype[Any]) -> Any:
    """Return a NumPy dtype as its string, or as its list of fields."""
    return dtype.descr if dtype.fields else dtype.str


def read_numpy_dtype(form: Any) -> np.dtype[Any]:
    """Return a NumPy dtype from its string or its list of fields; never one that holds objects."""
    dtype = np.dtype(form if isinstance(form, str) else [_field(item) for item in form])
    if dtype.hasobject:
        raise ValueError("a NumPy dtype with objects in it")
    return dtype


def _field(item: Any) -> tuple[Any, ...]:
    name, kind, *shape = item
    if not isinstance(kind, str):
        kind = [_field(inner) for inner in kind]
    return (name, kind, *(tuple(part) for part in shape))


VALUES: tuple[Value, ...] = (
    Value("c", complex, lambda v: [write_float(v.real), write_float(v.imag)], lambda f: complex(*map(read_float, f))),
    Value("datetime", datetime.datetime, _write_datetime, _read_datetime),
    Value("date", datetime.date, lambda v: v.isoformat(), datetime.date.fromisoformat),
    Value("time", datetime.time, _write_time, _read_time),
    Value("td", datetime.timedelta, lambda v: [v.days, v.seconds, v.microseconds], lambda f: datetime.timedelta(*f)),
    Value("decimal", decimal.Decimal, str, decimal.Decimal),
    Value("fraction", fractions.Fraction, _write_fraction, _read_fraction),
    Value("uuid", uuid.UUID, lambda v: v.hex, uuid.UUID),
    Value("range", range, lambda v: [hex(v.start), hex(v.stop), hex(v.step)], lambda f: range(*map(_read_int, f))),
    Value("path", pathlib.PosixPath, str, pathlib.Path),
    Value("path", pathlib.WindowsPath, str, pathlib.Path),
    Value("ppath", pathlib.PurePosixPath, str, pathlib.PurePosixPath),
    Value("wpath", pathlib.PureWindowsPath, str, pathlib.PureWindowsPath),
    Value("dtype", torch.dtype, dtypes.name_of, _read_dtype),
    Value("device", torch.device, str, torch.device),
    Value("layout", torch.layout, lambda v: str(v)[6:], _read_named(torch.layout)),
    Value("memory_format", torch.memory_format, lambda v: str(v)[6:], _read_named(torch.memory_format)),
    Value("...", type(Ellipsis), lambda v: None, lambda f: ...),
)  # fmt: skip

WRITERS: dict[type, Value] = {value.type: value for value in VALUES}
READERS: dict[str, Callable[[Any], Any]] = {value.tag: value.read for value in reversed(VALUES)}
READERS["f"] = read_float
READERS["int"] = _read_int
READERS["npdtype"] = read_numpy_dtype
