"""Mixed precision: torch's tools that find their device, and `Precision`, which is all of them in one object.

| file | question it answers |
|---|---|
| `tools.py` | `autocast` and `GradScaler` for a hand-written loop |
| `precision.py` | `Precision`: which precision, and everything a step does because of it |

Any other name is `torch.amp`'s own.
"""

from __future__ import annotations

from typing import Any

import torch

from lucid.amp.precision import Precision
from lucid.amp.tools import GradScaler, autocast

__all__ = ["GradScaler", "Precision", "autocast"]


def __getattr__(name: str) -> Any:
    return getattr(torch.amp, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *dir(torch.amp)})
