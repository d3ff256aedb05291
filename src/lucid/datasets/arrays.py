"""NumPy files: `.npz` with features and target, or `.npy` with the target in a second file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import torch

from lucid.datasets.bundle import DataBundle, pick
from lucid.datasets.scaling import Scaler
from lucid.datasets.split import split_rows
from lucid.errors import DataError, nearest


def npz(
    path: str,
    *,
    validation: float,
    test: float,
    split_seed: int,
    x: str = "x",
    y: str = "y",
    task: str = "auto",
    scale: bool = True,
) -> DataBundle:
    """Return rows from arrays. Nothing in the file is executed: pickled arrays are refused.

    Args:
        path: `.npz`, or `.npy` with features.
        validation: share of rows kept for validation.
        test: share of rows kept for the test.
        split_seed: seed of the split.
        x: array of features, (N, ...).
        y: array of targets: (N,) whole numbers are classes, (N, K) of zeros and ones labels, other numbers regression.
            For `.npy`, the path of the file with them.
        task: classification, multilabel or regression. auto: by the rule above.
        scale: bring each feature to mean 0 and standard deviation 1 of the training rows; regression targets too.

    Raises:
        DataError: no such file or array, or lengths that differ.
    """
    features, target = _arrays(Path(path), x, y)
    if len(features) != len(target) or not len(features):
        raise DataError(f"{path}: {x!r} has {len(features)} rows and {y!r} has {len(target)}; they must be equal.")
    values = torch.from_numpy(numpy.ascontiguousarray(features)).float()
    if not torch.isfinite(values).all():
        raise DataError(f"{path}: {x!r} holds NaN or inf in {int((~torch.isfinite(values)).sum())} places. Clean it.")
    kind = guess_task(target) if task == "auto" else task
    names = None
    if kind == "classification":
        classes, codes = numpy.unique(target, return_inverse=True)
        names, labels = [str(value) for value in classes.tolist()], torch.from_numpy(codes.reshape(-1)).long()
    else:
        labels = torch.from_numpy(numpy.ascontiguousarray(target)).float().reshape(len(target), -1)
    rows = split_rows(len(values), validation=validation, test=test, seed=split_seed,
                      labels=labels if kind == "classification" else None)  # fmt: skip
    state: dict[str, Any] = {"kind": "array", "shape": list(values.shape[1:]), "x": x}
    if scale:
        scaler = Scaler.fit(values[rows.train])
        values, state["scaler"] = scaler.apply(values), scaler.to_dict()
    if kind == "regression" and scale:
        target_scaler = Scaler.fit(labels[rows.train])
        labels, state["target_scaler"] = target_scaler.apply(labels), target_scaler.to_dict()
    train = pick(values, labels, rows.train)
    if train is None:
        raise DataError(f"{path}: no rows to train on.")
    return DataBundle(
        train=train,
        validation=pick(values, labels, rows.validation),
        test=pick(values, labels, rows.test),
        task=kind,
        num_outputs=len(names) if names else labels.shape[1],
        input_shape=tuple(values.shape[1:]),
        class_names=names,
        transform_state=state,
        split=rows.record(),
    )


def guess_task(target: numpy.ndarray[Any, Any]) -> str:
    """Whole numbers, words or truths of one column are classes; zeros and ones of several, labels; else regression."""
    if target.ndim == 2 and target.shape[1] > 1:
        return "multilabel" if numpy.isin(target, (0, 1)).all() else "regression"
    return "regression" if target.dtype.kind == "f" else "classification"


def _arrays(path: Path, x: str, y: str) -> tuple[numpy.ndarray[Any, Any], numpy.ndarray[Any, Any]]:
    try:
        if path.suffix == ".npy":
            return numpy.load(path, allow_pickle=False), numpy.load(y, allow_pickle=False)
        with numpy.load(path, allow_pickle=False) as file:
            for name in (x, y):
                if name not in file:
                    raise DataError(f"{path} has no array {name!r}.{nearest(name, file)} It has {', '.join(file)}.")
            return file[x], file[y]
    except (OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"cannot read {path}: {error}.") from error
