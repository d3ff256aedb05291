"""Which runs lie in a folder, and reading a file of a run without ever leaving it."""

from __future__ import annotations

import json
import os
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RECORDS = "records.jsonl"

_MAX_DEPTH = 6
_MAX_FOLDERS = 50_000
_SCAN_SECONDS = 3.0
_MAX_FILE_BYTES = 4 << 20
_NOT_LOOKED_INTO = frozenset({"checkpoints", "tensorboard", "wandb", "mlruns", "mlartifacts", "__pycache__"})


class Folder:
    """The runs under one folder, by name. A name that was not found by looking is no run, whatever it says.

    Args:
        root: folder of runs, or a run itself.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._runs: dict[str, Path] = {}
        self._looked = -_SCAN_SECONDS
        self._lock = threading.Lock()

    def runs(self) -> dict[str, Path]:
        """Return the folders of all runs by name; looks again every few seconds."""
        with self._lock:
            now = time.monotonic()
            if now - self._looked >= _SCAN_SECONDS:
                self._runs = {self._name(path): path for path in self._find()}
                self._looked = now
            return self._runs

    def run(self, name: str) -> Path | None:
        """Return the folder of a run, None if there is no such run."""
        return self.runs().get(name)

    def inside(self, path: Path) -> Path | None:
        """Return the real place of a file, None if it does not exist or lies outside the folder."""
        try:
            real = path.resolve(strict=True)
        except (OSError, RuntimeError, ValueError):
            return None
        return real if real.is_relative_to(self.root) and real.is_file() else None

    def read(self, path: Path) -> Any:
        """Return what a TOML or JSON file holds; its text if it is broken, None if it is not there."""
        real = self.inside(path)
        if real is None:
            return None
        try:
            with real.open("rb") as file:
                text = file.read(_MAX_FILE_BYTES).decode("utf-8", "replace")
        except OSError:
            return None
        try:
            return tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
        except (ValueError, RecursionError):
            return text

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _find(self) -> Iterator[Path]:
        waiting, seen = [(self.root, 0)], 0
        while waiting and seen < _MAX_FOLDERS:
            place, depth = waiting.pop()
            seen += 1
            try:
                with os.scandir(place) as found:
                    entries = list(found)
            except OSError:
                continue
            is_run = any(entry.name == RECORDS for entry in entries)
            if is_run and self.inside(place / RECORDS):
                yield place
            if depth < _MAX_DEPTH and (not is_run or depth == 0):
                waiting += [(Path(entry.path), depth + 1) for entry in entries if _may_hold_runs(entry)]


def _may_hold_runs(entry: os.DirEntry[str]) -> bool:
    try:
        is_folder = entry.is_dir(follow_symlinks=False)
    except OSError:
        return False
    return is_folder and not entry.name.startswith(".") and entry.name not in _NOT_LOOKED_INTO
