"""What a forward pass changes besides gradients: the model's buffers, kept so that a step can be taken back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase


class Buffers:
    """Keeps the buffers that move, such as the running averages of BatchNorm, until the step is known to stand.

    Buffers that never change (masks, tables of positions) are not copied: those that moved in one window are copied
    from the next one on, and all of them in the first.

    Args:
        model: its buffers are looked up anew each time, since modules may replace them.
    """

    def __init__(self, model: nn.Module) -> None:
        found = [(module, name) for module in model.modules() for name in module._buffers]
        self._places = [(module._buffers, name) for module, name in found]
        # torch's kernels write running averages without counting a version up: those always count as moving.
        self._always = {i for i, (module, _) in enumerate(found) if isinstance(module, _NormBase)}
        self.any = bool(self._places)
        """Whether there are buffers at all."""
        self._seen: list[tuple[Tensor | None, int]] | None = None
        self._moving: set[int] = set(range(len(self._places)))
        self._kept: list[tuple[int, Tensor]] = []

    def keep(self) -> None:
        """Remember the buffers as they are: the forward passes of a window follow."""
        now: list[tuple[Tensor | None, int]] = []
        for buffers, name in self._places:
            tensor = buffers.get(name)
            now.append((tensor, -1 if tensor is None else tensor._version))
        if self._seen is not None:
            if len(self._moving) == len(now):
                self._moving = set(self._always)
            self._moving |= {i for i, (old, new) in enumerate(zip(self._seen, now, strict=True)) if _moved(old, new)}
        self._seen = now
        self._kept = [(i, tensor.clone()) for i in self._moving if (tensor := now[i][0]) is not None]

    @torch.no_grad()
    def restore(self) -> None:
        """Put the buffers back to what they were at `keep`."""
        for index, value in self._kept:
            buffers, name = self._places[index]
            live: Any = buffers[name]
            live.copy_(value)


def _moved(old: tuple[Tensor | None, int], new: tuple[Tensor | None, int]) -> bool:
    return old[0] is not new[0] or old[1] != new[1]
