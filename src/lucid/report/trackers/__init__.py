"""Records for other programs: the same names, one step axis, and a run that goes on stays one run there.

`make` finds a tracker by name. `base` is what they share; `csv_file`, `tensorboard`, `wandb`, `mlflow` and `trackio`
are one program each. Their libraries are loaded only by the one that is used.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

from lucid.errors import ConfigError, nearest
from lucid.report.trackers.base import Tracker

TRACKERS = {
    "csv": ("csv_file", "CsvTracker", None),
    "tensorboard": ("tensorboard", "TensorBoardTracker", "tensorboard"),
    "wandb": ("wandb", "WandbTracker", "wandb"),
    "mlflow": ("mlflow", "MlflowTracker", "mlflow"),
    "trackio": ("trackio", "TrackioTracker", "trackio"),
}
"""Module, class and library of each tracker."""

__all__ = ["TRACKERS", "Tracker", "check", "make"]


def check(name: str) -> None:
    """Say whether a tracker can be made, and make nothing.

    Raises:
        ConfigError: if there is no such tracker, or its library is not installed.
    """
    if name not in TRACKERS:
        known = ", ".join(map(repr, TRACKERS))
        raise ConfigError(f"a tracker must be one of {known}, got {name!r}.{nearest(name, TRACKERS)}")
    library = TRACKERS[name][2]
    if library is not None and importlib.util.find_spec(library) is None:
        raise ConfigError(f"tracker {name!r} needs the library {library}. Install it: pip install 'lucid-loop[{name}]'")


def make(name: str, run_dir: str | Path, **options: Any) -> Tracker:
    """Return a tracker by name.

    Args:
        name: one of `TRACKERS`.
        run_dir: folder of the run; what a tracker must know to go on with the same run stands there.
        options: of the tracker's class.

    Raises:
        ConfigError: if there is no such tracker, its library is not installed, or it has no such option.
    """
    check(name)
    module, class_name, _ = TRACKERS[name]
    tracker = getattr(importlib.import_module(f"lucid.report.trackers.{module}"), class_name)
    try:
        made: Tracker = tracker(run_dir, **options)
    except TypeError as error:
        raise ConfigError(f"options of tracker {name!r}: {error}.") from error
    return made
