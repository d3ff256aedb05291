"""`metrics.csv`: one row per record that has values, one column per value."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import Any

from lucid.records import Record
from lucid.report.trackers.base import Tracker

_FIRST = ["kind", "step", "epoch", "time"]


class CsvTracker(Tracker):
    """Writes a table that spreadsheets and pandas read.

    A value that comes up for the first time becomes a new column: the file is then written again, which happens a few
    times per run. Cells without a value are empty; NaN is `nan`.

    Args:
        run_dir: folder of the run.
        file_name: of the table.
    """

    def __init__(self, run_dir: str | Path, file_name: str = "metrics.csv") -> None:
        super().__init__(run_dir)
        self.path = self.folder / file_name
        self._columns = list(_FIRST)
        rows = self._read()
        if self.path.exists():
            self._replace(rows)  # without a torn last line

    def rewind(self, step: int) -> None:
        """Drop the rows after `step`."""
        rows = self._read()
        kept = [row for row in rows if int(row["step"]) <= step]
        if len(kept) < len(rows):
            self._replace(kept)

    def close(self) -> None:
        """Do nothing: every row is already with the system."""

    def _start(self, record: Record, found: dict[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def _log(self, record: Record) -> None:
        new = [name for name in record.values if name not in self._columns]
        if new or not self.path.exists():
            rows = self._read()
            self._columns += new
            self._replace(rows)
        row = dict(zip(_FIRST, (record.kind, record.step, record.epoch, repr(record.time)), strict=True))
        row |= {name: repr(value) for name, value in record.values.items()}
        with self.path.open("a", newline="", encoding="utf-8") as file:
            file.write(self._text([row]))

    def _read(self) -> list[dict[str, str]]:
        """Return the whole rows of the file and take over its columns."""
        if not self.path.exists():
            return []
        text = self.path.read_bytes().decode("utf-8", "replace")
        whole = text[: text.rfind("\n") + 1]
        reader = csv.DictReader(io.StringIO(whole, newline=""))
        self._columns = list(reader.fieldnames or _FIRST)
        return [row for row in reader if (row.get("step") or "").isdigit() and None not in row.values()]

    def _replace(self, rows: list[dict[str, str]]) -> None:
        scratch = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        header = dict(zip(self._columns, self._columns, strict=True))
        scratch.write_bytes((self._text([header]) + self._text(rows)).encode())
        os.replace(scratch, self.path)

    def _text(self, rows: list[dict[str, Any]]) -> str:
        out = io.StringIO(newline="")
        csv.DictWriter(out, self._columns, restval="", lineterminator="\n").writerows(rows)
        return out.getvalue()
