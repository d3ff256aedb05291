"""Other formats: foreign readers open our files, and we read theirs without running their code."""

from __future__ import annotations

import io
import json
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

from lucid.errors import FormatError, MismatchError, UnsupportedTypeError
from lucid.serialization import convert, export_safetensors, load, save
from lucid.serialization.plain import read_plain

from .states import TYPES, of_dtype, same, torture

RAN: list[str] = []


class Trap:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return (RAN.append, ("trapped",))


def test_safetensors_opens_our_files(tmp_path: Path) -> None:
    """The torch loader, lazy access and the NumPy loader read every tensor by its name, bit for bit."""
    state = torture()
    path = tmp_path / "a.lcs"
    save(state, path, types=TYPES)
    tensors = safetensors.torch.load_file(path)
    assert "__lcs__" in tensors
    assert torch.equal(
        tensors["dtypes.torch.float32"].view(torch.int32), state["dtypes"]["torch.float32"].view(torch.int32)
    )
    assert torch.equal(tensors["layouts.0"], state["layouts"][0])
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata()["format"] == "pt"
        assert sorted(file.keys()) == sorted(tensors)
    plain = tmp_path / "b.lcs"
    save({"a": torch.arange(6.0).reshape(2, 3), "b": torch.arange(3)}, plain)
    arrays = safetensors.numpy.load_file(plain)
    assert arrays["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert arrays["b"].tolist() == [0, 1, 2]


def test_transformers_opens_our_files(tmp_path: Path) -> None:
    """Its loader of state dicts takes a `.lcs` file as it is."""
    transformers = pytest.importorskip("transformers")
    model = torch.nn.Linear(3, 2)
    save(model.state_dict(), tmp_path / "model.safetensors")
    loaded = transformers.modeling_utils.load_state_dict(tmp_path / "model.safetensors")
    assert torch.equal(loaded["weight"], model.weight)


def test_export_gives_a_plain_file_under_the_models_own_names(tmp_path: Path) -> None:
    """No extra tensor, ties written out, loadable into the model by the safetensors package."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    model[1].weight = model[0].weight
    save({"model": model.state_dict(), "optimizer": {"x": torch.ones(1)}}, tmp_path / "a.lcs")
    size = export_safetensors(tmp_path / "a.lcs", tmp_path / "b.safetensors")
    assert size == (tmp_path / "b.safetensors").stat().st_size
    tensors = safetensors.torch.load_file(tmp_path / "b.safetensors")
    assert sorted(tensors) == ["0.bias", "0.weight", "1.bias", "1.weight"]
    model.load_state_dict(tensors)
    assert export_safetensors(tmp_path / "a.lcs", tmp_path / "all.safetensors", select=None) > size
    assert "optimizer.x" in safetensors.torch.load_file(tmp_path / "all.safetensors")
    with pytest.raises(MismatchError, match="nothing at 'ema'"):
        export_safetensors(tmp_path / "a.lcs", tmp_path / "c", select="ema")


def test_export_refuses_what_safetensors_lacks(tmp_path: Path) -> None:
    """complex128 is named with its place; no file appears."""
    save({"model": {"z": torch.ones(2, dtype=torch.complex128)}}, tmp_path / "a.lcs")
    with pytest.raises(UnsupportedTypeError, match=r"^z has dtype torch\.complex128"):
        export_safetensors(tmp_path / "a.lcs", tmp_path / "b.safetensors")
    assert [item.name for item in tmp_path.iterdir()] == ["a.lcs"]


def test_safetensors_files_are_converted(tmp_path: Path) -> None:
    """Every dtype that the package itself can write comes over with its bits; misaligned data too."""
    kept = (torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.float8_e4m3fn)
    tensors = {str(dtype): of_dtype(dtype) for dtype in kept}
    safetensors.torch.save_file(tensors, tmp_path / "a.safetensors")
    convert(tmp_path / "a.safetensors", tmp_path / "a.lcs")
    assert same(dict(sorted(load(tmp_path / "a.lcs")["model"].items())), dict(sorted(tensors.items())))
    header = (
        b'{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"F32","shape":[1],"data_offsets":[3,7]}}'
    )
    raw = len(header).to_bytes(8, "little") + header + b"abc\x00\x00\x80\x3f"
    (tmp_path / "odd").write_bytes(raw)
    convert(tmp_path / "odd", tmp_path / "odd.lcs")
    assert load(tmp_path / "odd.lcs")["model"]["b"].tolist() == [1.0]
    for broken in (raw[:-1], raw + b"x"):
        with pytest.raises(FormatError):
            read_plain(io.BytesIO(broken))


def test_torch_files_are_converted_with_their_structure(tmp_path: Path) -> None:
    """Tensors, ties, int keys and plain values of a `torch.save` file."""
    weight = torch.randn(3)
    state = {"model": {"a": weight, "b": weight}, "optimizer": {"state": {0: {"m": torch.ones(2)}}}, "epoch": 3}
    torch.save(state, tmp_path / "a.pt")
    convert(tmp_path / "a.pt", tmp_path / "a.lcs")
    loaded = load(tmp_path / "a.lcs")
    assert same(loaded, state)
    assert loaded["model"]["a"] is loaded["model"]["b"]


@pytest.mark.parametrize("place", ["root", "value", "key", "tensor"])
def test_booby_trapped_pickles_are_refused_and_do_not_run(tmp_path: Path, place: str) -> None:
    """Wherever the trap sits, it does not run, and the message says what to do."""
    values: dict[str, Any] = {
        "root": Trap(), "value": {"model": {"w": Trap()}}, "key": {"a": [1, (Trap(),)]},
        "tensor": {"w": torch.ones(1), "x": Trap()},
    }  # fmt: skip
    torch.save(values[place], tmp_path / "a.pt")
    RAN.clear()
    with pytest.raises(FormatError, match="load it yourself"):
        convert(tmp_path / "a.pt", tmp_path / "a.lcs")
    assert RAN == []
    assert not (tmp_path / "a.lcs").exists()


def test_every_own_file_is_safe_for_the_weights_only_loader_or_refused(tmp_path: Path) -> None:
    """A pickle under the name of a checkpoint is refused by `load` without being unpickled."""
    (tmp_path / "a.lcs").write_bytes(pickle.dumps(Trap()) + bytes(200))
    torch.save(Trap(), tmp_path / "b.lcs")
    RAN.clear()
    for name in ("a.lcs", "b.lcs"):
        with pytest.raises(FormatError):
            load(tmp_path / name)
    assert RAN == []


def test_lightning_checkpoints_are_converted(tmp_path: Path) -> None:
    """Their parts go to ours: weights, optimizer, scheduler, progress; the rest is kept apart."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    torch.save(
        {
            "epoch": 2, "global_step": 30, "pytorch-lightning_version": "2.6.6", "state_dict": model.state_dict(),
            "optimizer_states": [optimizer.state_dict()], "lr_schedulers": [], "callbacks": {"x": 1}, "loops": {},
        },
        tmp_path / "a.ckpt",
    )  # fmt: skip
    convert(tmp_path / "a.ckpt", tmp_path / "a.lcs")
    loaded = load(tmp_path / "a.lcs")
    assert same(dict(loaded["model"]), dict(model.state_dict()))
    assert loaded["optimizer"]["param_groups"][0]["lr"] == 0.001
    assert (loaded["progress"], loaded["scheduler"]) == ({"epoch": 2, "step": 30}, [])
    assert loaded["lightning"]["callbacks"] == {"x": 1}


def test_hugging_face_folders_are_converted(tmp_path: Path) -> None:
    """One safetensors file, shards with an index, a bin file; a shard elsewhere or missing tensors are refused."""
    tensors = {"a": torch.ones(2), "b": torch.zeros(3)}
    one, many, bins = (tmp_path / name for name in ("one", "many", "bins"))
    for folder in (one, many, bins):
        folder.mkdir()
    safetensors.torch.save_file(tensors, one / "model.safetensors")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    for name, shard in index["weight_map"].items():
        safetensors.torch.save_file({name: tensors[name]}, many / shard)
    (many / "model.safetensors.index.json").write_text(json.dumps(index))
    torch.save(tensors, bins / "pytorch_model.bin")
    for folder in (one, many, bins):
        convert(folder, tmp_path / "x.lcs")
        assert same(dict(sorted(load(tmp_path / "x.lcs")["model"].items())), tensors)
    for bad, message in (
        ({"a": "../one/model.safetensors"}, "not a file beside"),
        ({"c": "model-1.safetensors"}, "lack 1 tensors"),
    ):
        (many / "model.safetensors.index.json").write_text(json.dumps({"weight_map": bad}))
        with pytest.raises(FormatError, match=message):
            convert(many, tmp_path / "y.lcs")
    with pytest.raises(FormatError, match=r"must hold model\.safetensors"):
        convert(tmp_path, tmp_path / "y.lcs")


@pytest.fixture
def dcp(tmp_path: Path) -> Path:
    """Give a folder that `torch.distributed.checkpoint` wrote."""
    from torch.distributed import checkpoint

    state = {"model": {"w": torch.arange(6.0).reshape(2, 3)}, "list": [1, torch.ones(2)], "lr": 0.1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checkpoint.save(state, checkpoint_id=tmp_path / "dcp")
    return tmp_path / "dcp"


def test_dcp_folders_are_converted(dcp: Path, tmp_path: Path) -> None:
    """Names are nested again, shards put together."""
    convert(dcp, tmp_path / "a.lcs")
    expected = {"model": {"w": torch.arange(6.0).reshape(2, 3)}, "list": [1, torch.ones(2)], "lr": 0.1}
    loaded = load(tmp_path / "a.lcs")
    assert same({key: loaded[key] for key in expected}, expected)


def test_dcp_metadata_cannot_run_code(dcp: Path, tmp_path: Path) -> None:
    """A changed metadata pickle is refused before its code runs; a broken one too."""
    RAN.clear()
    (dcp / ".metadata").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(FormatError, match="does not belong there"):
        convert(dcp, tmp_path / "a.lcs")
    (dcp / ".metadata").write_bytes(pickle.dumps(os.system))
    with pytest.raises(FormatError, match="does not belong there"):
        convert(dcp, tmp_path / "a.lcs")
    (dcp / ".metadata").write_bytes(b"junk")
    with pytest.raises(FormatError, match="broken DCP"):
        convert(dcp, tmp_path / "a.lcs")
    assert RAN == []


def test_own_file_is_not_converted_again(tmp_path: Path) -> None:
    """A `.lcs` file is a safetensors file, but converting it would lose most of it."""
    save({"a": 1}, tmp_path / "a.lcs")
    with pytest.raises(FormatError, match=r"is a \.lcs file already"):
        convert(tmp_path / "a.lcs", tmp_path / "b.lcs")
