"""Stops: signals at any moment, the user's own handlers, exit codes, time limits."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from lucid import Callback, TrainConfig, Trainer, session, signals
from lucid.records import read_records
from lucid.signals import Stopped


class Rows(Dataset[Any]):
    """Eight rows; sends a signal when one is read."""

    def __init__(self, place: str = "") -> None:
        self.shots = [place] if place else []

    def __len__(self) -> int:
        return 8

    def __getitem__(self, row: int) -> Any:
        shoot(self.shots)
        return torch.full((2,), float(row)), torch.zeros(1)


def shoot(shots: list[str]) -> None:
    if shots:
        os.kill(os.getpid(), getattr(signal, shots.pop()))


class Net(nn.Linear):
    """Sends a signal in the forward pass of a mode at a step."""

    def __init__(self) -> None:
        super().__init__(2, 1)
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)
        self.shots: list[str] = []
        self.mode, self.skip = True, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training is self.mode and self.shots:
            if self.skip == 0:
                shoot(self.shots)
            self.skip -= 1
        return super().forward(x)


class InSave(Callback):
    """Sends a signal while its state is taken for a checkpoint."""

    def __init__(self, name: str) -> None:
        self.shots = [name]

    def on_step_end(self, state: Any) -> None:
        self.ready = state.step == 2

    def state_dict(self) -> dict[str, Any]:
        if getattr(self, "ready", False):
            shoot(self.shots)
        return {"x": 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.shots = []


class Twice(Callback):
    """Presses Ctrl-C twice in step 2."""

    def on_step_end(self, state: Any) -> None:
        if state.step == 2:
            os.kill(os.getpid(), signal.SIGINT)
            while state.interrupt is None:  # two signals at one instant would count as one
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000):
                time.sleep(0.001)


def fit(run_dir: Path, net: Net, *callbacks: Any, data: Any = None, evaluated: bool = True, **config: Any) -> Any:
    reports = config.pop("reports", ())
    options = {"epochs": 2, "save_every": 100, "eval_every": 2, "log_every": 1, "device": "cpu", **config}
    trainer = Trainer(
        net, torch.optim.SGD(net.parameters(), lr=0.01), nn.functional.mse_loss, callbacks=callbacks,
        config=TrainConfig(**options), run_dir=run_dir, reports=reports,
    )  # fmt: skip
    return trainer.fit(data or DataLoader(Rows(), 2, shuffle=True), DataLoader(Rows(), 4) if evaluated else None)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1"])
@pytest.mark.parametrize("place", ["first batch", "training step", "validation", "save"])
def test_a_signal_at_any_moment(tmp_path: Path, name: str, place: str) -> None:
    """The step ends, one checkpoint is made, the run goes on from it to the weights of the unbroken one."""
    whole = Net()
    fit(tmp_path / "whole", whole)
    net, data, extra = Net(), None, []
    save_every = 100
    if place == "first batch":
        data = DataLoader(Rows(name), 2, shuffle=True)
    elif place == "save":
        extra, save_every = [InSave(name)], 2
    else:
        net.mode, net.shots, net.skip = place == "training step", [name], 2
    expected = KeyboardInterrupt if name == "SIGINT" else Stopped
    with pytest.raises(expected):
        fit(tmp_path / "broken", net, *(extra or [_nothing()]), data=data, save_every=save_every)
    files = sorted((tmp_path / "broken" / "checkpoints").glob("step-*.lcs"))
    assert 1 <= len(files) <= 2  # one, or the one that was under way and one at the next step
    stops = [record for record in read_records(tmp_path / "broken" / "records.jsonl") if record.kind == "stop"]
    assert [record.info["reason"] for record in stops] == [name]
    again = Net()
    extra = [InSave(name)] if place == "save" else [_nothing()]
    result = fit(tmp_path / "broken", again, *extra, save_every=save_every)
    assert result.stopped == "finished"
    assert torch.equal(again.weight, whole.weight)
    for kind in ("log", "eval"):
        steps = [
            [r.step for r in read_records(tmp_path / d / "records.jsonl") if r.kind == kind]
            for d in ("whole", "broken")
        ]
        assert steps[0] == steps[1]


class _Nothing(Callback):
    pass


def _nothing() -> Callback:
    return _Nothing()


def test_a_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    """The step under way is not saved, and no other is made."""
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, Net(), Twice())
    assert list((tmp_path / "checkpoints").glob("step-*.lcs")) == []
    kinds = [(record.kind, record.step) for record in read_records(tmp_path / "records.jsonl")]
    assert kinds == [("plan", 0), ("log", 1), ("stop", 2)]


def test_the_users_handlers_are_called_and_put_back(tmp_path: Path) -> None:
    """A handler from before is called once, and stands again after the run."""
    calls: list[int] = []

    def mine(number: int, frame: Any) -> None:
        calls.append(number)

    before = signal.signal(signal.SIGTERM, mine)
    try:
        net = Net()
        net.shots, net.skip = ["SIGTERM"], 1
        with pytest.raises(Stopped):
            fit(tmp_path, net)
        assert calls == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_in_the_last_step_is_no_stop(tmp_path: Path) -> None:
    """A run that is done when the signal has been served says so and ends with 0; its last checkpoint is its end."""
    net = Net()
    net.shots, net.skip = ["SIGTERM"], 7
    result = fit(tmp_path, net, evaluated=False)
    assert net.shots == []
    assert (result.step, result.stopped, result.exit_code) == (8, "finished", 0)
    assert [r.kind for r in read_records(tmp_path / "records.jsonl")][-1] == "end"


def test_a_signal_before_the_last_evaluation_leaves_it_for_the_resume(tmp_path: Path) -> None:
    """The run is left with 75, and the second start only evaluates."""
    net = Net()
    net.shots, net.skip = ["SIGTERM"], 7
    with pytest.raises(Stopped):
        fit(tmp_path, net)
    again = Net()
    again.shots, again.mode = ["SIGTERM"], True  # would be sent by any training step
    assert fit(tmp_path, again).stopped == "finished"
    assert again.shots == ["SIGTERM"]


class ToAll(Callback):
    """Signals the run and all its workers, as a scheduler or a terminal does."""

    def __init__(self, number: int) -> None:
        self.number = number

    def on_step_end(self, state: Any) -> None:
        if state.step == 2:
            for child in multiprocessing.active_children():
                os.kill(child.pid or 0, self.number)
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_workers_do_not_inherit_the_handlers(tmp_path: Path, name: str) -> None:
    """With two workers signalled as well there is one checkpoint, and the user's handler runs in the run alone."""
    number = getattr(signal, name)
    data = DataLoader(Rows(), 2, shuffle=True, num_workers=2, persistent_workers=True)
    calls = tmp_path / "calls"

    def mine(number: int, frame: Any) -> None:
        with calls.open("a") as file:
            file.write(f"{os.getpid()}\n")

    before = signal.signal(number, mine)
    try:
        with pytest.raises(Stopped):
            fit(tmp_path, Net(), ToAll(number), data=data)
    finally:
        signal.signal(number, before)
    assert calls.read_text() == f"{os.getpid()}\n"
    assert [path.name for path in (tmp_path / "checkpoints").glob("step-*.lcs")] == ["step-00000002.lcs"]
    saves = [record.step for record in read_records(tmp_path / "records.jsonl") if record.kind == "save"]
    assert saves == [2]
    net, whole = Net(), Net()
    assert fit(tmp_path, net, _nothing(), data=data).stopped == "finished"
    fit(tmp_path / "whole", whole)
    assert torch.equal(net.weight, whole.weight)


SCRIPT = """
import os, signal, sys, torch
from torch import nn
from lucid import Callback, TrainConfig, Trainer
torch.set_num_threads(1)

class Shoot(Callback):
    def on_step_end(self, state):
        if state.step == 2 and sys.argv[2] != "none":
            if sys.argv[2] == "error":
                raise ValueError("on purpose")
            os.kill(os.getpid(), getattr(signal, sys.argv[2]))

model = nn.Linear(2, 1)
data = torch.utils.data.TensorDataset(torch.zeros(8, 2), torch.zeros(8, 1))
Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.functional.mse_loss, callbacks=[Shoot()], reports=(),
        config=TrainConfig(epochs=1, device="cpu"), run_dir=sys.argv[1]).fit(torch.utils.data.DataLoader(data, 2))
"""


@pytest.mark.parametrize(
    ("event", "code"), [("none", 0), ("SIGTERM", 75), ("SIGUSR1", 75), ("SIGINT", -signal.SIGINT), ("error", 1)]
)
def test_exit_codes_of_a_plain_script(tmp_path: Path, event: str, code: int) -> None:
    """0 done, 75 to be started again, 1 an error; an uncaught Ctrl-C ends a script as Python does, which a shell
    reports as 130."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), str(tmp_path), event], check=False, cwd=tmp_path
    )
    assert done.returncode == code


class Clock:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Put a clock of our own in place of the system's where the limit is watched."""
    ours = Clock()
    monkeypatch.setattr(signals, "time", ours)
    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=ours.monotonic))
    return ours


class Slow(Callback):
    """A step takes 1 second; a save 3."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_step_end(self, state: Any) -> None:
        self.clock.now += 1

    def state_dict(self) -> dict[str, Any]:
        self.clock.now += 3
        return {"x": 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def test_a_time_limit_leaves_room_for_the_save(tmp_path: Path, clock: Clock) -> None:
    """The first save is measured (3 s); of 20 s the run uses what leaves room for another, and saves before the end."""
    with pytest.raises(Stopped, match="max_time"):
        fit(tmp_path, Net(), Slow(clock), epochs=50, max_time=20.0, eval_every=0)
    assert clock.now <= 20
    last = max(record.step for record in read_records(tmp_path / "records.jsonl") if record.kind == "save")
    assert last >= 8
    assert fit(tmp_path, Net(), Slow(clock), epochs=50, eval_every=0).step == 200


def test_a_time_limit_reaches_into_a_validation(tmp_path: Path) -> None:
    """An evaluation that would take for ever is left, and done after the resume."""
    net = Net()
    release: list[bool] = []

    class Endless(Callback):
        def on_eval_start(self, state: Any) -> None:
            while state.interrupt is None and not release:
                time.sleep(0.01)

    with pytest.raises(Stopped, match="max_time"):
        fit(tmp_path, net, Endless(), max_time=1.0)
    release.append(True)
    assert fit(tmp_path, Net(), Endless()).stopped == "finished"
    evals = [record.step for record in read_records(tmp_path / "records.jsonl") if record.kind == "eval"]
    assert evals == [2, 4, 6, 8]


class InTick:
    """A display that a signal interrupts, after all that is due after a step."""

    def __init__(self) -> None:
        self.shots = ["SIGTERM"]

    def write(self, record: Any) -> None: ...

    def rewind(self, step: int) -> None: ...

    def tick(self, step: int) -> None:
        if step == 2:
            shoot(self.shots)

    def close(self) -> None: ...


def test_a_signal_after_the_moment_to_save_gets_one_more_step(tmp_path: Path) -> None:
    """A run is never left between a step and its checkpoint."""
    with pytest.raises(Stopped):
        fit(tmp_path, Net(), reports=[InTick()])
    assert [path.name for path in (tmp_path / "checkpoints").glob("step-*.lcs")] == ["step-00000003.lcs"]


def test_a_signal_before_the_first_step_gets_that_step(tmp_path: Path) -> None:
    """There is a checkpoint to go on from, whenever the signal came."""

    class AtStart(Callback):
        def on_train_start(self, state: Any) -> None:
            os.kill(os.getpid(), signal.SIGUSR1)

    with pytest.raises(Stopped):
        fit(tmp_path, Net(), AtStart())
    assert [path.name for path in (tmp_path / "checkpoints").glob("step-*.lcs")] == ["step-00000001.lcs"]
    with pytest.raises(Stopped):  # resumed, and stopped again before a step: it stands where it stood
        fit(tmp_path, Net(), AtStart())
    assert [path.name for path in (tmp_path / "checkpoints").glob("step-*.lcs")] == ["step-00000001.lcs"]
