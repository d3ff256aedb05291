"""What follows a save: the pointers `last` and `best`, and the deletion of what is not kept."""

from __future__ import annotations

from lucid.serialization.catalog import Catalog
from lucid.serialization.folder import Folder
from lucid.serialization.retention import Entry, Retention, ranked


class Upkeep:
    """Keeps one folder in order. What fails is told, not raised: the checkpoint itself is durable by then."""

    def __init__(self, folder: Folder, catalog: Catalog, retention: Retention) -> None:
        self.retention = retention
        self._folder, self._catalog = folder, catalog
        self._pointers: dict[str, str] = {}

    def after_a_save(self) -> list[str]:
        """Write the pointers, then delete; returns what went wrong, in words."""
        self._catalog.update()
        entries = self._catalog.entries()
        doomed = self.retention.to_delete(entries)
        return self._point([entry for entry in entries if entry not in doomed]) + self._delete(doomed)

    def _point(self, entries: list[Entry]) -> list[str]:
        notes = []
        best = ranked(entries, self.retention.mode)
        for name, entry in (("last", entries[-1]), ("best", best[0] if best else None)):
            if entry is None or self._pointers.get(name) == entry.path.name:
                continue
            try:
                self._folder.write_text(name, entry.path.name + "\n")
                self._pointers[name] = entry.path.name
            except OSError as error:
                notes.append(f"{self._folder.path / name}: the pointer could not be written: {error}.")
        return notes

    def _delete(self, entries: list[Entry]) -> list[str]:
        notes = []
        for entry in entries:
            try:
                self._folder.delete(entry.path.name)
            except OSError as error:
                notes.append(f"{entry.path}: an old checkpoint could not be deleted: {error}. Delete it by hand.")
        return notes
