"""Handwritten digits: 1,797 grey images of 8x8, ten classes, as scikit-learn installs them. Real data, no network.

Source: Alpaydin and Kaynak 1998, Optical Recognition of Handwritten Digits, UCI; the test part.
"""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import numpy
import torch

from lucid.datasets.bundle import DataBundle
from lucid.datasets.images import from_images
from lucid.errors import DataError


def load_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return pixels (1797, 1, 8, 8) float32 in [0, 1] and classes (1797,) int64.

    Raises:
        DataError: scikit-learn is not installed.
    """
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        raise DataError("the data set 'digits' comes with scikit-learn: pip install 'lucid-loop[demo]'.")
    path = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(path, "rt") as file:
        table = numpy.loadtxt(file, delimiter=",", dtype=numpy.float32)
    return torch.from_numpy(table[:, :64].reshape(-1, 1, 8, 8)) / 16, torch.from_numpy(table[:, 64]).long()


def digits(*, validation: float, test: float, split_seed: int) -> DataBundle:
    """Return the digits, split so that each class keeps its proportion."""
    x, y = load_digits()
    names = [str(digit) for digit in range(10)]
    return from_images(x, y, names, validation=validation, test=test, split_seed=split_seed, scale=16.0)
