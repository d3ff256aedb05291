"""The first outputs and the first loss: whether they are what the loss expects and the task implies."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from lucid import rng
from lucid.check.report import Section
from lucid.check.windows import join
from lucid.evaluation import untouched
from lucid.losses import Supervised
from lucid.trainer import Trainer

_FAR = 3.0
_DROPOUTS = ("native_dropout", "bernoulli", "bernoulli_", "_fused_dropout")


def look(trainer: Trainer, batches: list[Any]) -> Section:
    """Return the section on loop faults with what the first batches show."""
    section = Section("faults", "does the loop do what a training loop must?")
    forward = trainer.forward
    batch = batches[0]
    if not isinstance(forward, Supervised) or not isinstance(batch, tuple | list) or len(batch) != 2:
        _eval_mode(section, trainer, batch)
        return section
    try:
        batch = join(batches)
    except (TypeError, ValueError, RuntimeError):
        batch = batches[0]
    inputs, target = batch
    with rng.fork(seed=5), torch.no_grad(), _buffers_kept(trainer.model), trainer.precision.autocast():
        output = trainer.model(inputs)
        if isinstance(output, Tensor) and isinstance(target, Tensor) and forward.loss is not None:
            loss = float(forward.loss(output, target))
            _judge(section, forward.loss, output.float(), target, loss)
    _eval_mode(section, trainer, batches[0])
    return section


def _judge(section: Section, loss: Any, output: Tensor, target: Tensor, value: float) -> None:
    section.facts["first_loss"] = value
    kind = _kind(loss)
    if kind == "cross_entropy":
        _cross_entropy(section, loss, output, target, value)
    elif kind == "binary":
        _binary(section, output, value)
    elif kind == "nll":
        _nll(section, output)
    elif kind == "regression":
        _regression(section, output, target.float(), value)


def _kind(loss: Any) -> str:
    if loss is F.cross_entropy or isinstance(loss, nn.CrossEntropyLoss):
        return "cross_entropy"
    if loss is F.binary_cross_entropy_with_logits or isinstance(loss, nn.BCEWithLogitsLoss):
        return "binary"
    if loss is F.nll_loss or isinstance(loss, nn.NLLLoss):
        return "nll"
    functions = (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss)
    kinds = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)
    return "regression" if loss in functions or isinstance(loss, kinds) else ""


def _cross_entropy(section: Section, loss: Any, output: Tensor, target: Tensor, value: float) -> None:
    classes = output.shape[1]
    is_probability = bool((output >= 0).all()) and bool(torch.allclose(output.sum(1), torch.ones(()), atol=1e-3))
    if is_probability and classes > 1:
        section.fault(
            "output",
            "the model ends in a softmax, and cross-entropy takes one itself: gradients are squashed.",
            "Let the model return raw scores (logits).",
        )
        return
    if getattr(loss, "weight", None) is not None or getattr(loss, "reduction", "mean") != "mean" or classes < 2:
        return
    expected = math.log(classes)
    section.facts["expected_loss"] = expected
    if value > _FAR * expected + 1:
        section.fault(
            "loss at the start",
            f"is {value:.3g}; a model that knows nothing of {classes} classes has ln({classes}) = {expected:.3g}.",
            "Scale the inputs (mean 0, deviation 1), or make the last layer smaller at the start.",
        )
    if not target.is_floating_point():
        _constant_target(section, target)


def _constant_target(section: Section, target: Tensor) -> None:
    if target.numel() >= 8 and len(target.unique()) == 1:
        section.note(
            "data.target",
            f"all {target.numel()} first targets are {target.flatten()[0].item()}: are the rows shuffled?",
        )


def _binary(section: Section, output: Tensor, value: float) -> None:
    if bool((output >= 0).all()) and bool((output <= 1).all()) and output.numel() > 1:
        section.fault(
            "output",
            "all outputs lie in [0, 1], as after a sigmoid, and the loss takes one itself.",
            "Let the model return raw scores (logits), or use nn.BCELoss.",
        )
    elif value > _FAR * math.log(2) + 1:
        section.fault(
            "loss at the start",
            f"is {value:.3g}; a model that knows nothing has ln(2) = {math.log(2):.3g}.",
            "Scale the inputs (mean 0, deviation 1), or make the last layer smaller at the start.",
        )


def _nll(section: Section, output: Tensor) -> None:
    total = output.exp().sum(1)
    if not torch.allclose(total, torch.ones_like(total), atol=1e-2):
        section.fault(
            "output",
            "nll_loss takes log-probabilities, and the exponentials of the outputs do not add up to 1.",
            "End the model in log_softmax, or use cross_entropy.",
        )


def _regression(section: Section, output: Tensor, target: Tensor, value: float) -> None:
    if bool((output >= 0).all()) and bool((target < 0).any()) and output.numel() >= 8:
        section.fault(
            "output",
            "no output is below 0, as after a ReLU or a sigmoid, but targets are.",
            "Let the model end in a linear layer.",
        )
    elif bool((output.abs() <= 1).all()) and float((target.abs() > 1).float().mean()) > 0.5 and _squashed(output):
        section.fault(
            "output",
            "all outputs lie in [0, 1] or [-1, 1], but most targets do not.",
            "Let the model end in a linear layer, or scale the targets.",
        )
    scale = float(target.square().mean())
    if value > 100 * max(scale, 1e-3) and value > 1:
        section.fault(
            "loss at the start",
            f"is {value:.3g}, while answering 0 everywhere would give about {scale:.3g}.",
            "Scale the inputs (mean 0, deviation 1), or make the last layer smaller at the start.",
        )


def _squashed(output: Tensor) -> bool:
    """Whether outputs look cut off by a squashing function: several at its very ends."""
    ends = (output.abs() > 0.999) | ((output >= 0) & (output < 1e-3))
    return float(ends.float().mean()) > 0.2


def _eval_mode(section: Section, trainer: Trainer, batch: Any) -> None:
    """Look whether dropout is at work in eval mode."""
    watch = _Draws()
    try:
        with untouched(trainer.model), trainer.precision.autocast(), watch:
            trainer.forward.evaluate(trainer.model, batch)
    except Exception as error:
        section.fault("evaluation", f"the model raised in eval mode: {type(error).__name__}: {error}")
        return
    if watch.seen & set(_DROPOUTS):
        section.fault(
            "dropout",
            "is at work in eval mode, so evaluations are noisy.",
            "Pass training=self.training to F.dropout, or use nn.Dropout.",
        )
    elif watch.seen:
        section.note("eval mode", f"the model draws random numbers in it ({', '.join(sorted(watch.seen))}).")


class _Draws(TorchDispatchMode):
    """Notes the names of operations that draw random numbers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.seen.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@contextmanager
def _buffers_kept(model: nn.Module) -> Iterator[None]:
    kept = {name: value.detach().clone() for name, value in model.named_buffers()}
    try:
        yield
    finally:
        for name, value in model.named_buffers():
            value.copy_(kept[name])
