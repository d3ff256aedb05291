"""What is odd about rows to predict on, against the rows of the training: read by people, changes nothing."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from lucid.datasets.images import image_files

FAR = 8.0
"""Standard deviations from the training's mean at which half of a column's values must lie to be odd."""


def doubts(source: str | Path, x: torch.Tensor, state: Mapping[str, Any]) -> list[str]:
    """Return what a person should know before believing the answers, one line each.

    Args:
        source: file or folder that the rows were read from.
        x: (N, *input_shape), the rows as the model gets them.
        state: `DataBundle.transform_state`.
    """
    if not len(x):
        return []
    if state["kind"] == "image":
        return [*_of_files(Path(source), state), *_of_brightness(x, state.get("brightness"))]
    if state["kind"] == "table":
        return _of_columns(x, state["columns"])
    if "scaler" in state and x.dim() == 2:
        return _far(x, [f"column {name!r}" for name in _names(state, x.shape[1])])
    return []


def _names(state: Mapping[str, Any], count: int) -> Sequence[Any]:
    names = state.get("x")
    return names if isinstance(names, list) and len(names) == count else range(count)


def _of_brightness(x: torch.Tensor, known: Sequence[float] | None) -> list[str]:
    """Compare the mean brightness with the range that the training images had."""
    if known is None:
        return []
    low, _, high = known
    means = x.double().mean((1, 2, 3))
    pad = max((high - low) / 4, 0.02)  # the training's range is that of some of its images
    out = (means < low - pad) | (means > high + pad)
    inverted = out & (1 - means >= low - pad) & (1 - means <= high + pad)
    if 2 * int(out.sum()) <= len(x):
        return []
    question = "is their range of values another one?"
    if 2 * int(inverted.sum()) > len(x):
        question = "are dark and light the other way round? Nothing is inverted here."
    were = f"images of the training had a mean brightness of {low} to {high} (0 black, 1 white)"
    return [f"{were}, {_span(means)}: {question}"]


def _span(values: torch.Tensor) -> str:
    low, high = (round(float(value), 3) for value in (values.min(), values.max()))
    if len(values) == 1:
        return f"this one has {low}"
    return f"these have {low}" + (f" to {high}" if low != high else "")


def _of_files(path: Path, state: Mapping[str, Any]) -> list[str]:
    """Look at the headers of image files: sizes and channels that were made to fit."""
    files = image_files(path)
    if not files:
        return []
    pil: Any = importlib.import_module("PIL.Image")
    channels, height, width = state["shape"]
    resized, coloured, grey = 0, 0, 0
    for file in files:
        with pil.open(file) as picture:
            resized += picture.size != (width, height)
            is_grey = picture.mode in ("1", "L", "LA", "I", "F") or picture.mode.startswith("I;")
            coloured += not is_grey and channels == 1
            grey += is_grey and channels == 3
    found = []
    if resized and not state.get("resized"):
        found.append(f"{_share(resized, files)} not {width}x{height} as in the training, and made so")
    if coloured:
        found.append(f"{_share(coloured, files)} in colour, the model saw grey ones; made grey")
    if grey:
        found.append(f"{_share(grey, files)} grey, the model saw ones in colour")
    return found


def _share(count: int, files: Sequence[Path]) -> str:
    return "the image is" if len(files) == 1 else f"{count} of {len(files)} images are"


def _of_columns(x: torch.Tensor, columns: Sequence[Mapping[str, Any]]) -> list[str]:
    """Look at each column of a table: numbers far off, words that the training did not have."""
    found, at = [], 0
    for column in columns:
        if column["kind"] == "words":
            strange = int((x[:, at : at + len(column["words"])].sum(1) == 0).sum())
            if strange:
                words = f"{strange} of {len(x)} rows hold a word that the training rows did not have"
                found.append(f"column {column['name']!r}: {words}")
            at += len(column["words"])
            continue
        found += _far(x[:, at : at + 1], [f"column {column['name']!r}"])
        at += 1 + bool(column["missing"])
    return found


def _far(x: torch.Tensor, names: Sequence[str]) -> list[str]:
    """Look for columns, scaled to mean 0 and standard deviation 1, whose median is far from that."""
    medians = x.median(0).values.tolist()
    return [
        f"{name}: half of the rows lie {abs(median):.3g} standard deviations or more from the mean of the training: "
        "another unit?"
        for name, median in zip(names, medians, strict=True)
        if abs(median) > FAR
    ]
