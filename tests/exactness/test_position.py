"""Resuming reads no row before the position, whatever the position is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from lucid import TrainConfig, Trainer
from lucid.errors import DataError, ResumeError
from lucid.utils.data import Feed
from lucid.windows import Progress, windows

from .harness import Breaker, Crash, compare
from .parts import Stream
from .settings import Settings


class Counting(Dataset[Any]):
    """2000 rows; says which were asked for."""

    def __init__(self, size: int = 2000) -> None:
        self.size, self.calls = size, []  # type: tuple[int, list[int]]

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, row: int) -> Any:
        self.calls.append(row)
        return torch.full((2,), float(row)), torch.zeros(1)


def trainer(run_dir: Path, *callbacks: Any, **config: Any) -> Trainer:
    model = nn.Linear(2, 1)
    options = {"epochs": 1, "save_every": 900, "log_every": 0, "device": "cpu", **config}
    return Trainer(
        model, torch.optim.SGD(model.parameters(), lr=1e-9), nn.functional.mse_loss, callbacks=callbacks,
        config=TrainConfig(**options), run_dir=run_dir, reports=(),
    )  # fmt: skip


def test_no_row_before_the_position_is_read(tmp_path: Path) -> None:
    """After a break at update 900 of 1000 the 200 rows of the last 100 updates are read, once each."""
    with pytest.raises(Crash):
        trainer(tmp_path, Breaker(905)).fit(DataLoader(Counting(), 2, shuffle=True))
    data = Counting()
    trainer(tmp_path).fit(DataLoader(data, 2, shuffle=True))
    assert len(data.calls) == 200
    assert len(set(data.calls)) == 200


def test_the_first_window_reads_only_its_own_rows() -> None:
    """At update ten million the first window costs the two rows that it holds."""
    data = Counting(20_000_100)
    feed = Feed(DataLoader(data, 2), seed=0)
    first = next(windows(feed, Progress(step=10_000_000, batch=10_000_000), 1))
    assert data.calls == [20_000_000, 20_000_001]
    assert first.start == 10_000_000


def test_a_stream_with_a_state_goes_on_by_it(tmp_path: Path) -> None:
    """A stream that can be put to a position is: no row is read twice, in mid-epoch and at the border of epochs."""
    one = Settings(sampler="stream", rows=22, batch_size=3, accumulation=2, max_steps=11, epochs=9, schedule="step")
    compare(
        one, tmp_path / "x", [Breaker(2), Breaker(4, how="SIGTERM"), Breaker(6, "on_eval_start", "SIGTERM"), Breaker(7)]
    )


def test_a_resumed_stream_reads_only_what_is_left(tmp_path: Path) -> None:
    """The rows before the checkpoint are not read again."""
    one = Settings(sampler="stream", rows=40, batch_size=2, epochs=1, max_steps=20, schedule="none", save_every=5)
    from .settings import Built

    built = Built(one, tmp_path, (Breaker(16),))
    with pytest.raises(Crash):
        built.fit()
    again = Built(one, tmp_path)
    again.fit()
    stream = again.loader.dataset
    assert isinstance(stream, Stream)
    assert stream.reads == 40 - 2 * 15


class Plain(IterableDataset[Any]):
    """A stream that nobody can put to a position."""

    reads = 0

    def __iter__(self) -> Any:
        for row in range(40):
            Plain.reads += 1
            yield torch.full((2,), float(row)), torch.zeros(1)


def test_a_stream_without_a_state_is_refused_at_the_resume(tmp_path: Path) -> None:
    """The message says what the stream lacks and how to go on."""
    with pytest.raises(Crash):
        trainer(tmp_path, Breaker(6), save_every=5, max_steps=20).fit(DataLoader(Plain(), 2))
    with pytest.raises(ResumeError, match=r"(?s)Plain.*state_dict.*skip"):
        trainer(tmp_path, save_every=5, max_steps=20).fit(DataLoader(Plain(), 2))


def test_a_stream_without_a_state_is_skipped_if_asked(tmp_path: Path) -> None:
    """With on_stream="skip" the rows before the position are read and thrown away, and the weights are the same."""
    whole = trainer(tmp_path / "whole", max_steps=20)
    whole.model.load_state_dict({"weight": torch.ones(1, 2), "bias": torch.ones(1)})
    whole.fit(DataLoader(Plain(), 2))
    broken = trainer(tmp_path / "broken", Breaker(6), save_every=5, max_steps=20)
    broken.model.load_state_dict({"weight": torch.ones(1, 2), "bias": torch.ones(1)})
    with pytest.raises(Crash):
        broken.fit(Feed(DataLoader(Plain(), 2), seed=0, on_stream="skip"))
    Plain.reads = 0
    again = trainer(tmp_path / "broken", save_every=5, max_steps=20)
    again.fit(Feed(DataLoader(Plain(), 2), seed=0, on_stream="skip"))
    assert Plain.reads == 40
    assert torch.equal(again.model.weight, whole.model.weight)  # type: ignore[arg-type]


def test_an_unsharded_stream_under_workers_is_refused() -> None:
    """Two workers would read every row twice."""
    with pytest.raises(DataError, match="worker"):
        next(Feed(DataLoader(Plain(), 2, num_workers=2), seed=0).batches(0))
