"""Real data by name or place.

`bundle`: what every data set hands over. `split`: seeded parts. `digits`, `images`, `table` (with `columns`), `arrays`,
`text`, `hub`, `own`: the sources. `scaling`: mean and standard deviation. `rows`: raw rows for prediction; `doubts`:
what is odd about them.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from lucid.config.names import call
from lucid.datasets.bundle import TASKS, DataBundle
from lucid.datasets.rows import read_rows
from lucid.datasets.split import Split, split_rows
from lucid.errors import ConfigError, nearest

__all__ = ["SOURCES", "TASKS", "DataBundle", "Split", "build", "read_rows", "split_rows"]

SOURCES = {
    "csv": "table:table",
    "parquet": "table:table",
    "npz": "arrays:npz",
    "npy": "arrays:npz",
    "image-folder": "images:image_folder",
    "idx": "images:idx",
    "text": "text:text",
    "datasets": "hub:hub",
}


def build(
    name: str, options: Mapping[str, Any], *, validation: float = 0.15, test: float = 0.15, split_seed: int = 0
) -> DataBundle:
    """Load the data set that a configuration names.

    Args:
        name: `digits`, one of `SOURCES` with a place behind the colon, or `my_module:factory`.
        options: keyword arguments of that source.
        validation: share of rows kept for validation.
        test: share of rows kept for the test.
        split_seed: seed of the split.

    Raises:
        ConfigError: an unknown name or option.
        DataError: the data cannot be read or does not fit.

    Example:
        >>> build("digits", {}).split["train"]
        1257
    """
    given: dict[str, Any] = {"validation": validation, "test": test, "split_seed": split_seed}
    kind, _, place = name.partition(":")
    if name == "digits":
        from lucid.datasets.digits import digits

        return _bundle(call(digits, options, "data.options", given))
    if kind in SOURCES:
        if not place:
            raise ConfigError(f"data.name = {name!r} must say where: {kind}:PLACE.")
        module, _, function = SOURCES[kind].partition(":")
        found = getattr(importlib.import_module(f"lucid.datasets.{module}"), function)
        first = "folder" if kind in ("image-folder", "idx") else "name" if kind == "datasets" else "path"
        return _bundle(call(found, options, "data.options", {**given, first: place}))
    if not place:
        known = ["digits", *(f"{source}:PLACE" for source in SOURCES), "my_module:factory"]
        source = name.rpartition(".")[2]
        near = f" Did you mean '{source}:{name}'?" if source in SOURCES else nearest(name, ["digits", *SOURCES])
        raise ConfigError(f"data.name = {name!r} is not known.{near} Known: {', '.join(known)}.")
    from lucid.datasets.own import own

    return own(name, options, **given)


def _bundle(made: Any) -> DataBundle:
    if not isinstance(made, DataBundle):
        raise TypeError(f"a data source gave {type(made).__name__}")
    return made
