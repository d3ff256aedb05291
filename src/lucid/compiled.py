"""What `compile = true` does: forward pass, loss and backward pass of a micro-batch become one compiled function.

passes(batch) -> loss, gradients            # one graph, guarded by Dynamo, compiled by Inductor
gradients into the parameters               # as `backward` leaves them
norm, guard, clip, optimizers, schedules    # `step.update`, not compiled: a schedule compiles nothing again

`model.compile()` makes two graphs instead, with autograd between them; it is what is done where this cannot be.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from lucid import rng
from lucid.amp import Precision
from lucid.errors import ConfigError
from lucid.loss_rules import Count
from lucid.losses import Loss
from lucid.pieces import tensors
from lucid.serialization import unwrap
from lucid.state import TrainState
from lucid.step import Forward, TrainStep
from lucid.tally import Tally
from lucid.windows import Window

WHOLE = "forward, loss and backward as one graph"
_MOST_GRAPHS = 8
"""Graphs of a run, one for each shape of a batch: data with more shapes are better served by `model.compile()`."""

_Parts = dict[str, tuple[Tensor, Count | None]]
_Passes = tuple[Tensor, Count | None, Count | None, _Parts | None, tuple[Tensor | None, ...]]
"""Loss, the count that came with it, the count that its rule gives, logged parts, gradients."""


class CompiledStep(TrainStep):
    """The step of a trainer with compiled forward and backward passes.

    A graph holds for one shape of batch, so that a run which is broken makes the same graphs as the unbroken one.

    Args:
        forward: takes (model, batch) and returns the loss of one micro-batch.
        tell: told in words why the model alone is compiled instead, if that is so.
    """

    def __init__(self, forward: Forward, tell: Callable[[str], None]) -> None:
        super().__init__(forward)
        self.plain = TrainStep(forward)
        """The same step without compiling."""
        self._tell = tell
        self._passes: Callable[..., _Passes] | None = None
        self.is_given_up = False
        """Whether the model alone is compiled instead."""
        self._is_quick, self._is_new = False, True
        self._copied: set[int] = set()

    def gradients(self, state: TrainState, window: Window) -> Tally:
        """Run the forward and backward passes of the window."""
        if self._passes is None and not self.is_given_up:
            self._begin(state, window)
        tally = Tally(state, window)
        for batch in window.batches:
            if not self.is_given_up and self._run(state, tally, batch):
                continue
            with state.precision.autocast():
                loss = self.forward(state.model, batch)
            state.precision.scale(tally.share(loss)).backward()
        return tally

    def _begin(self, state: TrainState, window: Window) -> None:
        """Look at the loss of a micro-batch, uncompiled: it is checked, and its kind seen. Leaves no trace."""
        state.buffers.keep()
        with rng.fork(), state.precision.autocast():
            loss = self.plain.forward(state.model, window.batches[0])
        state.buffers.restore()
        if loss.terms is not None:
            self._give_up(state, "train_step returns losses with counts of their own")
            return
        options: dict[str, Any] = {"isolate_recompiles": True, "recompile_limit": _MOST_GRAPHS}
        # Code of its own: torch keeps graphs with the code, those of earlier runs too, and at most 256 in all.
        own = FunctionType(_passes.__code__.replace(), globals(), _passes.__name__)
        self._passes = torch.compile(own, fullgraph=True, **options)

    def _give_up(self, state: TrainState, why: str) -> None:
        self.is_given_up = True
        self._tell(why)
        compile_model(state.model)

    def _run(self, state: TrainState, tally: Tally, batch: Any) -> bool:
        """Do the passes of a micro-batch; return False where they cannot be compiled."""
        from torch._dynamo import exc

        parameters: list[Tensor] = [parameter for parameter in state.parameters() if parameter.requires_grad]
        try:
            value, count, counted, parts, found = self._call(
                self.plain.forward, state.model, state.precision, parameters, batch
            )
        except exc.FailOnRecompileLimitHit:
            self._give_up(state, f"it would take more than {_MOST_GRAPHS} graphs")
            return False
        except exc.TorchDynamoException as error:
            _raise_if_compiler_failed(error)
            self._give_up(state, _reason(error))
            return False
        logged = None if parts is None else {name: Loss(*part) for name, part in parts.items()}
        loss = Loss(value.requires_grad_(), count, logged, None if counted is None else lambda: counted)
        _deliver(tally, loss, parameters, self._owned(state.model, batch, parameters, found))
        return True

    def _owned(
        self, model: nn.Module, batch: Any, parameters: list[Tensor], gradients: tuple[Tensor | None, ...]
    ) -> list[Tensor | None]:
        """Return the gradients, each in memory of its own and laid out as its parameter.

        Which of them a graph gives otherwise is seen once, after it was made.
        """
        if self._is_new:
            self._is_new = False
            self._copied |= _to_copy(parameters, gradients, [*model.buffers(), *tensors(batch)])
        if not self._copied:
            return list(gradients)
        return [_own(p, g) if id(p) in self._copied else g for p, g in zip(parameters, gradients, strict=True)]

    def _call(self, *arguments: Any) -> _Passes:
        """Call the graph for these arguments; where there is none yet, make it."""
        from torch._dynamo import config, exc

        passes: Any = self._passes
        if self._is_quick:
            try:
                return passes(*arguments)  # type: ignore[no-any-return]
            except exc.Unsupported:  # a new graph is needed, which the settings below allow: too dear for each call
                pass
        settings = {"trace_autograd_ops": True, "automatic_dynamic_shapes": False, "assume_static_by_default": True}
        self._is_quick, self._is_new = not config.trace_autograd_ops, True  # allowed for all, it could be made unseen
        with config.patch(settings):
            return passes(*arguments)  # type: ignore[no-any-return]


def _passes(forward: Forward, model: nn.Module, precision: Precision, parameters: list[Tensor], batch: Any) -> _Passes:
    """Compute loss and gradients of a micro-batch. This is what is compiled."""
    with precision.autocast():
        loss = forward(model, batch)
    gradients = torch.autograd.grad(loss.value, parameters, allow_unused=True)
    counted = None if loss.counter is None else loss.counter()
    parts = None if loss.parts is None else {name: (one.value.detach(), one.count) for name, one in loss.parts.items()}
    return loss.value.detach(), loss.count, counted, parts, gradients


def _deliver(tally: Tally, loss: Loss, parameters: list[Tensor], gradients: list[Tensor | None]) -> None:
    """Do to gradients that are there what `backward` on the loss's share would do."""
    shared = tally.share(loss)
    if shared is not loss.value:
        (weight,) = torch.autograd.grad(shared, loss.value)
        torch._foreach_mul_([gradient for gradient in gradients if gradient is not None], weight)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if parameter.grad is None:
            parameter.grad = gradient
        elif gradient is not None:
            parameter.grad.add_(gradient)


def _to_copy(parameters: list[Tensor], gradients: tuple[Tensor | None, ...], others: list[Tensor]) -> set[int]:
    """Return (by id) the parameters whose gradient is not theirs alone, or laid out in another way than they are."""
    taken = {tensor.untyped_storage().data_ptr() for tensor in (*parameters, *others)}
    found = set()
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is None or gradient.layout is not torch.strided:
            continue
        storage = gradient.untyped_storage().data_ptr()
        if storage in taken or gradient.stride() != parameter.stride():
            found.add(id(parameter))
        taken.add(storage)
    return found


def _own(parameter: Tensor, gradient: Tensor | None) -> Tensor | None:
    return None if gradient is None else torch.empty_like(parameter, requires_grad=False).copy_(gradient)


def why_not(model: nn.Module, precision: Precision) -> str | None:
    """Return why the passes cannot be one graph, as far as it can be told before a batch is there; None: they can."""
    if precision.scaler is not None:
        return "fp16 scales the loss before the backward pass"
    if unwrap(model) is not model:
        return f"the model is wrapped in {type(model).__name__}"
    if model._compiled_call_impl is not None:
        return "the model is compiled already"
    modules = [module for module in model.modules() if module._backward_hooks or module._backward_pre_hooks]
    if modules or any(one._backward_hooks or one._post_accumulate_grad_hooks for one in model.parameters()):
        return "there are hooks on the backward pass"
    return None


def compiled(step: Any, device: torch.device, tell: Callable[[str], None]) -> Any:
    """Return the step with compiled passes, or the step itself where it is no plain one.

    Raises:
        ConfigError: if nothing can be compiled here.
    """
    check_compiler(device)
    return CompiledStep(step.forward, tell) if type(step) is TrainStep else step


def arrange(step: object, model: nn.Module, precision: Precision, by_hand: bool) -> str:
    """Return in words what a run compiles; where that is the model alone, compile it."""
    why = "the loop is your own" if by_hand else why_not(model, precision)
    if not isinstance(step, CompiledStep):
        why = "the optimizer evaluates the loss itself"
    elif step.is_given_up or why is not None:
        step.is_given_up, why = True, why or "it could not be more"
    if why is None:
        return WHOLE
    compile_model(model)
    return f"the model alone: {why}"


def compile_model(model: nn.Module) -> None:
    """Compile the model in place, unless it is compiled already; the names in its state stay.

    Dynamo passes over a model whose class is torch's own, such as `nn.Sequential`, if nothing stands around it.
    """
    if model._compiled_call_impl is not None:
        return
    options: dict[str, Any] = {"isolate_recompiles": True}
    if not type(model).forward.__module__.startswith("torch.nn."):
        model.compile(**options)
        return
    from torch._dynamo.external_utils import wrap_inline

    model._compiled_call_impl = torch.compile(wrap_inline(model._call_impl), **options)


def check_compiler(device: torch.device) -> None:
    """Raise `ConfigError` if nothing can be compiled for this device."""
    from torch._dynamo.eval_frame import check_if_dynamo_supported
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch.utils._triton import has_triton

    try:
        check_if_dynamo_supported()
        if device.type == "cpu":
            get_cpp_compiler()
    except RuntimeError as error:
        raise _no_compiler(error) from error
    if device.type == "cuda" and not has_triton():
        raise _no_compiler("triton is not installed")


def _raise_if_compiler_failed(error: BaseException) -> None:
    from torch._inductor.exc import CppCompileError, InvalidCxxCompiler

    cause = getattr(error, "inner_exception", error)
    if isinstance(cause, CppCompileError | InvalidCxxCompiler):
        raise _no_compiler(cause) from error


def _no_compiler(why: object) -> ConfigError:
    return ConfigError(
        f"train.compile needs a compiler that works: {_first_line(why)}. Install one (a C++ compiler for a CPU, triton "
        "for a GPU), or set train.compile = false."
    )


def _reason(error: BaseException) -> str:
    """Return the first two lines of the compiler's message: what it met, and in what way that is too much for it."""
    lines = [line.strip().removeprefix("Explanation: ") for line in str(error).splitlines() if line.strip()]
    return ": ".join(line.rstrip(".:") for line in lines[:2])


def _first_line(text: object) -> str:
    return str(text).strip().partition("\n")[0].rstrip(".")
