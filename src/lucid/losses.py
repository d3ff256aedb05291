"""From a batch to its loss: the forward half of a micro-batch, and over how many targets the loss is a mean.

A window of several micro-batches is one big batch only if each loss weighs as much as the targets that it is a mean
over. This module knows that number for torch's own losses and for transformers models; any other loss is a mean over
rows, unless the user's `train_step` returns `(sum, count)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from lucid.errors import LossError

Count = int | Tensor


@dataclass(slots=True)
class Loss:
    """The loss of one micro-batch: `value` is a mean over `count` targets; `parts` are logged beside it."""

    value: Tensor
    count: Count | None = None
    """None: the rows of the batch, unless `counter` says better."""
    parts: dict[str, Tensor] | None = None
    counter: Callable[[], Count] | None = None
    """Counts the targets when the number is needed: with one micro-batch per step it seldom is."""

    def num_targets(self, rows: int) -> Count:
        """Return the number of targets, from a batch of so many rows."""
        if self.count is None:
            self.count = self.counter() if self.counter else rows
        return self.count


@dataclass(slots=True)
class Output:
    """What an evaluation needs of one batch."""

    output: Any = None
    target: Any = None
    loss: Loss | None = None


class Supervised:
    """`loss(model(inputs), target)` on batches of `(inputs, target)`; `model(**batch).loss` on mappings.

    Args:
        loss: takes (output, target) and returns the mean loss, 0-d. None where the model computes its own.
    """

    def __init__(self, loss: Callable[[Any, Any], Tensor] | None) -> None:
        self.loss = loss
        self.rule, self._count = count_rule(loss)
        self._checked = False

    def __call__(self, model: nn.Module, batch: Any) -> Loss:
        """Return the loss of one micro-batch."""
        if self._checked and type(batch) in (tuple, list):
            inputs, target = batch
            output = model(inputs)
            return self._loss(output, target)
        return self._first(model, batch)

    def evaluate(self, model: nn.Module, batch: Any) -> Output:
        """Return output, target and, where it can be computed, the loss of one batch."""
        if isinstance(batch, Mapping):
            return self._own_loss(model, batch)
        inputs, target = _pair(batch)
        output = model(inputs)
        if self.loss is None:
            return Output(output, target)
        return Output(output, target, self._loss(output, target))

    def _first(self, model: nn.Module, batch: Any) -> Loss:
        if isinstance(batch, Mapping):
            found = self._own_loss(model, batch).loss
            if found is None:
                raise LossError(
                    f"{type(model).__name__} returned no `.loss` for a batch with keys {sorted(map(str, batch))}. "
                    "Add its labels to the batch, or pass train_step= to the trainer."
                )
            return checked(found)
        inputs, target = _pair(batch)
        if self.loss is None:
            raise LossError("a batch of (inputs, target) needs a loss: pass loss= or train_step= to the trainer.")
        output = model(inputs)
        check_fit(self.loss, output, target)
        loss = checked(self._loss(output, target))
        self._checked = True
        return loss

    def _loss(self, output: Any, target: Any) -> Loss:
        value = self.loss(output, target)  # type: ignore[misc]  # there is one: seen on the first batch
        count = self._count
        return Loss(value, None, None, None if count is None else lambda: count(output, target))

    def _own_loss(self, model: nn.Module, batch: Mapping[str, Any]) -> Output:
        result = model(**batch)
        labels = batch.get("labels")
        output = getattr(result, "logits", result)
        value = getattr(result, "loss", None)
        if value is None:
            return Output(output, labels)
        count: Count | None = None
        if isinstance(labels, Tensor) and labels.dim() > 1 and not labels.is_floating_point():
            shifted = labels[..., 1:] if "CausalLM" in type(model).__name__ else labels
            count = (shifted != -100).sum()
        return Output(output, labels, Loss(value, count))


class UserStep:
    """The user's own `train_step(model, batch)`.

    It returns a 0-d mean loss over the rows; or `(sum, count)`; or a dict of such losses. In a dict, the entry "loss"
    is what is minimised and the others are only logged; without that entry the sum of all is minimised.
    """

    rule = "what train_step returns: a mean over rows, or (sum, count)"

    def __init__(self, function: Callable[[Any, Any], Any], eval_step: Callable[[Any, Any], Any] | None = None) -> None:
        self.function = function
        self.eval_step = eval_step
        self._checked = False

    def __call__(self, model: nn.Module, batch: Any) -> Loss:
        """Return the loss of one micro-batch."""
        loss = as_loss(self.function(model, batch))
        if not self._checked:
            checked(loss)
            self._checked = True
        return loss

    def evaluate(self, model: nn.Module, batch: Any) -> Output:
        """Return what `eval_step` gives: (output, target), or a loss; without one, the loss of `train_step`."""
        if self.eval_step is None:
            return Output(loss=as_loss(self.function(model, batch)))
        result = self.eval_step(model, batch)
        if isinstance(result, Output):
            return result
        if isinstance(result, tuple) and len(result) == 2 and not _is_sum_and_count(result):
            return Output(*result)
        return Output(loss=as_loss(result))


def as_loss(result: Any) -> Loss:
    """Turn what a user's step returned into a `Loss`."""
    if isinstance(result, Tensor):
        return Loss(result)
    if isinstance(result, Loss):
        return result
    if isinstance(result, Mapping) and result:
        parts = {name: as_loss(value) for name, value in result.items()}
        logged = {name: part.value.detach() for name, part in parts.items() if name != "loss"}
        if "loss" in parts:
            return Loss(parts["loss"].value, parts["loss"].count, logged)
        return Loss(_sum([part.value for part in parts.values()]), None, logged)
    if _is_sum_and_count(result):
        total, count = result
        return Loss(total / max(count, 1) if isinstance(count, int) else total / count.clamp(min=1), count)
    raise LossError(
        f"train_step must return a 0-d loss, (sum, count), or a dict of losses, got {type(result).__name__}."
    )


def checked(loss: Loss) -> Loss:
    """Raise `LossError` unless the loss is a 0-d tensor with a graph."""
    value = loss.value
    if not isinstance(value, Tensor):
        raise LossError(f"the loss must be a 0-d tensor, got {type(value).__name__}.")
    if value.dim() != 0 and value.numel() != 1:
        raise LossError(f"the loss must be a scalar, got shape {tuple(value.shape)}: take its mean over the rows.")
    if not value.requires_grad:
        raise LossError(
            "the loss has no graph, so nothing can be learned from it: it must be computed from the model's output "
            "without detach(), item() or torch.no_grad()."
        )
    return loss


def _sum(values: list[Tensor]) -> Tensor:
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def _is_sum_and_count(result: Any) -> bool:
    return (
        isinstance(result, tuple)
        and len(result) == 2
        and isinstance(result[0], Tensor)
        and result[0].numel() == 1
        and (isinstance(result[1], int) or (isinstance(result[1], Tensor) and result[1].numel() == 1))
    )


def _pair(batch: Any) -> tuple[Any, Any]:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        size = f" of {len(batch)}" if hasattr(batch, "__len__") else ""
        raise LossError(
            f"a batch must be (inputs, target), or a mapping for a model that returns `.loss`, got "
            f"{type(batch).__name__}{size}. Pass train_step=, a function of (model, batch) that returns the loss."
        )
    return batch[0], batch[1]


def count_rule(loss: Any) -> tuple[str, Callable[[Any, Any], Count] | None]:
    """Return over what a loss is a mean, in words, and the function that counts it (None: rows)."""
    if loss is F.cross_entropy:
        return "targets that are not ignore_index=-100", lambda output, target: _class_count(target, -100, None)
    if isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss) and loss.reduction == "mean":
        index, weight = loss.ignore_index, loss.weight
        words = f"targets that are not ignore_index={index}" + (", by class weight" if weight is not None else "")
        return words, lambda output, target: _class_count(target, index, weight)
    elementwise = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCEWithLogitsLoss, nn.BCELoss)
    functions = (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy_with_logits)
    if loss in functions or isinstance(loss, elementwise):
        return "elements of the target", lambda output, target: int(target.numel())
    if loss is None:
        return "what the model computes, over its labels", None
    return "rows of the batch", None


def _class_count(target: Tensor, ignore_index: int, weight: Tensor | None) -> Count:
    if target.is_floating_point():  # class probabilities: a mean over rows
        return int(target.numel() // target.shape[1]) if target.dim() > 1 else 1
    if weight is not None:
        valid = target != ignore_index
        return (weight[target.where(valid, 0)] * valid).sum()
    return (target != ignore_index).sum()


def check_fit(loss: Any, output: Any, target: Any) -> None:
    """Raise `LossError` where output and target cannot fit this loss, with both shapes and the usual cure."""
    if not isinstance(output, Tensor) or not isinstance(target, Tensor):
        return
    got = f"output {_describe(output)}, target {_describe(target)}"
    if loss is F.cross_entropy or isinstance(loss, nn.CrossEntropyLoss):
        _check_classes(loss, output, target, got)
    elif loss in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss) or isinstance(
        loss, nn.MSELoss | nn.L1Loss | nn.SmoothL1Loss | nn.HuberLoss
    ):
        if output.shape != target.shape:
            raise LossError(
                f"output and target must have one shape for {_name(loss)}, got {got}: torch would broadcast them to a "
                "wrong loss. Usually output.squeeze(-1) or target.unsqueeze(-1) is meant."
            )
        if not target.is_floating_point():
            raise LossError(f"the target must be floating point for {_name(loss)}, got {got}: use target.float().")


def _check_classes(loss: Any, output: Tensor, target: Tensor, got: str) -> None:
    if output.dim() < 2 and target.dim() == 1 and output.shape == target.shape:
        raise LossError(
            f"cross-entropy needs one output per class, (rows, classes), got {got}. "
            "For two classes in one output use binary_cross_entropy_with_logits."
        )
    if target.is_floating_point():
        if target.shape != output.shape:
            raise LossError(
                f"cross-entropy needs class numbers (int64) or one probability per class, got {got}: use target.long()."
            )
        return
    if target.dim() == output.dim() and target.shape[-1] == 1:
        raise LossError(f"class numbers must have shape (rows,), got {got}: use target.squeeze(-1).")
    expected = (output.shape[0], *output.shape[2:])
    if tuple(target.shape) != expected:
        raise LossError(
            f"cross-entropy takes output (rows, classes, ...) and target {expected}, got {got}. "
            "For sequences flatten both: output.flatten(0, 1), target.flatten()."
        )
    classes, ignore = output.shape[1], getattr(loss, "ignore_index", -100)
    wrong = ((target < 0) | (target >= classes)) & (target != ignore)
    if wrong.any():
        row = int(wrong.nonzero()[0][0])
        raise LossError(
            f"class numbers must lie in [0, {classes}) as the model has {classes} outputs, got "
            f"{int(target[wrong][0])} in row {row} of the batch."
        )


def _describe(value: Tensor) -> str:
    return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"


def _name(loss: Any) -> str:
    return getattr(loss, "__name__", type(loss).__name__)
