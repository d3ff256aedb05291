"""Images: held in memory, a folder with a folder per class, and IDX files in the style of MNIST."""

from __future__ import annotations

import gzip
import importlib
import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.utils.data import Dataset, TensorDataset

from lucid.datasets.bundle import DataBundle, pick
from lucid.datasets.split import Split, split_rows
from lucid.errors import DataError

SEEN = 32
"""Images of a folder that its brightness is taken from; fewer than twice as many are read."""
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")


def from_images(
    x: torch.Tensor,
    y: torch.Tensor,
    class_names: list[str],
    *,
    validation: float,
    test: float,
    split_seed: int,
    scale: float = 255.0,
) -> DataBundle:
    """Return a bundle of images in memory.

    Args:
        x: (N, C, H, W) float32 in [0, 1].
        y: (N,) int64.
        class_names: name of each class.
        validation: share of rows kept for validation.
        test: share of rows kept for the test.
        split_seed: seed of the split.
        scale: raw value that became 1.
    """
    split = split_rows(len(x), validation=validation, test=test, seed=split_seed, labels=y)
    train = _some(pick(x, y, split.train))
    state = {"kind": "image", "shape": list(x.shape[1:]), "scale": scale, "brightness": brightness(train.tensors[0])}
    return DataBundle(
        train=train,
        validation=pick(x, y, split.validation),
        test=pick(x, y, split.test),
        task="classification",
        num_outputs=len(class_names),
        input_shape=tuple(x.shape[1:]),
        class_names=class_names,
        transform_state=state,
        split=split.record(),
    )


def _some(data: TensorDataset | None) -> TensorDataset:
    if data is None:
        raise DataError("no rows to train on.")
    return data


def idx(
    folder: str, *, validation: float, test: float, split_seed: int, class_names: Sequence[str] | None = None
) -> DataBundle:
    """Return images from IDX files such as MNIST's and Fashion-MNIST's, plain or .gz.

    Args:
        folder: holds `train-images-idx3-ubyte` and `train-labels-idx1-ubyte`, and perhaps `t10k-...`, which become
            the test rows; without them a share of the rows does.
        validation: share of the training rows kept for validation.
        test: share kept for the test where the folder has no test files.
        split_seed: seed of the split.
        class_names: name of each class. None: its number.

    Raises:
        DataError: a file is missing, or is not what its header says.
    """
    x, y = _idx_pair(Path(folder), "train")
    own_test = bool(_candidates(Path(folder), "t10k-images"))
    classes = list(class_names or map(str, range(int(y.max()) + 1)))
    if int(y.max()) >= len(classes):
        raise DataError(f"data.options.class_names must name {int(y.max()) + 1} classes, got {len(classes)}.")
    bundle = from_images(x, y, classes, validation=validation, test=0.0 if own_test else test, split_seed=split_seed)
    if own_test and test:
        bundle.test = TensorDataset(*_idx_pair(Path(folder), "t10k"))
        bundle.split["test"] = len(bundle.test)
    return bundle


def _candidates(folder: Path, stem: str) -> list[Path]:
    return sorted(path for path in folder.glob(f"{stem}*") if "idx" in path.name)


def _idx_pair(folder: Path, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    arrays = []
    for what in ("images", "labels"):
        found = _candidates(folder, f"{part}*-{what}")
        if not found:
            raise DataError(f"no file {part}-{what}-idx*-ubyte(.gz) in {folder}. Give the folder that holds them.")
        arrays.append(read_idx(found[0]))
    images, labels = arrays
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        raise DataError(f"{folder}: {part} images {images.shape} and labels {labels.shape} do not belong together.")
    return torch.from_numpy(images).unsqueeze(1).float() / 255, torch.from_numpy(labels).long()


def read_idx(path: Path) -> numpy.ndarray[Any, Any]:
    """Read one IDX file of bytes.

    Raises:
        DataError: not such a file, or shorter or longer than its header says.
    """
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if len(raw) < 4 or raw[:3] != b"\0\0\x08":
        raise DataError(f"{path} is not an IDX file of unsigned bytes.")
    start = 4 + 4 * raw[3]
    shape = struct.unpack(f">{raw[3]}I", raw[4:start]) if len(raw) >= start else ()
    if not shape or len(raw) - start != math.prod(shape):
        raise DataError(f"{path}: its header says {shape}, which is not the {len(raw) - start} bytes that follow.")
    return numpy.frombuffer(raw, dtype=numpy.uint8, offset=start).reshape(shape).copy()


class ImageFiles(Dataset[tuple[torch.Tensor, int]]):
    """Images read from disk row by row, resized to one square size; flipped and shifted at random if asked for."""

    def __init__(self, rows: list[tuple[Path, int]], state: dict[str, Any], augment: bool) -> None:
        """Keep the rows; nothing is read yet."""
        self.rows, self.state, self.augment = rows, state, augment

    def __len__(self) -> int:
        """Return how many images there are."""
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """Return image (C, S, S) float32 in [0, 1] and its class."""
        path, label = self.rows[index]
        image = read_image(path, self.state)
        return (_augment(image) if self.augment else image), label


def image_files(path: Path) -> list[Path]:
    """Return an image file itself, or those under a folder; none for another file."""
    found = path.rglob("*") if path.is_dir() else [path]
    return sorted(file for file in found if file.suffix.lower() in SUFFIXES)


def brightness(images: torch.Tensor) -> list[float]:
    """Return the least, mean and greatest mean of an image, of about a thousand of the images (N, C, H, W) in [0, 1].

    In float64 and rounded, so that the number of threads that add up does not show.
    """
    means = images[:: max(1, len(images) // 1000)].double().mean((1, 2, 3))
    return [round(float(value), 3) for value in (means.min(), means.mean(), means.max())]


def _augment(image: torch.Tensor) -> torch.Tensor:
    """Flip left to right half of the time, and shift by up to an eighth; drawn from torch's stream of this row."""
    if torch.rand(()) < 0.5:
        image = image.flip(-1)
    by = max(1, image.shape[-1] // 8)
    down, right = torch.randint(-by, by + 1, (2,)).tolist()
    padded = torch.nn.functional.pad(image, (by, by, by, by))
    return padded[:, by + down : by + down + image.shape[1], by + right : by + right + image.shape[2]].clone()


def read_image(path: Path, state: dict[str, Any]) -> torch.Tensor:
    """Read an image file as the model wants it.

    Args:
        path: any format Pillow reads.
        state: `transform_state` of kind "image".

    Raises:
        DataError: Pillow is missing, or the file is not an image.
    """
    try:
        pil: Any = importlib.import_module("PIL.Image")
    except ModuleNotFoundError as error:
        raise DataError("reading image files needs Pillow: pip install 'lucid-loop[images]'.") from error
    channels, height, width = state["shape"]
    try:
        with pil.open(path) as file:
            picture = file.convert("L" if channels == 1 else "RGB").resize((width, height), pil.Resampling.BILINEAR)
    except OSError as error:
        raise DataError(f"{path} is not an image that can be read: {error}.") from error
    pixels = torch.from_numpy(numpy.array(picture, dtype=numpy.float32)) / 255
    return pixels.unsqueeze(0) if channels == 1 else pixels.permute(2, 0, 1).contiguous()


def image_folder(
    folder: str,
    *,
    validation: float,
    test: float,
    split_seed: int,
    size: int = 32,
    grey: bool = False,
    augment: bool = False,
) -> DataBundle:
    """Return the images of a folder with one folder per class, or with `train/`, `validation/` and `test/` of such.

    Args:
        folder: FOLDER/CLASS/IMAGE, or FOLDER/train/CLASS/IMAGE and so on.
        validation: share kept for validation where the folder does not say.
        test: share kept for the test where the folder does not say.
        split_seed: seed of the split.
        size: images are resized to `size` x `size`.
        grey: one channel instead of three.
        augment: flip and shift training images at random.

    Raises:
        DataError: no such folder, or no images in it.
    """
    root = Path(folder)
    parts = {name: root / name for name in ("train", "validation", "val", "test") if (root / name).is_dir()}
    main = parts.get("train", root)
    names = sorted(path.name for path in main.iterdir() if path.is_dir()) if main.is_dir() else []
    rows = _list_images(main, names)
    if not rows:
        raise DataError(f"no images under {main}. Expected a folder per class with {', '.join(SUFFIXES)} files in it.")
    state: dict[str, Any] = {"kind": "image", "shape": [1 if grey else 3, size, size], "scale": 255.0, "resized": True}
    kept = {
        "validation": parts.get("validation", parts.get("val")),
        "test": parts.get("test"),
    }
    shares = {"validation": validation, "test": test}
    split = split_rows(
        len(rows), seed=split_seed, labels=[label for _, label in rows],
        validation=0.0 if kept["validation"] else validation, test=0.0 if kept["test"] else test,
    )  # fmt: skip

    seen = split.train[:: max(1, len(split.train) // SEEN)]
    state["brightness"] = brightness(torch.stack([read_image(rows[i][0], state) for i in seen]))

    def part(name: str) -> Dataset[Any] | None:
        place = kept[name]
        if place is not None:
            chosen = _list_images(place, names) if shares[name] else []
        else:
            chosen = [rows[i] for i in getattr(split, name)]
        return ImageFiles(chosen, state, False) if chosen else None

    return DataBundle(
        train=ImageFiles([rows[i] for i in split.train], state, augment),
        validation=part("validation"),
        test=part("test"),
        task="classification",
        num_outputs=len(names),
        input_shape=tuple(state["shape"]),
        class_names=names,
        transform_state=state,
        split=_count(split, part),
    )


def _count(split: Split, part: Any) -> dict[str, Any]:
    counts = {name: len(part(name) or ()) for name in ("validation", "test")}
    return {**split.record(), **counts}


def _list_images(folder: Path, names: list[str]) -> list[tuple[Path, int]]:
    return [
        (path, label)
        for label, name in enumerate(names)
        for path in sorted((folder / name).rglob("*"))
        if path.suffix.lower() in SUFFIXES
    ]
