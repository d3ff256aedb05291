"""Taking up a run: what is read, what is left alone, what the records say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lucid
from lucid.errors import CheckpointError, MismatchError
from lucid.records import read_records
from lucid.records.outcome import outcome

ROWS = torch.randn(8, 512, generator=torch.Generator().manual_seed(0))


def fit(folder: Path, model: nn.Module, steps: int) -> None:
    """Train a model of 1 MB for some steps, with a checkpoint after each."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    config = lucid.TrainConfig(max_steps=steps, epochs=9, save_every=1)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(ROWS, ROWS), batch_size=4)
    lucid.Trainer(model, optimizer, loss=F.mse_loss, reports=(), config=config, run_dir=folder).fit(loader)


def damage(path: Path) -> None:
    """Change a bit in the middle of a file."""
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 4
    path.write_bytes(raw)


def records(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Return the records of one kind."""
    found = map(json.loads, (folder / "records.jsonl").read_text().splitlines())
    return [record for record in found if record["kind"] == kind]


def test_resume_reads_the_checkpoint_once(tmp_path: Path, read: list[int]) -> None:
    """A run that goes on reads as many bytes as its newest checkpoint has, and less than half of that besides."""
    fit(tmp_path, nn.Linear(512, 512), 2)
    size = (tmp_path / "checkpoints/step-00000002.lcs").stat().st_size
    read.clear()
    fit(tmp_path, nn.Linear(512, 512), 3)
    assert size > 3 << 20
    assert sum(read) // size == 1


def test_model_that_does_not_fit_is_left_as_it_was(tmp_path: Path) -> None:
    """A name that the checkpoint lacks is an error before any of the other tensors is filled."""
    fit(tmp_path, nn.Linear(512, 512), 1)
    model = nn.Linear(512, 512)
    model.register_parameter("scale", nn.Parameter(torch.ones(1)))
    before = model.weight.detach().clone()
    with pytest.raises(MismatchError, match="'model/scale' of the live state is not in the file"):
        fit(tmp_path, model, 2)
    assert torch.equal(model.weight, before)


def test_broken_newest_one_is_passed_over_and_its_name_not_used(tmp_path: Path) -> None:
    """The run goes on from the older one; the records name the refused file, and the file written in its place."""
    fit(tmp_path, nn.Linear(512, 512), 2)
    damage(tmp_path / "checkpoints/step-00000002.lcs")
    fit(tmp_path, nn.Linear(512, 512), 3)
    (resume,) = records(tmp_path, "resume")
    assert (resume["step"], [Path(path).name for path, _ in resume["info"]["refused"]]) == (1, ["step-00000002.lcs"])
    paths = [record["info"]["path"] for record in records(tmp_path, "save")]
    names = ["step-00000001.lcs", "step-00000002-2.lcs", "step-00000003.lcs"]
    assert paths == [f"checkpoints/{name}" for name in names]
    assert (tmp_path / paths[1]).exists()


def test_only_checkpoint_broken_begins_anew(tmp_path: Path) -> None:
    """With one broken checkpoint and no other the run begins anew, and its plan says so."""
    fit(tmp_path, nn.Linear(512, 512), 1)
    damage(tmp_path / "checkpoints/step-00000001.lcs")
    fit(tmp_path, nn.Linear(512, 512), 1)
    (plan,) = records(tmp_path, "plan")
    assert (plan["step"], plan["info"]["notes"][-1][:20]) == (0, "begun anew, not from")


def test_all_checkpoints_broken_is_an_error(tmp_path: Path) -> None:
    """A run does not begin with a model that a broken file got into."""
    fit(tmp_path, nn.Linear(512, 512), 2)
    for step in (1, 2):
        damage(tmp_path / f"checkpoints/step-0000000{step}.lcs")
    with pytest.raises(CheckpointError, match="2 broken ones"):
        fit(tmp_path, nn.Linear(512, 512), 3)


def test_loop_that_is_left_says_so(tmp_path: Path) -> None:
    """A hand-written loop that ends with `break` is an interrupted run, with a reason in plain words."""
    model = nn.Linear(512, 512)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(ROWS, ROWS), batch_size=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in lucid.Run(model, optimizer, loader, reports=(), run_dir=tmp_path):
        assert x.shape == y.shape
        break
    stops = [record for record in read_records(tmp_path / "records.jsonl") if record.kind == "stop"]
    assert [outcome(stop) for stop in stops] == ["interrupted: its loop was left before the end"]
