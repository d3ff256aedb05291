"""Random generators that samplers and data sets hold themselves: found and seeded.

The global streams are not all: `numpy.random.default_rng(0)` in an attribute is just as common, and its numbers would
depend on everything drawn before.
"""

from __future__ import annotations

import random
import types
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch

from lucid import rng

_KINDS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_LEAVES = (str, bytes, int, float, complex, torch.Tensor, np.ndarray, type, types.ModuleType, types.FunctionType)
AMBIENT = (torch.default_generator, np.random.mtrand._rand, getattr(random, "_inst", None))
"""The generators behind the global functions."""
_LEVELS = 8  # subset -> data set -> transform -> its list -> one of them -> generator
_WIDTH = 64  # parts looked at per object: enough for transforms, cheap for a list of a million rows
_OBJECTS = 4096  # objects looked at in all


class OwnGenerators:
    """The generators that an object holds in its attributes, a few levels deep.

    Args:
        holder: sampler or data set to look through; it is not changed by looking.
        skip: objects not to look into.
    """

    def __init__(self, holder: object, skip: Sequence[object] = ()) -> None:
        self.found = list(_find(holder, skip))
        self._names = [one.initial_seed() if isinstance(one, torch.Generator) else 0 for one in self.found]

    def seed(self, seed: int) -> None:
        """Put each generator where this seed begins; each gets a stream of its own, and the user's seed counts."""
        for number, generator in enumerate(self.found):
            own = rng.derive(seed, number, self._names[number])
            if isinstance(generator, torch.Generator):
                generator.manual_seed(own)
            elif isinstance(generator, np.random.Generator):
                generator.bit_generator.state = type(generator.bit_generator)(own).state
            elif isinstance(generator, np.random.RandomState):
                generator.seed(own & (2**32 - 1))
            else:
                generator.seed(own)

    def capture(self) -> list[Any]:
        """Return the state of each generator."""
        states: list[Any] = []
        for generator in self.found:
            if isinstance(generator, torch.Generator | np.random.RandomState):
                states.append(generator.get_state())
            elif isinstance(generator, np.random.Generator):
                states.append(generator.bit_generator.state)
            else:
                states.append(generator.getstate())
        return states

    def restore(self, states: list[Any]) -> None:
        """Put each generator back to what `capture` returned."""
        for generator, state in zip(self.found, states, strict=True):
            if isinstance(generator, torch.Generator | np.random.RandomState):
                generator.set_state(state)
            elif isinstance(generator, np.random.Generator):
                generator.bit_generator.state = state
            else:
                generator.setstate(state)


def _find(holder: object, skip: Sequence[object]) -> Iterator[Any]:
    seen = {id(one) for one in (*AMBIENT, *skip)}
    level: list[Any] = [holder]
    for _ in range(_LEVELS):
        below = []
        for part in (part for one in level for part in _parts(one)):
            if id(part) in seen or isinstance(part, _LEAVES) or len(seen) > _OBJECTS:
                continue
            seen.add(id(part))
            if isinstance(part, _KINDS) and not isinstance(part, random.SystemRandom):
                yield part
            else:
                below.append(part)
        level = below


def _parts(thing: Any) -> list[Any]:
    if isinstance(thing, list | tuple):
        return list(islice(thing, _WIDTH))
    values = thing if isinstance(thing, dict) else getattr(thing, "__dict__", {})
    return list(islice(values.values(), _WIDTH))


def pack_states(states: list[Any]) -> list[Any]:
    """Return generator states as values that a checkpoint holds: NumPy has whole numbers of 128 bits in them."""
    return [_map_leaves(state, lambda leaf: hex(leaf) if _is_large(leaf) else leaf) for state in states]


def unpack_states(states: list[Any]) -> list[Any]:
    """Return what `pack_states` was given."""
    return [_map_leaves(state, lambda leaf: int(leaf, 16) if _is_hex(leaf) else leaf) for state in states]


def _is_large(leaf: Any) -> bool:
    return type(leaf) is int and leaf >= 2**63


def _is_hex(leaf: Any) -> bool:
    return isinstance(leaf, str) and leaf.startswith("0x")


def _map_leaves(tree: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(tree, dict):
        return {key: _map_leaves(value, change) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_map_leaves(value, change) for value in tree)
    return change(tree)
