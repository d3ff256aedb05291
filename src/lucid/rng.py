"""Random streams: derive seeds, seed every generator, capture, restore and fork them.

A run has one seed. Every stream in it (row order, augmentation of a row, dropout) starts from a number derived
from that seed and from what the stream is for, never from how many numbers were drawn before.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def derive(*parts: int | str) -> int:
    """Return a seed in [0, 2**63) that depends on all `parts` and on nothing else.

    The same parts give the same seed in every process and on every machine.

    Args:
        parts: numbers and words that say what the stream is for, such as `(seed, "order", epoch)`.

    Example:
        >>> derive(0, "order", 1) == derive(0, "order", 1), derive(0, "order", 1) == derive(0, "order", 2)
        (True, False)
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_all(seed: int) -> None:
    """Seed torch (on every device), NumPy's global generator and `random` from one number.

    Args:
        seed: any whole number; NumPy takes its low 32 bits.
    """
    torch.manual_seed(seed & (2**64 - 1))
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed & (2**32 - 1))


def capture() -> dict[str, Any]:
    """Return the state of every global stream, as plain values and tensors that a checkpoint can hold."""
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state["numpy"] = numpy.random.get_state()
    for kind, module in _device_modules():
        state[kind] = [module.get_rng_state(index) for index in range(module.device_count())]
    return state


def restore(state: dict[str, Any]) -> None:
    """Put every stream back to a state that `capture` returned.

    A device that is not here is left out: its stream cannot matter on this machine.
    """
    torch.set_rng_state(_on_cpu(state["torch"]))
    random.setstate(_as_tuple(state["python"]))
    if "numpy" in state:
        import numpy

        numpy.random.set_state(tuple(state["numpy"]))
    for kind, module in _device_modules():
        for index, one in enumerate(state.get(kind, [])[: module.device_count()]):
            module.set_rng_state(_on_cpu(one), index)


@contextmanager
def fork(seed: int | None = None) -> Iterator[None]:
    """Whatever is drawn inside, the global streams come back as they were, also after an error.

    Args:
        seed: seed every stream with this number inside. None: go on from where they stand.
    """
    before = capture()
    try:
        if seed is not None:
            seed_all(seed)
        yield
    finally:
        restore(before)


def _device_modules() -> list[tuple[str, Any]]:
    """Return (name, module) of each accelerator whose streams have been started in this process."""
    found = []
    for kind in ("cuda", "xpu"):
        module = getattr(torch, kind, None)
        if module is not None and module.is_available() and module.is_initialized():
            found.append((kind, module))
    if torch.backends.mps.is_available():
        found.append(("mps", _Mps))
    return found


class _Mps:
    """`torch.mps` with the shape of `torch.cuda`: one device, indices ignored."""

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def get_rng_state(index: int) -> torch.Tensor:
        return torch.mps.get_rng_state()

    @staticmethod
    def set_rng_state(state: torch.Tensor, index: int) -> None:
        torch.mps.set_rng_state(state)


def _on_cpu(state: torch.Tensor) -> torch.Tensor:
    return state if state.is_cpu else state.cpu()


def _as_tuple(state: Any) -> Any:
    """`random` wants tuples where a file may give lists."""
    version, internal, gauss = state
    return version, tuple(internal), gauss
