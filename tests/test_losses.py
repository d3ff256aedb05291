"""What is known of a loss, and what is said where output, target and loss do not fit."""

from __future__ import annotations

import re
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lucid.errors import LossError
from lucid.loss_rules import check_fit, count_rule, label_count
from lucid.losses import Supervised, UserStep, as_loss


class Fixed(nn.Module):
    """Returns what it was given, with a graph, whatever comes in."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.factor, self.output = nn.Parameter(torch.ones(())), output

    def forward(self, *_: Any, **__: Any) -> Any:
        return self.output * self.factor if isinstance(self.output, Tensor) else self.output


Z = torch.zeros
LONG = torch.zeros(4, dtype=torch.long)
BAD_FITS: list[tuple[Any, Any, Any, str]] = [
    (F.cross_entropy, Z(4), Z(4), "needs one output per class, (rows, classes), got output (4,) float32"),
    (F.cross_entropy, Z(4, 3), Z(4), "needs class numbers (int64) or one probability per class, got output (4, 3) "
     "float32, target (4,) float32: use target.long()"),
    (F.cross_entropy, Z(4, 3), LONG.bool(), "class numbers must be int64, got output (4, 3) float32, target (4,) bool"),
    (F.cross_entropy, Z(4, 3), LONG.int(), "must be int64, got output (4, 3) float32, target (4,) int32"),
    (F.cross_entropy, Z(4, 1), LONG, "needs an output for each of at least two classes, got output (4, 1) float32, "
     "target (4,) int64: over one it is always 0"),
    (F.cross_entropy, Z(4, 1), Z(4, 1), "over one it is always 0"),
    (F.cross_entropy, Z(4, 3), LONG.view(4, 1), "class numbers must have shape (rows,), got output (4, 3) float32, "
     "target (4, 1) int64: use target.squeeze(-1)"),
    (F.cross_entropy, Z(4, 3), LONG.view(4, 1).expand(4, 3), "For one-hot targets use target.argmax(1)"),
    (F.cross_entropy, Z(4, 7, 3), torch.zeros(4, 7, dtype=torch.long), "For sequences flatten both"),
    (F.cross_entropy, Z(4, 3), torch.tensor([0, 2, 3, 0]), "in [0, 3) as the model has 3 outputs, got 3 in row 2"),
    (F.cross_entropy, Z(4, 3), torch.tensor([0, -1, 2, 0]), "got -1 in row 1 of the batch"),
    (nn.CrossEntropyLoss(weight=Z(2)), Z(4, 3), LONG, "weight must have one number per class of CrossEntropyLoss"),
    (F.cross_entropy, {"logits": 1}, LONG, "the model's output must be a tensor for cross_entropy, got dict"),
    (F.mse_loss, Z(4, 1), Z(4), "must have one shape for mse_loss, got output (4, 1) float32, target (4,) float32: "
     "torch would broadcast them to a wrong loss. Usually output.squeeze(-1) or target.unsqueeze(-1) is meant."),
    (nn.MSELoss(), Z(4), Z(4, 1), "must have one shape for MSELoss"),
    (nn.L1Loss(), Z(4), LONG, "must be floating point for L1Loss, got output (4,) float32, target (4,) int64"),
    (F.mse_loss, Z(4), [1, 2], "the target must be a tensor for mse_loss, got list"),
    (F.binary_cross_entropy_with_logits, Z(4, 1), Z(4), "must have one shape for binary_cross_entropy_with_logits"),
    (nn.BCEWithLogitsLoss(), Z(4), LONG, "the target must be floating point for BCEWithLogitsLoss"),
    (nn.BCEWithLogitsLoss(), Z(4), Z(4) + 3, "must lie in [0, 1] for BCEWithLogitsLoss, got values from 3 to 3"),
    (partial(F.cross_entropy, ignore_index=0), Z(4, 3), torch.tensor([0, 9, 0, 0]), "got 9 in row 1"),
]  # fmt: skip


@pytest.mark.parametrize(("loss", "output", "target", "message"), BAD_FITS)
def test_what_does_not_fit_is_said_on_the_first_batch(loss: Any, output: Any, target: Any, message: str) -> None:
    """Both shapes, the rule and the usual cure, before any backward."""
    model = Fixed(output)
    with pytest.raises(LossError, match=re.escape(message)):
        Supervised(loss)(model, (Z(4, 2), target))
    assert model.factor.grad is None


GOOD_FITS: list[tuple[Any, Any, Any]] = [
    (F.cross_entropy, Z(4, 3), LONG - 100),
    (F.cross_entropy, Z(4, 3), Z(4, 3)),
    (F.cross_entropy, Z(4, 3, 5), torch.zeros(4, 5, dtype=torch.long)),
    (F.mse_loss, Z(4, 1), Z(4, 1)),
    (nn.BCEWithLogitsLoss(), Z(4), torch.ones(4)),
    (lambda a, b: a.sum(), Z(4, 1), "anything"),
]


@pytest.mark.parametrize(("loss", "output", "target"), GOOD_FITS)
def test_what_fits_is_let_through(loss: Any, output: Any, target: Any) -> None:
    """Right shapes, ignored targets, probabilities, sequences and unknown losses pass."""
    check_fit(loss, output, target)


class OwnCrossEntropy(nn.CrossEntropyLoss):
    """A subclass that computes something else."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return super().forward(output, target).exp()


RULES: list[tuple[Any, str]] = [
    (F.cross_entropy, "targets (those equal to -100 are left out)"),
    (F.nll_loss, "targets (those equal to -100 are left out)"),
    (
        nn.CrossEntropyLoss(weight=torch.ones(3), ignore_index=2),
        "targets (those equal to 2 are left out), by class weight",
    ),
    (partial(F.cross_entropy, ignore_index=1), "targets (those equal to 1 are left out)"),
    (F.mse_loss, "elements of the output"),
    (nn.BCEWithLogitsLoss(), "elements of the output"),
    (nn.KLDivLoss(reduction="batchmean"), "rows of the batch"),
    (OwnCrossEntropy(), "rows of the batch"),
    (lambda a, b: a.mean(), "rows of the batch"),
    (None, "what the model computes, over its labels"),
]


@pytest.mark.parametrize(("loss", "words"), RULES)
def test_the_rule_is_said_in_words(loss: Any, words: str) -> None:
    """The plan prints over what each loss is taken as a mean."""
    assert count_rule(loss)[0] == words
    assert Supervised(loss).rule == words


@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_a_loss_that_is_no_mean_is_refused(reduction: str) -> None:
    """reduction="sum" would make the gradient depend on the batch size."""
    with pytest.raises(LossError, match=rf'MSELoss must have reduction="mean", got {reduction!r}'):
        Supervised(nn.MSELoss(reduction=reduction))
    for loss in (nn.MultiMarginLoss(reduction=reduction), partial(F.multi_margin_loss, reduction=reduction)):
        with pytest.raises(LossError, match=r'must have reduction="mean"'):  # a loss without a rule of its own
            Supervised(loss)


def test_labels_of_a_model_that_predicts_the_next_token_leave_out_the_first() -> None:
    """Causal models count all valid labels but each row's first; others count every valid one."""
    labels = torch.tensor([[1, 2, -100], [-100, 3, 4]])
    kinds = {
        name: type(name, (nn.Module,), {})() for name in ("GPT2LMHeadModel", "LlamaForCausalLM", "BertForMaskedLM")
    }
    counts = {name: int(label_count(model, labels)) for name, model in kinds.items()}  # type: ignore[arg-type]
    assert counts == {"GPT2LMHeadModel": 3, "LlamaForCausalLM": 3, "BertForMaskedLM": 4}
    assert label_count(kinds["BertForMaskedLM"], labels.float()) is None


BAD_LOSSES: list[tuple[Any, str]] = [
    (None, "must return a 0-d loss, (sum, count), or a dict of losses, got NoneType"),
    (1.5, "got float"),
    ({}, "got dict"),
    ((torch.ones(()), "3"), "got tuple"),
    ((torch.ones(()), -3), "the count of a (sum, count) loss must be at least 0, got -3"),
    (torch.ones(3, requires_grad=True), "the loss must be a scalar, got shape (3,): take its mean() over the rows"),
    (torch.ones(()), "the loss has no graph, so nothing can be learned from it"),
]


@pytest.mark.parametrize(("result", "message"), BAD_LOSSES)
def test_a_users_step_that_returns_no_loss_is_told_what_to_return(result: Any, message: str) -> None:
    """Anything else than a 0-d loss with a graph, (sum, count) or a dict of these is refused on the first batch."""
    with pytest.raises(LossError, match=re.escape(message)):
        UserStep(lambda model, batch: result)(Fixed(Z(1)), None)


BAD_BATCHES: list[tuple[Any, Any, str]] = [
    ((1, 2, 3), F.mse_loss, "a batch must be (inputs, target), or a mapping for a model that returns `.loss`"),
    (Z(4, 2), F.mse_loss, "got Tensor of 4"),
    ((Z(4), Z(4)), None, "a batch of (inputs, target) needs a loss"),
    ({"x": Z(4)}, None, "Fixed returned no `.loss` for a batch with keys ['x']"),
]  # fmt: skip


@pytest.mark.parametrize(("batch", "loss", "message"), BAD_BATCHES)
def test_a_batch_of_another_form_is_refused(batch: Any, loss: Any, message: str) -> None:
    """A batch that is no pair and no mapping with `.loss` names train_step as the way."""
    with pytest.raises(LossError, match=re.escape(message)):
        Supervised(loss)(Fixed(Z(4)), batch)


def test_a_dict_of_losses_is_summed_and_each_is_logged() -> None:
    """Without an entry "loss" all are minimised; with one only that."""
    parts = {"a": torch.tensor(1.0), "b": torch.tensor(2.0)}
    both, one = as_loss(parts), as_loss({"loss": torch.tensor(5.0), **parts})
    assert (float(both.value), both.terms, sorted(both.parts or {})) == (3.0, None, ["a", "b"])
    assert (float(one.value), sorted(one.parts or {})) == (5.0, ["a", "b"])


def test_labels_without_an_output_are_named_with_their_row() -> None:
    """A model that computes its own loss is asked how many classes it has, before it fails in a kernel."""
    model = Fixed(None)
    model.config = SimpleNamespace(num_labels=2, problem_type=None)  # type: ignore[assignment]
    with pytest.raises(LossError, match=r"in \[0, 2\) as the model has 2 outputs, got 5 in row 1 of the batch"):
        Supervised(None)(model, {"labels": torch.tensor([0, 5, -100])})
    model.config.problem_type = "regression"  # type: ignore[union-attr]
    with pytest.raises(LossError, match=r"returned no `\.loss`"):
        Supervised(None)(model, {"labels": torch.tensor([0, 5])})


def test_a_part_cannot_take_the_place_of_a_value_of_the_record() -> None:
    """train/grad_norm is the gradient's norm, whatever a train_step calls its losses."""
    loss = torch.ones((), requires_grad=True)
    with pytest.raises(LossError, match=r"must not be named 'grad_norm', as a record has its own"):
        UserStep(lambda model, batch: {"loss": loss, "grad_norm": loss})(nn.Linear(1, 1), None)
