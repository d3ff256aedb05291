"""MLflow: a server, or a file beside the runs that `mlflow ui` opens."""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path
from typing import Any

from lucid.records import Record
from lucid.report.trackers.base import Tracker, recall, remember

_MAX_PARAM_CHARACTERS = 500
_BATCH = 100


class MlflowTracker(Tracker):
    """Logs to MLflow through its client; MLflow's own active run is not touched.

    A run that goes on keeps its id. MLflow cannot take points back or change parameters: points between the checkpoint
    and the break come twice, with the same values, and changed settings become tags.

    Args:
        run_dir: folder of the run.
        experiment: in MLflow.
        tracking_uri: of the server or store. None: the environment's MLFLOW_TRACKING_URI, else `mlflow.db` beside
            the run's folder.
    """

    def __init__(self, run_dir: str | Path, experiment: str = "lucid", tracking_uri: str | None = None) -> None:
        super().__init__(run_dir)
        beside = self.folder.resolve().parent
        self.tracking_uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{beside}/mlflow.db"
        self._artifacts = (beside / "mlartifacts").as_uri() if self.tracking_uri.startswith("sqlite:") else None
        self._experiment = experiment
        self._client: Any = None
        self._run_id = ""
        self._status = "FAILED"

    def close(self) -> None:
        """Say how the run ended; one without its `end` record has failed."""
        if self._client is not None:
            self._client.set_terminated(self._run_id, self._status)
            self._client = None

    def _start(self, record: Record, found: dict[str, Any]) -> None:
        self._status = "FAILED"
        self._client = self._client or _library("mlflow.tracking").MlflowClient(tracking_uri=self.tracking_uri)
        known = self._run_id or recall(self.folder, "mlflow")
        if known:
            self._go_on(known, record)
        else:
            self._new(found)

    def _new(self, found: dict[str, Any]) -> None:
        entities = _library("mlflow.entities")
        experiment = self._client.get_experiment_by_name(self._experiment)
        experiment_id = (
            experiment.experiment_id
            if experiment
            else self._client.create_experiment(self._experiment, artifact_location=self._artifacts)
        )
        self._run_id = self._client.create_run(experiment_id, run_name=self.folder.resolve().name).info.run_id
        self.folder.mkdir(parents=True, exist_ok=True)
        remember(self.folder, "mlflow", self._run_id)
        params = [entities.Param(_key(name), str(value)[:_MAX_PARAM_CHARACTERS]) for name, value in found.items()]
        for start in range(0, len(params), _BATCH):
            self._client.log_batch(self._run_id, params=params[start : start + _BATCH])

    def _go_on(self, run_id: str, record: Record) -> None:
        self._run_id = run_id
        self._client.update_run(run_id, status="RUNNING")
        for change in record.info.get("changes") or []:
            self._client.set_tag(run_id, _key(f"changed.{change['setting']}"), f"{change['was']} -> {change['now']}")

    def _log(self, record: Record) -> None:
        entities = _library("mlflow.entities")
        at = round(record.time * 1000)
        metrics = [entities.Metric(_key(name), float(value), at, record.step) for name, value in record.values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def _finish(self, record: Record) -> None:
        self._status = "FINISHED" if record.kind == "end" else "KILLED"


def _key(name: str) -> str:
    """Return a name that MLflow takes; the names of records pass unchanged."""
    return re.sub(r"[^\w\-./: ]", "_", name)


def _library(name: str) -> Any:
    return importlib.import_module(name)
