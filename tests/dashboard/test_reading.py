"""A growing file is read once, piece by piece; a file that was cut back is read anew."""

from __future__ import annotations

from pathlib import Path

import pytest

import lucid.dashboard.reading as reading
from lucid.dashboard.reading import Reader, Readers, glance, log_lines
from lucid.records import Record, Tail
from lucid.records.curves import Curves
from lucid.report import JsonlReport


def _lines(*steps: int, loss: float = 1.0) -> str:
    return "".join(Record("log", step, 1, float(step), {"train/loss": loss}).to_line() for step in steps)


def _steps(curves: Curves) -> list[int]:
    return list(curves.points("train/loss")["step"])


def test_only_new_bytes_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second look starts where the first ended."""
    path = tmp_path / "records.jsonl"
    path.write_text(_lines(*range(100)))
    offsets: list[int] = []
    tail = reading.tail

    def watched(file: Path, offset: int = 0, limit_bytes: int | None = None) -> Tail:
        offsets.append(offset)
        return tail(file, offset, limit_bytes)

    monkeypatch.setattr(reading, "tail", watched)
    reader = Reader(path)
    reader.update(10)
    first = path.stat().st_size
    with path.open("a") as file:
        file.write(_lines(100))
    reader.update(10)
    assert offsets == [0, first]
    assert _steps(reader.curves) == list(range(101))


def test_torn_last_line_is_complete_and_read_when_it_is_whole(tmp_path: Path) -> None:
    """Half a line is not waited for, and not lost."""
    path = tmp_path / "records.jsonl"
    whole = _lines(1, 2)
    path.write_text(whole[:-10])
    reader = Reader(path)
    reader.update(10)
    assert (_steps(reader.curves), reader.is_complete, reader.progress) == ([1], True, 1.0)
    path.write_text(whole)
    reader.update(10)
    assert _steps(reader.curves) == [1, 2]


@pytest.mark.parametrize("after", [(), (6,), (6, 7, 8, 9, 10, 11)])
def test_file_cut_back_is_read_anew(tmp_path: Path, after: tuple[int, ...]) -> None:
    """Shorter, equally long or longer than before: what is shown is what the file holds."""
    path = tmp_path / "records.jsonl"
    path.write_text(_lines(1, 2, 3, 4, 5, 6))
    reader = Reader(path)
    reader.update(10)
    version = reader.version
    report = JsonlReport(path)
    report.rewind(5)
    report.close()
    with path.open("a") as file:
        file.write(_lines(*after, loss=2.0))
    reader.update(10)
    assert _steps(reader.curves) == [1, 2, 3, 4, 5, *after]
    assert reader.curves.points("train/loss")["y"] == [1.0] * 5 + [2.0] * len(after)
    assert reader.version != version


def test_long_file_is_read_in_pieces_within_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no time at all one piece is read per look, and the share read grows to all."""
    path = tmp_path / "records.jsonl"
    path.write_text(_lines(*range(50)))
    monkeypatch.setattr(reading, "_PIECE_BYTES", path.stat().st_size // 5)
    reader, shares = Reader(path), []
    while not reader.is_complete:
        reader.update(0)
        shares.append(reader.progress)
    assert len(shares) in (5, 6)
    assert shares == sorted(shares)
    assert _steps(reader.curves) == list(range(50))


def test_file_that_vanished_is_empty(tmp_path: Path) -> None:
    """A run that was deleted is no error."""
    path = tmp_path / "records.jsonl"
    path.write_text(_lines(1))
    reader = Reader(path)
    reader.update(1)
    path.unlink()
    reader.update(1)
    assert reader.num_records == 0


def test_broken_lines_are_counted(tmp_path: Path) -> None:
    """A line that is no record is passed over and told."""
    path = tmp_path / "records.jsonl"
    path.write_text(_lines(1) + "garbage\n" + _lines(2))
    reader = Reader(path)
    reader.update(1)
    assert (reader.num_records, reader.num_broken) == (2, 1)


def test_only_the_readers_used_last_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory holds a limited number of runs."""
    monkeypatch.setattr(reading, "_MAX_READERS", 2)
    readers = Readers()
    first = readers.get(tmp_path / "a")
    readers.get(tmp_path / "b")
    assert readers.get(tmp_path / "a") is first
    readers.get(tmp_path / "c")
    assert readers.get(tmp_path / "a") is first
    assert len(readers._readers) == 2


def test_glance_reads_beginning_and_end_only(tmp_path: Path) -> None:
    """The plan and the last records are known, the middle is not read."""
    path = tmp_path / "records.jsonl"
    path.write_text(Record("plan", 0, 1, 5.0, info={"model": "MLP"}).to_line() + _lines(*range(1, 5000)))
    seen = glance(path)
    assert (seen.plan, seen.started) == ({"model": "MLP"}, 5.0)
    assert seen.records[-1].step == 4999
    assert 50 < len(seen.records) < 300


def test_glance_finds_the_best_evaluation_far_back(tmp_path: Path) -> None:
    """The best may lie thousands of records ago; a later one that was not best does not count."""
    path = tmp_path / "records.jsonl"
    first, second = (Record("eval", step, 1, 0.0, {"eval/loss": 1 / step}, {"best": step < 4}) for step in (3, 4))
    path.write_text(_lines(1, 2) + first.to_line() + second.to_line() + _lines(*range(5, 3000)))
    best = glance(path).best
    assert best is not None
    assert best.step == 3


def test_glance_at_an_empty_file(tmp_path: Path) -> None:
    """A run that has written nothing yet is known too."""
    path = tmp_path / "records.jsonl"
    path.write_text("")
    assert glance(path).records == []


def test_log_pages_give_every_record_once(tmp_path: Path) -> None:
    """Going back page by page from the end reaches the beginning, with nothing twice and nothing left out."""
    path = tmp_path / "records.jsonl"
    long_one = Record("plan", 0, info={"text": "x" * 100_000}).to_line()
    path.write_text(long_one + _lines(*range(1, 1500)) + '{"torn')
    pages, before = [], None
    while before != 0:
        records, before = log_lines(path, before, 200)
        pages.append([record.step for record in records])
    assert [step for page in reversed(pages) for step in page] == list(range(1500))
    assert len(pages) > 2
