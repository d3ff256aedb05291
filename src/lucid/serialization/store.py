"""A folder with the checkpoints of one run: saved in the background, the newest good one found, old ones removed.

Order of a save: copy of the state (the caller waits for that only) -> file written, flushed, renamed, folder flushed
-> pointers `last` and `best` -> older files deleted. So there is never a moment without a complete checkpoint.
"""

from __future__ import annotations

import math
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from lucid.errors import CheckpointError, ConfigError, SaveFailedError
from lucid.serialization.catalog import Catalog
from lucid.serialization.files import load
from lucid.serialization.folder import open_folder
from lucid.serialization.location import MapLocation
from lucid.serialization.plan import Plan, make_plan
from lucid.serialization.reader import Reader
from lucid.serialization.restore import load_into
from lucid.serialization.retention import Entry, Mode, Retention, ranked
from lucid.serialization.sources import Arena, Data, TensorData
from lucid.serialization.upkeep import Upkeep

__all__ = ["Entry", "Store"]


class Store:
    """Checkpoints of one run in one folder, by step.

    Args:
        folder: where they are: a path, or a URL of fsspec such as `s3://bucket/run`. It is made if needed, and locked:
            a second process is refused.
        run_id: says which files are this run's. Others are never used, overwritten or deleted.
        keep_last: newest checkpoints kept, at least 1.
        keep_every: also keep each whose step is a multiple of this. 0: none.
        keep_best: best checkpoints kept by `value`, in slots of their own.
        mode: whether a lower or a higher value is better.
        on_error: what a save that failed after its retries does: "continue" warns and tries again at the next one,
            "stop" raises at the next call.
        asynchronous: write in a background thread; `save` only copies. Needs memory for one more state.
        retries: how often a failed write is tried again.
        types: enums, dataclasses and named tuples that states may hold.

    Raises:
        StoreBusyError: another live process writes this folder.

    Example:
        >>> import tempfile, torch
        >>> from lucid.serialization import Store
        >>> weight = torch.zeros(2)
        >>> with tempfile.TemporaryDirectory() as folder, Store(folder, run_id="a") as store:
        ...     store.save({"weight": weight}, step=1, value=0.5)
        ...     _ = weight.fill_(7)  # the save has the state of its call
        ...     store.wait()
        ...     store.load(store.latest())
        {'weight': tensor([0., 0.])}
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        run_id: str,
        keep_last: int = 2,
        keep_every: int = 0,
        keep_best: int = 1,
        mode: Mode = "min",
        on_error: Literal["continue", "stop"] = "continue",
        asynchronous: bool = True,
        retries: int = 3,
        types: Sequence[type] = (),
    ) -> None:
        if keep_last < 1 or keep_every < 0 or keep_best < 0 or retries < 0:
            raise ConfigError(
                "a store must have keep_last of at least 1 and keep_every, keep_best and retries of at least 0, got "
                f"{keep_last}, {keep_every}, {keep_best} and {retries}."
            )
        if mode not in ("min", "max") or on_error not in ("continue", "stop"):
            raise ConfigError(
                f'mode must be "min" or "max" and on_error "continue" or "stop", got {mode!r}, {on_error!r}.'
            )
        retention = Retention(keep_last, keep_every, keep_best, mode)
        self._on_error, self._retries, self._types = on_error, retries, tuple(types)
        self.run_id = run_id
        self._folder = open_folder(folder)
        self._catalog = Catalog(self._folder, run_id)
        self._upkeep = Upkeep(self._folder, self._catalog, retention)
        self._arena = Arena() if asynchronous else None
        self._writer: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._notes: list[str] = []
        self._closed = False

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except SaveFailedError as failure:
            if kind is None:
                raise
            warnings.warn(str(failure), RuntimeWarning, stacklevel=2)  # the first error is the one to see

    # --- saving ----------------------------------------------------------------------------------------------------

    def save(self, tree: Any, step: int, value: float | None = None, meta: dict[str, Any] | None = None) -> Path:
        """Save the state as it is at this moment; later changes of its tensors do not reach the file.

        Waits until the save before is durable, then copies and returns; with `asynchronous=False` writes before it
        returns.

        Args:
            tree: the state.
            step: optimizer updates done; the name of the file, and the order of checkpoints.
            value: the monitored value. None or NaN: never the best.
            meta: small plain values that `entries()` gives back.

        Returns:
            Where the checkpoint will be.

        Raises:
            UnsupportedTypeError: something in the state cannot be stored.
            SaveFailedError: the save before failed and `on_error` is "stop".
        """
        if self._closed:
            raise CheckpointError(f"{self._folder.path}: the store is closed; open it again to save.")
        self._settle()
        score = None if value is None or math.isnan(value) else float(value)
        note = {"run_id": self.run_id, "step": int(step), "value": score, "meta": meta or {}}
        plan = make_plan(tree, types=self._types, meta=note)
        name = self._catalog.free_name(int(step))
        if self._arena is None:
            self._write(plan, TensorData(plan), int(step), name)
            self._settle()
        else:
            self._arena.take(plan)
            # Not a daemon: the interpreter waits for it, so a save that has begun gets durable.
            work = (plan, self._arena, int(step), name)
            self._writer = threading.Thread(target=self._write, args=work, name="lucid-save")
            self._writer.start()
        return self._folder.path / name

    def wait(self) -> None:
        """Block until the last save is durable.

        Raises:
            SaveFailedError: it failed and `on_error` is "stop"; with "continue" it is a warning.
        """
        self._settle()

    def close(self) -> None:
        """Wait, then let other processes have the folder. Raises as `wait` does."""
        try:
            self._settle()
        finally:
            if not self._closed:
                self._closed = True
                self._folder.close()

    def _settle(self) -> None:
        """Join the writer and tell the caller what it had to say."""
        self._join()
        failure, self._failure = self._failure, None
        notes, self._notes = self._notes, []
        for note in notes:
            warnings.warn(note, RuntimeWarning, stacklevel=3)
        if failure is None:
            return
        if self._on_error == "continue" and isinstance(failure, SaveFailedError):
            warnings.warn(f"{failure} Training goes on.", RuntimeWarning, stacklevel=3)
            return
        raise failure

    def _join(self) -> None:
        if self._writer is not None:
            self._writer.join()
            self._writer = None  # only now: an interrupt while waiting must not make us forget it

    def _write(self, plan: Plan, data: Data, step: int, name: str) -> None:
        """Make one checkpoint durable, then pointers, then retention. Runs in the writer's thread; never raises."""
        try:
            self._catalog.update()
            if not self._catalog.is_free(name):  # another run took it just now
                name = self._catalog.free_name(step)
            self._folder.write(name, plan, data, self._retries)
            self._notes += self._upkeep.after_a_save()
        except BaseException as error:  # told to the caller by the next call
            self._failure = error

    # --- finding and loading ---------------------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        """Where the checkpoints are."""
        return self._folder.path

    @property
    def refused(self) -> list[tuple[Path, str]]:
        """The broken files seen so far, each with the reason; they stay where they are."""
        self._join()
        return self._catalog.refused()

    @property
    def foreign(self) -> list[Path]:
        """The checkpoints of other runs in this folder."""
        return self._updated().foreign()

    def entries(self) -> list[Entry]:
        """Return this run's checkpoints whose header and manifest are right, by step."""
        return self._updated().entries()

    def latest(self) -> Entry | None:
        """Return the newest checkpoint whose every byte is right, or None. It reads the files it looks at.

        Broken ones are passed over and listed in `refused`.
        """
        return self._first_good(list(reversed(self.entries())))

    def best(self) -> Entry | None:
        """Return the checkpoint with the best value whose every byte is right, or None."""
        return self._first_good(ranked(self.entries(), self._upkeep.retention.mode))

    def _first_good(self, entries: list[Entry]) -> Entry | None:
        found = self._catalog.first(entries, _verify)
        return None if found is None else found[0]

    def _updated(self) -> Catalog:
        self._join()  # what is being written counts, and the catalog is the writer's meanwhile
        self._catalog.update()
        return self._catalog

    def load(self, entry: Entry, select: str | Sequence[str] | None = None, map_location: MapLocation = "cpu") -> Any:
        """Return the state of a checkpoint, or a part of it; see `lucid.serialization.load`."""
        return load(entry.url or entry.path, select=select, map_location=map_location, types=self._types)

    def load_into(self, entry: Entry, tree: Any, *, select: str | None = None, strict: bool = True) -> Any:
        """Read a checkpoint into the tensors of `tree`; see `lucid.serialization.load_into`."""
        return load_into(entry.url or entry.path, tree, select=select, strict=strict, types=self._types)

    def restore(self, tree: Any = None, before: Callable[[Entry], object] | None = None) -> tuple[Entry, Any] | None:
        """Read the newest good checkpoint into the tensors of `tree`: `latest` and `load_into` with one reading.

        A file that turns out broken is passed over and listed in `refused`; the next older one fills the same tensors.
        Only the oldest is verified before it is read: nothing could take its place.

        Args:
            tree: as `load_into` has it; None: everything is loaded fresh.
            before: called with each checkpoint before it is read; what it raises is passed on.

        Returns:
            The checkpoint and its state. None if there is no good one; `tree` is then as it was.

        Raises:
            MismatchError: the checkpoint does not fit `tree`; nothing has been touched.
            CheckpointError: none is good, and a broken one has overwritten tensors of `tree`.
        """
        entries = list(reversed(self.entries()))
        tried: list[Entry] = []

        def attempt(entry: Entry) -> Any:
            if before is not None:
                before(entry)
            if entry is entries[-1] and tree is not None:
                _verify(entry)
            tried.append(entry)
            return self.load_into(entry, tree)

        found = self._catalog.first(entries, attempt)
        if found is None and tried and tree is not None:
            raise _overwritten(self.folder, tried[-1], len(entries))
        return found


def _verify(entry: Entry) -> None:
    with Reader(entry.url or entry.path) as reader:
        reader.chunks.verify()


def _overwritten(folder: Path, entry: Entry, count: int) -> CheckpointError:
    return CheckpointError(
        f"{folder} must hold a good checkpoint, got {count} broken ones, of which {entry.path.name} has overwritten "
        "the live state. Move them away to begin anew."
    )
