"""The step of Adam, AdamW, SGD and Adagrad without the Python around torch's fused kernels.

Torch's own step spends 50 of its 70 microseconds on what matters only to whoever watches or extends the optimizer:
hooks, profiler labels, sorting of tensors by device. That of SGD and Adagrad also loads torch's compiler. Where nobody
watches and all tensors of a group are of one kind, the kernel is called at once: the same call with the same numbers.
In every other case torch's step does the work.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer, optimizer

_ONE = torch.tensor(1.0, device="cpu")
_Lists = tuple[list[Tensor], ...]
"""Parameters, gradients, and for each what the optimizer keeps: moments, sums, step counts."""


class DirectStep(Optimizer):
    """Mixed in before `torch.optim.Adam` or a class of it. Nothing is kept from one step to the next."""

    def _gathered(self, group: dict[str, Any]) -> _Lists | None:
        return _lists(self, group)

    def _updated(self, group: dict[str, Any], found: _Lists, found_inf: Tensor | None) -> None:
        _update(group, *found, found_inf=found_inf)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters by their gradients.

        Args:
            closure: computes the loss anew and returns it; this optimizer needs none.
        """
        if closure is not None or _is_watched(self):
            return self._step_of_torch(closure)
        lists = [self._gathered(group) for group in self.param_groups]
        if None in lists:
            return self._step_of_torch(closure)
        grad_mode = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        try:
            for group, found in zip(self.param_groups, lists, strict=True):
                if found is not None and found[0]:  # no gradient in the group: nothing to do
                    self._updated(group, found, getattr(self, "found_inf", None))
        finally:
            torch._C._set_grad_enabled(grad_mode)
        return None

    # Torch wraps a step that lacks this mark in hooks and a label; `_step_of_torch` does so where somebody wants them.
    step.hooked = True  # type: ignore[attr-defined]

    def _step_of_torch(self, closure: Callable[[], Any] | None) -> Any:
        step: Any = super().step
        if not getattr(step, "hooked", False):
            step = partial(Optimizer.profile_hook_step(step.__func__), self)
        return step(closure)


def _is_watched(self: Any) -> bool:
    """Whether a hook, a profiler, a compiler or the scale of a GradScaler takes part in this step."""
    return bool(
        self._optimizer_step_pre_hooks
        or self._optimizer_step_post_hooks
        or optimizer._global_optimizer_pre_hooks
        or optimizer._global_optimizer_post_hooks
        or torch._C._autograd._profiler_enabled()
        or torch.compiler.is_compiling()
        or getattr(self, "grad_scale", None) is not None
    )


def _lists(self: Optimizer, group: dict[str, Any]) -> _Lists | None:
    """Return the tensors of a group that have a gradient, or None where torch's own step has to look at them."""
    if not group["fused"] or group["amsgrad"] or group["capturable"] or type(group["lr"]) is not float:
        return None
    params: list[Tensor] = []
    grads: list[Tensor] = []
    means: list[Tensor] = []
    squares: list[Tensor] = []
    steps: list[Tensor] = []
    for param in group["params"]:
        grad = param.grad
        if grad is None:
            continue
        state, first = self.state[param], params[0] if params else param
        is_one_kind = type(grad) is Tensor and param.dtype is first.dtype and param.device == first.device
        if not is_one_kind or grad.is_sparse:
            return None
        if "exp_avg" not in state:  # the first step
            self._init_group(group, [], [], [], [], [], [])  # type: ignore[attr-defined]  # torch's, makes the state
            return _lists(self, group)
        params.append(param)
        grads.append(grad)
        means.append(state["exp_avg"])
        squares.append(state["exp_avg_sq"])
        steps.append(state["step"])
    return params, grads, means, squares, steps


def _update(
    group: dict[str, Any],
    params: list[Tensor],
    grads: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    steps: list[Tensor],
    *,
    found_inf: Tensor | None,
) -> None:
    beta1, beta2 = group["betas"]
    kernel = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_
    if found_inf is not None:
        found_inf = found_inf.to(params[0].device, non_blocking=True)
    if steps[0].is_cpu:
        torch._foreach_add_(steps, _ONE, alpha=1.0)  # a quarter of the time that a plain 1 takes
    else:
        torch._foreach_add_(steps, 1)
    kernel(
        params, grads, means, squares, [], steps, lr=group["lr"], beta1=beta1, beta2=beta2,
        weight_decay=group["weight_decay"], eps=group["eps"], amsgrad=False, maximize=group["maximize"],
        found_inf=found_inf,
    )  # fmt: skip
    if found_inf is not None:
        torch._foreach_sub_(steps, [found_inf] * len(steps))  # where it is 1 the kernel did nothing


class DirectSGD(DirectStep):
    """Mixed in before `torch.optim.SGD`."""

    def _gathered(self, group: dict[str, Any]) -> _Lists | None:
        found = _with_gradient(group)
        if found is None or not group["momentum"]:
            return found if found is None else (*found, [])
        kept = [self.state[param].get("momentum_buffer") for param in found[0]]
        if all(buffer is None for buffer in kept):  # the first step, which the kernel is told
            return (*found, [torch.empty_like(grad) for grad in found[1]])
        return None if any(buffer is None for buffer in kept) else (*found, kept)

    def _updated(self, group: dict[str, Any], found: _Lists, found_inf: Tensor | None) -> None:
        params, grads, buffers = found
        is_first = bool(buffers) and "momentum_buffer" not in self.state[params[0]]
        torch._fused_sgd_(
            params, grads, buffers, lr=group["lr"], momentum=group["momentum"], dampening=group["dampening"],
            weight_decay=group["weight_decay"], nesterov=group["nesterov"], maximize=group["maximize"],
            is_first_step=is_first, grad_scale=None, found_inf=_beside(params[0], found_inf),
        )  # fmt: skip
        if is_first:
            for param, buffer in zip(params, buffers, strict=True):
                self.state[param]["momentum_buffer"] = buffer


class DirectAdagrad(DirectStep):
    """Mixed in before `torch.optim.Adagrad`."""

    def _gathered(self, group: dict[str, Any]) -> _Lists | None:
        found = _with_gradient(group)
        if found is None:
            return None
        states = [self.state[param] for param in found[0]]
        if not all(states):  # of a group added later: torch makes them in its step
            return None
        return (*found, [state["sum"] for state in states], [state["step"] for state in states])

    def _updated(self, group: dict[str, Any], found: _Lists, found_inf: Tensor | None) -> None:
        params, grads, sums, steps = found
        found_inf = _beside(params[0], found_inf)
        torch._foreach_add_(steps, _ONE if steps[0].is_cpu else torch.ones((), device=steps[0].device))
        torch._fused_adagrad_(
            params, grads, sums, steps, lr=group["lr"], lr_decay=group["lr_decay"], eps=group["eps"],
            weight_decay=group["weight_decay"], maximize=group["maximize"], grad_scale=None, found_inf=found_inf,
        )  # fmt: skip
        if found_inf is not None:
            torch._foreach_sub_(steps, [found_inf] * len(steps))


def _with_gradient(group: dict[str, Any]) -> tuple[list[Tensor], list[Tensor]] | None:
    """Return parameters and gradients of a group, or None where torch's own step has to look at them."""
    if not group["fused"] or group["differentiable"] or type(group["lr"]) is not float:
        return None
    params = [param for param in group["params"] if param.grad is not None]
    grads = [param.grad for param in params]
    for param, grad in zip(params, grads, strict=True):
        is_one_kind = type(grad) is Tensor and param.dtype is params[0].dtype and param.device == params[0].device
        if not is_one_kind or grad.is_sparse:
            return None
    return params, grads


def _beside(param: Tensor, found_inf: Tensor | None) -> Tensor | None:
    return None if found_inf is None else found_inf.to(param.device, non_blocking=True)
