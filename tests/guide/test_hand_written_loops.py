"""The usual hand-written loops: as they stand on torch, with Lucid's parts swapped in, and what goes wrong in them."""

from __future__ import annotations

import copy
import itertools
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import lucid
from lucid.optim.lr_scheduler import warmup_cosine


def make_model() -> nn.Module:
    """Return the same small classifier every time."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def make_rows(num: int = 40) -> TensorDataset:
    """Return the same rows every time."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(num, 6, generator=generator)
    return TensorDataset(x, x[:, :3].argmax(1))


def torch_parts(model: nn.Module, total: int) -> dict[str, Any]:
    """Return optimizer, schedule, scaler and autocast as torch gives them."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=3)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total - 3)
    return {
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], milestones=[3]),
        "scaler": torch.amp.GradScaler("cpu"),
        "autocast": lambda: torch.amp.autocast("cpu", dtype=torch.bfloat16),
        "clip": torch.nn.utils.clip_grad_norm_,
    }


def lucid_parts(model: nn.Module, total: int) -> dict[str, Any]:
    """Return the same parts by Lucid's names; the device is found, not named."""
    import lucid.nn.utils

    from lucid.amp import GradScaler, autocast
    from lucid.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

    optimizer = lucid.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    warmup = LinearLR(optimizer, start_factor=0.01, total_iters=3)
    cosine = CosineAnnealingLR(optimizer, t_max=total - 3)
    return {
        "optimizer": optimizer,
        "scheduler": SequentialLR(optimizer, [warmup, cosine], milestones=[3]),
        "scaler": GradScaler(),
        "autocast": lambda: autocast(dtype=lucid.bfloat16),
        "clip": lucid.nn.utils.clip_grad_norm_,
    }


def train(parts_of: Any, accumulate: int = 1) -> list[float]:
    """Run the six-part loop and return the loss of each micro-batch."""
    model, loader = make_model(), DataLoader(make_rows(), batch_size=8)
    epochs = 3
    parts = parts_of(model, epochs * len(loader))
    optimizer, scaler, losses = parts["optimizer"], parts["scaler"], []
    step = 0
    for _ in range(epochs):
        model.train()
        for x, y in loader:
            with parts["autocast"]():
                loss = F.cross_entropy(model(x), y)
            losses.append(float(loss.detach()))
            scaler.scale(loss / accumulate).backward()
            step += 1
            if step % accumulate == 0:
                scaler.unscale_(optimizer)
                parts["clip"](model.parameters(), max_norm=1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                parts["scheduler"].step()
    return losses


@pytest.mark.parametrize("accumulate", [1, 5])
def test_lucids_parts_give_the_losses_of_torchs(accumulate: int) -> None:
    """The loop with Lucid's parts has the losses of the loop on torch."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = train(torch_parts, accumulate)
    assert train(lucid_parts, accumulate) == pytest.approx(expected, abs=2e-3)


def test_the_trainer_gives_the_bits_of_a_plain_loop() -> None:
    """Without accumulation the trainer's weights are bit for bit those of the plain torch loop."""
    rows, model = make_rows(), make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    trained = copy.deepcopy(model)
    trainer = lucid.Trainer(
        trained, torch.optim.AdamW(trained.parameters(), lr=1e-2), loss=F.cross_entropy,
        config=lucid.TrainConfig(epochs=2, max_grad_norm=0.5), reports=(),
    )  # fmt: skip
    trainer.fit(DataLoader(rows, batch_size=8))
    for _ in range(2):
        for x, y in DataLoader(rows, batch_size=8):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    for expected, actual in zip(model.parameters(), trained.parameters(), strict=True):
        assert torch.equal(expected, actual)


def updates(accumulate: int, num_batches: int, epochs: int) -> list[float]:
    """Return the size of each update of one weight with gradient 1 per micro-batch, SGD with lr 1."""
    weight = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(weight.weight)
    seen = [0.0]

    class Watch(lucid.Callback):
        def on_step_end(self, state: Any) -> None:
            seen.append(float(weight.weight.detach()))

    rows = TensorDataset(torch.ones(num_batches, 1))
    trainer = lucid.Trainer(
        weight, torch.optim.SGD(weight.parameters(), lr=1.0), callbacks=[Watch()], reports=(),
        train_step=lambda model, batch: model(batch[0]).mean(),
        config=lucid.TrainConfig(epochs=epochs, gradient_accumulation_steps=accumulate, max_grad_norm=None),
    )  # fmt: skip
    trainer.fit(DataLoader(rows, batch_size=1))
    return [before - after for before, after in itertools.pairwise(seen)]


def test_leftover_micro_batches_make_a_whole_update() -> None:
    """10 micro-batches by 4 give updates of 1, 1, 1 in each epoch; no gradient leaks into the next."""
    assert updates(4, 10, 2) == pytest.approx([1.0] * 6)


def test_a_window_longer_than_the_epoch_is_the_mean_of_what_there_is() -> None:
    """3 micro-batches by 4 give one update of 1 per epoch."""
    assert updates(4, 3, 2) == pytest.approx([1.0] * 2)


def test_unequal_micro_batches_are_one_big_batch() -> None:
    """Micro-batches of 2, 8, 2 and 20 rows give the gradient of all 32 rows at once."""
    model, rows = make_model(), make_rows(32)
    sizes = [2, 8, 2, 20]
    bounds = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    batches = [list(range(a, b)) for a, b in itertools.pairwise(bounds)]
    F.cross_entropy(model(rows.tensors[0]), rows.tensors[1]).backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]  # type: ignore[union-attr]
    model.zero_grad()
    seen: list[torch.Tensor] = []

    class Watch(lucid.Callback):
        def on_step_end(self, state: Any) -> None:
            seen.extend(parameter.grad.clone() for parameter in state.parameters())

    trainer = lucid.Trainer(
        model, torch.optim.SGD(model.parameters(), lr=0.0), loss=F.cross_entropy, callbacks=[Watch()], reports=(),
        config=lucid.TrainConfig(epochs=1, gradient_accumulation_steps=4, max_grad_norm=None),
    )  # fmt: skip
    trainer.fit(DataLoader(rows, batch_sampler=batches))
    for one, other in zip(expected, seen, strict=True):
        assert (one - other).norm() <= 1e-6 * one.norm()


def test_a_resumed_run_remembers_its_best(tmp_path: Path) -> None:
    """A worse epoch after a resume leaves the best checkpoint where it was."""
    scores = iter([0.9, 0.4, 0.5])

    def fit(epochs: int) -> lucid.Result:
        model = make_model()
        trainer = lucid.Trainer(
            model, torch.optim.SGD(model.parameters(), lr=0.0), loss=F.cross_entropy, reports=(), run_dir=tmp_path,
            metrics={"score": lambda output, target: torch.tensor(next(scores))},
            config=lucid.TrainConfig(epochs=epochs, monitor="eval/score", mode="max"),
        )  # fmt: skip
        return trainer.fit(DataLoader(make_rows(), batch_size=8), DataLoader(make_rows(), batch_size=40))

    first = fit(1)
    assert (first.best, first.best_step) == (pytest.approx(0.9), 5)
    last = fit(3)
    assert (last.best, last.best_step) == (pytest.approx(0.9), 5)
    kept = sorted(path.name for path in (tmp_path / "checkpoints").glob("*.lcs"))
    assert kept == ["step-00000005.lcs", "step-00000010.lcs", "step-00000015.lcs"]


def test_a_checkpoint_restores_the_scaler(tmp_path: Path) -> None:
    """Scale and growth tracker of an fp16 run are those of the unbroken run after a resume."""

    def fit(epochs: int) -> dict[str, Any]:
        model = make_model()
        trainer = lucid.Trainer(
            model, torch.optim.SGD(model.parameters(), lr=0.1), loss=F.cross_entropy, reports=(), run_dir=tmp_path,
            config=lucid.TrainConfig(epochs=epochs, precision="fp16", device="cpu"),
        )  # fmt: skip
        trainer.fit(DataLoader(make_rows(), batch_size=8))
        return trainer.precision.state_dict()["scaler"]

    one = fit(1)
    two = fit(2)
    assert two["_growth_tracker"] == 2 * one["_growth_tracker"] > 0


def test_the_warmup_cosine_helper_of_the_loops_exists() -> None:
    """`warmup_cosine(optimizer, warmup, total)` begins low, peaks after warm-up and ends at 0."""
    optimizer = torch.optim.SGD(make_model().parameters(), lr=1.0)
    scheduler = warmup_cosine(optimizer, 100, 1000)
    trace = []
    for _ in range(1001):
        trace.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    table = {0: 0.01, 100: 1, 200: 0.97, 300: 0.88, 400: 0.75, 500: 0.59, 600: 0.42, 700: 0.25, 800: 0.12, 900: 0.03}
    assert {step: trace[step] for step in table} == pytest.approx(table, abs=0.01)
    assert trace[1000] == pytest.approx(0, abs=1e-6)
