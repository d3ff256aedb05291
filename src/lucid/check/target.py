"""The user's factory: how it is found by name, and what it must return."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lucid.errors import ConfigError, nearest
from lucid.trainer import Trainer


@dataclass(slots=True)
class Target:
    """What is checked."""

    trainer: Trainer
    train_loader: Any
    eval_loader: Any = None


@dataclass(frozen=True, slots=True)
class Named:
    """A factory by its place: "train.py:make_trainer" or "package.module:make_trainer". Can go to another process.

    Args:
        place: file or module, a colon, and the name of the factory in it.
    """

    place: str

    def __call__(self) -> Any:
        return self.find()()

    def find(self) -> Callable[[], Any]:
        """Return the factory.

        Raises:
            ConfigError: if there is no such file, module or name.
        """
        where, _, name = self.place.rpartition(":")
        if not where or not name:
            raise ConfigError(
                f'the factory must be given as "file.py:function" or "module:function", got {self.place!r}.'
            )
        module = _load_file(Path(where)) if where.endswith(".py") else _load_module(where)
        if not callable(getattr(module, name, None)):
            raise ConfigError(f"{where} has no function {name!r}.{nearest(name, dir(module))}")
        return getattr(module, name)  # type: ignore[no-any-return]


def _load_file(path: Path) -> Any:
    path = path.resolve()
    if not path.exists():
        raise ConfigError(f"there is no file {path}.")
    known = f"_lucid_checked_{path.stem}"
    if known in sys.modules:
        return sys.modules[known]
    spec = importlib.util.spec_from_file_location(known, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} must be a Python file.")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[known] = module
    spec.loader.exec_module(module)
    return module


def _load_module(name: str) -> Any:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"there is no module {name!r}: {error}.") from error


def make(factory: Callable[[], Any]) -> Target:
    """Call the factory.

    Raises:
        ConfigError: if it does not return a trainer and its data.
    """
    made = factory()
    if isinstance(made, tuple) and len(made) in (2, 3) and isinstance(made[0], Trainer):
        return Target(*made)
    trainer = made if isinstance(made, Trainer) else getattr(made, "trainer", None)
    loader = getattr(made, "train_loader", None)
    if isinstance(trainer, Trainer) and loader is not None:
        return Target(trainer, loader, getattr(made, "eval_loader", None))
    raise ConfigError(
        "the factory must return (trainer, train_loader) or (trainer, train_loader, eval_loader), or an object with "
        f"these as attributes, got {type(made).__name__}."
    )
