"""Time per stage: exclusive, adding up to wall time, in the records, and without a change to the bits."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

import lucid
from lucid import profiling
from lucid.profiling import STAGES, Profile, Stages, bottleneck
from lucid.serialization import Store


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that is set by the test."""
    now = [0.0]
    monkeypatch.setattr(profiling.time, "perf_counter", lambda: now[0])
    return now


def test_stages_are_exclusive_and_add_up(clock: list[float]) -> None:
    """Time inside an inner stage does not count for the outer one; the sum is the time that passed."""
    stages = Stages()
    clock[0] += 1
    with stages.stage("optimizer"):
        clock[0] += 2
        with stages.stage("backward"):
            clock[0] += 4
            with stages.stage("forward"):
                clock[0] += 8
        clock[0] += 16
    clock[0] += 32
    taken = stages.take()
    assert taken == dict.fromkeys(STAGES, 0.0) | {"other": 33, "optimizer": 18, "backward": 4, "forward": 8}
    assert sum(taken.values()) == clock[0]
    assert sum(stages.take().values()) == 0


def test_an_error_closes_its_stage(clock: list[float]) -> None:
    """After an error the time counts for the stage around it again."""
    stages = Stages()

    def fail() -> None:
        clock[0] += 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        stages.timed("data", fail)()
    clock[0] += 2
    assert (stages.take()["data"], stages.total["other"]) == (1, 2)


def test_the_device_is_waited_for() -> None:
    """Each reading waits for the device first."""
    calls: list[int] = []
    with Stages(lambda: calls.append(1)).stage("forward"):
        pass
    assert len(calls) == 2


def fit(folder: Path | None, profile: Profile | None, **options: Any) -> torch.Tensor:
    """Train a small model for two epochs of 12 steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    rows = TensorDataset(torch.randn(48, 4), torch.randint(3, (48,)))
    config = lucid.TrainConfig(epochs=2, log_every=5, device="cpu", **options)
    trainer = lucid.Trainer(
        model, lucid.optim.AdamW(model.parameters()), loss=F.cross_entropy, config=config, run_dir=folder, reports=()
    )
    trainer.profile = profile
    trainer.fit(DataLoader(rows, batch_size=4, shuffle=True), DataLoader(rows, batch_size=16))
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_records_hold_the_stages(tmp_path: Path) -> None:
    """Each log record has the seconds of every stage since the last; every stage of the run took some."""
    stream = io.StringIO()
    profile = Profile(stream=stream)
    fit(tmp_path, profile)
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    logs = [record["values"] for record in records if record["kind"] == "log"]
    assert len(logs) == 5
    assert all({f"time/{name}" for name in STAGES} <= set(values) for values in logs)
    assert all(seconds > 0 for seconds in profile.stages.total.values())
    assert [line.split()[0] for line in stream.getvalue().splitlines()[:9]][-1] == "sum"


def test_bits_are_the_same() -> None:
    """Measured or not, with accumulation, the weights are the same."""
    for options in ({}, {"gradient_accumulation_steps": 3}):
        assert torch.equal(fit(None, None, **options), fit(None, Profile(stream=io.StringIO()), **options))


def test_an_unmeasured_run_never_asks() -> None:
    """Without a profile nothing of it is called."""
    calls: list[str] = []
    stage = Stages.stage
    Stages.stage = lambda self, name: calls.append(name) or stage(self, name)  # type: ignore[method-assign,func-returns-value]
    try:
        fit(None, None)
        assert calls == []
        fit(None, Profile(stream=io.StringIO()))
        assert (calls.count("forward"), calls.count("evaluation")) == (24, 2)
    finally:
        Stages.stage = stage  # type: ignore[method-assign]


def test_trace_is_written(tmp_path: Path) -> None:
    """A trace of five steps can be asked for."""
    path = tmp_path / "trace.json"
    fit(None, Profile(trace=path, stream=io.StringIO()))
    names = [event.get("name", "") for event in json.loads(path.read_text())["traceEvents"]]
    assert names.count("Optimizer.step#AdamW.step") == 5


@pytest.mark.parametrize(("data", "said"), [(1.0, False), (3.9, False), (4.3, True), (100.0, True)])
def test_loader_is_named_when_it_is_the_bottleneck(data: float, said: bool) -> None:
    """From 30 % of the training time on the loader is named, with what to do; evaluations do not count."""
    advice = bottleneck({"data": data, "forward": 4, "backward": 5, "optimizer": 1, "evaluation": 1000})
    assert (advice is not None) == said
    assert advice is None or ("Your loader is the bottleneck" in advice and "num_workers" in advice)


class Slow(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Eight rows that take a second each."""

    def __init__(self, clock: list[float]) -> None:
        self.clock = clock

    def __len__(self) -> int:
        return 8

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.clock[0] += 1
        return torch.randn(4), torch.tensor(row % 3)


def test_a_slow_loader_is_measured_and_named(tmp_path: Path, clock: list[float]) -> None:
    """Two epochs of rows of a second each and batches of two: every second is in the table, and in the records."""
    stream = io.StringIO()

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        clock[0] += 2
        return F.cross_entropy(output, target)

    model = nn.Linear(4, 3)
    config = lucid.TrainConfig(epochs=2, log_every=5, save_every=0, device="cpu")
    trainer = lucid.Trainer(
        model, lucid.optim.AdamW(model.parameters()), loss=loss, config=config, run_dir=tmp_path, reports=()
    )
    trainer.profile = Profile(stream=stream)
    trainer.fit(DataLoader(Slow(clock), batch_size=2, shuffle=True))
    table = stream.getvalue().splitlines()
    assert [line.split() for line in table[1:3]] == [["data", "16.00", "50.0%"], ["forward", "16.00", "50.0%"]]
    assert table[-2].split() == ["sum", "32.00"]
    assert table[-1].startswith("Your loader is the bottleneck: 50 % of the training time")
    records = [json.loads(line)["values"] for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert [sum(record.get(f"time/{name}", 0) for name in STAGES) for record in records if "time/data" in record] == [
        20, 12, 0,
    ]  # fmt: skip


def test_the_table_comes_last(tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Time after the last step, such as that of a slow disk which the last save waits for, is in the table."""

    def wait(store: Store) -> None:
        clock[0] += 7

    monkeypatch.setattr(Store, "wait", wait)
    stream = io.StringIO()
    fit(tmp_path, Profile(stream=stream))
    assert [line.split() for line in stream.getvalue().splitlines() if "7.00" in line] == [
        ["other", "7.00", "100.0%"], ["sum", "7.00"],
    ]  # fmt: skip


def test_a_loop_of_your_own_is_measured(clock: list[float], tmp_path: Path) -> None:
    """Seconds go to the stage that they pass in; the weights are those of a loop that is not measured."""
    weights = []
    for measured in (False, True):
        torch.manual_seed(0)
        model, told = nn.Linear(4, 3), io.StringIO()
        loader = DataLoader(TensorDataset(torch.randn(24, 4), torch.randint(3, (24,))), batch_size=4)
        optimizer = lucid.optim.AdamW(model.parameters())
        config = lucid.TrainConfig(epochs=1, gradient_accumulation_steps=2, log_every=1, device="cpu")
        run = lucid.Run(model, optimizer, loader, config=config, run_dir=tmp_path / str(measured), reports=())
        if measured:
            run.profile = Profile(stream=told)
            model.bias.register_hook(lambda gradient: clock.append(clock.pop() + 10))
            optimizer.register_step_pre_hook(lambda *arguments: clock.append(clock.pop() + 100))
        for x, y in run:
            loss = F.cross_entropy(model(x), y)
            clock[0] += 1
            run.step(loss)
            if run.eval_due:
                run.evaluate(loader, loss=F.cross_entropy)
        assert vars(run).keys().isdisjoint({"step", "_backward", "_update", "evaluate"})
        weights.append(model.weight.detach().clone())
    records = [json.loads(line) for line in (tmp_path / "True" / "records.jsonl").read_text().splitlines()]
    logged = [record["values"] for record in records if record["kind"] == "log"]
    assert [(one["time/forward"], one["time/backward"], one["time/optimizer"]) for one in logged] == [(2, 20, 100)] * 3
    assert "optimizer      300.00" in told.getvalue()
    assert torch.equal(*weights)
