"""Norm of the gradient, and three ways to limit it. Nothing here reads a tensor that lives on an accelerator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor

from lucid.errors import ConfigError

Kind = Literal["norm", "value", "adaptive"]

_vector_norm = torch.linalg.vector_norm


def grad_norm(grads: list[Tensor]) -> Tensor:
    """Return the L2 norm of all gradients as if they were one vector, as a tensor () on the first one's device.

    Bit-equal to `torch.nn.utils.get_total_norm`, at half its cost for a handful of tensors. Sparse gradients
    count with their repeated rows added up.

    Args:
        grads: gradients, of any devices, dtypes and layouts. None at all give 0.
    """
    if not grads:
        return torch.zeros(())
    try:
        norm: Tensor = _vector_norm(torch.stack(torch._foreach_norm(grads)))
    except RuntimeError:  # sparse, or on several devices: cheaper to be told than to ask every tensor
        norm = torch.nn.utils.get_total_norm([_values(grad) for grad in grads])
    return norm.detach() if norm.requires_grad else norm


@torch.no_grad()
def clip_by_norm_(grads: list[Tensor], norm: Tensor, max_norm: float) -> None:
    """Scale all gradients in place so that their joint norm is at most `max_norm`.

    Bit-equal to `torch.nn.utils.clip_grad_norm_`: times max_norm / (norm + 1e-6), and that at most 1.

    Args:
        grads: the gradients whose norm `norm` is.
        norm: what `grad_norm` gave for them.
        max_norm: the limit, above 0.
    """
    if norm.device.type == "cpu" and norm < max_norm * 0.999 - 1e-5:
        return  # the factor is 1: known without a sync only on the CPU, where it saves a pass over all gradients
    scale_(grads, norm_factor(norm, max_norm))


def norm_factor(norm: Tensor, max_norm: float) -> Tensor:
    """Return the factor that brings gradients of this norm to at most `max_norm`."""
    return torch.clamp(max_norm / (norm + 1e-6), max=1.0)


def scale_(grads: list[Tensor], factor: Tensor) -> None:
    """Multiply all gradients in place.

    Args:
        grads: gradients, of any devices and dtypes.
        factor: 0-d, on any device.
    """
    for group in _groups(grads):
        torch._foreach_mul_(group, factor.to(group[0].device))


@torch.no_grad()
def clip_by_value_(grads: list[Tensor], limit: float) -> None:
    """Limit every element of every gradient to [-limit, limit], in place.

    Args:
        grads: gradients; of a sparse one, repeated rows are added up first.
        limit: the limit, above 0.
    """
    for grad in grads:
        if grad.is_sparse and not grad.is_coalesced():
            grad.copy_(grad.coalesce())
    for group in _groups([grad._values() if grad.is_sparse else grad for grad in grads]):
        torch._foreach_clamp_min_(group, -limit)
        torch._foreach_clamp_max_(group, limit)


@torch.no_grad()
def clip_adaptive_(params: Iterable[Tensor], ratio: float = 0.01, eps: float = 1e-3) -> None:
    """Limit the gradient of each output unit to a share of its weight's norm, in place.

    A unit is one index of a weight's first dimension; a bias or gain is one unit as a whole.

    Args:
        params: parameters; those without a gradient are left out.
        ratio: largest norm of a unit's gradient over the norm of its weight.
        eps: smallest weight norm that counts, so that weights at zero can move.

    Source: Brock et al. 2021, arXiv:2102.06171, eq. 3.
    """
    for param in params:
        grad = param.grad
        if grad is None:
            continue
        limit = _unit_norm(param).clamp(min=eps) * ratio
        norm = _unit_norm(grad)
        grad.mul_(torch.where(norm > limit, limit / norm, 1.0).to(grad.dtype))


def clip_(params: Sequence[Tensor], grads: list[Tensor], norm: Tensor, limit: float, *, kind: Kind = "norm") -> None:
    """Limit the gradients in place, in one of the three ways.

    Args:
        params: parameters that have a gradient.
        grads: their gradients, in the same order.
        norm: what `grad_norm` gave for them.
        limit: the limit; what it limits depends on `kind`.
        kind: "norm" of all together, "value" of each element, "adaptive" norm of each unit against its weight.

    Raises:
        ConfigError: for another kind.
    """
    if kind == "norm":
        clip_by_norm_(grads, norm, limit)
    elif kind == "value":
        clip_by_value_(grads, limit)
    elif kind == "adaptive":
        clip_adaptive_(params, limit)
    else:
        raise ConfigError(f"clip must be 'norm', 'value' or 'adaptive', got {kind!r}.")


def _values(grad: Tensor) -> Tensor:
    return grad.coalesce().values() if grad.is_sparse else grad


def _groups(grads: Sequence[Tensor]) -> list[list[Tensor]]:
    """Split by device and dtype: one foreach call each."""
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for grad in grads:
        groups.setdefault((grad.device, grad.dtype), []).append(grad)
    return list(groups.values())


def _unit_norm(tensor: Tensor) -> Tensor:
    dims = tuple(range(1, tensor.dim())) or None
    norm: Tensor = _vector_norm(tensor, dim=dims, keepdim=True)
    return norm
