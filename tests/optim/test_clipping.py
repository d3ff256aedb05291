"""Norms and limits of gradients, bit for bit torch's where torch has them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lucid.errors import ConfigError
from lucid.optim import clipping


def params(scale: float = 1.0, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    made = [nn.Parameter(torch.randn(shape).to(dtype)) for shape in ((7, 5), (7,), (3, 7), (), (0, 4))]
    for param in made:
        param.grad = (torch.randn(param.shape) * scale).to(dtype)
    return made


def grads_of(made: list[nn.Parameter]) -> list[Tensor]:
    return [param.grad for param in made if param.grad is not None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("scale", [1e-20, 1e-3, 1.0, 1e10])
def test_grad_norm_is_bit_equal_to_torchs(scale: float, dtype: torch.dtype) -> None:
    """The norm of gradients of one dtype has the bits of get_total_norm."""
    grads = grads_of(params(scale, dtype))
    assert torch.equal(nn.utils.get_total_norm(grads), clipping.grad_norm(grads))
    assert clipping.grad_norm(grads).shape == ()


def test_grad_norm_of_nothing_is_zero() -> None:
    """A step without gradients has norm 0."""
    assert clipping.grad_norm([]).item() == 0.0


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_grad_norm_shows_what_is_not_finite(bad: float) -> None:
    """One bad element anywhere makes the norm bad."""
    grads = grads_of(params())
    grads[2][1, 3] = bad
    assert not clipping.grad_norm(grads).isfinite()


def test_grad_norm_takes_mixed_dtypes() -> None:
    """Gradients of several dtypes have one norm."""
    grads = [torch.tensor([3.0]), torch.tensor([4.0], dtype=torch.float64), torch.tensor([0.0], dtype=torch.bfloat16)]
    assert clipping.grad_norm(grads).item() == 5.0


def test_grad_norm_adds_up_repeated_rows_of_sparse_gradients() -> None:
    """A sparse gradient that stores a row twice counts as its dense form, beside dense ones."""
    table = nn.Embedding(5, 2, sparse=True)
    table(torch.tensor([1, 1, 3])).sum().backward()
    sparse = table.weight.grad
    assert sparse is not None
    grads = [torch.ones(3), sparse]
    dense = nn.utils.get_total_norm([torch.ones(3), sparse.to_dense()])
    torch.testing.assert_close(dense, clipping.grad_norm(grads))


def test_grad_norm_keeps_no_graph() -> None:
    """Gradients with a graph of their own, as in a gradient penalty, do not hang on the norm."""
    weight = torch.ones(3, requires_grad=True)
    (grad,) = torch.autograd.grad(weight.square().sum(), weight, create_graph=True)
    assert grad.requires_grad
    assert not clipping.grad_norm([grad]).requires_grad


@settings(max_examples=60, deadline=None)
@given(st.floats(1e-4, 1e4), st.floats(0.1, 10.0), st.integers(0, 2**31))
def test_clip_by_norm_is_bit_equal_to_torchs(scale: float, max_norm: float, seed: int) -> None:
    """Above, below and around the limit, the gradients get the bits of clip_grad_norm_."""
    torch.manual_seed(seed)
    ours = params(scale)
    theirs = [nn.Parameter(param.detach()) for param in ours]
    for mine, other in zip(ours, theirs, strict=True):
        other.grad = None if mine.grad is None else mine.grad.clone()
    grads = grads_of(ours)
    clipping.clip_by_norm_(grads, clipping.grad_norm(grads), max_norm)
    nn.utils.clip_grad_norm_(theirs, max_norm)
    assert all(torch.equal(a, b) for a, b in zip(grads, grads_of(theirs), strict=True))


@pytest.mark.parametrize("offset", [-3e-3, -1e-3, -1e-5, -1e-6, 0.0, 1e-6])
def test_clip_by_norm_is_torchs_just_below_the_limit(offset: float) -> None:
    """Where the factor is 1 or one bit less, nothing is left out that torch would do."""
    grads, theirs = [torch.tensor([0.6, 0.8])], nn.Parameter(torch.zeros(2))
    theirs.grad = grads[0].clone()
    norm = clipping.grad_norm(grads)
    clipping.clip_by_norm_(grads, norm, norm.item() - offset)
    nn.utils.clip_grad_norm_([theirs], norm.item() - offset)
    assert torch.equal(theirs.grad, grads[0])


def test_clip_by_norm_below_the_limit_does_not_touch_gradients() -> None:
    """On a CPU, a norm well below the limit costs no pass over the gradients."""
    grads = grads_of(params(0.01))
    versions = [grad._version for grad in grads]
    clipping.clip_by_norm_(grads, clipping.grad_norm(grads), 100.0)
    assert versions == [grad._version for grad in grads]


def test_clip_by_norm_scales_sparse_and_dense_gradients_together() -> None:
    """A sparse gradient is scaled by the same factor as the dense ones."""
    table = nn.Embedding(4, 1, sparse=True)
    table(torch.tensor([2])).sum().mul(3.0).backward()
    sparse = table.weight.grad
    assert sparse is not None
    grads = [torch.tensor([4.0]), sparse]
    clipping.clip_by_norm_(grads, clipping.grad_norm(grads), 1.0)
    torch.testing.assert_close(torch.tensor([0.8]), grads[0], atol=1e-6, rtol=0)
    torch.testing.assert_close(0.6, sparse.to_dense()[2].item(), atol=1e-6, rtol=0)


def test_clip_by_value_is_bit_equal_to_torchs() -> None:
    """Every element is limited as clip_grad_value_ does it."""
    ours = params(3.0)
    theirs = [nn.Parameter(param.detach()) for param in ours]
    for mine, other in zip(ours, theirs, strict=True):
        other.grad = None if mine.grad is None else mine.grad.clone()
    clipping.clip_by_value_(grads_of(ours), 0.5)
    nn.utils.clip_grad_value_(theirs, 0.5)
    assert all(torch.equal(a, b) for a, b in zip(grads_of(ours), grads_of(theirs), strict=True))


def test_clip_by_value_limits_sparse_gradients() -> None:
    """A sparse gradient is limited as its dense form is, also where it stores a row twice."""
    table = nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([2, 2, 3])).sum().mul(3.0).backward()
    assert table.weight.grad is not None
    clipping.clip_by_value_([table.weight.grad], 4.0)
    assert table.weight.grad.to_dense()[:, 0].tolist() == [0.0, 0.0, 4.0, 3.0]


def test_clip_adaptive_limits_each_unit_against_its_weight() -> None:
    """Rows of a weight are limited one by one; a small gradient and a missing one are left alone."""
    weight, bias, idle = (
        nn.Parameter(t) for t in (torch.tensor([[3.0, 4.0], [3.0, 4.0]]), torch.ones(4), torch.ones(1))
    )
    weight.grad = torch.tensor([[30.0, 40.0], [0.003, 0.004]])
    bias.grad = torch.full((4,), 5.0)
    clipping.clip_adaptive_([weight, bias, idle], 0.1)
    torch.testing.assert_close(torch.tensor([[0.3, 0.4], [0.003, 0.004]]), weight.grad)
    torch.testing.assert_close(torch.full((4,), 0.1), bias.grad)


def test_clip_adaptive_lets_weights_at_zero_move() -> None:
    """A unit whose weight is zero is measured against the floor, not against zero."""
    weight = nn.Parameter(torch.zeros(2, 3))
    weight.grad = torch.ones(2, 3)
    clipping.clip_adaptive_([weight], 0.5, eps=1e-2)
    torch.testing.assert_close(torch.full((2,), 5e-3), weight.grad.norm(dim=1))


def test_clip_adaptive_measures_convolutions_per_output_channel() -> None:
    """All inputs and positions of an output channel are one unit."""
    weight = nn.Parameter(torch.ones(2, 3, 2, 2))
    weight.grad = torch.stack([torch.full((3, 2, 2), 7.0), torch.full((3, 2, 2), 0.01)])
    clipping.clip_adaptive_([weight], 0.1)
    torch.testing.assert_close(torch.full((3, 2, 2), 0.1), weight.grad[0])
    torch.testing.assert_close(torch.full((3, 2, 2), 0.01), weight.grad[1])


@pytest.mark.parametrize(("kind", "expected"), [("norm", [0.6, 0.8]), ("value", [1.0, 1.0]), ("adaptive", [3.0, 4.0])])
def test_clip_takes_the_kind_by_name(kind: clipping.Kind, expected: list[float]) -> None:
    """One limit, three meanings."""
    weight = nn.Parameter(torch.tensor([6.0, 8.0]))
    weight.grad = torch.tensor([3.0, 4.0])
    clipping.clip_([weight], [weight.grad], clipping.grad_norm([weight.grad]), 1.0, kind=kind)
    torch.testing.assert_close(torch.tensor(expected), weight.grad, atol=1e-5, rtol=0)


def test_clip_refuses_another_kind() -> None:
    """An unknown way of clipping is an error."""
    with pytest.raises(ConfigError, match="clip must be 'norm', 'value' or 'adaptive', got 'l1'"):
        clipping.clip_([], [], torch.zeros(()), 1.0, kind="l1")  # type: ignore[arg-type]
