"""What differs at a resume: every setting has a rule, every difference is said, accepted changes take effect."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from lucid import Callback, TrainConfig, Trainer, changes
from lucid.changes import INEXACT, REFUSED, TAKES_EFFECT, compare, table
from lucid.errors import ResumeError
from lucid.optim import schedules
from lucid.records import read_records

ROWS = TensorDataset(torch.arange(32.0).reshape(16, 2) / 16, torch.ones(16, 1))


def fit(run_dir: Path, **options: Any) -> tuple[Any, nn.Module, torch.optim.Optimizer]:
    """Train 8 steps an epoch for 2 epochs; options change one thing each."""
    torch.manual_seed(0)
    model = options.pop("model", None) or nn.Linear(2, 1)
    kind = options.pop("optimizer", torch.optim.SGD)
    optimizer = kind(model.parameters(), **{"lr": 0.01, **options.pop("hyper", {})})
    schedule = options.pop("scheduler", None)
    loader = DataLoader(options.pop("data", ROWS), options.pop("batch_size", 2), shuffle=options.pop("shuffle", True))
    callbacks = options.pop("callbacks", ())
    config = TrainConfig(**{"epochs": 2, "device": "cpu", "log_every": 1, **options})
    trainer = Trainer(
        model,
        optimizer,
        nn.functional.mse_loss,
        schedule,
        callbacks=callbacks,
        config=config,
        run_dir=run_dir,
        reports=(),
    )
    return trainer.fit(loader, loader if config.patience else None), model, optimizer


def said(error: pytest.ExceptionInfo[ResumeError]) -> dict[str, str]:
    """Return the rule of each setting that the message lists."""
    found = {}
    for line in str(error.value).splitlines():
        rule = next((rule for rule in (TAKES_EFFECT, INEXACT, REFUSED) if line.endswith(rule)), None)
        if rule:
            found[line.split()[0]] = rule
    return found


def test_a_finished_run_says_so(tmp_path: Path) -> None:
    """The same start again trains nothing and writes nothing."""
    first = fit(tmp_path)[0]
    before = (tmp_path / "records.jsonl").read_bytes()
    again = fit(tmp_path)[0]
    assert (again.step, again.stopped, again.exit_code) == (first.step, "finished", 0) == (16, "finished", 0)
    assert (tmp_path / "records.jsonl").read_bytes() == before


def test_more_epochs_train_exactly_these(tmp_path: Path) -> None:
    """A finished run of 2 epochs made 4 long has 16 steps more, and the weights of a run of 4."""
    fit(tmp_path / "a")
    longer, model, _ = fit(tmp_path / "a", epochs=4)
    whole, other, _ = fit(tmp_path / "b", epochs=4)
    assert longer.step == whole.step == 32
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    resumed = next(r for r in read_records(tmp_path / "a" / "records.jsonl") if r.kind == "resume")
    assert resumed.step == 16
    assert [c["setting"] for c in resumed.info["changes"]] == ["train.epochs"]


LONGER = {
    "one-cycle": lambda opt, total: torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=total + 1),
    "cosine": lambda opt, total: torch.optim.lr_scheduler.CosineAnnealingLR(opt, total),
    "lucid": lambda opt, total: schedules.build("warmup_cosine", opt, total, warmup_steps=3),
    "sequential": lambda opt, total: torch.optim.lr_scheduler.SequentialLR(
        opt,
        [
            torch.optim.lr_scheduler.LinearLR(opt, 0.1, total_iters=5),
            torch.optim.lr_scheduler.CosineAnnealingLR(opt, total),
        ],
        [5],
    ),
}


@pytest.mark.filterwarnings("ignore:The epoch parameter")
@pytest.mark.parametrize("kind", LONGER)
def test_a_schedule_made_from_the_total_gets_the_new_one(tmp_path: Path, kind: str) -> None:
    """Made 4 epochs long after its end at 2, the rates of the last two epochs are those of a run of 4."""

    def rates(run_dir: Path, epochs: int) -> list[float]:
        used: list[float] = []

        class Watch(Callback):
            def on_train_start(self, state: Any) -> None:
                state.optimizers[0].register_step_pre_hook(lambda opt, a, k: used.append(opt.param_groups[0]["lr"]))

        result = fit(run_dir, scheduler=LONGER[kind], epochs=epochs, callbacks=[Watch()], hyper={"momentum": 0.9})[0]
        assert result.step == 8 * epochs
        return used

    whole = rates(tmp_path / "whole", 4)
    rates(tmp_path / "longer", 2)
    assert rates(tmp_path / "longer", 4) == whole[16:]


def test_all_differences_are_listed_and_refused(tmp_path: Path) -> None:
    """Learning rate x 10, batch size x 2, 4 epochs and a row less: one table with a rule for each."""
    fit(tmp_path)
    with pytest.raises(ResumeError) as error:
        fit(tmp_path, hyper={"lr": 0.1}, batch_size=4, epochs=4, data=Subset(ROWS, range(15)))
    rules = said(error)
    assert rules["optimizer.lr"] == REFUSED
    assert rules["data.batch_size"] == REFUSED
    assert rules["data.num_rows"] == REFUSED
    assert rules["train.epochs"] == TAKES_EFFECT
    assert re.search(r"0\.01 +0\.1 +refused", str(error.value))


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"hyper": {"lr": 0.02}}, "optimizer.lr"),
    ({"hyper": {"momentum": 0.5}}, "optimizer.momentum"),
    ({"hyper": {"weight_decay": 0.1}}, "optimizer.weight_decay"),
    ({"optimizer": torch.optim.Adam}, "optimizer.name"),
    ({"batch_size": 4}, "data.batch_size"),
    ({"shuffle": False}, "data.order"),
    ({"data": Subset(ROWS, range(14))}, "data.num_rows"),
    ({"gradient_accumulation_steps": 2}, "train.gradient_accumulation_steps"),
    ({"seed": 1}, "train.seed"),
    ({"max_grad_norm": 0.5}, "train.max_grad_norm"),
    ({"clip": "value"}, "train.clip"),
    ({"ema_decay": 0.9}, "train.ema_decay"),
    ({"scheduler": lambda opt, total: torch.optim.lr_scheduler.ConstantLR(opt, 0.5)}, "scheduler.0"),
    ({"scheduler": lambda opt, total: torch.optim.lr_scheduler.StepLR(opt, 9, 0.1)}, "scheduler.0.step_size"),
]


@pytest.mark.parametrize(("change", "name"), REFUSALS, ids=[name for _, name in REFUSALS])
def test_what_changes_the_run_is_refused(tmp_path: Path, change: dict[str, Any], name: str) -> None:
    """The message names the setting with both values, and how to go on; nothing was trained."""
    first = (
        (lambda opt, total: torch.optim.lr_scheduler.StepLR(opt, 3, 0.1)) if name.startswith("scheduler.0.") else None
    )
    fit(tmp_path, max_steps=5, scheduler=first)
    with pytest.raises(ResumeError, match="accept") as error:
        fit(tmp_path, **{"max_steps": 5, **change})
    assert said(error)[name] == REFUSED
    assert max(record.step for record in read_records(tmp_path / "records.jsonl")) == 5


EFFECTIVE: list[dict[str, Any]] = [
    {"epochs": 3}, {"max_steps": 12}, {"log_every": 3}, {"eval_every": 2}, {"save_every": 2}, {"keep_last": 5},
    {"keep_every": 2}, {"patience": 3}, {"max_time": 9999.0}, {"non_finite": "raise"}, {"max_skips": 3},
    {"save_errors": "stop"}, {"hyper": {"foreach": True}}, {"callbacks": [Callback()]}, {"deterministic": True},
]  # fmt: skip


@pytest.mark.parametrize("change", EFFECTIVE, ids=[str(next(iter(change))) for change in EFFECTIVE])
def test_what_does_not_is_said_and_taken(tmp_path: Path, change: dict[str, Any]) -> None:
    """The run goes on, and its resume record lists the change."""
    fit(tmp_path, max_steps=5)
    result = fit(tmp_path, **{"max_steps": 9, **change})[0]
    torch.use_deterministic_algorithms(False)
    assert result.step >= 9
    resumed = next(record for record in read_records(tmp_path / "records.jsonl") if record.kind == "resume")
    names = {one["setting"].rpartition(".")[2] for one in resumed.info["changes"]}
    (name,) = change
    assert {"hyper": "foreach", "callbacks": "Callback"}.get(name, name) in names


@pytest.mark.parametrize("scheduled", [False, True])
def test_an_accepted_learning_rate_takes_effect(tmp_path: Path, scheduled: bool) -> None:
    """Times ten from the resume on; a schedule goes on from where it was, times ten."""
    used: list[float] = []

    class Watch(Callback):
        def on_train_start(self, state: Any) -> None:
            state.optimizers[0].register_step_pre_hook(lambda opt, a, k: used.append(opt.param_groups[0]["lr"]))

    step = (lambda opt, total: torch.optim.lr_scheduler.StepLR(opt, 4, 0.5)) if scheduled else None
    fit(tmp_path, callbacks=[Watch()], scheduler=step, max_steps=6)
    fit(tmp_path, callbacks=[Watch()], scheduler=step, max_steps=14, hyper={"lr": 0.1}, changes="accept")
    halves = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3] if scheduled else [0] * 14
    wanted = [(0.01 if index < 6 else 0.1) * 0.5**half for index, half in enumerate(halves)]
    assert used == pytest.approx(wanted, rel=1e-12)


def test_a_changed_model_is_called_one(tmp_path: Path) -> None:
    """By the parameters that are new or gone."""

    def named(model: nn.Module) -> dict[str, Any]:
        return {"model": model, "optimizer": lambda _, lr: torch.optim.SGD(model.named_parameters(), lr=lr)}

    fit(tmp_path, **named(nn.Linear(2, 1)))
    with pytest.raises(
        ResumeError, match=r"The model has other parameters.*: new are 0\.bias, 0\.weight; gone are bias"
    ):
        fit(tmp_path, **named(nn.Sequential(nn.Linear(2, 1))))


def test_a_long_value_is_shown_by_its_two_ends() -> None:
    """The names of a model's parameters do not make the table as wide as they are long."""
    names = [f"encoder.layer.{number}.weight" for number in range(40)]
    lines = table(compare({"optimizer.param_names": None}, {"optimizer.param_names": names})).splitlines()
    assert max(map(len, lines)) < 100
    assert "['encoder.layer.0.weight', 'enco ... eight']" in lines[1]


def test_an_accepted_change_leaves_the_others_alone(tmp_path: Path) -> None:
    """A new weight decay does not put the scheduled learning rate back to its beginning."""

    def step(optimizer: Any, total: int) -> Any:
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    fit(tmp_path, scheduler=step, max_steps=5)
    _, _, optimizer = fit(tmp_path, scheduler=step, max_steps=6, hyper={"weight_decay": 0.1}, changes="accept")
    assert optimizer.param_groups[0]["weight_decay"] == 0.1
    assert optimizer.param_groups[0]["lr"] == 0.01 * 0.5**6


class Lowers(Callback):
    """Moves a setting of the optimizer by hand, as people do."""

    def on_step_end(self, state: Any) -> None:
        state.optimizers[0].param_groups[0]["lr"] = 0.01 / (1 + state.step)


def test_what_a_callback_moves_is_no_change_of_settings(tmp_path: Path) -> None:
    """The comparison is of settings as given, so the same script resumes."""
    fit(tmp_path, callbacks=[Lowers()], max_steps=5)
    assert fit(tmp_path, callbacks=[Lowers()], max_steps=9)[0].step == 9


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("train.epochs", TAKES_EFFECT), ("train.max_grad_norm", REFUSED), ("train.max_skips", TAKES_EFFECT),
        ("train.device", INEXACT), ("train.precision", INEXACT), ("train.anything_new", REFUSED),
        ("optimizer.lr", REFUSED), ("optimizer.group1.lr", REFUSED), ("optimizer.fused", INEXACT),
        ("optimizer.1.group0.foreach", INEXACT), ("scheduler.0", REFUSED), ("data.num_rows", REFUSED),
        ("data.content", REFUSED), ("environment.code", INEXACT), ("environment.version.torch", INEXACT),
        ("environment.device", INEXACT), ("callbacks.EMA", INEXACT), ("model.width", REFUSED), ("what.ever", REFUSED),
    ],
)  # fmt: skip
def test_the_rule_of_each_kind_of_setting(name: str, rule: str) -> None:
    """A setting that nobody thought of is refused."""
    assert changes.rule_for(name) == rule
