"""From a configuration to a run: seeds, optimizer, schedule, task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import lucid
from lucid.build import build, build_scheduler
from lucid.config import load
from lucid.errors import ConfigError, DataError, ResumeError
from small_run import config, trained

KINDS = {
    "classification": numpy.arange(40) % 3,
    "multilabel": numpy.eye(3, dtype=int)[numpy.arange(40) % 3],
    "regression": numpy.linspace(-1, 1, 40) * 30 + 7,
}


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Forty rows of four numbers with three classes."""
    return write(tmp_path, "classification")


def write(folder: Path, kind: str) -> Path:
    """Write rows for a task."""
    x = numpy.random.default_rng(0).normal(size=(40, 4))
    numpy.savez(folder / "rows.npz", x=x, y=KINDS[kind])
    return folder / "rows.npz"


def test_weights_follow_the_seed_alone(rows: Path) -> None:
    """Whatever was drawn before."""
    first = build(config(rows), reports=()).model
    torch.randn(100)
    second, third = (build(config(rows, **{"train.seed": seed}), reports=()).model for seed in (0, 1))
    pairs = [(a, b, c) for a, b, c in zip(first.parameters(), second.parameters(), third.parameters(), strict=True)]
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert not all(torch.equal(a, c) for a, _, c in pairs)


def test_weights_do_not_follow_what_the_data_draw(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A factory that draws more changes no weight."""
    source = "import torch\ndef rows(draws):\n    torch.randn(draws)\n    T = torch.utils.data.TensorDataset\n"
    (rows.parent / "drawing_rows.py").write_text(source + "    return T(torch.zeros(20, 4), torch.arange(20) % 2)\n")
    monkeypatch.chdir(rows.parent)
    monkeypatch.syspath_prepend(str(rows.parent))
    changes = [{"data.name": "drawing_rows:rows", "data.options.draws": draws} for draws in (1, 9)]
    one, other = (build(config(rows, **change), reports=()).model for change in changes)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_command_and_hand_written_trainer_give_the_same_bits(rows: Path) -> None:
    """The configuration's run, and the same things put together by hand."""
    built = trained(rows)
    lucid.seed_everything(0)
    model = lucid.models.mlp.MLP((4,), 3)
    groups = lucid.optim.param_groups(model, lr=3e-3, weight_decay=0.05)
    loader = torch.utils.data.DataLoader(built.data.train, batch_size=8, shuffle=True)
    trainer = lucid.Trainer(
        model,
        lucid.optim.AdamW(groups, lr=3e-3, weight_decay=0.05),
        loss=torch.nn.functional.cross_entropy,
        scheduler=lambda optimizer, total: lucid.optim.build_scheduler(optimizer, total, "warmup_cosine"),
        config=lucid.TrainConfig(epochs=2),
        reports=(),
    )
    trainer.fit(loader)
    pairs = zip(built.model.parameters(), model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("kind", list(KINDS))
def test_each_task_trains_and_is_judged(tmp_path: Path, kind: str) -> None:
    """Loss and metrics are those of the task."""
    built = trained(write(tmp_path, kind))
    values = built.trainer.evaluate(built.test_loader)
    named = {"eval/loss", "eval/mae", "eval/r2"} if kind == "regression" else {"eval/loss", "eval/accuracy"}
    assert set(values) == named


def test_error_of_a_regression_is_in_the_targets_own_unit(tmp_path: Path) -> None:
    """Not in the scaled one that the model sees."""
    built = build(config(write(tmp_path, "regression")), reports=())
    for parameter in built.model.parameters():
        torch.nn.init.zeros_(parameter)
    y = KINDS["regression"]
    scaler = built.data.transform_state["target_scaler"]
    held = built.data.test.tensors[1] * scaler["std"][0] + scaler["mean"][0]  # type: ignore[union-attr, attr-defined]
    expected = (held - scaler["mean"][0]).abs().mean().item()
    assert built.trainer.evaluate(built.test_loader)["eval/mae"] == pytest.approx(expected, rel=1e-5)
    assert expected > 0.1 * numpy.ptp(y)


def test_users_train_step_replaces_the_task(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its eval_step beside it."""
    source = (
        "import torch.nn.functional as F\n"
        "def train_step(model, batch):\n    x, y = batch\n    return F.cross_entropy(model(x), y)\n"
        "def eval_step(model, batch):\n    x, y = batch\n    return F.cross_entropy(model(x), y) * 0 + 5\n"
    )
    (rows.parent / "own_step.py").write_text(source)
    monkeypatch.chdir(rows.parent)
    monkeypatch.syspath_prepend(str(rows.parent))
    built = trained(rows, task="own_step:train_step")
    assert built.trainer.evaluate(built.validation_loader) == {"eval/loss": 5.0}


def test_biases_get_no_decay_and_options_reach_the_optimizer(rows: Path) -> None:
    """Two groups, torch's own class, momentum as asked."""
    changes = {"optimizer.name": "SGD", "optimizer.options.momentum": 0.5, "optimizer.weight_decay": 0.1}
    optimizer = build(config(rows, **changes), reports=()).trainer.optimizers[0]
    assert isinstance(optimizer, torch.optim.SGD)
    assert [(group["weight_decay"], group["momentum"]) for group in optimizer.param_groups] == [(0.0, 0.5), (0.1, 0.5)]


@pytest.mark.parametrize("name", ["adam", "rprop", "adagrad", "asgd", "nadam", "radam", "rmsprop", "adamax"])
def test_every_optimizer_by_name_takes_a_step(rows: Path, name: str) -> None:
    """Also those without weight decay."""
    built = trained(rows, **{"optimizer.name": name, "train.max_steps": 1})
    assert type(built.trainer.optimizers[0]).__name__.lower() == name


SCHEDULES = [*lucid.optim.schedules.names(), "plateau"]


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_by_name_moves_or_holds_the_rate(rows: Path, name: str) -> None:
    """A whole run with each."""
    built = trained(rows, **{"scheduler.name": name})
    assert 0 <= built.trainer.optimizers[0].param_groups[0]["lr"] <= 3e-3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"optimizer.name": "adamww"}, "optimizer.name = 'adamww' is not known. Did you mean 'adamw'?"),
        ({"optimizer.options.momentm": 1}, "unknown key 'optimizer.options.momentm'"),
        ({"scheduler.name": "cosine"}, "scheduler.name = 'cosine' is not known. Did you mean 'warmup_cosine'?"),
        ({"scheduler.options.warmup": 1}, "unknown key 'scheduler.options.warmup'. Did you mean 'warmup_steps'?"),
        ({"task": "clasification"}, "task = 'clasification' is not known. Did you mean 'classification'?"),
        ({"loss": "msee"}, "loss = 'msee' is not known. Did you mean 'mse'?"),
        ({"train.monitor": "eval/acuracy", "train.mode": "max"}, "Did you mean 'eval/accuracy'?"),
        ({"scheduler.name": "none", "scheduler.options.a": 1}, "'none', which has no options"),
        ({"model.weights": "none.lcs"}, "model.weights = 'none.lcs' does not fit"),
    ],
)
def test_names_that_do_not_exist_are_told_with_the_nearest(rows: Path, changes: dict[str, Any], words: str) -> None:
    """Before the first step."""
    with pytest.raises(ConfigError) as caught:
        trained(rows, **changes)
    assert words in str(caught.value)
    assert not list((rows.parent / "run").glob("checkpoints/*.lcs"))


def test_no_schedule_is_none() -> None:
    """The rate stays."""
    assert build_scheduler(load(environ={}, overrides={"scheduler.name": "none"})) is None


def test_changed_rows_stop_a_resume(rows: Path) -> None:
    """Same names and counts, other classes."""
    trained(rows, **{"train.epochs": 1})
    numpy.savez(rows, x=numpy.zeros((40, 4)), y=KINDS["classification"] + 1)
    with pytest.raises((ResumeError, DataError)):
        trained(rows)


def test_a_model_that_cannot_read_the_rows_is_refused(rows: Path) -> None:
    """Tokens and numbers are not mixed up; the model that fits is named."""
    with pytest.raises(ConfigError, match=r"'gpt' takes rows of tokens, the data has rows of numbers.* 'mlp'"):
        build(config(rows, **{"model.name": "gpt"}))
    (rows.parent / "a.txt").write_text("to be or not to be. " * 100)
    for name in ("mlp", "cnn"):
        with pytest.raises(ConfigError, match=rf"'{name}' takes rows of numbers, the data has rows of tokens.* 'gpt'"):
            build(config(rows, **{"data.name": f"text:{rows.parent / 'a.txt'}", "model.name": name}))


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("classification", {"task": "regression"}, "task = 'regression' takes targets that are numbers, those of the "
         "data are class numbers (its task is 'classification'). Leave it out; where a table or arrays"),
        ("classification", {"loss": "huber"}, "loss = 'huber' takes targets that are numbers"),
        ("classification", {"task": "multilabel"}, "set data.options.task = 'multilabel'."),
        ("classification", {"task": "language-modelling"}, "(its task is 'classification'). Leave it out."),
        ("regression", {"task": "classification"}, "targets that are class numbers, those of the data are numbers"),
        ("regression", {"loss": "binary_cross_entropy"}, "takes targets that are zeros and ones"),
        ("multilabel", {"task": "language-modelling"}, "those of the data are zeros and ones"),
    ],
)  # fmt: skip
def test_a_task_that_cannot_take_the_targets_is_refused(
    tmp_path: Path, kind: str, changes: dict[str, Any], words: str
) -> None:
    """Before there is a folder of a run, and with what to set instead."""
    with pytest.raises(ConfigError) as caught:
        trained(write(tmp_path, kind), **changes)
    assert words in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("classification", {"task": "regression", "data.options.task": "regression"}),
        ("multilabel", {"task": "regression"}),
        ("multilabel", {"loss": "cross_entropy"}),
        ("regression", {"loss": "l1"}),
        ("regression", {"data.options.scale": False, "data.options.task": "regression", "loss": "huber"}),
    ],
)
def test_a_task_or_loss_that_takes_the_targets_trains(tmp_path: Path, kind: str, changes: dict[str, Any]) -> None:
    """Labels are numbers too, and may stand for shares of classes."""
    assert trained(write(tmp_path, kind), **{**changes, "train.max_steps": 1}).trainer.state.step == 1  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("data", "shape", "task", "name"),
    [
        ("digits", (1, 8, 8), "classification", "cnn"),
        ("npz:rows.npz", (4,), "classification", "mlp"),
        ("npz:tiny.npz", (3, 2, 2), "classification", "mlp"),
        ("text:a.txt", (8,), "language-modelling", "gpt"),
    ],
)
def test_auto_is_the_model_that_reads_the_rows(
    rows: Path, monkeypatch: pytest.MonkeyPatch, data: str, shape: tuple[int, ...], task: str, name: str
) -> None:
    """The settings of the run, of its checkpoints too, then have its name."""
    monkeypatch.chdir(rows.parent)
    Path("a.txt").write_text("to be or not to be. " * 100)
    numpy.savez("tiny.npz", x=numpy.zeros((40, 3, 2, 2)), y=KINDS["classification"])
    options = {"data.options.block_size": 8, "model.options.width": 8} if name == "gpt" else {}
    built = build(config(rows, **{"data.name": data, "model.name": "auto", **options}), reports=())
    assert (built.data.input_shape, built.data.task) == (shape, task)
    assert built.config.model.name == built.trainer.extra_config["model"]["name"] == name
    assert type(built.model).__name__.lower() == name


def test_what_torch_says_of_an_option_is_an_error_of_the_configuration(rows: Path) -> None:
    """A value that torch's optimizer or layer refuses is bad input, not a crash."""
    with pytest.raises(ConfigError, match=r"optimizer\.options do not fit 'sgd': Invalid momentum value: -1"):
        build(config(rows, **{"optimizer.name": "sgd", "optimizer.options.momentum": -1}))
    with pytest.raises(ConfigError, match=r"optimizer\.options do not fit 'muon': Muon only supports 2D parameters"):
        build(config(rows, **{"optimizer.name": "muon"}))
    with pytest.raises(ConfigError, match=r"model\.options do not fit 'mlp': dropout probability has to be between"):
        build(config(rows, **{"model.options.dropout": 2.0}))
