"""A step that went wrong runs again with the same bits, and the first bad module and tensor are named."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import faults
import lucid
from faults import NanGradient, PassOn
from lucid.amp import GradScaler, Precision
from lucid.errors import ReplayError
from lucid.replay import replay
from lucid.step import OVERFLOW, UNSURE

BAD_ROW = 21


class SteepGradient(PassOn):
    """Its gradient is as much too large for float16 as a high scale makes it."""

    @staticmethod
    def backward(context: Any, grad: Tensor) -> Tensor:
        return grad * 2e4


class Act(nn.Module):
    """An activation of one's own, whose backward goes wrong when told so."""

    def forward(self, x: Tensor, fault: str = "") -> Tensor:
        return NanGradient.apply(x) if fault == "own backward" else x + 0


class Layer(nn.Module):
    """A linear layer with dropout that can be told to go wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.act, self.drop = nn.Linear(4, 4), Act(), nn.Dropout(0.3)

    def forward(self, x: Tensor, fault: str = "") -> Tensor:
        if fault == "functional":
            x = x / 0
        x = self.act(self.linear(x), fault)
        if fault == "backward":
            x = NanGradient.apply(x)
        if fault == "steep":
            x = SteepGradient.apply(x)
        x = self.drop(x)
        return x * math.inf if fault == "output" else x


class Stack(nn.Module):
    """Three layers; the row's number comes in as a fourth column and says when `fault` happens in layer `place`."""

    def __init__(self, fault: str, place: int) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList(Layer() for _ in range(3)), nn.Linear(4, 1)
        self.fault, self.place, self.calls = fault, place, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        bad = self.training and bool((x[:, 3] == BAD_ROW).any())
        x = x.clone()
        x[:, 3] = 0
        for index, layer in enumerate(self.layers):
            x = torch.tanh(layer(x, self.fault if bad and index == self.place else ""))
        out = self.head(x)
        return out * 1e4 if bad and self.fault == "spike" else out


def build(fault: str = "", place: int = 0, run_dir: Path | None = None, loss: Any = F.mse_loss, **settings: Any) -> Any:
    """Return (trainer, train_loader, eval_loader), made the same way every time."""
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    x[:, 3] = torch.arange(64)
    y = x[:, :3].sum(1, keepdim=True)
    if fault == "batch":
        x[BAD_ROW, 1] = math.nan
    rows = TensorDataset(x, y)
    model = Stack(fault, place)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    config = lucid.TrainConfig(
        **{"epochs": 2, "save_every": 3, "device": "cpu", "eval_every": 2, "seed": 1, **settings}
    )
    trainer = lucid.Trainer(
        model, optimizer, loss=loss, config=config, run_dir=run_dir, reports=(), callbacks=[lucid.EMA(0.9)],
        scheduler=lambda optimizer, total: torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=total),
    )  # fmt: skip
    return trainer, DataLoader(rows, batch_size=4, shuffle=True), DataLoader(rows, batch_size=16)


def fail(folder: Path, *arguments: Any, **options: Any) -> tuple[Path, Callable[[], Any]]:
    """Train with a fault; return the first bundle and what builds the run anew."""
    trainer, train, evaluation = build(*arguments, run_dir=folder, **options)
    trainer.fit(train, evaluation)
    first = min((folder / "replay").iterdir())
    return first, lambda: build(*arguments, run_dir=folder, **options)


def loss_of_root(output: Tensor, target: Tensor) -> Tensor:
    """A loss whose gradient is NaN where output and target are equal."""
    difference = (output - target) * (target.abs().sum() < 0)
    return torch.sqrt((difference**2).sum()) + (output - target).square().mean()


FAULTS = {
    "output": ("forward", "layers.1", "output"),
    "functional": ("forward", "layers.1.linear", "input 0"),
    "backward": ("backward", "layers.1", "gradient of the output of 'layers.1.act' (from an operation after it)"),
    "own backward": ("backward", "layers.1.act", "gradient of its input"),
    "batch": ("batch", "", None),
}


@pytest.mark.parametrize("settings", [{}, {"gradient_accumulation_steps": 2}, {"save_every": 0}])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_in_its_layer(tmp_path: Path, fault: str, settings: dict[str, Any]) -> None:
    """The replayed step has the bits of the recorded one, and the layer that went wrong is named."""
    folder, make = fail(tmp_path, fault, 1, **settings)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    found = replay(folder, make)
    assert found.differs == []
    kind, module, tensor = FAULTS[fault]
    assert found.finding is not None
    assert (found.finding.kind, found.finding.module) == (kind, module)
    if tensor:
        assert found.finding.tensor == tensor
    assert BAD_ROW in found.rows
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert "the replayed step has the same bits as the recorded one" in found.describe()


@pytest.mark.parametrize("place", [0, 2])
def test_other_places_of_a_bad_gradient(tmp_path: Path, place: int) -> None:
    """The first and the last layer are told apart."""
    folder, make = fail(tmp_path, "backward", place)
    finding = replay(folder, make).finding
    assert finding is not None
    assert finding.module == f"layers.{place}"


def test_a_loss_with_a_bad_gradient_is_named(tmp_path: Path) -> None:
    """Every output finite, the loss finite, its gradient NaN: the loss is the culprit."""
    with pytest.raises(lucid.errors.NonFiniteError):
        build(run_dir=tmp_path, loss=loss_of_root)[0].fit(build()[1])
    found = replay(tmp_path / "replay" / "step-00000001", lambda: build(loss=loss_of_root))
    assert found.finding is not None
    assert (found.finding.kind, found.finding.tensor) == ("loss", "its gradient")
    assert found.is_exact


def test_a_bad_batch_names_its_row(tmp_path: Path) -> None:
    """NaN in the data: the micro-batch, the tensor and the row in it."""
    folder, make = fail(tmp_path, "batch", gradient_accumulation_steps=2)
    found = replay(folder, make)
    assert found.finding is not None
    index = found.rows.index(BAD_ROW)
    assert found.finding.micro_batch == index // 4
    assert f"tensor 0, row {index % 4} of it" in found.finding.describe()


def test_a_spike_shows_the_largest_gradients(tmp_path: Path) -> None:
    """Nothing is NaN in a spike; the parameters with the largest gradients are named."""
    folder, make = fail(tmp_path, "spike", spike_factor=50.0, epochs=3)
    found = replay(folder, make)
    assert found.finding is None
    assert found.is_exact
    assert found.largest[0][0].startswith("head.")
    assert found.reason.startswith("spike: loss")


def test_fp16_replays_with_its_scale(tmp_path: Path) -> None:
    """Under a scaler too the step has the recorded bits; overflow that the scaler mends leaves no bundle."""
    folder, make = fail(tmp_path, "output", 1, precision="fp16")
    assert replay(folder, make).is_exact


@pytest.mark.parametrize(("fault", "words"), [("own backward", "a fault, no overflow"), ("steep", "no fault")])
def test_fp16_tells_a_fault_from_an_overflow(tmp_path: Path, fault: str, words: str) -> None:
    """A bad gradient at a scale that had held leaves a bundle; without the scale the replay sees which it was."""
    settings = {"precision": "fp16", "epochs": 3, "non_finite": "raise", "gradient_accumulation_steps": 2}
    folder, make = fail(tmp_path, fault, 1, **settings)
    found = replay(folder, make)
    assert found.reason == UNSURE
    assert found.is_exact
    assert (found.finding is None) == (fault == "steep")
    if found.finding is not None:
        assert (found.finding.kind, found.finding.module) == ("backward", "layers.1.act")
    assert all(math.isfinite(norm) for _, norm in found.largest) == (fault == "steep")
    assert found.verdict is not None
    assert found.verdict.startswith(words)
    assert f"\n{found.verdict}\n" in found.describe()


def test_fp16_looks_again_at_the_same_step(tmp_path: Path) -> None:
    """Without the scale the passes draw the same random numbers, and the norms are those of the window's mean."""
    settings = {"precision": "fp16", "gradient_accumulation_steps": 2}
    folder, make = fail(tmp_path, "steep", 1, **settings)
    made, calls = make(), []
    model = made[0].model
    handle = model.register_forward_pre_hook(lambda _, inputs: calls.append((inputs[0], torch.get_rng_state())))
    found = replay(folder, lambda: made)
    handle.remove()
    (first, second), (again, again_second) = calls[-4:-2], calls[-2:]
    assert torch.equal(first[1], again[1])
    assert torch.equal(second[1], again_second[1])
    for parameter in model.parameters():
        parameter.grad = None
    for x, streams in (again, again_second):
        torch.set_rng_state(streams)
        with made[0].precision.autocast():
            loss = F.mse_loss(model(x), x[:, :3].sum(1, keepdim=True))
        (loss / 2).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    for name, norm in found.largest:
        assert norm == pytest.approx(float(gradients[name].norm()), rel=0.01)


def test_fp16_leaves_room_for_faults_without_doubt(tmp_path: Path) -> None:
    """Looking for the scale leaves no bundle; doubtful steps leave none beyond half of those that a run may leave."""

    def step(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        return F.mse_loss(model(x), y) * (math.nan if (x[:, 3] == 31).any() else 1.0)

    scaled = Precision("fp16", scaler=GradScaler("cpu", init_scale=2.0**14))
    trainer = faults.make((1, 9, 17, 25), "nan gradient", train_step=step, run_dir=tmp_path, precision="fp16", epochs=2)
    trainer.precision = scaled
    trainer.fit(faults.loader())
    reasons = [(r["step"], r["info"]["reason"]) for r in faults.records(tmp_path, "skip")]
    assert [number for number, reason in reasons if reason == OVERFLOW] == [1, 9]
    assert [number for number, reason in reasons if reason == UNSURE] == [3, 5, 7, 11, 13, 15]
    assert sorted(int(path.name[5:]) for path in (tmp_path / "replay").iterdir()) == [3, 5, 7, 8, 16]


class Root(nn.Module):
    """Takes roots, also of what is below 0."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sqrt(x)


class Compilable(nn.Module):
    """Nothing in it depends on the data, so that forward, loss and backward can be one graph."""

    def __init__(self, is_odd: bool) -> None:
        super().__init__()
        self.first, self.root, self.last = nn.Linear(3, 4), Root(), nn.Linear(4, 1)
        self.is_odd = is_odd

    def forward(self, x: Tensor) -> Tensor:
        x, rows = x[:, :3], x[:, 3:]
        if self.is_odd and float(rows.sum()) < 0:  # a read, where a graph breaks
            return x
        return self.last(self.root(torch.where(rows == BAD_ROW, -1.0, torch.sigmoid(self.first(x)))))


def compiled(is_odd: bool, run_dir: Path) -> Any:
    """Return trainer and loader of a run that is compiled."""
    torch.manual_seed(0)
    model = Compilable(is_odd)
    config = lucid.TrainConfig(epochs=1, device="cpu", compile=True, save_every=2)
    optimizer = lucid.optim.AdamW(model.parameters(), lr=0.01)
    return lucid.Trainer(model, optimizer, loss=F.mse_loss, config=config, run_dir=run_dir, reports=()), faults.loader()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("is_odd", [False, True])
def test_a_compiled_step_is_replayed_and_its_module_named(tmp_path: Path, is_odd: bool) -> None:
    """The step has the bits of the compiled run; the module is found in the same passes, as they are written."""
    trainer, rows = compiled(is_odd, tmp_path)
    trainer.fit(rows)
    (folder,) = (tmp_path / "replay").iterdir()
    found = replay(folder, lambda: compiled(is_odd, tmp_path))
    assert found.is_exact
    assert found.finding is not None
    assert (found.finding.kind, found.finding.module, found.finding.tensor) == ("forward", "root", "output")
    assert found.finding.micro_batch == 0


@pytest.mark.parametrize("save_every", [0, 5])
def test_a_path_with_a_window_left_out_by_a_rollback(tmp_path: Path, save_every: int) -> None:
    """The second bad step of a run that went back once: its path leaves out the first one's window as the run did."""
    _, make = fail(tmp_path, "output", 1, non_finite="rollback", save_every=save_every, epochs=2)
    second = max((tmp_path / "replay").iterdir())
    assert '"omitted": [\n  [' in (second / "bundle.json").read_text()
    found = replay(second, make)
    assert found.differs == []
    assert found.finding is not None
    assert found.finding.module == "layers.1"


def test_the_checkpoint_outlives_retention(tmp_path: Path) -> None:
    """The bundle holds its checkpoint although the run has long deleted it."""
    folder, _ = fail(tmp_path, "output", 1, epochs=4)
    step = int((folder / "bundle.json").read_text().split('"checkpoint_step": ')[1].split(",")[0])
    assert step > 0
    assert not (tmp_path / "checkpoints" / f"step-{step:08d}.lcs").exists()
    assert (folder / "checkpoint.lcs").exists()


def test_the_path_begins_at_the_checkpoint(tmp_path: Path) -> None:
    """Only the steps since the checkpoint are run again."""
    folder, make = fail(tmp_path, "output", 1, save_every=3)
    made = []

    def keep() -> Any:
        made.append(make())
        return made[-1]

    found = replay(folder, keep)
    assert made[0][0].model.calls == (found.step - 1) % 3 + 1
    assert found.step > 3


def test_another_model_is_not_the_recorded_step(tmp_path: Path) -> None:
    """A replay that is not the recorded step says what differs."""
    folder, _ = fail(tmp_path, "output", 1, save_every=0)

    def other() -> Any:
        made = build("output", 1)
        with torch.no_grad():
            made[0].model.head.weight.mul_(1.5)
        return made

    found = replay(folder, other)
    assert "weights or optimizer before the step" in found.differs
    assert "not the recorded step, these differ: weights or optimizer" in found.describe()


def test_other_settings_and_broken_bundles_are_refused(tmp_path: Path) -> None:
    """Other settings, a folder without a bundle, and a bundle without its checkpoint each have their error."""
    folder, make = fail(tmp_path, "output", 1)
    with pytest.raises(ReplayError, match=r"(?s)recorded with other settings.*train\.seed"):
        replay(folder, lambda: build("output", 1, seed=2))
    with pytest.raises(ReplayError, match=r"bundle\.json must be the description of a replay bundle"):
        replay(tmp_path, make)
    (folder / "checkpoint.lcs").unlink()
    with pytest.raises(ReplayError, match=r"must hold checkpoint\.lcs, the checkpoint of step"):
        replay(folder, make)


def test_a_step_beyond_the_end_is_refused(tmp_path: Path) -> None:
    """A run that is built shorter than the recorded step never reaches it."""
    folder, _ = fail(tmp_path, "output", 1, save_every=0)
    with pytest.raises(ReplayError, match=r"ended at step 1, before step"):
        replay(folder, lambda: build("output", 1, max_steps=1))


def test_a_run_leaves_at_most_eight_bundles(tmp_path: Path) -> None:
    """The first bundles of a run are kept; a run that goes wrong all the time does not fill the disk."""
    with pytest.raises(lucid.errors.NonFiniteError):
        build(run_dir=tmp_path, loss=loss_of_root, max_skips=12)[0].fit(build()[1])
    assert sorted(path.name for path in (tmp_path / "replay").iterdir()) == [f"step-{n:08d}" for n in range(1, 9)]
