"""The checkpoints of a run: which there are, what is known of them, and verifying one when asked."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lucid.dashboard.folder import Folder
from lucid.errors import LucidError
from lucid.records import Record, words

_MAX_FILES = 500

Verify = Callable[[Path], str | None]


class Checkpoints:
    """What is known of checkpoints, by looking at the folder and the records only.

    Args:
        folder: of the runs.
        verify: checks one: None if it is whole, else the reason. None: nothing can be verified from here.
    """

    def __init__(self, folder: Folder, verify: Verify | None) -> None:
        self.folder = folder
        self.verify = verify
        self._verified: dict[tuple[Path, int, int], str | None] = {}

    def rows(self, place: Path, events: list[Record]) -> list[dict[str, Any]]:
        """Return the checkpoints of a run by name.

        Args:
            place: folder of the run.
            events: its records that are neither `log` nor `eval`.
        """
        saved = {Path(str(record.info.get("path", ""))).name: record for record in events if record.kind == "save"}
        tags: dict[str, list[str]] = {}
        for tag in ("last", "best"):
            target = self.folder.read(place / "checkpoints" / tag)
            if isinstance(target, str):
                tags.setdefault(target.strip(), []).append(tag)
        rows = []
        for path in self._files(place):
            with contextlib.suppress(FileNotFoundError):  # rotated away while we looked
                rows.append(self._row(path, saved.get(path.name), tags.get(path.name, [])))
        return rows

    def check(self, place: Path, file_name: str) -> dict[str, Any] | None:
        """Verify one file; None if there is no such file or nothing that verifies."""
        path = next((path for path in self._files(place) if path.name == file_name), None)
        if path is None or self.verify is None:
            return None
        key = _key(path)
        try:
            self._verified[key] = self.verify(path)
        except (LucidError, OSError) as error:
            self._verified[key] = str(error)
        return {"file": file_name, "reason": self._verified[key]}

    def _row(self, path: Path, record: Record | None, tags: list[str]) -> dict[str, Any]:
        value = record.info.get("value") if record else None
        key = _key(path)
        return {
            "file": path.name,
            "bytes": words.size(key[1]),
            "saved": key[2] / 1e9,
            "step": record.step if record else None,
            "value": words.number(value) if value is not None else "",
            "tags": tags,
            "verified": key in self._verified,
            "trouble": self._verified.get(key),
        }

    def _files(self, place: Path) -> list[Path]:
        try:
            with os.scandir(place / "checkpoints") as found:
                names = sorted(entry.name for entry in found if entry.name.endswith(".lcs"))
        except OSError:
            return []
        inside = (self.folder.inside(place / "checkpoints" / name) for name in names[-_MAX_FILES:])
        return [path for path in inside if path is not None]


def _key(path: Path) -> tuple[Path, int, int]:
    """Return what a verdict holds for: these bytes in this place."""
    facts = path.stat()
    return path, facts.st_size, facts.st_mtime_ns
