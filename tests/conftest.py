"""Every test runs on one thread and leaves the random streams to the test itself."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Seed torch so that a test's data is the same in every run."""
    torch.manual_seed(0)
