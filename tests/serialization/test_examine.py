"""`inspect` and `verify` on files and on whole run directories."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from lucid.errors import CheckpointError, TruncatedError
from lucid.serialization import Store, inspect, save, verify

from .states import TYPES, torture


def test_inspect_lists_tensors_values_and_meta(tmp_path: Path) -> None:
    """Paths as `select` takes them, dtype, shape, device, bytes; a second name of the same data has 0 bytes."""
    weight = torch.ones(2, 3)
    state = {"model": {"a.w": weight, "tied": weight, "row": weight[1]}, "opt": {0: (1, "x")}, "lr": 0.1}
    save(state, tmp_path / "a.lcs", meta={"step": 3})
    info = inspect(tmp_path / "a.lcs")
    assert [(t.path, t.dtype, t.shape, t.device, t.bytes) for t in info.tensors] == [
        ("model/a.w", "float32", (2, 3), "cpu", 24),
        ("model/tied", "float32", (2, 3), "cpu", 0),
        ("model/row", "float32", (3,), "cpu", 0),
    ]
    assert info.values == {"opt/0/0": 1, "opt/0/1": "x", "lr": 0.1}
    assert (info.version, info.meta, info.bytes) == ("1.0", {"step": 3}, (tmp_path / "a.lcs").stat().st_size)
    assert json.loads(json.dumps(info.to_dict()))["tensors"][0]["path"] == "model/a.w"
    assert "model/a.w   float32" in str(info)


def test_inspect_does_not_read_the_data_nor_need_the_classes(tmp_path: Path) -> None:
    """Damaged data and classes that are not allowed do not matter to it."""
    path = tmp_path / "a.lcs"
    save(torture(), path, types=TYPES)
    raw = bytearray(path.read_bytes())
    raw[4096 * 8] ^= 255
    path.write_bytes(raw)
    info = inspect(path)
    assert info.values["classes/0"] == "<enum>"
    assert not verify(path).ok


def test_verify_of_a_run_directory(tmp_path: Path) -> None:
    """All `.lcs` files below it, the bad one with its reason; leftovers and stale pointers are noted."""
    with Store(tmp_path / "checkpoints", run_id="a", keep_last=3) as store:
        for step in (1, 2, 3):
            store.save({"w": torch.ones(5)}, step=step)
    (tmp_path / "config.toml").write_text("x = 1")
    assert verify(tmp_path).ok
    cut = tmp_path / "checkpoints" / "step-00000002.lcs"
    cut.write_bytes(cut.read_bytes()[:-1])
    (tmp_path / "checkpoints" / "step-00000003.lcs").unlink()
    (tmp_path / "checkpoints" / ".step-00000004.lcs.tmp-1-00000000").write_text("")
    report = verify(tmp_path)
    assert [(Path(file.file).name, file.ok) for file in report.files] == [
        ("step-00000001.lcs", True), ("step-00000002.lcs", False),
    ]  # fmt: skip
    assert "cut short" in report.files[1].reason
    assert len(report.notes) == 2
    assert json.loads(json.dumps(report.to_dict()))["ok"] is False
    assert str(report).splitlines()[1].startswith("BAD")


def test_nothing_to_verify_is_an_error(tmp_path: Path) -> None:
    """A folder without checkpoints is not "all good"; other files are no checkpoints."""
    with pytest.raises(CheckpointError, match=r"must hold \.lcs files"):
        verify(tmp_path)
    (tmp_path / "a.lcs").write_text("hello")
    assert not verify(tmp_path).ok
    with pytest.raises(TruncatedError, match="got only 5 bytes"):
        inspect(tmp_path / "a.lcs")
