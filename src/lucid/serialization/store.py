"""A folder of checkpoints of one run."""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from lucid.errors import CheckpointError, SaveFailedError
from lucid.serialization.decode import Decoder
from lucid.serialization.files import load, save
from lucid.serialization.reader import Reader

_NAME = re.compile(r"step-(\d{8,})\.lcs")


@dataclass(frozen=True, slots=True)
class Entry:
    """One checkpoint of a store."""

    path: Path
    step: int
    value: float | None = None
    meta: dict[str, Any] = field(default_factory=dict)


class Store:
    """A folder of checkpoints of one run."""

    def __init__(
        self, folder: str | Path, *, run_id: str, keep_last: int = 2, keep_every: int = 0, keep_best: int = 1,
        mode: Literal["min", "max"] = "min", on_error: Literal["continue", "stop"] = "continue",
        asynchronous: bool = True, retries: int = 3, types: tuple[type, ...] = (),
    ) -> None:  # fmt: skip
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.run_id = run_id
        self.keep_last, self.keep_every, self.keep_best, self.mode = keep_last, keep_every, keep_best, mode
        self.on_error = on_error
        self.types = types
        self.refused: list[tuple[Path, str]] = []
        self.foreign: list[Path] = []
        self._error: OSError | None = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:  # noqa: E501
        self.close()

    def save(self, tree: Any, step: int, value: float | None = None, meta: dict[str, Any] | None = None) -> None:
        """Save the state as it is now."""
        self._raise()
        score = None if value is None or math.isnan(value) else float(value)
        note = {"run_id": self.run_id, "step": step, "value": score, "meta": meta or {}}
        try:
            save(tree, self.folder / f"step-{step:08d}.lcs", types=self.types, meta=note)
        except OSError as error:
            self._error = error
            warnings.warn(f"saving step {step} failed: {error}", stacklevel=2)
            return
        self._retain()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None and self.on_error == "stop":
            raise SaveFailedError(f"saving failed: {error}") from error

    def wait(self) -> None:
        """Block until the last save is durable; raise what failed."""
        self._raise()

    def close(self) -> None:
        """Wait and let go of the folder."""
        self.wait()

    def entries(self) -> list[Entry]:
        """Return this run's checkpoints by step."""
        found = []
        self.refused, self.foreign = [], []
        for path in self.folder.iterdir():
            if not _NAME.fullmatch(path.name):
                continue
            try:
                with Reader(path) as reader:
                    note = Decoder({}).decode(reader.user)
            except (CheckpointError, OSError) as error:
                self.refused.append((path, str(error)))
                continue
            if note.get("run_id") != self.run_id:
                self.foreign.append(path)
                continue
            found.append(Entry(path, note["step"], note["value"], note["meta"]))
        return sorted(found, key=lambda entry: entry.step)

    def latest(self) -> Entry | None:
        """Return the newest checkpoint whose every byte is right, or None."""
        for entry in reversed(self.entries()):
            with Reader(entry.path) as reader:
                if not reader.bad_chunks():
                    return entry
            self.refused.append((entry.path, "bytes changed since they were written"))
        return None

    def best(self) -> Entry | None:
        """Return the checkpoint with the best value, or None."""
        ranked = self._ranked(self.entries())
        return ranked[0] if ranked else None

    def _ranked(self, entries: list[Entry]) -> list[Entry]:
        sign = 1 if self.mode == "min" else -1
        return sorted((e for e in entries if e.value is not None), key=lambda e: (sign * e.value, e.step))  # type: ignore[operator]  # noqa: E501

    def _retain(self) -> None:
        entries = self.entries()
        keep = {entry.path for entry in entries[-self.keep_last :]}
        keep |= {entry.path for entry in self._ranked(entries)[: self.keep_best]}
        if self.keep_every:
            keep |= {entry.path for entry in entries if entry.step % self.keep_every == 0}
        for entry in entries:
            if entry.path not in keep:
                entry.path.unlink()

    def load(self, entry: Entry) -> Any:
        """Return the state of a checkpoint."""
        return load(entry.path, types=self.types)
