"""What the report shows of a tested model: classes mixed up, rows with the largest loss, answers against targets."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lucid.build import Built
from lucid.evaluation import untouched

MOST_CLASSES, MOST_POINTS, NUM_WORST, MOST_ROWS = 40, 500, 12, 50_000
_LARGEST_IMAGE = 64 * 64 * 3


def pictures(built: Built, model: nn.Module) -> dict[str, Any]:
    """Return what can be drawn of a model's answers on the test rows, as plain values.

    Classification gives "confusion" (row: true class, column: answer), "classes", and "worst": the rows with the
    largest loss, with their picture where rows are small images. Regression gives "scatter": (target, answer) of
    some rows.
    Other tasks give nothing.

    Args:
        built: the run; its test loader is read.
        model: the trained model.
    """
    task = built.data.task
    if task not in ("classification", "regression") or built.task.train_step is not None:
        return {}
    rows, outputs, targets = _answers(built, model)
    if not len(outputs):
        return {}
    return _classes(built, rows, outputs, targets) if task == "classification" else _scatter(outputs, targets)


def _answers(built: Built, model: nn.Module) -> tuple[list[Tensor], Tensor, Tensor]:
    """Return the rows (small images only), outputs and targets of the first test rows."""
    rows: list[Tensor] = []
    outputs: list[Tensor] = []
    targets: list[Tensor] = []
    with untouched(model):
        for batch in built.test_loader or ():
            if not isinstance(batch, list | tuple) or len(batch) != 2 or len(outputs) * len(batch[0]) > MOST_ROWS:
                break
            outputs.append(model(batch[0]).float())
            targets.append(batch[1])
            if batch[0].dim() == 4 and batch[0][0].numel() <= _LARGEST_IMAGE:
                rows.append(batch[0])
    if not outputs:
        return [], torch.empty(0), torch.empty(0)
    return rows, torch.cat(outputs), torch.cat(targets)


def _classes(built: Built, rows: list[Tensor], outputs: Tensor, targets: Tensor) -> dict[str, Any]:
    if outputs.dim() != 2 or targets.dim() != 1:
        return {}
    count, answers = outputs.shape[1], outputs.argmax(1)
    found: dict[str, Any] = {"classes": built.data.class_names or [str(number) for number in range(count)]}
    if count <= MOST_CLASSES:
        found["confusion"] = (
            torch.bincount(targets * count + answers, minlength=count * count).view(count, count).tolist()
        )
    losses, chances = F.cross_entropy(outputs, targets, reduction="none"), outputs.softmax(1)
    images = torch.cat(rows) if len(rows) and sum(map(len, rows)) == len(outputs) else None
    worst = losses.argsort(descending=True, stable=True)[:NUM_WORST].tolist()
    found["worst"] = [
        {
            "row": row,
            "target": int(targets[row]),
            "answer": int(answers[row]),
            "chance": round(float(chances[row, targets[row]]), 6),
            "image": None if images is None else _pixels(images[row]),
        }
        for row in worst
    ]
    return found


def _pixels(image: Tensor) -> list[Any]:
    """Return (height, width, channels) bytes of an image (channels, height, width), darkest 0 and brightest 255."""
    low, high = image.min(), image.max()
    scaled = (image - low) / (high - low).clamp(min=1e-12) * 255
    pixels: list[Any] = scaled.round().to(torch.uint8).permute(1, 2, 0).tolist()
    return pixels


def _scatter(outputs: Tensor, targets: Tensor) -> dict[str, Any]:
    outputs, targets = outputs.flatten(1)[:, 0], targets.flatten(1)[:, 0].float()
    some = torch.linspace(0, len(outputs) - 1, min(len(outputs), MOST_POINTS)).long()
    return {
        "scatter": [[round(float(t), 6), round(float(o), 6)] for t, o in zip(targets[some], outputs[some], strict=True)]
    }
