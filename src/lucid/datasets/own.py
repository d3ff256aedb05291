"""The user's own data: `my_module:factory`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import Dataset, Subset

from lucid.config.names import call, import_object
from lucid.datasets.bundle import DataBundle
from lucid.datasets.split import split_rows
from lucid.errors import DataError


def own(name: str, options: Mapping[str, Any], *, validation: float, test: float, split_seed: int) -> DataBundle:
    """Return what the user's factory gives: a DataBundle, one data set, or a tuple of two or three.

    Args:
        name: `my_module:factory`; it may ask for `validation`, `test` and `split_seed`.
        options: its keyword arguments.
        validation: share kept where the factory gives one data set.
        test: share kept where the factory gives one data set.
        split_seed: seed of that split.

    Raises:
        DataError: something else came back, or rows that are not (x, y).
    """
    given = {"validation": validation, "test": test, "split_seed": split_seed}
    made = call(import_object(name, "data.name"), options, "data.options", given)
    if isinstance(made, DataBundle):
        return made
    record: dict[str, Any] = {}
    if isinstance(made, Dataset):
        made, record = _split(made, validation, test, split_seed)
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        raise DataError(
            f"data.name = {name!r} must give a Dataset, (train, validation), (train, validation, test) or a "
            f"lucid.datasets.DataBundle, got {type(made).__name__}."
        )
    train, kept, held = (*made, None)[:3]
    return _describe(name, train, kept, held, record)


def _split(data: Any, validation: float, test: float, seed: int) -> tuple[tuple[Any, Any, Any], dict[str, Any]]:
    if not hasattr(data, "__len__"):
        return (data, None, None), {}
    rows = split_rows(len(data), validation=validation, test=test, seed=seed)
    parts = [Subset(data, part) if part else None for part in (rows.train, rows.validation, rows.test)]
    return (parts[0], parts[1], parts[2]), rows.record()


def _describe(name: str, train: Any, kept: Any, held: Any, record: dict[str, Any]) -> DataBundle:
    """Look at the first row to learn the shape and the task."""
    try:
        x, y = next(iter(train))[:2] if not hasattr(train, "__getitem__") else train[0][:2]
    except (IndexError, StopIteration) as error:
        raise DataError(f"data.name = {name!r} gives a data set without rows.") from error
    except (TypeError, ValueError, KeyError) as error:
        raise DataError(f"data.name = {name!r}: a row must be (x, y): {error}.") from error
    x, target = torch.as_tensor(x), torch.as_tensor(y)
    whole = not target.is_floating_point()
    if whole and target.dim() == 0:
        outputs = 1 + max(int(train[row][1]) for row in range(len(train))) if hasattr(train, "__len__") else 0
        task = "classification"
    elif whole and target.shape == x.shape:
        task, outputs = "language-modelling", 0
    else:
        task, outputs = "regression", max(1, target.numel())
    return DataBundle(
        train=train, validation=kept, test=held, task=task, num_outputs=outputs,
        input_shape=tuple(x.shape), split=record,
        class_names=[str(number) for number in range(outputs)] if task == "classification" else None,
    )  # fmt: skip
