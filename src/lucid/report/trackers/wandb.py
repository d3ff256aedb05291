"""Weights & Biases. Offline unless asked otherwise: `wandb sync` sends the run when there is a network."""

from __future__ import annotations

import importlib
import os
import uuid
from pathlib import Path
from typing import Any, Literal

from lucid.records import Record
from lucid.report.trackers.base import Tracker, recall, remember


class WandbTracker(Tracker):
    """Logs to W&B; `step` is the axis of every value, so nothing depends on W&B's own counter.

    A run that goes on keeps its id. W&B cannot take points back: those between the checkpoint and the break come twice,
    with the same values.

    Args:
        run_dir: folder of the run; W&B's files lie in it.
        project: in W&B.
        mode: "online" or "offline". None: the environment's WANDB_MODE, else "offline".
        options: further arguments of `wandb.init`, such as `entity`, `group` or `tags`.
    """

    def __init__(
        self,
        run_dir: str | Path,
        project: str = "lucid",
        mode: Literal["online", "offline"] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(run_dir)
        self._project = project
        self._mode = mode or os.environ.get("WANDB_MODE") or "offline"
        self._options = options
        self._run: Any = None
        self._ended = False

    def close(self) -> None:
        """Finish; a run without its `end` record is marked as failed."""
        if self._run is not None:
            self._run.finish(exit_code=None if self._ended else 1)
            self._run = None
            wandb: Any = importlib.import_module("wandb")
            if wandb.run is None:
                # W&B's service may still hold this id when the process goes on with the run, and would then lose it all
                wandb.teardown()

    def _start(self, record: Record, found: dict[str, Any]) -> None:
        wandb: Any = importlib.import_module("wandb")
        self._ended = False
        if self._run is not None:
            self._run.config.update(found, allow_val_change=True)
            return
        run_id = recall(self.folder, "wandb") or uuid.uuid4().hex[:12]
        self.folder.mkdir(parents=True, exist_ok=True)
        remember(self.folder, "wandb", run_id)
        options = {"name": self.folder.resolve().name, "settings": wandb.Settings(console="off"), **self._options}
        self._run = wandb.init(
            project=self._project,
            id=run_id,
            resume="allow",
            mode=self._mode,
            dir=str(self.folder),
            config=found,
            allow_val_change=True,
            **options,
        )
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def _log(self, record: Record) -> None:
        self._run.log({**record.values, "step": record.step, "epoch": record.epoch})

    def _finish(self, record: Record) -> None:
        self._ended = True
