"""Lucid: the complete supervised training loop on PyTorch.

Names load when they are first used, so `import lucid` is quick and loads no torch. A name that is not Lucid's own is
torch's: `lucid.randn`, `lucid.bfloat16` and `lucid.nn` are torch's objects.
"""

from __future__ import annotations

import gc
import importlib
from typing import Any

from lucid import _mirror

__version__ = "0.1.0"

_mirror.install()

# Lucid's own names and the module that has each.
_OWN = {
    "Callback": "lucid.callbacks",
    "EMA": "lucid.callbacks",
    "EarlyStopping": "lucid.callbacks",
    "Result": "lucid.trainer",
    "Run": "lucid.run",
    "SWA": "lucid.callbacks",
    "TrainConfig": "lucid.config",
    "Trainer": "lucid.trainer",
    "evaluate": "lucid.evaluation",
    "load": "lucid.serialization",
    "load_model": "lucid.trained",
    "metal_if_available": "lucid.devices",
    "save": "lucid.serialization",
    "seed_everything": "lucid.rng:seed_all",
}
# Lucid's own modules that are reached as attributes.
_MODULES = (
    "amp",
    "callbacks",
    "check",
    "config",
    "dashboard",
    "datasets",
    "distributed",
    "errors",
    "finders",
    "metrics",
    "models",
    "optim",
    "records",
    "replay",
    "report",
    "rng",
    "serialization",
    "utils",
)

__all__ = ["__version__", *sorted([*_OWN, *_MODULES])]


def __getattr__(name: str) -> Any:
    if name in _OWN:
        module, _, attribute = _OWN[name].partition(":")
        value = getattr(_load(module), attribute or name)
    elif name in _MODULES:
        value = _load(f"lucid.{name}")
    elif name.startswith("__"):
        raise AttributeError(f"module 'lucid' has no attribute {name!r}")
    else:
        value = _torch_name(name)
    globals()[name] = value
    return value


def _load(module: str) -> Any:
    """Import a module of ours. No garbage is looked for meanwhile: going through torch's objects takes longer."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        if was_enabled:
            gc.enable()


def _torch_name(name: str) -> Any:
    import torch

    try:
        return getattr(torch, name)
    except AttributeError:
        from lucid.errors import nearest

        hint = nearest(name, [*_OWN, *_MODULES, *dir(torch)])
        raise AttributeError(f"neither lucid nor torch has a name {name!r}.{hint}") from None


def __dir__() -> list[str]:
    return __all__
