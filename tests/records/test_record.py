"""A record is one line of strict JSON and comes back with the same bits."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lucid.errors import RecordError
from lucid.records import Record, read_records, tail

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    values=st.dictionaries(st.text(), st.floats(width=64) | st.integers(-(2**53), 2**53)),
    info=st.dictionaries(st.text(), _JSON, max_size=3),
    step=st.integers(0, 2**62),
)
def test_record_written_and_read_has_same_bits(values: dict[str, float], info: dict[str, object], step: int) -> None:
    """Numbers keep every bit, text keeps every character, and the line is one line."""
    line = Record("log", step, 2, 12.5, dict(values), info).to_line()
    assert line.count("\n") == 1
    assert line.endswith("\n")
    back = Record.from_line(line)
    assert (back.kind, back.step, back.epoch, back.time, back.info) == ("log", step, 2, 12.5, info)
    assert [(name, repr(value)) for name, value in back.values.items()] == [(n, repr(v)) for n, v in values.items()]


def test_non_finite_values_are_words_in_strict_json() -> None:
    """The line holds no NaN literal, so that every JSON reader takes it."""
    record = Record("log", 1, 0, 0.0, {"a": math.nan, "b": math.inf, "c": -math.inf}, {"d": math.nan})

    def refuse(word: str) -> float:
        raise AssertionError(word)

    body = json.loads(record.to_line(), parse_constant=refuse)
    assert body["values"] == {"a": "nan", "b": "inf", "c": "-inf"}
    assert body["info"] == {"d": "nan"}


def test_numpy_numbers_are_written_as_numbers() -> None:
    """A NumPy scalar is a number."""
    record = Record("log", 1, values={"a": np.float32(0.5), "b": np.int64(3)})
    assert Record.from_line(record.to_line()).values == {"a": 0.5, "b": 3}


@pytest.mark.parametrize("value", [torch.tensor(1.0), "1", None, True, [1.0]])
def test_value_that_is_no_number_is_named(value: object) -> None:
    """A tensor is refused rather than read: reading one would wait for the device."""
    with pytest.raises(RecordError, match=r"value 'train/loss' must be a number in the 'log' record of step 7, got"):
        Record("log", 7, values={"train/loss": value}).to_line()  # type: ignore[dict-item]


def test_info_that_json_lacks_is_refused() -> None:
    """What cannot be read back by others is not written."""
    with pytest.raises(RecordError, match="info must hold only what JSON has in the 'plan' record of step 0"):
        Record("plan", 0, info={"path": Path("x")}).to_line()


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "[]",
        "7",
        '{"kind":"log"}',
        '{"kind":"log","step":"1","time":0}',
        '{"kind":"log","step":true,"time":0}',
        '{"kind":1,"step":1,"time":0}',
        '{"kind":"log","step":1,"time":NaN}',
        '{"kind":"log","step":1,"time":0,"values":{"a":"NaN"}}',
        '{"kind":"log","step":1,"time":0,"values":{"a":null}}',
        '{"kind":"log","step":1,"time":0,"values":[]}',
        '{"kind":"log","step":1,"time":0,"info":3}',
        "[" * 100_000,
    ],
)
def test_line_that_is_no_record_is_refused(line: str) -> None:
    """Every malformed line raises the one error, whatever is wrong with it."""
    with pytest.raises(RecordError):
        Record.from_line(line)


def _lines(*steps: int) -> bytes:
    return "".join(Record("log", step, 0, 0.0).to_line() for step in steps).encode()


def test_read_records_leaves_out_torn_last_line(tmp_path: Path) -> None:
    """A line without its end is not there yet, even if it is whole JSON."""
    path = tmp_path / "records.jsonl"
    path.write_bytes(_lines(1, 2) + _lines(3)[:-1])
    assert [record.step for record in read_records(path)] == [1, 2]


def test_read_records_names_broken_line_in_the_middle(tmp_path: Path) -> None:
    """A broken line is an error for who wants all records, and told to who wants the good ones."""
    path = tmp_path / "records.jsonl"
    path.write_bytes(_lines(1) + b"\x00\xff\n" + _lines(2))
    with pytest.raises(RecordError, match=r"records\.jsonl: a record must be one line of JSON"):
        read_records(path)
    found = tail(path)
    assert [record.step for record in found.records] == [1, 2]
    assert len(found.broken) == 1


@pytest.mark.parametrize("limit", [None, 1, 100])
def test_tail_reads_each_record_once_while_the_file_grows(tmp_path: Path, limit: int | None) -> None:
    """Pieces of any size, cut anywhere, give every record exactly once."""
    path, data, seen, offset = tmp_path / "records.jsonl", _lines(*range(20)), [], 0
    for end in range(0, len(data) + 1, 7):
        path.write_bytes(data[:end])
        found = tail(path, offset, limit)
        seen += [record.step for record in found.records]
        offset = found.offset
    path.write_bytes(data)
    while (found := tail(path, offset, limit)).records:
        seen += [record.step for record in found.records]
        offset = found.offset
    assert seen == list(range(20))


def test_without_clock_drops_what_two_runs_may_differ_in() -> None:
    """Only the time and the values measured by the clock go."""
    record = Record("log", 1, 0, 9.0, {"train/loss": 1.0, "train/rows_per_second": 2.0, "time/data": 3.0})
    assert record.without_clock() == Record("log", 1, 0, 0.0, {"train/loss": 1.0})
