"""Data sets by name: what their rows are, and what a wrong place or file is told."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from lucid.datasets import DataBundle, build
from lucid.datasets.text import decode, encode
from lucid.errors import ConfigError, DataError


def tensors(part: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The two tensors of a part in memory."""
    x, y = part.tensors
    return x, y


def write_idx(path: Path, array: numpy.ndarray[Any, Any]) -> None:
    """Write an IDX file, packed if its name says so."""
    raw = b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)


def test_digits_are_real_and_in_proportion() -> None:
    """1,797 images, ten classes, in [0, 1]."""
    pytest.importorskip("sklearn")
    from sklearn.datasets import load_digits

    bundle = build("digits", {})
    parts = [tensors(part) for part in (bundle.train, bundle.validation, bundle.test)]
    assert [len(x) for x, _ in parts] == [1259, 269, 269]
    assert (bundle.input_shape, bundle.num_classes, bundle.task) == ((1, 8, 8), 10, "classification")
    everything = torch.cat([x for x, _ in parts]).double().sum().item() * 16
    assert everything == load_digits().images.sum()


def test_npz_guesses_the_task_from_its_target(tmp_path: Path) -> None:
    """Whole numbers are classes, zeros and ones in columns labels, other numbers regression."""
    x = numpy.random.default_rng(0).normal(5, 2, (40, 3))
    targets = {
        "classification": numpy.arange(40) % 4 + 3,
        "multilabel": numpy.eye(4, dtype=int)[numpy.arange(40) % 4],
        "regression": x.sum(1),
    }
    for task, y in targets.items():
        numpy.savez(tmp_path / "a.npz", x=x, y=y)
        bundle = build(f"npz:{tmp_path}/a.npz", {})
        assert (bundle.task, bundle.num_outputs) == (task, 1 if task == "regression" else 4)
    numpy.savez(tmp_path / "a.npz", x=x, y=targets["classification"])
    assert build(f"npz:{tmp_path}/a.npz", {}).class_names == ["3", "4", "5", "6"]


def test_scaling_is_learnt_on_training_rows_alone(tmp_path: Path) -> None:
    """Their mean is 0 and their deviation 1; the other parts' are not."""
    x = numpy.random.default_rng(0).normal(5, 2, (40, 3))
    numpy.savez(tmp_path / "a.npz", x=x, y=x.sum(1))
    bundle = build(f"npz:{tmp_path}/a.npz", {})
    train, y = tensors(bundle.train)
    torch.testing.assert_close(train.mean(0), torch.zeros(3), atol=1e-6, rtol=0)
    torch.testing.assert_close(train.std(0, correction=0), torch.ones(3))
    torch.testing.assert_close(y.mean(0), torch.zeros(1), atol=1e-6, rtol=0)
    assert tensors(bundle.test)[0].mean().abs() > 1e-3


def test_npz_never_runs_a_pickle(tmp_path: Path) -> None:
    """An array of objects is refused."""
    numpy.savez(tmp_path / "a.npz", x=numpy.array([{}, {}], dtype=object), y=numpy.arange(2))
    with pytest.raises(DataError, match="allow_pickle=False"):
        build(f"npz:{tmp_path}/a.npz", {})


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"xs": numpy.zeros((4, 2)), "y": numpy.arange(4)}, "has no array 'x'. Did you mean 'xs'? It has xs, y"),
        ({"x": numpy.zeros((4, 2)), "y": numpy.arange(3)}, "'x' has 4 rows and 'y' has 3"),
        ({"x": numpy.full((4, 2), numpy.nan), "y": numpy.arange(4)}, "holds NaN or inf in 8 places"),
    ],
)
def test_npz_that_does_not_fit_is_named(tmp_path: Path, arrays: dict[str, Any], words: str) -> None:
    """Missing array, lengths, NaN."""
    numpy.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError) as caught:
        build(f"npz:{tmp_path}/a.npz", {})
    assert words in str(caught.value)


def test_idx_takes_its_own_test_files(tmp_path: Path) -> None:
    """Packed and plain; the test part is t10k."""
    images = numpy.arange(20 * 16, dtype=numpy.uint8).reshape(20, 4, 4)
    labels = (numpy.arange(20) % 2).astype(numpy.uint8)
    write_idx(tmp_path / "train-images-idx3-ubyte.gz", images)
    write_idx(tmp_path / "train-labels-idx1-ubyte", labels)
    write_idx(tmp_path / "t10k-images-idx3-ubyte", images[:6])
    write_idx(tmp_path / "t10k-labels-idx1-ubyte", labels[:6])
    bundle = build(f"idx:{tmp_path}", {"class_names": ["even", "odd"]}, validation=0.2)
    x, y = tensors(bundle.test)
    assert (len(tensors(bundle.train)[0]), len(tensors(bundle.validation)[0]), len(x)) == (16, 4, 6)
    assert torch.equal((x * 255).round().to(torch.uint8).squeeze(1), torch.from_numpy(images[:6]))
    assert y.tolist() == labels[:6].tolist()
    assert bundle.class_names == ["even", "odd"]


def test_idx_shorter_than_its_header_is_refused(tmp_path: Path) -> None:
    """Before anything is made of it."""
    write_idx(tmp_path / "train-images-idx3-ubyte", numpy.zeros((2, 4, 4), numpy.uint8))
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"its header says \(2, 4, 4\), which is not the 31 bytes"):
        build(f"idx:{tmp_path}", {})


@pytest.mark.parametrize("kind", ["chars", "bytes"])
def test_text_rows_are_one_token_apart_and_parts_in_order(tmp_path: Path, kind: str) -> None:
    """Every row's target is the next token; nothing of a later part is in an earlier one."""
    written = "".join(chr(97 + number % 26) for number in range(200)) + "é"
    (tmp_path / "a.txt").write_text(written, encoding="utf-8")
    bundle = build(f"text:{tmp_path}/a.txt", {"block_size": 8, "tokens": kind})
    x, y = tensors(bundle.train)
    assert torch.equal(x[:, 1:], y[:, :-1])
    assert decode(x[0].tolist(), bundle.transform_state) == "abcdefgh"
    assert bundle.num_outputs == (27 if kind == "chars" else 256)
    assert torch.equal(encode(decode(y[3].tolist(), bundle.transform_state), bundle.transform_state), y[3])


def test_text_with_stride_takes_no_memory(tmp_path: Path) -> None:
    """Overlapping rows are views on the same tokens."""
    (tmp_path / "a.txt").write_text("x" * 1000)
    x, _ = tensors(build(f"text:{tmp_path}/a.txt", {"block_size": 64, "stride": 1}, validation=0, test=0).train)
    assert x.shape == (936, 64)
    assert x.untyped_storage().nbytes() == 1000 * 8


def test_text_too_short_and_unknown_character_are_refused(tmp_path: Path) -> None:
    """With what to do."""
    (tmp_path / "a.txt").write_text("abc" * 30)
    with pytest.raises(DataError, match=r"fewer than one row of 64 \+ 1. Lower data.options.block_size"):
        build(f"text:{tmp_path}/a.txt", {})
    state = build(f"text:{tmp_path}/a.txt", {"block_size": 4}).transform_state
    with pytest.raises(DataError, match="the character 'z' is not among the 3"):
        encode("abz", state)


def picture(path: Path, colour: tuple[int, int, int]) -> None:
    """Write a small PNG of one colour."""
    image = pytest.importorskip("PIL.Image")
    path.parent.mkdir(parents=True, exist_ok=True)
    image.new("RGB", (6, 5), colour).save(path)


def test_image_folder_reads_classes_by_folder(tmp_path: Path) -> None:
    """Sizes are made one, values lie in [0, 1], names come from the folders."""
    for number in range(4):
        picture(tmp_path / "red" / f"{number}.png", (255, 0, 0))
        picture(tmp_path / "blue" / f"{number}.png", (0, 0, 255))
    bundle = build(f"image-folder:{tmp_path}", {"size": 8}, validation=0.25, test=0.25)
    assert bundle.class_names == ["blue", "red"]
    for part in (bundle.train, bundle.validation, bundle.test):
        for index in range(len(part)):  # type: ignore[arg-type]
            image, label = part[index]  # type: ignore[index]
            assert image.shape == (3, 8, 8)
            assert image[0].unique().item() == float(label == 1)


def test_image_folder_with_parts_uses_them(tmp_path: Path) -> None:
    """train/, validation/ and test/ are taken as they are."""
    for part, count in (("train", 3), ("validation", 2), ("test", 1)):
        for number in range(count):
            picture(tmp_path / part / "a" / f"{number}.png", (0, 0, 0))
    bundle = build(f"image-folder:{tmp_path}", {"grey": True, "size": 4})
    counts = [len(part) for part in (bundle.train, bundle.validation, bundle.test)]  # type: ignore[arg-type]
    assert (counts, bundle.input_shape) == ([3, 2, 1], (1, 4, 4))


def test_image_folder_without_images_says_what_it_expects(tmp_path: Path) -> None:
    """A folder per class."""
    with pytest.raises(DataError, match=r"no images under .* Expected a folder per class"):
        build(f"image-folder:{tmp_path}", {})


def test_augmented_images_differ_between_draws_only(tmp_path: Path) -> None:
    """The same stream gives the same image."""
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "a").mkdir()
    noise = numpy.random.default_rng(0).integers(0, 255, (16, 16, 3), dtype=numpy.uint8)
    for number in range(2):
        image.fromarray(noise).save(tmp_path / "a" / f"{number}.png")
    data = build(f"image-folder:{tmp_path}", {"size": 16, "augment": True}, validation=0, test=0).train
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        drawn.append(data[0][0])
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_hub_folder_is_read_without_network(tmp_path: Path) -> None:
    """Numbers, classes by name, its own test part."""
    library = pytest.importorskip("datasets")
    features = library.Features({"a": library.Value("float32"), "label": library.ClassLabel(names=["no", "yes"])})
    rows = {"a": [float(number) for number in range(20)], "label": [number % 2 for number in range(20)]}
    part = library.Dataset.from_dict(rows, features=features)
    library.DatasetDict({"train": part, "test": part.select(range(4))}).save_to_disk(tmp_path / "d")
    bundle = build(f"datasets:{tmp_path}/d", {})
    assert (bundle.class_names, len(tensors(bundle.test)[0])) == (["no", "yes"], 4)
    assert bundle.transform_state["x"] == ["a"]


def test_own_factory_is_split_and_described(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One data set becomes three parts; shape and classes are looked up in it."""
    source = "import torch\ndef rows(count):\n    T = torch.utils.data.TensorDataset\n"
    (tmp_path / "own_rows.py").write_text(source + "    return T(torch.zeros(count, 3), torch.arange(count) % 2)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    bundle = build("own_rows:rows", {"count": 20}, validation=0.25, test=0.25)
    assert isinstance(bundle, DataBundle)
    assert (bundle.task, bundle.num_outputs, bundle.input_shape) == ("classification", 2, (3,))
    assert [len(part) for part in (bundle.train, bundle.validation, bundle.test)] == [10, 5, 5]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("digit", {}, "data.name = 'digit' is not known. Did you mean 'digits'?"),
        ("csv", {}, "data.name = 'csv' must say where: csv:PLACE."),
        ("text:x", {"block": 3}, "unknown key 'data.options.block'. Did you mean 'block_size'?"),
    ],
)
def test_unknown_names_and_options_name_the_nearest(name: str, options: dict[str, Any], words: str) -> None:
    """Before anything is read."""
    with pytest.raises(ConfigError) as caught:
        build(name, options)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["csv:none.csv", "npz:none.npz", "text:none.txt", "idx:none", "image-folder:none"])
def test_missing_place_is_named(name: str) -> None:
    """Every source says what it could not read."""
    with pytest.raises(DataError, match="none"):
        build(name, {})


@pytest.mark.parametrize(
    ("labels", "cure"),
    [(["a", "b"], r"class_encode_column\("), ([0.5, None], "fill or drop holes")],
    ids=["words", "hole"],
)
def test_hub_target_that_is_no_number_says_what_to_do(tmp_path: Path, labels: list[object], cure: str) -> None:
    """The column and the cure; torch knows of neither."""
    library = pytest.importorskip("datasets")
    library.disable_progress_bars()
    library.Dataset.from_dict({"x": [1.0, 2.0], "label": labels}).save_to_disk(tmp_path / "d")
    with pytest.raises(DataError, match=f"column 'label' must hold classes or numbers: .*{cure}"):
        build(f"datasets:{tmp_path}/d", {})
