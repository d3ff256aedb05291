"""What the report shows of a tested model, computed on real data."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import lucid
from lucid.build import build
from lucid.cli.pictures import NUM_WORST, pictures
from lucid.config import RunConfig

pytest.importorskip("sklearn", reason="the digits need the demo extra")


def built_digits(folder: Path) -> lucid.build.Built:  # type: ignore[name-defined]
    """Return the default run with fresh weights."""
    return build(dataclasses.replace(RunConfig(), name="digits", run_dir=str(folder)), reports=())


def test_confusion_counts_every_test_row_once(tmp_path: Path) -> None:
    """Rows of the matrix sum to the rows of each class."""
    built = built_digits(tmp_path)
    shown = pictures(built, built.model)
    targets = torch.cat([y for _, y in built.test_loader or ()])
    assert [sum(row) for row in shown["confusion"]] == torch.bincount(targets, minlength=10).tolist()


def test_worst_are_the_rows_with_the_largest_loss(tmp_path: Path) -> None:
    """The first is the largest of all, with its 8x8 picture."""
    built = built_digits(tmp_path)
    shown = pictures(built, built.model)
    x, y = (torch.cat(part) for part in zip(*(built.test_loader or ()), strict=True))
    built.model.eval()
    losses = F.cross_entropy(built.model(x), y, reduction="none")
    assert len(shown["worst"]) == NUM_WORST
    assert shown["worst"][0]["row"] == int(losses.argmax())
    assert torch.tensor(shown["worst"][0]["image"]).shape == (8, 8, 1)


def test_looking_leaves_the_model_in_its_mode(tmp_path: Path) -> None:
    """A model in training mode is in training mode afterwards."""
    built = built_digits(tmp_path)
    built.model.train()
    pictures(built, built.model)
    assert built.model.training
