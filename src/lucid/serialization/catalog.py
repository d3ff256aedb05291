"""What lies in a folder of checkpoints: this run's, other runs', broken ones. Each file is opened once."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from lucid.errors import CheckpointError, ChecksumError, TruncatedError
from lucid.serialization.decode import Decoder, decoding
from lucid.serialization.folder import Folder, Stamp
from lucid.serialization.reader import Reader
from lucid.serialization.retention import Entry

Result = TypeVar("Result")
_NAME = re.compile(r"step-(\d{8,18})(-\d+)?\.lcs")


def file_name(step: int, number: int = 1) -> str:
    """Return the name of a checkpoint; `number` tells apart files of one step."""
    return f"step-{step:08d}.lcs" if number == 1 else f"step-{step:08d}-{number}.lcs"


class Catalog:
    """Knows each checkpoint file of a folder as an `Entry`, as foreign (None), or as refused (a reason)."""

    def __init__(self, folder: Folder, run_id: str) -> None:
        self._folder, self._run_id = folder, run_id
        self._known: dict[str, tuple[Stamp, Entry | str | None]] = {}
        self._is_seen = False

    def update(self) -> None:
        """Look at the folder again; only files that are new or changed are opened."""
        known: dict[str, tuple[Stamp, Entry | str | None]] = {}
        for name, stamp in sorted(self._folder.scan().items()):
            if _NAME.fullmatch(name):
                before = self._known.get(name)
                known[name] = before if before and before[0] == stamp else (stamp, self._open(name))
        self._known, self._is_seen = known, True

    def entries(self) -> list[Entry]:
        """Return this run's checkpoints that open, by step."""
        found = [item for _, item in self._known.values() if isinstance(item, Entry)]
        return sorted(found, key=lambda entry: (entry.step, entry.path.name))

    def refused(self) -> list[tuple[Path, str]]:
        """Return the broken files, each with the reason."""
        found = [(self._folder.path / name, item) for name, (_, item) in self._known.items() if isinstance(item, str)]
        return [(path, reason.removeprefix(str(path)).lstrip(": ")) for path, reason in found]

    def foreign(self) -> list[Path]:
        """Return the checkpoints of other runs."""
        return [self._folder.path / name for name, (_, item) in self._known.items() if item is None]

    def first(self, entries: Sequence[Entry], attempt: Callable[[Entry], Result]) -> tuple[Entry, Result] | None:
        """Return the first entry that `attempt` can read, and what it gave; those it cannot are refused from now on."""
        for entry in entries:
            try:
                return entry, attempt(entry)
            except (ChecksumError, TruncatedError, OSError) as error:
                stamp, _ = self._known[entry.path.name]
                self._known[entry.path.name] = (stamp, str(error))
        return None

    def free_name(self, step: int) -> str:
        """Return the name for a step: that of this run's own file, else one that no file has.

        Files of other runs and broken ones are never written over.
        """
        if not self._is_seen:
            self.update()
        return next(name for number in count(1) if self.is_free(name := file_name(step, number)))

    def is_free(self, name: str) -> bool:
        """Say whether no file has this name but perhaps one of this run, which may be written over."""
        return name not in self._known or isinstance(self._known[name][1], Entry)

    def _open(self, name: str) -> Entry | str | None:
        try:
            with Reader(self._folder.source(name)) as reader, decoding(reader.where):
                note = Decoder({}).decode(reader.user)
                if not isinstance(note, dict) or note.get("run_id") != self._run_id:
                    return None
                return self._entry(name, note)
        except (CheckpointError, OSError) as error:
            return str(error)

    def _entry(self, name: str, note: dict[str, Any]) -> Entry:
        source = self._folder.source(name)
        url = source if isinstance(source, str) else ""
        value = note.get("value")
        return Entry(self._folder.path / name, int(note["step"]), value, dict(note.get("meta") or {}), url)
