"""TensorBoard: an event folder inside the run; `tensorboard --logdir runs` shows all runs."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from lucid.records import Record
from lucid.report.trackers.base import Tracker


class TensorBoardTracker(Tracker):
    """Writes scalars under the names of the records.

    When a run goes on from a checkpoint, TensorBoard is told to forget the points after it.

    Args:
        run_dir: folder of the run.
        folder_name: of the event files in it.
    """

    def __init__(self, run_dir: str | Path, folder_name: str = "tensorboard") -> None:
        super().__init__(run_dir)
        self._log_dir = self.folder / folder_name
        self._writer: Any = None
        self._purge_step: int | None = None

    def rewind(self, step: int) -> None:
        """Have TensorBoard forget every point after `step`."""
        self.close()
        self._purge_step = step + 1

    def close(self) -> None:
        """Write out what is waiting."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _start(self, record: Record, found: dict[str, Any]) -> None:
        table = "\n".join(f"| {name} | {_cell(value)} |" for name, value in found.items())
        self._open().add_text("settings", f"| setting | value |\n|---|---|\n{table}", record.step, record.time)

    def _log(self, record: Record) -> None:
        writer = self._open()
        for name, value in record.values.items():
            writer.add_scalar(name, value, record.step, walltime=record.time)
        if record.kind != "log":
            writer.flush()

    def _finish(self, record: Record) -> None:
        self._open().flush()

    def _open(self) -> Any:
        if self._writer is None:
            api: Any = importlib.import_module("torch.utils.tensorboard")
            self._writer = api.SummaryWriter(str(self._log_dir), purge_step=self._purge_step, flush_secs=10)
            self._purge_step = None
        return self._writer


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
