"""A model back from its checkpoint: of the command alone, of a script into the model that it is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import lucid
from lucid.build import build
from lucid.errors import CheckpointError, ConfigError, MismatchError
from lucid.trained import find_checkpoint, load_trained
from small_run import config, trained


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Forty rows of four numbers with three classes."""
    numpy.savez(tmp_path / "rows.npz", x=numpy.random.default_rng(0).normal(size=(40, 4)), y=numpy.arange(40) % 3)
    return tmp_path / "rows.npz"


def script(folder: Path, model: nn.Module, **arguments: Any) -> nn.Module:
    """Train as a script does, with a model of its own."""
    data = torch.utils.data.TensorDataset(torch.randn(8, 3), torch.randn(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    lucid.Trainer(
        model, optimizer, nn.functional.mse_loss, config=lucid.TrainConfig(epochs=1), run_dir=folder, reports=(),
        **arguments,
    ).fit(loader)  # fmt: skip
    return model


def test_model_comes_back_from_its_checkpoint_alone(rows: Path) -> None:
    """Weights, mode and meaning of the rows, without the data."""
    built = trained(rows)
    rows.unlink()
    loaded = load_trained(built.config.run_dir or "")
    assert not loaded.model.training
    assert loaded.meta["class_names"] == ["0", "1", "2"]
    last = lucid.load_model(rows.parent / "run" / "checkpoints" / "step-00000008.lcs").state_dict()
    assert all(torch.equal(value, last[name]) for name, value in built.model.state_dict().items())


def test_load_model_takes_the_best_checkpoint_of_a_run(rows: Path) -> None:
    """The one that the folder's pointer names, not the last; without pointers the newest."""
    folder = Path(str(trained(rows).config.run_dir)) / "checkpoints"
    first, last = sorted(folder.glob("*.lcs"))
    (folder / "best").write_text(f"{first.name}\n")
    assert find_checkpoint(folder.parent) == first
    for pointer in ("best", "last"):
        (folder / pointer).unlink()
    assert find_checkpoint(folder.parent) == last


def test_averaged_weights_are_what_is_loaded(rows: Path) -> None:
    """Where the run kept an average."""
    built = trained(rows, **{"train.ema_decay": 0.9})
    average = next(one for one in built.trainer.callbacks if isinstance(one, lucid.EMA)).average
    found = dict(lucid.load_model(rows.parent / "run" / "checkpoints" / "step-00000008.lcs").named_parameters())
    assert all(torch.equal(value, found[name]) for name, value in average.items())
    assert not all(torch.equal(value, found[name]) for name, value in built.model.named_parameters())


def test_something_else_is_refused(rows: Path, tmp_path: Path) -> None:
    """No run, or a file that no command made."""
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        lucid.load_model(tmp_path / "nothing")
    lucid.save({"weights": {}}, tmp_path / "mine.lcs")
    with pytest.raises(CheckpointError, match="is not a checkpoint of a run"):
        lucid.load_model(tmp_path / "mine.lcs")


def test_run_of_a_script_says_to_give_the_model(tmp_path: Path) -> None:
    """With the call that loads it."""
    script(tmp_path / "run", nn.Linear(3, 3))
    with pytest.raises(CheckpointError) as caught:
        lucid.load_model(tmp_path / "run")
    assert f"give it: lucid.load_model({str(tmp_path / 'run')!r}, model=MyModel(...))." in str(caught.value)


def test_script_gets_its_weights_into_its_own_model_with_its_assets(tmp_path: Path) -> None:
    """The same object, in eval mode; what was given as `extra_config` comes along, settings of the training not."""
    model = script(tmp_path / "run", nn.Linear(3, 3), extra_config={"class_names": ["a", "b"]})
    fresh = nn.Linear(3, 3)
    assert lucid.load_model(tmp_path / "run", model=fresh) is fresh
    assert not fresh.training
    assert torch.equal(fresh.weight, model.weight)
    assert fresh.assets == {"class_names": ["a", "b"]}
    assert list(fresh.state_dict()) == ["weight", "bias"]


def test_model_of_the_command_has_its_assets_either_way(rows: Path) -> None:
    """Built anew or given: what the rows mean."""
    built = trained(rows)
    last = rows.parent / "run/checkpoints/step-00000008.lcs"
    for model in (None, lucid.models.mlp.MLP((4,), 3)):
        loaded: Any = lucid.load_model(last, model=model)
        assert loaded.assets["class_names"] == ["0", "1", "2"]
        assert loaded.assets["transform_state"] == built.data.transform_state
        assert torch.equal(loaded(torch.ones(1, 4)), built.model.eval()(torch.ones(1, 4)))


def test_model_keeps_assets_of_its_own(tmp_path: Path) -> None:
    """An attribute of that name is not written over."""
    model: Any = script(tmp_path / "run", nn.Linear(3, 3))
    model.assets = "mine"
    assert lucid.load_model(tmp_path / "run", model=model).assets == "mine"


def test_weights_that_do_not_fit_are_named_with_the_nearest(tmp_path: Path) -> None:
    """Names and shapes, and the file; nothing was loaded."""
    script(tmp_path / "run", nn.Sequential(nn.Linear(3, 3)))
    other = nn.Sequential(nn.Linear(3, 4))
    other.append(nn.Linear(4, 3))
    before = other[0].weight.clone()
    with pytest.raises(MismatchError) as caught:
        lucid.load_model(tmp_path / "run", model=other)
    for words in ("step-00000002.lcs: the state does not fit", "missing: '1.weight'", "(3, 3), the model expects (4,"):
        assert words in str(caught.value)
    assert torch.equal(other[0].weight, before)
    with pytest.raises(MismatchError, match=r"missing: '1.weight'. Did you mean '0.weight'"):
        lucid.load_model(tmp_path / "run", model=nn.Sequential(nn.Identity(), nn.Linear(3, 3)))


@pytest.mark.parametrize(
    ("model", "words"),
    [(nn.Linear, "must be a model with weights to fill, got <class"), (nn.Linear(3, 3, device="meta"), "no memory")],
    ids=["a class", "no memory"],
)
def test_what_takes_no_weights_is_refused(tmp_path: Path, model: Any, words: str) -> None:
    """A class ended in Python's TypeError, a model on "meta" stayed without weights."""
    script(tmp_path / "run", nn.Linear(3, 3))
    with pytest.raises(ConfigError, match=words):
        lucid.load_model(tmp_path / "run", model=model)


def test_average_of_a_script_reaches_tied_weights(tmp_path: Path) -> None:
    """SWA as well as EMA; a weight with two names has the average under both."""
    swa = lucid.SWA(start=1)
    layers = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    layers[1].weight = layers[0].weight
    script(tmp_path / "run", layers, callbacks=[swa])
    fresh = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    fresh[1].weight = fresh[0].weight
    lucid.load_model(tmp_path / "run", model=fresh)
    assert torch.equal(fresh[1].weight, swa.average["0.weight"])
    assert not torch.equal(fresh[1].weight, layers[1].weight)


def test_run_starts_from_weights_of_another(rows: Path) -> None:
    """Of a checkpoint or a safetensors file; a model that does not fit is refused."""
    built = trained(rows)
    path = find_checkpoint(str(built.config.run_dir))
    lucid.serialization.export_safetensors(path, rows.parent / "w.safetensors")
    for source in (path, rows.parent / "w.safetensors"):
        again = build(config(rows, **{"model.weights": str(source), "run_dir": str(rows.parent / "b")}), reports=())
        wanted = lucid.load(path)["model"]
        assert all(torch.equal(value, wanted[name]) for name, value in again.model.state_dict().items())
    with pytest.raises(ConfigError, match=r"model.weights = .* does not fit"):
        build(config(rows, **{"model.weights": str(path), "model.options": {"width": 7}}), reports=())
