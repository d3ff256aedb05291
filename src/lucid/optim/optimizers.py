"""Torch's optimizers that take the fused kernel where the parameters allow it.

On a CPU the fused AdamW is 4 to 8 times faster than torch's default loop over tensors. The numbers they compute
are torch's; only the choice of kernel is made here, and only if the caller made none.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

from lucid.errors import ConfigError
from lucid.optim._direct import DirectAdagrad, DirectSGD, DirectStep
from lucid.optim._startup import QuickStart


class _ChoosesKernel(QuickStart):
    """Mixed in before a torch optimizer with a `fused` argument."""

    _chose_fused = False

    def __init__(self, params: Any, *args: Any, **kwargs: Any) -> None:
        params = [_listed(item) for item in params]
        given = inspect.signature(super().__init__).bind_partial(params, *args, **kwargs).arguments
        is_open = given.get("fused") is None and given.get("foreach") is None
        self._chose_fused = (
            is_open and not (given.get("capturable") or given.get("differentiable")) and can_fuse(params)
        )
        if self._chose_fused:
            kwargs["fused"] = True
        super().__init__(params, *args, **kwargs)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state; a kernel chosen here stays chosen, also if another was in use when it was saved."""
        if self._chose_fused:
            groups = [{**group, "fused": True, "foreach": None} for group in state_dict["param_groups"]]
            state_dict = {**state_dict, "param_groups": groups}
        super().load_state_dict(state_dict)

    def _init_group(self, group: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        found = super()._init_group(group, *args, **kwargs)  # type: ignore[misc]
        if (
            self._chose_fused
            and group["fused"]
            and any(p.grad is not None and p.grad.is_sparse for p in group["params"])
        ):
            self._leave_fused()
        return found

    def _leave_fused(self) -> None:
        """Sparse gradients have no fused kernel, which the parameters could not tell."""
        if getattr(self, "found_inf", None) is not None:  # left here by GradScaler.step for the fused kernel
            name = type(self).__name__
            raise ConfigError(
                f"{name} got sparse gradients from GradScaler.step, which counts on its fused kernel. "
                f"Build it with {name}(..., fused=False)."
            )
        self._chose_fused = False
        self._step_supports_amp_scaling = False
        for group in self.param_groups:
            group["fused"] = False


class AdamW(DirectStep, _ChoosesKernel, torch.optim.AdamW):
    """`torch.optim.AdamW`, fused where the parameters allow it and `fused`, `foreach` were left open."""


class Adam(DirectStep, _ChoosesKernel, torch.optim.Adam):
    """`torch.optim.Adam`, fused where the parameters allow it and `fused`, `foreach` were left open."""


class SGD(DirectSGD, _ChoosesKernel, torch.optim.SGD):
    """`torch.optim.SGD`, fused where the parameters allow it and `fused`, `foreach` were left open."""


class Adagrad(DirectAdagrad, _ChoosesKernel, torch.optim.Adagrad):
    """`torch.optim.Adagrad`, fused where the parameters allow it and `fused`, `foreach` were left open."""


def can_fuse(params: Iterable[Any]) -> bool:
    """Whether torch's fused kernels take all these parameters: real floating-point tensors on a device that has them.

    Args:
        params: what an optimizer takes: tensors, (name, tensor) pairs, or groups of them.
    """
    kinds = {"cpu", *_get_fused_kernels_supported_devices()}
    tensors = list(_tensors(params))
    return bool(tensors) and all(p.device.type in kinds and torch.is_floating_point(p) for p in tensors)


def _listed(item: Any) -> Any:
    """Return a group with a list where its parameters come from a generator, which can be read only once."""
    if isinstance(item, dict) and isinstance(item.get("params"), Iterator):
        return {**item, "params": list(item["params"])}
    return item


def _tensors(params: Iterable[Any]) -> Iterable[Tensor]:
    for item in params:
        if isinstance(item, dict):
            inner = item["params"]
            yield from _tensors([inner] if isinstance(inner, Tensor) else inner)
        elif isinstance(item, tuple):
            yield item[1]
        elif isinstance(item, Tensor):
            yield item
