"""Nothing ruins a run silently: bad steps are found, named, left out, undone, and never saved."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import lucid
from faults import ROWS, Faulty, Look, loader, make, records, same, weights
from lucid.errors import ConfigError, NonFiniteError
from lucid.serialization import load

OPTIMIZERS = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, fused=True),
    "ours": lambda p: lucid.optim.AdamW(p, lr=0.01),
}


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("fault", ["nan loss", "nan gradient"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_left_out_changes_nothing(name: str, fault: str, accumulate: int) -> None:
    """Weights, buffers of BatchNorm, moments, step counts and learning rate are those of the step before."""
    look = Look()
    trainer = make(
        (17,), fault, OPTIMIZERS[name], callbacks=[look], gradient_accumulation_steps=accumulate,
        scheduler=lambda optimizer, total: torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=total),
    )  # fmt: skip
    result = trainer.fit(loader())
    bad = 16 // (4 * accumulate)  # the step of row 17, from 0
    before, after, later = look.trace[bad - 1], look.trace[bad], look.trace[bad + 1]
    assert same(before[0], after[0])
    assert before[1:] == after[1:]
    assert not same(after[0], later[0])
    assert later[1] != after[1]
    assert all(bool(torch.isfinite(value.float()).all()) for value in look.trace[-1][0])
    assert result.step == 8 // accumulate


def test_the_record_names_step_rows_micro_batch_and_parameter(tmp_path: Path) -> None:
    """A step that was left out is a record of its own with all that is known of it, NaN as NaN."""
    make((13,), run_dir=tmp_path, gradient_accumulation_steps=2).fit(loader())
    (record,) = records(tmp_path, "skip")
    assert record["step"] == 2
    assert record["values"]["train/loss"] == "nan"
    assert record["info"] == {
        "reason": "NaN or inf in loss or gradient", "micro_batch": 1, "parameter": "first.weight",
        "rows": [12, 13, 14, 15], "replay": "replay/step-00000002",
    }  # fmt: skip
    logs = records(tmp_path, "log")
    assert [r["values"]["train/skipped_steps"] for r in logs] == [0, 1, 1, 1]
    assert [r["values"]["train/loss"] == "nan" for r in logs] == [False, True, False, False]


def test_a_gradient_that_alone_is_bad_names_the_whole_window(tmp_path: Path) -> None:
    """A finite loss with a NaN gradient: the rows of the window and the first bad parameter are named."""
    make((13,), "nan gradient", run_dir=tmp_path, gradient_accumulation_steps=2).fit(loader())
    (record,) = records(tmp_path, "skip")
    assert record["info"]["rows"] == list(range(8, 16))
    assert record["info"]["parameter"] == "first.weight"
    assert math.isfinite(record["values"]["train/loss"])


def test_policy_raise_stops_before_the_update(tmp_path: Path) -> None:
    """The error has step, epoch, reason, parameter and rows; the weights are those of the step before."""
    trainer = make((17,), run_dir=tmp_path, non_finite="raise")
    with pytest.raises(
        NonFiniteError, match=r"step 5 \(epoch 1\): NaN or inf.*parameter: first\.weight; rows: \[16, 17"
    ):
        trainer.fit(loader())
    good = make(max_steps=4)
    good.fit(loader())
    assert same(weights(good), weights(trainer))


def test_an_endless_row_of_skips_stops_at_the_limit() -> None:
    """Single skips are normal; max_skips in a row are an error that says what to do."""
    trainer = make(tuple(range(8, ROWS)), max_skips=3)
    with pytest.raises(NonFiniteError, match=r"3 steps in a row were left out, the last at step 5.*max_skips"):
        trainer.fit(loader())


def test_skips_that_are_not_in_a_row_do_not_stop() -> None:
    """Every second step bad: never two in a row."""
    assert make((0, 8, 16, 24), max_skips=2).fit(loader()).step == 8


class Without(torch.utils.data.Sampler[list[int]]):
    """Batches in order without some of them."""

    def __init__(self, left_out: tuple[int, ...]) -> None:
        self.batches = [list(range(i * 4, i * 4 + 4)) for i in range(ROWS // 4) if i not in left_out]

    def __iter__(self) -> Any:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


@pytest.mark.parametrize("save_every", [2, 3, 0])
def test_rollback_goes_back_and_leaves_the_window_out(tmp_path: Path, save_every: int) -> None:
    """The run ends with the bits of a run whose data never had that window, and says what happened."""
    trainer = make((17,), run_dir=tmp_path, non_finite="rollback", save_every=save_every)
    result = trainer.fit(loader())
    plain = make(save_every=0)
    plain.fit(DataLoader(loader().dataset, batch_sampler=Without((4,))))
    assert same(weights(plain), weights(trainer))
    assert result.step == 8
    from_step = {2: 4, 3: 3, 0: 0}[save_every]
    (back,) = records(tmp_path, "resume")
    assert (back["step"], back["info"]["rollback"], back["info"]["failed_step"]) == (from_step, 1, 5)
    assert back["info"]["rows"] == [16, 17, 18, 19]
    (skip,) = records(tmp_path, "skip")
    assert (skip["step"], skip["info"]["rows"]) == (5, [16, 17, 18, 19])
    assert [r["step"] for r in records(tmp_path, "log")] == list(range(1, 9))
    assert trainer.model.seen.count([16, 17, 18, 19]) == 1


def test_rollback_survives_a_break(tmp_path: Path) -> None:
    """A window left out stays left out in the resumed run, and the bits are those of the unbroken one."""

    class Break(lucid.Callback):
        def on_step_end(self, state: Any) -> None:
            if state.step == 7:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make((17,), run_dir=tmp_path / "a", non_finite="rollback", callbacks=[Break()], epochs=2).fit(loader())
    broken = make((17,), run_dir=tmp_path / "a", non_finite="rollback", epochs=2, changes="accept")
    broken.fit(loader())
    unbroken = make((17,), run_dir=tmp_path / "b", non_finite="rollback", epochs=2)
    unbroken.fit(loader())
    assert same(weights(broken), weights(unbroken))
    assert [16, 17, 18, 19] in broken.model.seen  # of the second epoch, where it is met and left out anew


def test_rollback_works_in_a_hand_written_loop(tmp_path: Path) -> None:
    """`Run` goes back as `Trainer.fit` does."""
    trainer = make((17,), run_dir=tmp_path / "a", non_finite="rollback")
    trainer.fit(loader())
    torch.manual_seed(0)
    model = Faulty((17,))
    run = lucid.Run(
        model, torch.optim.AdamW(model.parameters(), lr=0.01), loader(), run_dir=tmp_path / "b", reports=(),
        config=trainer.config,
    )  # fmt: skip
    for x, y in run:
        run.step(F.mse_loss(model(x), y))
    assert same(weights(trainer), list(model.state_dict().values()))
    assert len(records(tmp_path / "b", "resume")) == 1


class Stream(torch.utils.data.IterableDataset[Any]):
    """The rows as a stream that can only be read from its beginning."""

    def __iter__(self) -> Any:
        return iter(loader().dataset)


def test_rollback_takes_a_stream_back(tmp_path: Path) -> None:
    """A stream is read again up to the checkpoint; the bits are those of rows with numbers, which a stream lacks."""
    rows, stream = make((17,), run_dir=tmp_path / "a", non_finite="rollback"), make((17,), run_dir=tmp_path / "b",
                                                                                    non_finite="rollback")  # fmt: skip
    rows.fit(loader())
    stream.fit(lucid.utils.data.Feed(DataLoader(Stream(), batch_size=4), on_stream="skip"))
    assert same(weights(rows), weights(stream))
    (skip,) = records(tmp_path / "b", "skip")
    assert (skip["step"], "rows" in skip["info"]) == (5, False)


def test_rollback_gives_up_after_three(tmp_path: Path) -> None:
    """The fourth bad window ends the run with an error."""
    trainer = make((5, 13, 21, 29), run_dir=tmp_path, non_finite="rollback")
    with pytest.raises(NonFiniteError, match=r"went back to a checkpoint 3 times and failed again, the last at step 8"):
        trainer.fit(loader())
    assert [r["info"]["rollback"] for r in records(tmp_path, "resume")] == [1, 2, 3]


def test_rollback_without_a_folder_is_refused() -> None:
    """There is nothing to go back to without checkpoints."""
    with pytest.raises(ConfigError, match='non_finite="rollback" must have a run_dir'):
        make(non_finite="rollback").fit(loader())


class Ruin(lucid.Callback):
    """Puts inf into a weight after a step, as an update gone wrong does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, state: Any) -> None:
        if state.step == self.step:
            with torch.no_grad():
                state.model.last.weight[0, 1] = math.inf
            self.step = -1


@pytest.mark.parametrize("step", [4, 8])
def test_bad_weights_are_never_saved(tmp_path: Path, step: int) -> None:
    """A save due after an update gone wrong raises, names the parameter, and leaves the checkpoint before."""
    trainer = make(run_dir=tmp_path, callbacks=[Ruin(step)])
    with pytest.raises(NonFiniteError, match=rf"step {step}: parameter 'last\.weight' is NaN or inf after the update"):
        trainer.fit(loader())
    saved = {path.name: load(path, select="model") for path in (tmp_path / "checkpoints").glob("step-*.lcs")}
    assert f"step-{step - 2:08d}.lcs" in saved
    assert f"step-{step:08d}.lcs" not in saved
    assert all(bool(torch.isfinite(t.float()).all()) for tree in saved.values() for t in tree.values())


def test_rollback_mends_bad_weights(tmp_path: Path) -> None:
    """Weights gone bad at a save are not saved; the next step finds them and the run goes back before them."""
    trainer = make(run_dir=tmp_path, callbacks=[Ruin(4)], non_finite="rollback")
    assert trainer.fit(loader()).step == 8
    (back,) = records(tmp_path, "resume")
    assert (back["step"], back["info"]["failed_step"]) == (2, 5)
    assert all(bool(torch.isfinite(value.float()).all()) for value in weights(trainer))


def spiky(**options: Any) -> lucid.Trainer:
    """Return a trainer whose row 101 gives a loss far above the others."""
    return make((101,), "spike", spike_factor=20.0, spike_window=16, epochs=4, **options)


def long_loader() -> DataLoader[Any]:
    """Return 128 rows in batches of 4."""
    generator = torch.Generator().manual_seed(1)
    x = torch.cat([torch.randn(128, 3, generator=generator), torch.arange(128).float().view(-1, 1)], 1)
    return DataLoader(TensorDataset(x, 5 + x[:, :3].sum(1, keepdim=True)), batch_size=4)


def test_a_spike_is_left_out_like_nan(tmp_path: Path) -> None:
    """A loss far above the running median is left out, named, and seen as a spike; without the setting it is not."""
    trainer = spiky(run_dir=tmp_path, save_every=0)
    trainer.fit(long_loader())
    found = records(tmp_path, "skip")
    assert [r["step"] for r in found] == [26, 58, 90, 122]
    assert all("spike: loss" in r["info"]["reason"] and "times the median" in r["info"]["reason"] for r in found)
    assert all(r["info"]["rows"] == [100, 101, 102, 103] for r in found)
    assert all(r["info"]["micro_batch"] == 0 for r in found)
    plain = make((101,), "spike", epochs=4, save_every=0, run_dir=tmp_path / "plain")
    plain.fit(long_loader())
    assert records(tmp_path / "plain", "skip") == []


def test_the_running_median_is_part_of_the_state(tmp_path: Path) -> None:
    """A run broken just before a spike finds it: the values of the steps before are in the checkpoint."""

    class Break(lucid.Callback):
        def on_step_end(self, state: Any) -> None:
            if state.step == 25:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        spiky(run_dir=tmp_path, save_every=5, callbacks=[Break()]).fit(long_loader())
    trainer = spiky(run_dir=tmp_path, save_every=5, changes="accept")
    trainer.fit(long_loader())
    assert [r["step"] for r in records(tmp_path, "skip")] == [26, 58, 90, 122]


def test_spike_factor_must_be_above_one() -> None:
    """A factor of 1 would leave out half of all steps."""
    with pytest.raises(ConfigError, match=r"train\.spike_factor must be above 1"):
        lucid.TrainConfig(spike_factor=1.0)


def test_windows_without_targets_are_no_fault(tmp_path: Path) -> None:
    """Under "raise" and "rollback" a window whose targets are all ignored is left out and the run goes on."""

    def step(model: nn.Module, batch: Any) -> Any:
        keep = batch[0][:, 3] >= 4
        return (model(batch[0]) * keep[:, None]).square().sum(), keep.sum()

    for policy in ("raise", "rollback"):
        trainer = make(run_dir=tmp_path / policy, non_finite=policy, train_step=step)
        assert trainer.fit(loader()).step == 8
        (skip,) = records(tmp_path / policy, "skip")
        assert (skip["step"], skip["info"]["reason"]) == (1, "no valid target in the window")
        assert not (tmp_path / policy / "replay").exists()
