"""The trainer and the run loop: three ways in with the same bits, the plan, one step axis, and bad input."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

import lucid
from lucid.errors import ConfigError, DataError, LossError
from lucid.records import read_records
from lucid.records.outcome import outcome
from lucid.records.words import number
from lucid.report import ConsoleReport


class Tiny:
    """A small regression with dropout, made the same way every time."""

    def __init__(self, num_rows: int = 40, batch_size: int = 4, seed: int = 0) -> None:
        torch.manual_seed(seed)
        x = torch.randn(num_rows, 3)
        self.rows = TensorDataset(x, x.sum(1, keepdim=True))
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=100)
        self.train_loader = DataLoader(self.rows, batch_size=batch_size, shuffle=True)
        self.eval_loader = DataLoader(self.rows, batch_size=16)

    def weights(self) -> torch.Tensor:
        """Return all weights as one vector."""
        return torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()])

    def trainer(self, **options: Any) -> lucid.Trainer:
        """Return a silent trainer."""
        options = {"loss": F.mse_loss, "scheduler": self.scheduler, "reports": (), **options}
        return lucid.Trainer(self.model, self.optimizer, **options)


def records(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    """Return a run's records of some kinds without what depends on the clock."""
    found = []
    for line in (folder / "records.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["kind"] in kinds:
            record.pop("time")
            record["values"].pop("train/rows_per_second", None)
            found.append(record)
    return found


SETTINGS = {"epochs": 3, "gradient_accumulation_steps": 4, "log_every": 2, "eval_every": 2, "save_every": 4}


def by_trainer(folder: Path, **settings: Any) -> Tiny:
    """Train the small regression with `Trainer`."""
    tiny = Tiny()
    trainer = tiny.trainer(config=lucid.TrainConfig(**{**SETTINGS, **settings}), run_dir=folder)
    trainer.fit(tiny.train_loader, tiny.eval_loader)
    return tiny


def by_run(folder: Path, callbacks: Any = (), **settings: Any) -> Tiny:
    """Train the small regression with a hand-written loop over `Run`."""
    tiny = Tiny()
    run = lucid.Run(
        tiny.model, tiny.optimizer, tiny.train_loader, scheduler=tiny.scheduler, run_dir=folder, reports=(),
        callbacks=callbacks, config=lucid.TrainConfig(**{**SETTINGS, **settings}),
    )  # fmt: skip
    for x, y in run:
        with run.autocast():
            loss = F.mse_loss(tiny.model(x), y)
        run.step(loss)
        if run.eval_due:
            run.evaluate(tiny.eval_loader, loss=F.mse_loss)
    return tiny


@pytest.mark.parametrize("settings", [{}, {"max_grad_norm": 0.1}, {"precision": "fp16", "device": "cpu"}])
def test_trainer_and_run_give_the_same_bits(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Weights and records of the trainer and of the hand-written loop are equal."""
    one, other = by_trainer(tmp_path / "a", **settings), by_run(tmp_path / "b", **settings)
    assert torch.equal(one.weights(), other.weights())
    kinds = ("log", "eval", "save")
    assert records(tmp_path / "a", *kinds) == records(tmp_path / "b", *kinds)


class Draws(lucid.Callback):
    """Draws random numbers around each evaluation."""

    def on_eval_start(self, state: Any) -> None:
        torch.rand(1)

    def on_eval_end(self, state: Any, metrics: Any) -> None:
        torch.rand(1)


def test_an_evaluation_of_a_run_leaves_no_trace(tmp_path: Path) -> None:
    """Callbacks that draw around `run.evaluate` change no bit, as with the trainer."""
    drawing = by_run(tmp_path / "a", callbacks=[Draws()], eval_every=1)
    assert torch.equal(drawing.weights(), by_run(tmp_path / "b").weights())


def test_a_loop_may_go_on_after_an_evaluation_that_failed(tmp_path: Path) -> None:
    """An error in `run.evaluate` that the user's loop catches leaves epochs and the end of the run as they are."""
    tiny = Tiny()
    run = lucid.Run(
        tiny.model, tiny.optimizer, tiny.train_loader, run_dir=tmp_path, reports=(), config=lucid.TrainConfig(epochs=2)
    )
    for x, y in run:
        run.step(F.mse_loss(tiny.model(x), y))
        if run.eval_due:
            with contextlib.suppress(DataError):
                run.evaluate(tiny.eval_loader, {"accuracy": lucid.metrics.accuracy})
    assert (run.result.step, run.result.epoch, run.result.stopped) == (20, 2, "finished")
    assert [record["step"] for record in records(tmp_path, "save")] == [10, 20]


class BreakAt(lucid.Callback):
    """Raises at a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, state: Any) -> None:
        if state.step == self.step:
            raise KeyboardInterrupt


@pytest.mark.parametrize("step", range(1, 9))
def test_a_run_broken_at_any_step_has_one_record_per_step(tmp_path: Path, step: int) -> None:
    """Log, eval and save records and weights after a crash are those of the unbroken run."""
    unbroken = by_trainer(tmp_path / "a", save_every=1)
    tiny = Tiny()
    config = lucid.TrainConfig(**{**SETTINGS, "save_every": 1})
    with pytest.raises(KeyboardInterrupt):
        tiny.trainer(config=config, run_dir=tmp_path / "b", callbacks=[BreakAt(step)]).fit(
            tiny.train_loader, tiny.eval_loader
        )
    torch.manual_seed(99)
    broken = by_trainer(tmp_path / "b", save_every=1)
    assert torch.equal(unbroken.weights(), broken.weights())
    kinds = ("log", "eval", "save")
    assert records(tmp_path / "a", *kinds) == records(tmp_path / "b", *kinds)


def test_one_step_axis(tmp_path: Path) -> None:
    """10 batches by 4 over 3 epochs: logs and evaluations at 2, 4, 6, 8, 9, saves at 4, 8, 9, each once."""
    by_trainer(tmp_path)
    assert [r["step"] for r in records(tmp_path, "log")] == [2, 4, 6, 8, 9]
    assert [r["step"] for r in records(tmp_path, "eval")] == [2, 4, 6, 8, 9]
    assert [r["step"] for r in records(tmp_path, "save")] == [4, 8, 9]


def test_a_run_shorter_than_the_cadence_still_logs(tmp_path: Path) -> None:
    """A run of 3 steps with log_every=20 has its last record."""
    by_trainer(tmp_path, log_every=20, max_steps=3)
    assert [r["step"] for r in records(tmp_path, "log")] == [3]


def test_a_checkpoint_evaluates_to_the_value_stored_with_it(tmp_path: Path) -> None:
    """The weights of the last checkpoint give the metric of its record."""
    by_trainer(tmp_path)
    tiny = Tiny()
    newest = max((tmp_path / "checkpoints").glob("*.lcs"))
    tiny.model.load_state_dict(lucid.load(newest, select="model"))
    values = lucid.evaluate(tiny.model, tiny.eval_loader, loss=F.mse_loss)
    assert values == records(tmp_path, "eval")[-1]["values"]


GRID = list(itertools.product((10, 11), (1, 2, 3), (1, 4, 7), (True, False)))


@pytest.mark.parametrize(("num_rows", "batch_size", "accumulate", "drop_last"), GRID)
def test_the_plan_is_what_happens(num_rows: int, batch_size: int, accumulate: int, drop_last: bool) -> None:
    """Predicted total = observed steps = schedule's steps; one-cycle ends at its last rate without an error."""
    tiny = Tiny(num_rows)
    loader = DataLoader(tiny.rows, batch_size=batch_size, drop_last=drop_last)
    config = lucid.TrainConfig(epochs=2, gradient_accumulation_steps=accumulate)
    total = tiny.trainer(config=config).plan(loader).total_steps
    assert total == 2 * -(-len(loader) // accumulate)
    lrs: list[float] = []

    class Watch(lucid.Callback):
        def on_step_end(self, state: Any) -> None:
            lrs.append(state.lr())

    optimizer = torch.optim.SGD(tiny.model.parameters(), lr=0.1)
    trainer = lucid.Trainer(
        tiny.model, optimizer, loss=F.mse_loss, config=config, reports=(), callbacks=[Watch()],
        scheduler=lambda optimizer, total: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=total + 1),
    )  # fmt: skip
    result = trainer.fit(loader)
    assert result.step == total == len(lrs)
    assert trainer.state is not None
    assert trainer.state.schedulers[0].last_epoch == total
    assert lrs[-1] == pytest.approx(0.1 / 25 / 1e4)


@pytest.mark.parametrize(
    ("settings", "step", "hint"),
    [
        ({}, 9, "epochs (3)"),
        ({"max_steps": 5}, 5, "max_steps (5)"),
        ({"patience": 1, "mode": "max"}, 4, "patience (1)"),
    ],
)
def test_finished_run_that_is_started_again_says_so_once(
    tmp_path: Path, settings: dict[str, Any], step: int, hint: str
) -> None:
    """One line with what was reached and how to go on; where records go, and nowhere else."""
    by_trainer(tmp_path, **settings)
    tiny, out = Tiny(), io.StringIO()
    trainer = tiny.trainer(
        config=lucid.TrainConfig(**{**SETTINGS, **settings}), run_dir=tmp_path, reports=[ConsoleReport("plain", out)]
    )
    result = trainer.fit(tiny.train_loader, tiny.eval_loader)
    assert out.getvalue() == (
        f"run {tmp_path} is finished at step {step} (best eval/loss {number(result.best)}), nothing was trained. "
        f"To go on, raise {hint}; for a new run, choose another run_dir.\n"
    )


def test_finished_loop_that_is_started_again_says_so_once(tmp_path: Path) -> None:
    """A loop of one's own runs no step, and tells why."""
    by_run(tmp_path)
    tiny, out = Tiny(), io.StringIO()
    run = lucid.Run(
        tiny.model, tiny.optimizer, tiny.train_loader, scheduler=tiny.scheduler, run_dir=tmp_path,
        reports=[ConsoleReport("plain", out)], config=lucid.TrainConfig(**SETTINGS),
    )  # fmt: skip
    assert list(run) == []
    assert out.getvalue().startswith(f"run {tmp_path} is finished at step 9 (best eval/loss ")
    assert out.getvalue().count("\n") == 1


@pytest.mark.parametrize(
    ("error", "said"),
    [(ValueError("odd"), "failed: ValueError: odd"), (KeyboardInterrupt(), "interrupted: KeyboardInterrupt")],
)
def test_last_record_says_that_an_error_ended_the_run(tmp_path: Path, error: BaseException, said: str) -> None:
    """An error is a failure; a second Ctrl-C is not."""

    def fail(model: nn.Module, batch: Any) -> Any:
        raise error

    tiny = Tiny()
    with pytest.raises(type(error)):
        tiny.trainer(loss=None, train_step=fail, run_dir=tmp_path).fit(tiny.train_loader)
    assert outcome(read_records(tmp_path / "records.jsonl")[-1]) == said


def test_the_same_folder_again_trains_nothing(tmp_path: Path) -> None:
    """A finished run is not trained again, and its files stay as they are."""
    by_trainer(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    tiny = Tiny()
    trainer = tiny.trainer(config=lucid.TrainConfig(**SETTINGS), run_dir=tmp_path)
    result = trainer.fit(tiny.train_loader, tiny.eval_loader)
    assert (result.step, result.stopped, result.exit_code) == (9, "finished", 0)
    changed = {path.name for path, data in before.items() if path.read_bytes() != data}
    assert changed <= {"environment.json"}


def test_a_run_without_a_good_checkpoint_says_why_it_begins_anew(tmp_path: Path) -> None:
    """A broken file that nothing can stand in for is named with its reason, and kept."""
    by_trainer(tmp_path)
    for file in (tmp_path / "checkpoints").glob("*.lcs"):
        file.write_bytes(file.read_bytes()[:-1])
    torch.manual_seed(9)
    anew = by_trainer(tmp_path)
    notes = [note for note in records(tmp_path, "plan")[0]["info"]["notes"] if "begun anew" in note]
    assert len(notes) == 2
    assert all("step-0000000" in note and "cut short" in note for note in notes)
    assert torch.equal(anew.weights(), by_trainer(tmp_path / "b").weights())


def test_more_epochs_train_exactly_those(tmp_path: Path) -> None:
    """A finished run of 2 epochs asked for 4 trains 2 more, as a run of 4 would have."""
    by_trainer(tmp_path / "a", epochs=2)
    longer = by_trainer(tmp_path / "a", epochs=4)
    assert torch.equal(longer.weights(), by_trainer(tmp_path / "b", epochs=4).weights())


def test_training_leaves_the_ambient_streams_alone() -> None:
    """The caller's random numbers are the same with and without a fit in between."""
    torch.manual_seed(5)
    expected = torch.rand(3)
    tiny = Tiny()
    torch.manual_seed(5)
    tiny.trainer(config=lucid.TrainConfig(epochs=1)).fit(tiny.train_loader, tiny.eval_loader)
    assert torch.equal(torch.rand(3), expected)


def test_a_foreign_run_is_refused_and_untouched(tmp_path: Path) -> None:
    """A folder with another run's checkpoints is refused; none of its files changes."""
    by_trainer(tmp_path)
    (tmp_path / "environment.json").write_text('{"run_id": "another", "starts": []}')
    before = {path: path.read_bytes() for path in (tmp_path / "checkpoints").glob("*.lcs")}
    with pytest.raises(ConfigError, match="another run"):
        by_trainer(tmp_path)
    assert {path: path.read_bytes() for path in before} == before


# -- bad input: what, where, what to do, before any work


def fit(tiny: Tiny, loader: Any = None, eval_loader: Any = None, **options: Any) -> None:
    """Fit a trainer made with some options."""
    tiny.trainer(**options).fit(tiny.train_loader if loader is None else loader, eval_loader)


class _Nothing(Dataset[Any]):
    def __len__(self) -> int:
        return 0

    def __getitem__(self, index: int) -> Any:
        raise IndexError


def test_an_empty_data_set_is_refused() -> None:
    """An empty data set is an error before training."""
    with pytest.raises(DataError, match="must have rows"):
        fit(Tiny(), DataLoader(_Nothing()))


def test_data_shorter_than_a_batch_with_drop_last_is_refused() -> None:
    """drop_last with fewer rows than a batch leaves nothing, which is an error before training."""
    tiny = Tiny(3)
    with pytest.raises(DataError, match="drop_last"):
        fit(tiny, DataLoader(tiny.rows, batch_size=4, drop_last=True))


def test_a_model_without_trainable_parameters_is_refused() -> None:
    """A frozen model is an error at set-up."""
    tiny = Tiny()
    tiny.model.requires_grad_(False)
    with pytest.raises(ConfigError, match="no trainable parameters"):
        tiny.trainer()


def test_a_parameter_missing_from_the_optimizer_is_named() -> None:
    """A trainable parameter in no optimizer is an error at set-up that names it."""
    tiny = Tiny()
    tiny.optimizer = torch.optim.AdamW(tiny.model[0].parameters())
    tiny.scheduler = None  # type: ignore[assignment]
    with pytest.raises(ConfigError, match=r"2\.weight"):
        tiny.trainer()


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda output, target: output - target, "must be a scalar"),
        (lambda output, target: (output - target).mean().detach(), "no graph"),
        (lambda output, target: 1.0, "0-d tensor"),
    ],
)
def test_a_loss_that_cannot_work_is_refused(loss: Any, message: str) -> None:
    """A loss that is no scalar with a graph is an error on the first batch, before any update."""
    tiny = Tiny()
    before = tiny.weights()
    with pytest.raises(LossError, match=message):
        fit(tiny, loss=loss)
    assert torch.equal(tiny.weights(), before)


def test_a_batch_of_three_asks_for_a_train_step() -> None:
    """A batch that is not (inputs, target) says how to go on."""
    rows = TensorDataset(*(torch.randn(4, 3) for _ in range(3)))
    with pytest.raises(LossError, match="train_step="):
        fit(Tiny(), DataLoader(rows))


def test_an_unknown_monitor_names_the_nearest() -> None:
    """A misspelt monitor is an error at set-up that lists the known ones."""
    tiny = Tiny()
    config = lucid.TrainConfig(monitor="eval/los", mode="min")
    with pytest.raises(ConfigError, match=r"eval/los'\. Did you mean 'eval/loss'\?"):
        fit(tiny, None, tiny.eval_loader, config=config)


def test_a_monitor_without_direction_is_refused() -> None:
    """A monitor whose better direction is not known is an error."""
    with pytest.raises(ConfigError, match=r"train\.mode must be"):
        lucid.TrainConfig(monitor="eval/accuracy")


def test_a_run_dir_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """A run_dir that cannot be a folder is an error before training."""
    (tmp_path / "runs").write_text("mine")
    with pytest.raises(ConfigError, match="must be a folder that can be written"):
        fit(Tiny(), run_dir=tmp_path / "runs")
    assert (tmp_path / "runs").read_text() == "mine"


def test_a_micro_batch_without_a_step_is_refused(tmp_path: Path) -> None:
    """Forgetting `run.step` is an error, not a silent no-op."""
    tiny = Tiny()
    run = lucid.Run(tiny.model, tiny.optimizer, tiny.train_loader, reports=())
    with pytest.raises(LossError, match=r"run\.step\(loss\) must be called once"):
        for _ in run:
            pass


def test_a_second_fit_makes_its_schedule_anew() -> None:
    """A schedule given as a function begins again with each fit."""
    tiny = Tiny()
    trainer = tiny.trainer(
        config=lucid.TrainConfig(epochs=1),
        scheduler=lambda optimizer, total: lucid.optim.warmup_cosine(optimizer, 2, total),
    )
    for _ in range(2):
        trainer.fit(tiny.train_loader)
        assert trainer.state is not None
        assert trainer.state.schedulers[0].last_epoch == 10


def test_a_class_or_a_mapping_in_place_of_an_object_is_refused() -> None:
    """Model, optimizer and settings of another kind are named, and settings changed into nonsense are seen."""
    tiny = Tiny()
    config = lucid.TrainConfig()
    config.epochs = -3
    for arguments, message in (
        ((nn.Linear, tiny.optimizer), "model must be an object of the class Module, got <class"),
        ((tiny.model, torch.optim.SGD), "optimizer must be an object of the class Optimizer, got <class"),
        ((tiny.model, None), "optimizer must be an object of the class Optimizer, got None"),
        ((tiny.model, []), "optimizer must be a torch optimizer or a list of some, got none"),
    ):
        with pytest.raises(ConfigError, match=message):
            lucid.Trainer(*arguments)
    with pytest.raises(ConfigError, match=r"config must be an object of the class TrainConfig, got \{'epochs': 1\}"):
        tiny.trainer(config={"epochs": 1})
    with pytest.raises(ConfigError, match=r"train\.epochs must be a whole number of at least 1, got -3"):
        tiny.trainer(config=config)


def test_a_schedule_that_moves_nothing_here_is_refused() -> None:
    """A schedule of another optimizer would leave the learning rate as it is for the whole run."""
    scheduler = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(Tiny().model.parameters(), lr=1.0), 1)
    with pytest.raises(ConfigError, match="StepLR moves another optimizer than the one that trains"):
        fit(Tiny(), scheduler=scheduler)


def test_a_schedule_shorter_than_the_run_is_refused() -> None:
    """A one-cycle schedule over 8 steps does not break off a run of 10 at step 9."""
    tiny = Tiny()
    scheduler = torch.optim.lr_scheduler.OneCycleLR(tiny.optimizer, max_lr=0.1, total_steps=8)
    with pytest.raises(ConfigError, match=r"must last for the run's 10 steps, got total_steps=8"):
        fit(tiny, scheduler=scheduler, config=lucid.TrainConfig(epochs=1))


def test_what_waits_for_a_monitor_must_get_one() -> None:
    """Patience and plateaus are refused without evaluation data, or where the evaluation has no loss to look at."""
    needs = "needs evaluation data: give fit an eval_loader"
    patient = lucid.TrainConfig(epochs=2, patience=1)
    with pytest.raises(ConfigError, match=f"EarlyStopping {needs}"):
        fit(Tiny(), config=patient)
    tiny = Tiny()
    with pytest.raises(ConfigError, match=f"ReduceLROnPlateau {needs}"):
        fit(tiny, scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau(tiny.optimizer))
    blind = {
        "loss": None,
        "train_step": lambda model, batch: F.mse_loss(model(batch[0]), batch[1]),
        "eval_step": lambda model, batch: (model(batch[0]), batch[1]),
        "metrics": {"mae": lucid.metrics.mean_absolute_error},
    }
    with pytest.raises(ConfigError, match="early stopping needs 'eval/loss', but the evaluation gives eval/mae"):
        fit(tiny, None, tiny.eval_loader, config=patient, **blind)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(tiny.optimizer)
    with pytest.raises(ConfigError, match=r"train\.monitor must be one of eval/mae, got 'eval/loss'"):
        fit(tiny, None, tiny.eval_loader, scheduler=plateau, **blind)


def test_a_metric_cannot_take_the_place_of_the_loss() -> None:
    """A metric named loss would be monitored in the loss's place, with the wrong direction."""
    tiny = Tiny()
    with pytest.raises(ConfigError, match='a metric must not be named "loss"'):
        lucid.evaluate(tiny.model, tiny.eval_loader, {"loss": lucid.metrics.accuracy}, loss=F.mse_loss)


@pytest.mark.parametrize(
    ("norm", "num_rows", "drop_last", "is_said"),
    [
        (nn.BatchNorm1d(3), 9, False, True),
        (nn.BatchNorm1d(3), 9, True, False),
        (nn.BatchNorm1d(3), 10, False, False),
        (nn.BatchNorm1d(3).eval(), 9, False, False),
        (nn.LayerNorm(3), 9, False, False),
    ],
)
def test_one_row_for_batch_norm_is_said_before_the_first_step(
    norm: nn.Module, num_rows: int, drop_last: bool, is_said: bool
) -> None:
    """What torch refuses at the end of the first epoch stands in the plan, with the cure; the error still comes."""
    tiny = Tiny()
    is_training, model = norm.training, nn.Sequential(nn.Linear(3, 3), norm)
    loader = DataLoader(TensorDataset(*tiny.rows[:num_rows]), batch_size=4, drop_last=drop_last)
    trainer = lucid.Trainer(
        model.train(), torch.optim.SGD(model.parameters(), lr=0.1), loss=lambda output, _: output.mean(), reports=()
    )
    norm.train(is_training)
    with trainer.session(loader) as session:
        found = [note for note in session.facts["notes"] if "BatchNorm1d (1)" in note and "drop_last=True" in note]
    assert len(found) == is_said
    with pytest.raises(ValueError, match="more than 1 value per channel") if is_said else contextlib.nullcontext():
        trainer.fit(loader)
