"""Out of memory in a step: micro-batches are halved, and rows, global batch and gradient stay."""

from __future__ import annotations

import warnings
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import lucid
from faults import PassOn
from lucid.pieces import is_divisible, is_out_of_memory, resized, split


class Limited(nn.Module):
    """A regression that runs out of memory above so many rows, in training or in evaluation."""

    def __init__(self, train_rows: int = 10**9, eval_rows: int = 10**9, since: int = 0) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 1)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.limits, self.since, self.sizes = (eval_rows, train_rows), since, []  # type: ignore[var-annotated]

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.append((self.training, len(x)))
        if self.training:
            self.calls += 1
        if len(x) > self.limits[self.training] and len(self.sizes) > self.since:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return self.last(torch.tanh(self.norm(self.first(x))))


def rows(count: int = 32) -> TensorDataset:
    """Return rows of a regression."""
    x = torch.randn(count, 3, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, x.sum(1, keepdim=True))


def make(train_rows: int = 10**9, eval_rows: int = 10**9, since: int = 0, **settings: Any) -> lucid.Trainer:
    """Return a silent trainer of a limited model; SGD, so that equal gradients give equal weights to 1e-6."""
    torch.manual_seed(0)
    model = Limited(train_rows, eval_rows, since)
    run_dir = settings.pop("run_dir", None)
    callbacks = settings.pop("callbacks", ())
    config = lucid.TrainConfig(**{"epochs": 1, "device": "cpu", "save_every": 1, **settings})
    return lucid.Trainer(
        model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), loss=F.mse_loss, config=config,
        run_dir=run_dir, reports=(), callbacks=callbacks,
    )  # fmt: skip


def weights(trainer: lucid.Trainer) -> Tensor:
    """Return all weights as one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_out_of_memory_halves_micro_batches_and_keeps_the_gradient(limit: int, accumulate: int) -> None:
    """Steps, rows and weights are those of the run with enough memory, to 1e-6; the halving is said once each."""
    plain = make(gradient_accumulation_steps=accumulate)
    plain.fit(DataLoader(rows(), batch_size=8))
    tight = make(limit, gradient_accumulation_steps=accumulate)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = tight.fit(DataLoader(rows(), batch_size=8))
    assert result.step == 4 // accumulate
    torch.testing.assert_close(weights(tight), weights(plain), rtol=1e-6, atol=1e-6)
    halvings = {1: 3, 2: 2, 3: 2, 4: 1}[limit]
    assert [str(w.message).split(" rows")[0] for w in caught] == [
        f"step 1: out of memory with {8 >> n}" for n in range(halvings)
    ]
    assert sum(size for training, size in tight.model.sizes if size <= limit) == 32  # no row twice, none left out


def test_the_failed_attempt_leaves_nothing_behind() -> None:
    """Buffers that moved in the failed attempt are put back, and its gradients are dropped."""
    tight = make(2, since=1, gradient_accumulation_steps=2, epochs=1)  # the second micro-batch fails
    with pytest.warns(RuntimeWarning, match="step 1: out of memory with 4 rows"):
        tight.fit(DataLoader(rows(8), batch_size=4))
    assert int(tight.model.calls) == 4  # two halves of two micro-batches
    plain = make(gradient_accumulation_steps=2)
    plain.fit(DataLoader(rows(8), batch_size=4))
    torch.testing.assert_close(weights(tight), weights(plain), rtol=1e-6, atol=1e-6)


def test_a_resumed_run_goes_on_with_the_smaller_pieces(tmp_path: Path) -> None:
    """The halving is part of the state: the broken run has the bits of the unbroken one and tries no large piece."""

    class Break(lucid.Callback):
        def on_step_end(self, state: Any) -> None:
            if state.step == 2:
                state.interrupt = "max_time"

    unbroken = make(3)
    with pytest.warns(RuntimeWarning, match="out of memory"):
        unbroken.fit(DataLoader(rows(), batch_size=8))
    with pytest.warns(RuntimeWarning, match="out of memory"), pytest.raises(SystemExit):
        make(3, run_dir=tmp_path, callbacks=[Break()]).fit(DataLoader(rows(), batch_size=8))
    broken = make(3, run_dir=tmp_path, changes="accept")
    broken.fit(DataLoader(rows(), batch_size=8))
    assert torch.equal(weights(broken), weights(unbroken))
    assert max(size for _, size in broken.model.sizes) == 2


def test_one_row_that_does_not_fit_is_an_error() -> None:
    """With nothing left to halve the error of torch comes through, from the model's own line."""
    with pytest.warns(RuntimeWarning, match="2 rows"), pytest.raises(torch.OutOfMemoryError):
        make(0).fit(DataLoader(rows(), batch_size=2))


def test_another_error_of_the_model_comes_through() -> None:
    """A RuntimeError that is not about memory is not tried again."""
    trainer = make()
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        trainer.fit(DataLoader(TensorDataset(torch.zeros(4, 5), torch.zeros(4, 1)), batch_size=2))
    assert len(trainer.model.sizes) == 1


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.LayerNorm])
def test_the_warning_names_batch_norm(norm: Any) -> None:
    """Where pieces change what is computed, the warning says so, and promises the same gradient only where it stays."""
    trainer = make(4)
    trainer.model.norm = norm(4)
    trainer.optimizers = (torch.optim.SGD(trainer.model.parameters(), lr=0.1),)
    with pytest.warns(RuntimeWarning) as caught:
        trainer.fit(DataLoader(rows(8), batch_size=8))
    (said,) = [str(warning.message) for warning in caught]
    assert ("BatchNorm sees fewer of them at once" in said) == (norm is nn.BatchNorm1d)
    assert ("the same gradient in more time" in said) == (norm is nn.LayerNorm)


class Heavy(PassOn):
    """Its backward pass runs out of memory above 4 rows."""

    @staticmethod
    def backward(context: Any, grad: Tensor) -> Tensor:
        if len(grad) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return grad


def by_hand(folder: Path, heavy_from: int = 0, goes_on: bool = False) -> nn.Module:
    """Train in a hand-written loop whose backward passes run out of memory from a step on."""
    torch.manual_seed(0)
    model = Limited()
    run = lucid.Run(
        model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), DataLoader(rows(), batch_size=8),
        config=lucid.TrainConfig(epochs=1, device="cpu", save_every=1, gradient_accumulation_steps=2), run_dir=folder,
        reports=(),
    )  # fmt: skip
    for x, y in run:
        output = model(x)
        if run.state.step >= heavy_from and len(model.sizes) % 2 == 0:
            output = Heavy.apply(output)
        try:
            run.step(F.mse_loss(output, y))
        except torch.OutOfMemoryError:
            if not goes_on:
                raise
    return model


def test_hand_written_loop_says_what_to_do(tmp_path: Path) -> None:
    """The error names the step and the cure; the trainer goes on in the same folder, with no row twice or left out."""
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate") as caught:
        by_hand(tmp_path, heavy_from=1)
    (note,) = caught.value.__notes__
    assert note.startswith("Lucid: step 2 ran out of memory with 8 rows at once")
    assert "gradient_accumulation_steps larger" in note
    trainer = make(4, run_dir=tmp_path, gradient_accumulation_steps=2, changes="accept")
    with pytest.warns(RuntimeWarning, match="step 2: out of memory with 8 rows"):
        assert trainer.fit(DataLoader(rows(), batch_size=8)).step == 2
    plain = make(gradient_accumulation_steps=2)
    plain.fit(DataLoader(rows(), batch_size=8))
    torch.testing.assert_close(weights(trainer), weights(plain), rtol=1e-6, atol=1e-6)


def test_hand_written_loop_does_not_go_on_with_half_a_window(tmp_path: Path) -> None:
    """A loop that catches the error cannot finish the window: part of a gradient may be there."""
    with pytest.raises(lucid.errors.LossError, match="2 were given, 0 losses came"):
        by_hand(tmp_path, goes_on=True)


def test_out_of_memory_in_evaluation_does_not_touch_training() -> None:
    """The evaluation's batch is halved for itself: training keeps its micro-batches, the metric is the same."""
    plain, tight = make(), make(eval_rows=3)
    one = plain.fit(DataLoader(rows(), batch_size=8), DataLoader(rows(), batch_size=16))
    other = tight.fit(DataLoader(rows(), batch_size=8), DataLoader(rows(), batch_size=16))
    assert torch.equal(weights(plain), weights(tight))
    assert other.metrics["eval/loss"] == pytest.approx(one.metrics["eval/loss"], rel=1e-6)
    assert {size for training, size in tight.model.sizes if training} == {8}


@dataclass
class Rows:
    """A batch of the user's own type."""

    x: Tensor
    names: list[str]


Pair = namedtuple("Pair", "x y")


def test_split_keeps_types_and_rows() -> None:
    """Dataclasses, named tuples, dicts and lists of strings are cut by rows; numbers stay."""
    x = torch.arange(5)
    assert [part.names for part in split(Rows(x, list("abcde")), 2)] == [["a", "b"], ["c", "d", "e"]]
    first, second = split(Pair(x, {"y": x * 2, "scale": 3}), 2)
    assert isinstance(first, Pair)
    assert first.y == {"y": pytest.approx(torch.tensor([0, 2])), "scale": 3}
    assert second.x.tolist() == [2, 3, 4]
    assert [part.tolist() for part in split(x, 99)] == [[0], [1], [2], [3], [4]]
    assert resized(x, 7).tolist() == [0, 1, 2, 3, 4, 0, 1]
    odd = (torch.zeros(3), x)
    assert not is_divisible(odd)
    (whole,) = split(odd, 2)
    assert [len(part) for part in whole] == [3, 5]


def test_what_counts_as_out_of_memory() -> None:
    """Torch's own error, that of the CPU's allocator, Python's; nothing else."""
    errors = [torch.OutOfMemoryError("x"), MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory"),
              RuntimeError("shape mismatch"), ValueError("out of memory")]  # fmt: skip
    assert [is_out_of_memory(error) for error in errors] == [True, True, True, False, False]
