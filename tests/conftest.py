"""Every test runs on one thread and leaves the random streams to the test itself."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy
import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Seed torch so that a test's data is the same in every run."""
    torch.manual_seed(0)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the bytes of each read of a checkpoint."""
    counts: list[int] = []
    preadv = os.preadv

    def count(fd: int, views: Sequence[Any], offset: int) -> int:
        counts.append(preadv(fd, views, offset))
        return counts[-1]

    monkeypatch.setattr(os, "preadv", count)
    return counts


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder of small colour images, twelve of each of three kinds, whose brightest quarter is the kind's."""
    pil = pytest.importorskip("PIL.Image")
    generator = numpy.random.default_rng(0)
    for kind, name in enumerate("xyz"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(12):
            pixels = generator.integers(0, 90, (16, 16, 3), dtype=numpy.uint8)
            pixels[8 * (kind // 2) :, 8 * (kind % 2) :][:8, :8] += 150
            pil.fromarray(pixels).save(tmp_path / "images" / name / f"{number}.png")
    return tmp_path / "images"
