"""Trackio: a local database that `trackio show` opens."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from lucid.records import Record
from lucid.report.trackers.base import Tracker, recall, remember


class TrackioTracker(Tracker):
    """Logs to Trackio's local store (TRACKIO_DIR, else its default).

    A run that goes on keeps its name. Trackio cannot take points back: those between the checkpoint and the break come
    twice, with the same values.

    Args:
        run_dir: folder of the run.
        project: in Trackio.
        name: of the run there. None: the folder's name.
        options: further arguments of `trackio.init`, such as `space_id`.
    """

    def __init__(self, run_dir: str | Path, project: str = "lucid", name: str | None = None, **options: Any) -> None:
        super().__init__(run_dir)
        self._project = project
        self._name = name or self.folder.resolve().name
        self._options = {"embed": False, "auto_log_cpu": False, "auto_log_gpu": False, **options}
        self._run: Any = None

    def close(self) -> None:
        """Finish."""
        if self._run is not None:
            self._run.finish()
            self._run = None

    def _start(self, record: Record, found: dict[str, Any]) -> None:
        if self._run is not None:
            return
        known = recall(self.folder, "trackio")
        name = known or self._name
        self.folder.mkdir(parents=True, exist_ok=True)
        remember(self.folder, "trackio", name)
        trackio: Any = importlib.import_module("trackio")
        self._run = trackio.init(
            self._project, name=name, config=found, resume="allow" if known else "never", **self._options
        )

    def _log(self, record: Record) -> None:
        self._run.log(dict(record.values), step=record.step)
