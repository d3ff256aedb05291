"""Make `lucid.<module>` be `torch.<module>` wherever Lucid has no module of its own.

`import lucid.nn.functional as F` then imports torch's module, the same object, under the second name.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

_HERE = Path(__file__).parent


class _TorchLoader(Loader):
    """Hands out the torch module of the same name instead of running a file."""

    def __init__(self, name: str) -> None:
        self._module = importlib.import_module(name)
        self._spec = self._module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has just put its own there


class TorchFinder(MetaPathFinder):
    """Finds `lucid.a.b` in torch unless Lucid has a file of that name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for torch's module of this name, or None to let the usual import go on."""
        package, _, rest = fullname.partition(".")
        if package != "lucid" or not rest or _is_own(rest):
            return None
        name = f"torch.{rest}"
        try:
            found = importlib.util.find_spec(name)
        except ImportError:
            return None
        return ModuleSpec(fullname, _TorchLoader(name)) if found else None


def _is_own(name: str) -> bool:
    place = _HERE.joinpath(*name.split("."))
    return place.with_suffix(".py").exists() or (place / "__init__.py").exists()


def install() -> None:
    """Put the finder in front, once: behind, a mirrored package's own path would import torch's files again."""
    if not any(isinstance(finder, TorchFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, TorchFinder())
