"""Gradient checkpointing (`checkpoint`, `checkpoint_blocks`) and the data pipeline (`data`).

`checkpoint` is the function, so that `from lucid.utils import checkpoint` is all it takes. Any other name is
`torch.utils`' own.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch.utils

from lucid.utils.checkpoint import checkpoint, checkpoint_blocks

__all__ = ["checkpoint", "checkpoint_blocks", "data"]


def __getattr__(name: str) -> Any:
    if name == "data":
        return importlib.import_module("lucid.utils.data")
    if hasattr(torch.utils, name):
        return getattr(torch.utils, name)
    try:
        return importlib.import_module(f"torch.utils.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"torch.utils.{name}":
            raise
        raise AttributeError(f"module 'lucid.utils' has no attribute {name!r}, and neither has torch.utils") from None


def __dir__() -> list[str]:
    return sorted({*__all__, *dir(torch.utils)})
