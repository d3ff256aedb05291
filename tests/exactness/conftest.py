"""Runs happen in an empty folder in memory: what is compared is bits, not disks."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_MEMORY = Path("/dev/shm")


@pytest.fixture
def tmp_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder in memory where there is one; it is the current folder too, outside any repository."""
    where = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=where) as folder:
        monkeypatch.chdir(folder)
        yield Path(folder)
        monkeypatch.undo()
