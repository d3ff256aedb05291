"""State in the user's own objects: attributes, closures and module globals that a run may move and no checkpoint holds.

It is only read: which of it differs says why a broken run differs from an unbroken one.
"""

from __future__ import annotations

import inspect
import random
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from lucid.check.digest import Digests, digest
from lucid.check.target import Target

_DEPTH = 4
_ITEMS = 64
_BYTES = 1 << 22
_LIBRARIES = ("torch", "numpy", "lucid", "builtins", "random", "collections", "functools", "threading", "_thread", "io",
              "logging", "pathlib", "re", "typing", "multiprocessing")  # fmt: skip
_SAVED = ("state", "param_groups", "defaults", "param_names")
_GENERATORS = (np.random.Generator, np.random.RandomState, torch.Generator, random.Random)
_PLAIN = (int, float, str, bool, bytes, complex, type(None))


def scan(target: Target) -> Digests:
    """Return the hash of each piece of state that can be reached from the user's objects, by name."""
    walk = _Walk(set(map(id, target.trainer.model.modules())))
    for name, thing in _roots(target):
        walk.visit(thing, name, 0)
    return walk.found


def _roots(target: Target) -> Iterator[tuple[str, Any]]:
    trainer = target.trainer
    for role, loader in (("", target.train_loader), ("eval ", target.eval_loader)):
        for part in ("dataset", "sampler", "batch_sampler", "collate_fn"):
            thing = getattr(loader, part, None)
            if thing is not None:
                yield f"{role}{part}", thing
    yield "model", trainer.model
    for optimizer in trainer.optimizers:
        if not _is_library(type(optimizer)):  # torch's keep everything in `state` and `param_groups`
            for key, value in vars(optimizer).items():
                if key not in _SAVED and not key.startswith("_"):
                    yield f"optimizer.{key}", value
    forward = trainer.forward
    for name in ("loss", "function", "eval_step"):
        thing = getattr(forward, name, None)
        if thing is not None:
            yield {"loss": "loss", "function": "train_step"}.get(name, name), thing
    for callback in trainer.callbacks:
        yield f"callback {type(callback).__name__}", callback
    for name, metric in trainer.metrics.items():
        yield f"metric {name}", metric


class _Walk:
    """One walk over objects; each is looked at once."""

    def __init__(self, saved: set[int]) -> None:
        self._saved = saved
        """Modules whose parameters and buffers are in the checkpoint."""
        self.found: Digests = {}
        self._seen: set[int] = set()

    def visit(self, thing: Any, name: str, depth: int) -> None:
        """Write down what this thing holds."""
        if isinstance(thing, _PLAIN):
            self.found[name] = repr(thing)[:80]
            return
        if id(thing) in self._seen or depth > _DEPTH:
            return
        self._seen.add(id(thing))
        if isinstance(thing, _GENERATORS):
            self.found[name] = digest(_generator_state(thing))
        elif isinstance(thing, torch.Tensor | np.ndarray):
            if thing.nbytes <= _BYTES and str(thing.dtype) != "object":
                self.found[name] = digest(thing)
        elif isinstance(thing, types.MethodType):
            self.visit(thing.__self__, name, depth)
            self._function(cast(types.FunctionType, thing.__func__), name, depth)
        elif isinstance(thing, types.FunctionType):
            self._function(thing, name, depth)
        elif isinstance(thing, Mapping):
            self._items(list(thing.items()), name, depth)
        elif isinstance(thing, list | tuple | set | frozenset):
            self._items(list(enumerate(thing)), name, depth)
        elif isinstance(thing, nn.Module):
            self._module(thing, name, depth)
        elif not isinstance(thing, type | types.ModuleType):
            self._object(thing, name, depth)

    def _items(self, items: list[tuple[Any, Any]], name: str, depth: int) -> None:
        self.found[f"{name} (length)"] = str(len(items))
        for key, item in items[:_ITEMS]:
            self.visit(item, f"{name}[{key!r}]", depth + 1)

    def _module(self, module: nn.Module, name: str, depth: int) -> None:
        own = set(nn.Module().__dict__) | {"training"}
        for inner, part in module.named_modules():
            place = f"{name}.{inner}" if inner else name
            if id(part) not in self._saved:
                for key, tensor in {**part._parameters, **part._buffers}.items():
                    self.visit(tensor, f"{place}.{key}", depth + 1)
            for key, value in vars(part).items():
                if key not in own:
                    self.visit(value, f"{place}.{key}", depth + 1)
            self._class(type(part), place, depth)

    def _object(self, thing: Any, name: str, depth: int) -> None:
        kind = type(thing)
        if kind.__module__ == "itertools":
            self.found[name] = repr(thing)
            return
        if _is_library(kind) and not isinstance(thing, torch.utils.data.Dataset | torch.utils.data.Sampler):
            return
        for key, value in getattr(thing, "__dict__", {}).items():
            self.visit(value, f"{name}.{key}", depth + 1)
        self._class(kind, name, depth)

    def _class(self, kind: type, name: str, depth: int) -> None:
        """State at the class, and what its methods reach."""
        for base in kind.__mro__:
            if _is_library(base):
                continue
            for key, value in vars(base).items():
                if isinstance(value, types.FunctionType):
                    if id(value) not in self._seen:
                        self._seen.add(id(value))
                        self._function(value, name, depth)
                elif not key.startswith("__") and isinstance(value, _PLAIN + _GENERATORS + (list, dict)):
                    self.visit(value, f"{base.__name__}.{key}", depth + 1)

    def _function(self, function: types.FunctionType, name: str, depth: int) -> None:
        """What a function keeps: cells of its closure, attributes, defaults, and the globals that it names."""
        if function.__module__ and function.__module__.split(".")[0] in _LIBRARIES:
            return
        for key, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            try:
                self.visit(cell.cell_contents, f"{name}.{key}", depth + 1)
            except ValueError:  # not set yet
                continue
        for key, value in vars(function).items():
            self.visit(value, f"{name}.{key}", depth + 1)
        for index, value in enumerate(function.__defaults__ or ()):
            self.visit(value, f"{name} (default {index})", depth + 1)
        for key in _names(function.__code__):
            value = function.__globals__.get(key)
            if isinstance(value, _PLAIN + _GENERATORS + (list, dict, np.ndarray, torch.Tensor)) and value is not None:
                self.visit(value, f"{_module_name(function)}.{key}", depth + 1)
            elif isinstance(value, types.FunctionType) and id(value) not in self._seen and depth < _DEPTH:
                self._seen.add(id(value))
                self._function(value, key, depth + 1)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _module_name(function: types.FunctionType) -> str:
    module = inspect.getmodule(function) or sys.modules.get(function.__module__)
    return (getattr(module, "__name__", "") or "globals").removeprefix("_lucid_checked_")


def _generator_state(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return repr(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState | torch.Generator):
        return generator.get_state()
    return generator.getstate()


def _is_library(kind: type) -> bool:
    return kind.__module__.split(".")[0] in _LIBRARIES
