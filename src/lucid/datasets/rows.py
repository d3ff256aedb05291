"""Raw rows to predict on, prepared as the training rows were, from nothing but `transform_state`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import torch

from lucid.datasets.images import SUFFIXES, image_files, read_image
from lucid.datasets.scaling import Scaler
from lucid.datasets.table import apply_columns, read_table
from lucid.datasets.text import encode
from lucid.errors import DataError


def read_rows(source: str | Path, state: Mapping[str, Any]) -> tuple[torch.Tensor, list[str]]:
    """Read rows from a file or folder.

    Args:
        source: a table for "table"; an image, a folder of images or a `.npy`/`.npz` of raw pixels for "image"; a
            `.npy`/`.npz` for "array"; a text file for "text".
        state: `DataBundle.transform_state`.

    Returns:
        x: (N, *input_shape), and a name for each row.

    Raises:
        DataError: cannot be read, or does not fit what the model was trained on.
    """
    path, kind = Path(source), state["kind"]
    if not path.exists():
        raise DataError(f"no such file or folder: {path}.")
    if kind in ("table", "columns") and {".csv", ".tsv", ".parquet"} & set(path.suffixes):
        x = _table(path, state)
    elif kind == "image" and (path.is_dir() or path.suffix.lower() in SUFFIXES):
        return _images(path, state)
    elif kind in ("image", "array", "columns") and path.suffix in (".npy", ".npz"):
        x = _array(path, state)
    elif kind == "text" and path.is_file():
        x = encode(path.read_bytes() if state["tokens"] == "bytes" else path.read_text("utf-8"), dict(state))
        x = x[-state["block_size"] :].unsqueeze(0)
    else:
        raise DataError(f"{path} does not fit a model trained on rows of kind {kind!r}.")
    return x, [f"row {number}" for number in range(1, len(x) + 1)]


def _table(path: Path, state: Mapping[str, Any]) -> torch.Tensor:
    cells = read_table(path)
    if state["kind"] == "table":
        return apply_columns(state["columns"], cells)
    missing = [name for name in state["x"] if name not in cells]
    if missing:
        raise DataError(f"{path}: column {missing[0]!r} is missing. The model was trained on it.")
    x: torch.Tensor = torch.tensor([[float(cell) for cell in cells[name]] for name in state["x"]]).T
    return Scaler.from_dict(state["scaler"]).apply(x)


def _images(path: Path, state: Mapping[str, Any]) -> tuple[torch.Tensor, list[str]]:
    files = image_files(path)
    if not files:
        raise DataError(f"no images under {path}.")
    return torch.stack([read_image(file, dict(state)) for file in files]), [str(file) for file in files]


def _array(path: Path, state: Mapping[str, Any]) -> torch.Tensor:
    try:
        loaded = numpy.load(path, allow_pickle=False)
        name = state.get("x", "x")
        array = loaded if path.suffix == ".npy" else loaded[name if isinstance(name, str) else "x"]
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"cannot read {path}: {error}.") from error
    x = torch.from_numpy(numpy.ascontiguousarray(array)).float()
    if "shape" in state:
        shape = tuple(state["shape"])
        if x.shape[1:] != shape:
            x = x.unsqueeze(0) if x.shape == shape else x
        if x.shape[1:] != shape:
            raise DataError(f"{path}: rows must have the shape {shape}, got {tuple(x.shape[1:])}.")
    if state["kind"] == "image":
        return x / float(state["scale"])
    return Scaler.from_dict(state["scaler"]).apply(x) if "scaler" in state else x
