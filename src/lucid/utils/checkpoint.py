"""Gradient checkpointing: recompute a block in the backward pass instead of keeping its activations.

`lucid.utils.checkpoint` is the function; `from lucid.utils.checkpoint import ...` has torch's other names as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Literal

import torch
from torch import nn
from torch.utils import checkpoint as _of_torch

from lucid.errors import ConfigError

Policy = Literal["all"] | int | Callable[[str, nn.Module], bool]


def checkpoint(fn: Callable[..., Any], *args: Any, use_reentrant: bool = False, **kwargs: Any) -> Any:
    """Return `fn(*args, **kwargs)` without keeping what its backward needs; it is computed again then.

    Parameters inside get their gradients, dropout draws the same numbers again and autocast is as it was.

    Args:
        fn: a module or function; called twice, so it must not count or store anything.
        *args: its arguments.
        use_reentrant: torch's older way; it loses parameter gradients when no input needs one.
        **kwargs: its keyword arguments, and torch's own options (`preserve_rng_state`, `context_fn`,
            `determinism_check`, `debug`, `early_stop`).

    Source: Chen et al. 2016, arXiv:1604.06174.
    """
    return _of_torch.checkpoint(fn, *args, use_reentrant=use_reentrant, **kwargs)


def checkpoint_blocks(
    model: nn.Module, policy: Policy = "all", *, blocks: type[nn.Module] | tuple[type[nn.Module], ...] | None = None
) -> list[str]:
    """Checkpoint the repeated blocks of a model, in place; parameter names and results stay as they are.

    Args:
        model: what to change.
        policy: "all" blocks; every n-th one (a number: 2 keeps the activations of every other block); or a function
            of name and block that says which.
        blocks: classes that count as a block. None: the members of the largest `ModuleList` or `Sequential` whose
            members are all of one class.

    Returns:
        Names of the checkpointed blocks. Calling again with other settings replaces them.

    Raises:
        ConfigError: if there are no repeated blocks, or the policy is none of these.
    """
    candidates = list(_of_class(model, blocks) if blocks is not None else _repeated(model))
    if not candidates:
        sought = "no list of equal blocks" if blocks is None else f"no module of class {blocks}"
        raise ConfigError(
            f"checkpoint_blocks found {sought} in {type(model).__name__}. Name their class with `blocks=`."
        )
    chosen = _pick(candidates, policy)
    for module in model.modules():
        if isinstance(module, _Checkpointed):
            _set_class(module, module._checkpointed_class)
    for _, block in chosen:
        _set_class(block, _checkpointed(type(block)))
    return [name for name, _ in chosen]


class _Checkpointed(nn.Module):
    """Put in front of a block's class: its forward runs under `checkpoint` when gradients are wanted."""

    _checkpointed_class: type[nn.Module]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        forward = super().forward
        return checkpoint(forward, *args, **kwargs) if torch.is_grad_enabled() else forward(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _rebuild, (self._checkpointed_class,), self.__dict__


def _set_class(module: nn.Module, cls: type[nn.Module]) -> None:
    object.__setattr__(module, "__class__", cls)


def _checkpointed(cls: type[nn.Module]) -> type[nn.Module]:
    return _checkpointed_once(cls)  # type: ignore[arg-type]  # nn.Module hides that classes can be hashed


@cache
def _checkpointed_once(cls: Any) -> type[nn.Module]:
    return type(cls.__name__, (_Checkpointed, cls), {"_checkpointed_class": cls, "__module__": cls.__module__})


def _rebuild(cls: type[nn.Module]) -> nn.Module:
    made = _checkpointed(cls)
    return made.__new__(made)


def _of_class(
    model: nn.Module, blocks: type[nn.Module] | tuple[type[nn.Module], ...]
) -> Iterator[tuple[str, nn.Module]]:
    return ((name, module) for name, module in model.named_modules() if isinstance(module, blocks) and name)


def _repeated(model: nn.Module) -> list[tuple[str, nn.Module]]:
    best: list[tuple[str, nn.Module]] = []
    for name, module in model.named_modules():
        members = list(module.named_children()) if isinstance(module, nn.ModuleList | nn.Sequential) else []
        classes = {getattr(child, "_checkpointed_class", type(child)) for _, child in members}
        if len(members) > max(1, len(best)) and len(classes) == 1:
            best = [(f"{name}.{key}" if name else key, child) for key, child in members]
    return best


def _pick(candidates: list[tuple[str, nn.Module]], policy: Policy) -> list[tuple[str, nn.Module]]:
    if policy == "all":
        return candidates
    if callable(policy):
        return [(name, block) for name, block in candidates if policy(name, block)]
    if isinstance(policy, int) and not isinstance(policy, bool) and policy >= 1:
        return candidates[policy - 1 :: policy]
    raise ConfigError(f"checkpoint_blocks policy must be 'all', a number from 1, or a function, got {policy!r}.")


def __getattr__(name: str) -> Any:
    return getattr(_of_torch, name)
