"""A replay bundle: one step that went wrong, by reference to a checkpoint and the path from it.

run_dir/replay/step-00000120/
    bundle.json       the step, its rows, why it was left out, digests of the state before and the streams after it
    checkpoint.lcs    the newest checkpoint before it (a hard link where the disk has them); none: from the beginning
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor

from lucid import rng
from lucid.errors import ReplayError
from lucid.serialization import model_state
from lucid.state import TrainState

_NAME, _CHECKPOINT = "bundle.json", "checkpoint.lcs"


@dataclass(slots=True)
class Bundle:
    """What is known of the step."""

    step: int
    epoch: int
    """From 0."""
    start: int
    """Number of the window's first micro-batch in its epoch."""
    num_batches: int
    reason: str
    loss: float
    grad_norm: float
    state_digest: str
    """Of weights, buffers and optimizers before the step."""
    streams_digest: str
    """Of the random streams after the step."""
    rows: list[Any] = field(default_factory=list)
    """Row numbers of the whole window; empty for a stream of data."""
    info: dict[str, Any] = field(default_factory=dict)
    """As in the record of the step."""
    checkpoint_step: int = 0
    """Step of the checkpoint; the path from it is `step - checkpoint_step` steps long. 0: from the beginning."""
    omitted: list[list[int]] = field(default_factory=list)
    halvings: int = 0
    compared: dict[str, Any] = field(default_factory=dict)
    """The settings that must be the same for the path to be the same."""
    folder: Path | None = None

    @property
    def checkpoint(self) -> Path | None:
        """The checkpoint that the path begins at, if it does not begin at the start of the run."""
        path = None if self.folder is None else self.folder / _CHECKPOINT
        return path if path is not None and path.exists() else None

    def write(self, folder: Path, checkpoint: Path | None) -> None:
        """Write the bundle into a folder; a checkpoint is linked, or copied where the disk has no links."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        if checkpoint is not None:
            target = folder / _CHECKPOINT
            target.unlink(missing_ok=True)
            try:
                os.link(checkpoint, target)
            except OSError:
                shutil.copy2(checkpoint, target)
        body = {name: value for name, value in asdict(self).items() if name != "folder"}
        beside = folder / f".{_NAME}.tmp"
        beside.write_text(json.dumps(body, indent=1, default=str))
        beside.replace(folder / _NAME)

    @classmethod
    def read(cls, folder: str | Path) -> Bundle:
        """Return the bundle of a folder.

        Raises:
            ReplayError: if there is none, or it is not whole.
        """
        path = Path(folder) / _NAME
        try:
            body = json.loads(path.read_text())
            known = {one.name for one in fields(cls)}
            bundle = cls(**{name: value for name, value in body.items() if name in known})
        except (OSError, ValueError, TypeError) as error:
            raise ReplayError(
                f"{path} must be the description of a replay bundle, as a run leaves in run_dir/replay, got: {error}."
            ) from error
        bundle.folder = Path(folder)
        if bundle.checkpoint_step and bundle.checkpoint is None:
            raise ReplayError(
                f"{folder} must hold {_CHECKPOINT}, the checkpoint of step {bundle.checkpoint_step}, and it is gone."
            )
        return bundle


def state_digest(state: TrainState) -> str:
    """Return a digest of weights, buffers and the optimizers' states, equal only for equal bits."""
    digest = xxhash.xxh3_128()
    _feed(digest, [dict(model_state(state.model)), [optimizer.state_dict() for optimizer in state.optimizers]])
    return digest.hexdigest()


def streams_digest() -> str:
    """Return a digest of every random stream as it stands."""
    digest = xxhash.xxh3_128()
    _feed(digest, rng.capture())
    return digest.hexdigest()


def _feed(digest: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        digest.update(f"{tuple(value.shape)}{value.dtype}".encode())
        plain = value.detach().cpu().contiguous()
        if plain.numel():
            digest.update(plain.flatten().view(torch.uint8).numpy().tobytes())
    elif isinstance(value, dict):
        for name in value:
            digest.update(repr(name).encode())
            _feed(digest, value[name])
    elif isinstance(value, list | tuple):
        digest.update(f"[{len(value)}]".encode())
        for item in value:
            _feed(digest, item)
    elif hasattr(value, "tobytes"):
        digest.update(value.tobytes())
    else:
        digest.update(repr(value).encode())
