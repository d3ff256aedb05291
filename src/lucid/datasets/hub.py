"""Data sets of the Hugging Face `datasets` library: a local folder, a local cache, or the hub."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.utils.data import TensorDataset

from lucid.datasets.bundle import DataBundle, pick
from lucid.datasets.images import brightness
from lucid.datasets.scaling import Scaler
from lucid.datasets.split import split_rows
from lucid.datasets.text import encode
from lucid.errors import DataError, nearest


def hub(
    name: str,
    *,
    validation: float,
    test: float,
    split_seed: int,
    config: str | None = None,
    x: str | list[str] | None = None,
    y: str = "label",
    length: int = 128,
) -> DataBundle:
    """Return rows of a `datasets` data set, held in memory.

    Args:
        name: folder written by `save_to_disk`, or a name that `load_dataset` knows.
        validation: share of the training rows kept for validation where there is no split of that name.
        test: share kept for the test where there is no such split.
        split_seed: seed of the split.
        config: configuration of the data set.
        x: an image column, a text column (its bytes become tokens), or columns of numbers. None: all but `y`.
        y: column of classes, or of numbers for regression.
        length: bytes of a text; longer ones are cut, shorter ones filled with 0.

    Raises:
        DataError: `datasets` is missing, or a column does not exist or does not fit.
    """
    parts = _load(name, config)
    main = parts["train"] if "train" in parts else next(iter(parts.values()))
    columns = _columns(name, main, x, y)
    values, kind = _features(main, columns, length)
    labels, classes = _target(main, y)
    own = {"validation": parts.get("validation"), "test": parts.get("test")}
    shares = {"validation": validation, "test": test}
    rows = split_rows(
        len(labels),
        validation=0.0 if own["validation"] is not None else validation,
        test=0.0 if own["test"] is not None else test,
        seed=split_seed,
        labels=labels if classes else None,
    )
    state = {**kind, "x": columns}
    scalers = _scalers(state, values[rows.train], labels[rows.train], classes)

    scaled: tuple[torch.Tensor, torch.Tensor] = scalers(values, labels)

    def part(which: str) -> TensorDataset | None:
        if own[which] is not None and shares[which]:
            return TensorDataset(*scalers(_features(own[which], columns, length)[0], _target(own[which], y)[0]))
        return pick(*scaled, getattr(rows, which))

    train = pick(*scaled, rows.train)
    if train is None:
        raise DataError(f"{name}: no rows to train on.")
    return DataBundle(
        train=train,
        validation=part("validation"),
        test=part("test"),
        task="classification" if classes else "regression",
        num_outputs=len(classes) if classes else 1,
        input_shape=tuple(values.shape[1:]),
        class_names=classes,
        transform_state=state,
        split=rows.record(),
    )


def _columns(name: str, data: Any, x: str | list[str] | None, y: str) -> list[str]:
    """Return the columns to predict from, all of which exist."""
    known = data.column_names
    columns = [x] if isinstance(x, str) else x or [column for column in known if column != y]
    for column in [*columns, y]:
        if column not in known:
            raise DataError(f"{name} has no column {column!r}.{nearest(column, known)} It has {', '.join(known)}.")
    return columns


def _load(name: str, config: str | None) -> dict[str, Any]:
    try:
        library: Any = importlib.import_module("datasets")
    except ModuleNotFoundError as error:
        raise DataError(f"data.name = 'datasets:{name}' needs datasets: pip install 'lucid-loop[hf]'.") from error
    try:
        saved = any((Path(name) / mark).exists() for mark in ("dataset_dict.json", "state.json"))
        found = library.load_from_disk(name) if saved else library.load_dataset(name, config)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot load the data set {name!r}: {error}.") from error
    return dict(found) if hasattr(found, "keys") else {"train": found}


def _features(data: Any, columns: list[str], length: int) -> tuple[torch.Tensor, dict[str, Any]]:
    first = data[0][columns[0]]
    if len(columns) == 1 and isinstance(first, str):
        state: dict[str, Any] = {"kind": "bytes", "tokens": "bytes", "length": length}
        return torch.stack([fixed_bytes(words, length) for words in data[columns[0]]]), state
    if len(columns) == 1 and hasattr(first, "getbands"):
        arrays = [numpy.asarray(picture, dtype=numpy.float32) / 255 for picture in data[columns[0]]]
        if len({array.shape for array in arrays}) > 1:
            raise DataError(f"the images of column {columns[0]!r} have different sizes. Use image-folder:DIR instead.")
        pixels = torch.from_numpy(numpy.stack(arrays))
        pixels = pixels.unsqueeze(1) if pixels.dim() == 3 else pixels.permute(0, 3, 1, 2).contiguous()
        state = {"kind": "image", "shape": list(pixels.shape[1:]), "scale": 255.0, "brightness": brightness(pixels)}
        return pixels, state
    try:
        numbers = [torch.tensor(data[column][:], dtype=torch.float32).reshape(len(data), -1) for column in columns]
    except (TypeError, ValueError) as error:
        raise DataError(
            f"columns {', '.join(columns)} are not all numbers: {error}. Name them: data.options.x."
        ) from error
    return torch.cat(numbers, 1), {"kind": "columns"}


def fixed_bytes(words: str, length: int) -> torch.Tensor:
    """Return the first `length` bytes of a text as int64, filled with 0."""
    ids = encode(words.encode()[:length], {"tokens": "bytes"})
    return torch.nn.functional.pad(ids, (0, length - len(ids)))


def _target(data: Any, y: str) -> tuple[torch.Tensor, list[str] | None]:
    feature, values = data.features[y], data[y][:]
    names = getattr(feature, "names", None)
    if names:
        return torch.tensor(values, dtype=torch.int64), list(names)
    if all(isinstance(value, int) for value in values):
        return torch.tensor(values, dtype=torch.int64), [str(number) for number in range(max(values) + 1)]
    try:
        return torch.tensor(values, dtype=torch.float32).reshape(len(values), -1), None
    except (TypeError, ValueError) as error:
        cure = (
            f'dataset.class_encode_column("{y}") numbers words' if isinstance(values[0], str) else "fill or drop holes"
        )
        raise DataError(
            f"column {y!r} must hold classes or numbers: {error}. Before the data is saved, {cure}."
        ) from error


def _scalers(state: dict[str, Any], x: torch.Tensor, y: torch.Tensor, classes: list[str] | None) -> Any:
    """Learn the scaling of number columns and of a regression target; return a function of (x, y)."""
    features = Scaler.fit(x) if state["kind"] == "columns" else None
    target = None if classes else Scaler.fit(y)
    if features:
        state["scaler"] = features.to_dict()
    if target:
        state["target_scaler"] = target.to_dict()

    def apply(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return features.apply(x) if features else x, target.apply(y) if target else y

    return apply
