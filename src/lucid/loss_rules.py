"""What is known of a loss without the user's help: over how many targets it is a mean, and what fits it.

`count_rule` and `label_count` answer the first, `check_fit` the second.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lucid.errors import LossError

Count = int | float | Tensor
Counter = Callable[[Any, Any], Count]

_ELEMENT_MODULES = (
    nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCEWithLogitsLoss, nn.BCELoss, nn.PoissonNLLLoss,
    nn.SoftMarginLoss, nn.HingeEmbeddingLoss, nn.KLDivLoss,
)  # fmt: skip
_ELEMENT_FUNCTIONS = (
    F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy_with_logits, F.binary_cross_entropy,
    F.poisson_nll_loss, F.soft_margin_loss, F.hinge_embedding_loss, F.kl_div,
)  # fmt: skip
_SAME_SHAPE = (
    F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss,
)  # fmt: skip
_BINARY = (
    F.binary_cross_entropy_with_logits, F.binary_cross_entropy, nn.BCEWithLogitsLoss, nn.BCELoss,
)  # fmt: skip


class _Known:
    """A loss of torch, whether given as a function, a `functools.partial` of one, or a module."""

    def __init__(self, loss: Any) -> None:
        self.name = getattr(loss, "__name__", type(loss).__name__)
        self.options: dict[str, Any] = {}
        if isinstance(loss, partial) and not loss.args:
            self.options, loss = dict(loss.keywords), loss.func
            self.name = getattr(loss, "__name__", type(loss).__name__)
        elif isinstance(loss, nn.Module):
            names = ("ignore_index", "weight", "reduction")
            self.options = {name: getattr(loss, name) for name in names if hasattr(loss, name)}
        self.loss = loss
        self.reduction = self.options.get("reduction", "mean")
        self.ignore_index = self.options.get("ignore_index", -100)
        self.weight = self.options.get("weight")

    @property
    def is_of_torch(self) -> bool:
        """Whether `reduction` means what it does in torch: a function of torch, or a module that computes one."""
        forward = type(self.loss).forward if isinstance(self.loss, nn.Module) else self.loss
        return str(getattr(forward, "__module__", "")).startswith("torch.nn.")

    def is_one_of(self, *known: Any) -> bool:
        """Whether it is one of these functions, or an instance of one of these classes."""
        return any(self.loss is one or (isinstance(one, type) and _computes(self.loss, one)) for one in known)


def _computes(loss: Any, kind: type[nn.Module]) -> bool:
    return isinstance(loss, kind) and type(loss).forward is kind.forward


def count_rule(loss: Any) -> tuple[str, Counter | None]:
    """Return over what a loss is a mean, in words, and the function that counts it (None: rows).

    Raises:
        LossError: for a loss of torch that does not reduce to a mean.
    """
    if loss is None:
        return "what the model computes, over its labels", None
    known = _Known(loss)
    is_class = known.is_one_of(F.cross_entropy, F.nll_loss, nn.CrossEntropyLoss, nn.NLLLoss)
    is_element = known.is_one_of(*_ELEMENT_MODULES, *_ELEMENT_FUNCTIONS)
    if known.reduction in ("sum", "none") and known.is_of_torch:
        raise LossError(
            f'{known.name} must have reduction="mean", got {known.reduction!r}: a mean is the same for every batch '
            "size and number of micro-batches. For a sum, pass train_step= and return (sum, count)."
        )
    if is_class:
        index, weight = known.ignore_index, known.weight
        words = f"targets (those equal to {index} are left out)" + (", by class weight" if weight is not None else "")
        return words, lambda output, target: _class_count(target, index, weight)
    if is_element and known.reduction == "mean":
        return "elements of the output", lambda output, target: int(output.numel())
    return "rows of the batch", None


def label_count(model: nn.Module, labels: Any) -> Count | None:
    """Return over how many labels a model that computes its own loss takes the mean; None: over rows.

    Transformers models leave out labels of -100; those that predict the next token also leave out each row's first.
    """
    if not isinstance(labels, Tensor) or labels.dim() == 0 or labels.is_floating_point():
        return None
    if _predicts_next(model) and labels.dim() > 1:
        labels = labels[..., 1:]
    count: Tensor = (labels != -100).sum()
    return count


def _predicts_next(model: nn.Module) -> bool:
    name = type(model).__name__
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return False
    return getattr(model, "loss_type", None) == "ForCausalLM" or "CausalLM" in name or "LMHeadModel" in name


def _class_count(target: Tensor, ignore_index: int, weight: Tensor | None) -> Count:
    if target.is_floating_point():  # class probabilities: a mean over rows and places
        return int(target.numel() // target.shape[1]) if target.dim() > 1 else 1
    valid = target != ignore_index
    if weight is not None:
        return (weight.to(target.device)[target.where(valid, 0)] * valid).sum()
    return valid.sum()


def check_fit(loss: Any, output: Any, target: Any) -> None:
    """Raise `LossError` where output and target cannot fit this loss, with both shapes and the usual cure."""
    known = _Known(loss)
    is_class = known.is_one_of(F.cross_entropy, nn.CrossEntropyLoss, F.nll_loss, nn.NLLLoss)
    is_same_shape, is_binary = known.is_one_of(*_SAME_SHAPE), known.is_one_of(*_BINARY)
    if not (is_class or is_same_shape or is_binary):
        return
    for what, value in (("model's output", output), ("target", target)):
        if not isinstance(value, Tensor):
            raise LossError(
                f"the {what} must be a tensor for {known.name}, got {type(value).__name__}. "
                "Pass train_step=, a function of (model, batch) that takes the tensor out of it."
            )
    got = f"output {_describe(output)}, target {_describe(target)}"
    if is_class:
        _check_classes(known, output, target, got)
        return
    if output.shape != target.shape:
        raise LossError(
            f"output and target must have one shape for {known.name}, got {got}"
            + (": torch would broadcast them to a wrong loss. " if is_same_shape else ". ")
            + "Usually output.squeeze(-1) or target.unsqueeze(-1) is meant."
        )
    if not target.is_floating_point():
        raise LossError(f"the target must be floating point for {known.name}, got {got}: use target.float().")
    if is_binary and (bool((target < 0).any()) or bool((target > 1).any())):
        raise LossError(
            f"the target must lie in [0, 1] for {known.name}, got values from {float(target.min()):g} to "
            f"{float(target.max()):g}. For numbers use mse_loss, for several classes cross_entropy."
        )


def check_labels(model: nn.Module, labels: Any) -> None:
    """Raise `LossError` for class numbers that a transformers model has no output for, with their row."""
    config = getattr(model, "config", None)
    classes, kind = getattr(config, "num_labels", None), getattr(config, "problem_type", None)
    is_numbers = isinstance(labels, Tensor) and labels.dim() == 1 and not labels.is_floating_point()
    if is_numbers and isinstance(classes, int) and classes > 1 and kind in (None, "single_label_classification"):
        _check_numbers(labels, classes, -100)


def _check_classes(known: _Known, output: Tensor, target: Tensor, got: str) -> None:
    if not output.is_floating_point():
        raise LossError(f"{known.name} takes floating-point outputs, one per class, got {got}.")
    if output.dim() < 2:
        raise LossError(
            f"{known.name} needs one output per class, (rows, classes), got {got}. "
            "For two classes in one output use binary_cross_entropy_with_logits."
        )
    if output.shape[1] == 1:
        raise LossError(
            f"{known.name} needs an output for each of at least two classes, got {got}: over one it is always 0. For "
            "two classes in one output use binary_cross_entropy_with_logits, for numbers mse_loss."
        )
    if target.is_floating_point():
        if target.shape != output.shape:
            raise LossError(
                f"{known.name} needs class numbers (int64) or one probability per class, got {got}: use target.long()."
            )
        return
    if target.dtype not in (torch.int64, torch.uint8):
        raise LossError(f"class numbers must be int64, got {got}: use target.long().")
    if target.dim() == output.dim() and target.shape[-1] == 1:
        raise LossError(f"class numbers must have shape (rows,), got {got}: use target.squeeze(-1).")
    if target.shape == output.shape:
        raise LossError(
            f"{known.name} takes one class number per row, got {got}. For one-hot targets use target.argmax(1), for "
            "several labels at once binary_cross_entropy_with_logits."
        )
    expected = (output.shape[0], *output.shape[2:])
    if tuple(target.shape) != expected:
        raise LossError(
            f"{known.name} takes output (rows, classes, ...) and target {expected}, got {got}. "
            "For sequences flatten both: output.flatten(0, 1), target.flatten()."
        )
    _check_range(known, output, target)


def _check_range(known: _Known, output: Tensor, target: Tensor) -> None:
    classes = output.shape[1]
    if known.weight is not None and known.weight.shape != (classes,):
        raise LossError(
            f"weight must have one number per class of {known.name}, got {tuple(known.weight.shape)} for a model with "
            f"{classes} outputs."
        )
    _check_numbers(target, classes, known.ignore_index)


def _check_numbers(target: Tensor, classes: int, ignore_index: int) -> None:
    wrong = ((target < 0) | (target >= classes)) & (target != ignore_index)
    if wrong.any():
        row = int(wrong.nonzero()[0][0])
        raise LossError(
            f"class numbers must lie in [0, {classes}) as the model has {classes} outputs, got "
            f"{int(target[wrong][0])} in row {row} of the batch."
        )


def _describe(value: Tensor) -> str:
    return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
