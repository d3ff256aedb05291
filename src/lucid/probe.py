"""A probe on every module of a model: names the first tensor with NaN or inf in forward and backward passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lucid.windows import Window

Kind = Literal["batch", "weights", "forward", "loss", "backward"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The first tensor that is NaN or inf, and where."""

    kind: Kind
    module: str
    """Name of the module; the model itself is ""."""
    tensor: str
    """Such as "output", "input 0", "gradient of weight"."""
    micro_batch: int | None = None
    before: str = ""
    """Where -inf was seen first; often a mask, which is as it should be."""

    def describe(self) -> str:
        """Return it in words."""
        where = f"module {self.module!r}" if self.module else "the model itself"
        at = "" if self.micro_batch is None else f" (micro-batch {self.micro_batch})"
        words = {
            "batch": f"the batch, {self.tensor}",
            "weights": f"{self.tensor} of {where}, already before the step",
            "forward": f"{self.tensor} of {where} in the forward pass",
            "loss": f"the loss: every module's output is finite, {self.tensor} is not",
            "backward": f"{self.tensor} in the backward pass of {where}",
        }
        return words[self.kind] + at + (f"; -inf was seen before in {self.before}" if self.before else "")


class Probe:
    """Watches a model's modules inside its `with` block; takes no part in what is computed.

    Args:
        model: the plain model.
        window: the batches that it will see; looked at first.
    """

    def __init__(self, model: nn.Module, window: Window) -> None:
        self._model, self._window = model, window
        self._handles: list[Any] = []
        self._forward: Finding | None = None
        self._backward: Finding | None = None
        self._micro_batch = -1
        # Tensors are kept so that their identity stays theirs: tensor -> who made it, and who takes it.
        self._kept: list[Tensor] = []
        self._makers: dict[int, str] = {}
        self._takers: dict[int, str] = {}
        self._final: set[int] = set()
        self._suspect = ""

    def __enter__(self) -> Probe:
        self._first = self._before()
        for name, module in self._model.named_modules():
            self._handles.append(module.register_forward_pre_hook(self._entering(name), with_kwargs=True))
            self._handles.append(module.register_forward_hook(self._leaving(name), with_kwargs=True))
            for inner, parameter in module.named_parameters(recurse=False):
                if parameter.requires_grad:
                    self._handles.append(parameter.register_hook(self._gradient(name, f"gradient of {inner}")))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._kept.clear()

    def finding(self, losses: list[Tensor]) -> Finding | None:
        """Return the first that was bad.

        Args:
            losses: of the micro-batches.
        """
        bad = next((index for index, loss in enumerate(losses) if not torch.isfinite(loss)), None)
        found = self._first or self._forward
        if found is None:
            found = Finding("loss", "", "its value", bad) if bad is not None else self._backward
        if found is not None and self._micro_batch + 1 not in (0, len(self._window.batches)):
            found = replace(found, micro_batch=None)  # the model was not called once for each
        return found

    def _before(self) -> Finding | None:
        """Look at the batches and the weights."""
        for name, parameter in self._model.named_parameters():
            if _is_bad(parameter):
                module, _, inner = name.rpartition(".")
                return Finding("weights", module, inner)
        for index, batch in enumerate(self._window.batches):
            for path, tensor in tensors(batch):
                if _is_bad(tensor):
                    row = int((torch.isnan(tensor) | torch.isposinf(tensor)).nonzero()[0][0]) if tensor.dim() else 0
                    return Finding("batch", "", f"tensor {path or '0'}, row {row} of it", index)
        return None

    def _entering(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            if name == "":
                self._micro_batch += 1
            for path, tensor in tensors((args, kwargs) if kwargs else args):
                self._look(tensor, name, f"input {path}".rstrip())
                if tensor.requires_grad:
                    self._kept.append(tensor)
                    self._takers[id(tensor)] = name

        return hook

    def _leaving(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            for path, tensor in tensors(output):
                self._look(tensor, name, f"output {path}".rstrip())
                if name == "":
                    self._final.add(id(tensor))
                if tensor.requires_grad and id(tensor) not in self._makers:
                    self._kept.append(tensor)
                    self._makers[id(tensor)] = name
                    self._handles.append(tensor.register_hook(self._flow(tensor, name)))

        return hook

    def _look(self, tensor: Tensor, name: str, what: str) -> None:
        if self._forward is None and _is_bad(tensor):
            self._forward = Finding("forward", name, what, self._micro_batch, self._suspect)
        elif not self._suspect and tensor.is_floating_point() and bool(torch.isneginf(tensor.detach()).any()):
            self._suspect = f"{what} of {name!r}"

    def _gradient(self, name: str, what: str) -> Callable[[Tensor], None]:
        def hook(gradient: Tensor) -> None:
            if self._backward is None and _is_bad(gradient):
                self._backward = Finding("backward", name, what, self._micro_batch)

        return hook

    def _flow(self, tensor: Tensor, maker: str) -> Callable[[Tensor], None]:
        """A bad gradient of a tensor was made by the module that took it, or by whatever follows its maker."""
        key = id(tensor)

        def hook(gradient: Tensor) -> None:
            if self._backward is None and _is_bad(gradient):
                taker = self._takers.get(key)
                if taker is not None:
                    self._backward = Finding("backward", taker, "gradient of its input", self._micro_batch)
                elif key in self._final:
                    self._backward = Finding("loss", "", "its gradient", self._micro_batch)
                else:
                    what = f"gradient of the output of {maker!r} (from an operation after it)"
                    self._backward = Finding("backward", maker.rpartition(".")[0], what, self._micro_batch)

        return hook


def tensors(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield (path, tensor) for every tensor in nested tuples, lists, mappings and dataclasses."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from tensors(item, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from tensors(item, f"{path}.{index}" if path else str(index))
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from tensors(getattr(value, name), f"{path}.{name}" if path else str(name))


def _is_bad(tensor: Tensor) -> bool:
    """Whether there is NaN or +inf; -inf alone is what masks are made of."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return False
    values = tensor.detach()
    values = values.coalesce().values() if values.is_sparse else values
    return bool((torch.isnan(values) | (torch.isinf(values) & ~torch.isneginf(values))).any())
