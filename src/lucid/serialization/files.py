"""The verbs on one file: `save`, `load`, `load_into`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lucid.errors import CheckpointError, FormatError
from lucid.serialization.decode import Decoder, references
from lucid.serialization.plan import make_plan
from lucid.serialization.reader import Reader, Source
from lucid.serialization.writer import write_atomic


def save(state: Any, path: str | Path, *, types: Sequence[type] = (), meta: dict[str, Any] | None = None) -> int:
    """Save a state; returns the size of the file in bytes."""
    return write_atomic(make_plan(state, types=types, meta=meta), Path(path))


def load(path: Source, *, types: Sequence[type] = ()) -> Any:
    """Load a state."""
    with Reader(path) as reader:
        try:
            tensors = reader.read(sorted(references(reader.tree)))
            return Decoder(tensors, types).decode(reader.tree)
        except CheckpointError:
            raise
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RuntimeError, ArithmeticError) as error:
            raise FormatError(f"{reader.where}: the tree is broken: {type(error).__name__}: {error}") from error
