"""An optimizer that does not load torch's compiler.

Torch wraps four methods of its optimizers so that `torch.compile` leaves them alone, and the wrapper loads the whole
compiler, which takes about as long as torch itself. Where the compiler was never loaded nobody can be compiling, so the
wrapper has nothing to do.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import _compile

_WRAPPERS = _compile.__file__


class QuickStart(torch.optim.Optimizer):
    """Mixed in before a torch optimizer."""

    def state_dict(self) -> Any:
        """Return the state as torch does."""
        return _unwrapped(super().state_dict)()

    def load_state_dict(self, state_dict: Any) -> None:
        """Take over a state as torch does."""
        _unwrapped(super().load_state_dict)(state_dict)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, or set them to zero."""
        _unwrapped(super().zero_grad)(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group as torch does."""
        _unwrapped(super().add_param_group)(param_group)


def _unwrapped(method: Any) -> Any:
    """Return the method without torch's wrapper, if that is what is around it and the compiler is not loaded."""
    function = method.__func__
    if "torch._dynamo" in sys.modules or function.__code__.co_filename != _WRAPPERS:
        return method
    return function.__wrapped__.__get__(method.__self__)
