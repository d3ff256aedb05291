"""Names and hashes of all that a run is made of, in the order in which a difference would spread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import xxhash
from torch import nn

from lucid import rng
from lucid.callbacks import Callbacks
from lucid.serialization import unwrap
from lucid.state import TrainState

Digests = dict[str, str]


def digest(value: Any) -> str:
    """Return a hash over every bit, dtype, shape and name of a nested value."""
    found = xxhash.xxh3_64()
    _feed(found, value)
    return found.hexdigest()


def _feed(found: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        dense = value.detach().cpu()
        dense = (dense.coalesce().to_dense() if dense.is_sparse else dense).contiguous().resolve_conj()
        found.update(f"{dense.dtype}{tuple(dense.shape)}".encode())
        found.update(dense.flatten().view(torch.uint8).numpy())
    elif isinstance(value, np.ndarray) and value.dtype != object:
        found.update(f"{value.dtype}{value.shape}".encode())
        found.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, Mapping):
        for name, item in value.items():
            found.update(repr(name).encode())
            _feed(found, item)
    elif isinstance(value, list | tuple):
        found.update(f"[{len(value)}".encode())
        for item in value:
            _feed(found, item)
    else:
        found.update(repr(value).encode())


def leaves(value: Any, name: str) -> Digests:
    """Return the hash of each tensor or plain value in a batch, by its path."""
    if isinstance(value, Mapping):
        items: Any = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    else:
        return {name: digest(value)}
    found: Digests = {}
    for key, item in items:
        found |= leaves(item, f"{name}.{key}")
    return found


def streams() -> Digests:
    """Return the hash of each global random stream."""
    return {f"rng.{name}": digest(value) for name, value in rng.capture().items()}


def modes(model: nn.Module) -> Digests:
    """Return the mode of each module."""
    named = unwrap(model).named_modules()
    return {f"mode of {name or type(module).__name__}": str(module.training) for name, module in named}


def weights(model: nn.Module) -> Digests:
    """Return the hash of each parameter and buffer; buffers that no checkpoint holds are marked."""
    found, inner = {}, unwrap(model)
    saved = set(inner.state_dict())
    for name, value in [*inner.named_parameters(), *inner.named_buffers()]:
        found[f"model.{name}" + ("" if name in saved else " (not in state_dict)")] = digest(value)
    return found


def optimizers(state: TrainState) -> Digests:
    """Return settings and state of each optimizer, with the names of the parameters."""
    names = {id(p): name for name, p in unwrap(state.model).named_parameters()}
    found: Digests = {}
    for number, optimizer in enumerate(state.optimizers):
        prefix = "optimizer" if len(state.optimizers) == 1 else f"optimizer{number}"
        for index, group in enumerate(optimizer.param_groups):
            place = prefix if len(optimizer.param_groups) == 1 else f"{prefix}.group{index}"
            found |= {f"{place}.{k}": repr(v) for k, v in group.items() if k not in ("params", "param_names")}
            for parameter in group["params"]:
                for key, value in optimizer.state.get(parameter, {}).items():
                    found[f"{prefix}.state.{key} of {names.get(id(parameter), 'a parameter')}"] = digest(value)
        extra = set(optimizer.state_dict()) - {"state", "param_groups"}
        found |= {f"{prefix}.{key}": digest(optimizer.state_dict()[key]) for key in extra}
    return found


def gradients(state: TrainState) -> Digests:
    """Return the hash of each gradient."""
    named = unwrap(state.model).named_parameters()
    return {f"gradient of {name}": digest(p.grad) for name, p in named if p.grad is not None}


def whole(state: TrainState, callbacks: Callbacks) -> Digests:
    """Return everything that a run is made of between two steps."""
    tree = state.state_dict()
    found = streams() | modes(state.model) | weights(state.model) | optimizers(state)
    for index, one in enumerate(tree["scheduler"]):
        name = type(state.schedulers[index]).__name__
        found |= {f"scheduler.{name}.{key}": digest(value) for key, value in one.items()}
    for part in ("precision", "progress", "best", "metrics", "meters"):
        found |= {f"{part}.{key}": digest(value) for key, value in tree[part].items()}
    for name, one in callbacks.state_dict().items():
        items = one.items() if isinstance(one, Mapping) else [("state", one)]
        found |= {f"callbacks.{name}.{key}": digest(value) for key, value in items}
    return found
