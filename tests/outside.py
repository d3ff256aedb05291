"""Models of timm and torchvision for the tests: in a folder of their own, as their presence changes other libraries.

`make` installs them beside the environment. torchvision as PyPI has it is built for CUDA: with a torch that has none
its compiled operators do not load, and it then describes two that are not there. Declared here, they let it be
imported; the models use neither.

python tests/outside.py SCRIPT ARGUMENTS        # runs a script with both
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(sys.prefix) / "outside"


def find() -> None:
    """Put timm and torchvision on the path, or skip the test."""
    if FOLDER.is_dir() and str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    for name in ("timm", "torchvision"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name} in {FOLDER}: make setup")


def load() -> None:
    """Make timm and torchvision importable, or skip the test."""
    find()
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
        import torch

        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float threshold) -> Tensor")
        importlib.import_module("torchvision")


if __name__ == "__main__":
    load()
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
