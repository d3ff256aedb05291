"""From a batch to its loss: the forward half of a micro-batch, and over how many targets the loss is a mean.

A window of several micro-batches is one big batch only if each loss weighs as much as the targets that it is a mean
over. `loss_rules` knows that number for torch's own losses and for transformers models; any other loss is a mean over
rows, unless the user's `train_step` returns `(sum, count)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from lucid.errors import LossError
from lucid.inputs import explained
from lucid.loss_rules import Count, check_fit, check_labels, count_rule, label_count

RESERVED = {"grad_norm", "lr", "skipped_steps", "rows", "rows_per_second"}
"""Names below `train/` in a record that are not for losses."""


@dataclass(slots=True)
class Loss:
    """The loss of one micro-batch: `value` is a mean over `count` targets; `parts` are logged beside it."""

    value: Tensor
    count: Count | None = None
    """None: the rows of the batch, unless `counter` says better."""
    parts: dict[str, Loss] | None = None
    counter: Callable[[], Count] | None = None
    """Counts the targets when the number is needed: with one micro-batch per step it seldom is."""
    terms: dict[str, Loss] | None = None
    """The means over different counts that `value` is the sum of. None: it is one mean."""

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
        self._checked = self._begun = False

    def __call__(self, model: nn.Module, batch: Any) -> Loss:
        """Return the loss of one micro-batch."""
        if self._checked and type(batch) in (tuple, list):
            inputs, target = batch
            output, count = model(inputs), self._count
            value = self.loss(output, target)  # type: ignore[misc]  # there is one: seen on the first batch
            return Loss(value, counter=None if count is None else lambda: count(output, target))
        if self._begun:
            return self._first(model, batch)
        loss = explained(self._first, model, batch)
        self._begun = True
        return loss

    def evaluate(self, model: nn.Module, batch: Any) -> Output:
        """Return output, target and, where it can be computed, the loss of one batch."""
        return explained(self._evaluate, model, batch)

    def _evaluate(self, model: nn.Module, batch: Any) -> Output:
        if isinstance(batch, Mapping):
            return self._own_loss(model, batch)
        inputs, target = _pair(batch)
        output = model(inputs)
        if self.loss is None:
            return Output(output, target)
        return Output(output, target, self._loss(output, target))

    def _first(self, model: nn.Module, batch: Any) -> Loss:
        if isinstance(batch, Mapping):
            if not self._begun:  # reads the labels: for every batch, an accelerator would wait and a graph break
                check_labels(model, batch.get("labels"))
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
        return Output(output, labels, Loss(value, label_count(model, labels)))


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
        if self._checked:
            return as_loss(self.function(model, batch))
        loss = checked(as_loss(explained(self.function, model, batch)))
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
    """Turn what a user's step returned into a `Loss`.

    Raises:
        LossError: if it is none of: a 0-d loss, (sum, count), a dict of these.
    """
    if isinstance(result, Tensor):
        return Loss(result)
    if isinstance(result, Loss):
        return result
    if isinstance(result, Mapping) and result:
        return _joint({str(name): as_loss(value) for name, value in result.items()})
    if _is_sum_and_count(result):
        total, count = result
        if not isinstance(count, Tensor) and count < 0:
            raise LossError(f"the count of a (sum, count) loss must be at least 0, got {count}.")
        # Never 0 / 0: a micro-batch without targets weighs nothing in its window.
        return Loss(total / (count.where(count > 0, 1) if isinstance(count, Tensor) else count or 1), count)
    raise LossError(
        f"train_step must return a 0-d loss, (sum, count), or a dict of losses, got {type(result).__name__}."
    )


def _joint(parts: dict[str, Loss]) -> Loss:
    """Return what a dict of losses minimises: its "loss", or the sum of all, each a mean over its own count."""
    logged = {name: Loss(part.value.detach(), part.count) for name, part in parts.items() if name != "loss"}
    if "loss" in parts:
        main = parts["loss"]
        return Loss(main.value, main.count, logged, terms=main.terms)
    losses = list(parts.values())
    value = sum((part.value for part in losses[1:]), losses[0].value)
    if all(part.count is losses[0].count and part.terms is None for part in losses):
        return Loss(value, losses[0].count, logged)
    terms: dict[str, Loss] = {}
    for name, part in parts.items():
        if part.count is None and part.terms is None:  # means over rows have one count in common
            name, part = "", Loss(part.value + terms[""].value if "" in terms else part.value)
        terms.update({f"{name}.{inner}": term for inner, term in part.terms.items()} if part.terms else {name: part})
    return Loss(value, None, logged, terms=terms)


def checked(loss: Loss) -> Loss:
    """Raise `LossError` unless the loss is a 0-d tensor with a graph, and its parts have names of their own."""
    value = loss.value
    taken = sorted(RESERVED & set(loss.parts or ()))
    if taken:
        raise LossError(f"a loss in the dict of train_step must not be named {taken[0]!r}, as a record has its own.")
    if not isinstance(value, Tensor):
        raise LossError(f"the loss must be a 0-d tensor, got {type(value).__name__}.")
    if value.dim() != 0:
        raise LossError(f"the loss must be a scalar, got shape {tuple(value.shape)}: take its mean() over the rows.")
    if not value.requires_grad:
        raise LossError(
            "the loss has no graph, so nothing can be learned from it: it must be computed from the model's output "
            "without detach(), item() or torch.no_grad()."
        )
    return loss


def _is_sum_and_count(result: Any) -> bool:
    return (
        isinstance(result, tuple)
        and len(result) == 2
        and isinstance(result[0], Tensor)
        and result[0].numel() == 1
        and (isinstance(result[1], int | float) or (isinstance(result[1], Tensor) and result[1].numel() == 1))
    )


def _pair(batch: Any) -> tuple[Any, Any]:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        size = f" of {len(batch)}" if hasattr(batch, "__len__") else ""
        raise LossError(
            f"a batch must be (inputs, target), or a mapping for a model that returns `.loss`, got "
            f"{type(batch).__name__}{size}. Pass train_step=, a function of (model, batch) that returns the loss."
        )
    return batch[0], batch[1]
