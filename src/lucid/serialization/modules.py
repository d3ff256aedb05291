"""Names of a model's tensors: always the plain model's, whatever wraps it or parts of it."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, cast

import torch

from lucid.errors import MismatchError, nearest

COMPILED = "_orig_mod."


def unwrap(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model inside `torch.compile` and the data-parallel wrappers."""
    inner: Any = model
    while True:
        if isinstance(inner, torch.nn.DataParallel | torch.nn.parallel.DistributedDataParallel):
            inner = inner.module
        elif isinstance(getattr(inner, "_orig_mod", None), torch.nn.Module):
            inner = inner._orig_mod
        else:
            return cast(torch.nn.Module, inner)


def model_state(model: torch.nn.Module) -> OrderedDict[str, Any]:
    """Return the `state_dict` of a model under the plain model's names; the tensors are the live ones.

    `torch.compile` on the model or on parts of it, DDP and `DataParallel` leave no trace in the names.
    """
    state = cast(OrderedDict[str, Any], unwrap(model).state_dict())
    if not any(COMPILED in name for name in state):
        return state
    plain = OrderedDict((name.replace(COMPILED, ""), value) for name, value in state.items())
    plain._metadata = getattr(state, "_metadata", None)  # type: ignore[attr-defined]
    return plain


def load_model_state(model: torch.nn.Module, state: dict[str, Any]) -> None:
    """Load a state with plain names into a model, wrapped or not.

    Raises:
        MismatchError: a tensor is missing, unexpected or of another shape; nothing has been loaded.
    """
    inner = unwrap(model)
    names = {name.replace(COMPILED, ""): name for name in inner.state_dict()}
    given = {name.replace(COMPILED, ""): value for name, value in state.items()}
    missing = [name for name in names if name not in given]
    unexpected = [name for name in given if name not in names]
    problems = [f"missing: {name!r}.{nearest(name, unexpected)}" for name in missing]
    problems += [f"unexpected: {name!r}.{nearest(name, missing)}" for name in unexpected]
    live = inner.state_dict()
    for name, value in given.items():
        target = live.get(names.get(name, ""))
        if isinstance(target, torch.Tensor) and isinstance(value, torch.Tensor) and target.shape != value.shape:
            problems.append(f"{name!r} has shape {tuple(value.shape)}, the model expects {tuple(target.shape)}")
    if problems:
        more = f"\n  and {len(problems) - 10} more" if len(problems) > 10 else ""
        raise MismatchError("the state does not fit the model:\n  " + "\n  ".join(problems[:10]) + more)
    loaded = OrderedDict((names[name], value) for name, value in given.items())
    metadata = getattr(inner.state_dict(), "_metadata", None)
    loaded._metadata = getattr(state, "_metadata", metadata)  # type: ignore[attr-defined]
    inner.load_state_dict(loaded)
