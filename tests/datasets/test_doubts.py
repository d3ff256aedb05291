"""What is odd about rows to predict on is said; rows like those of the training pass in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from lucid.datasets import build, read_rows
from lucid.datasets.doubts import doubts


def said(path: Path, state: dict[str, Any]) -> list[str]:
    """What is said of a file's rows."""
    return doubts(path, read_rows(path, state)[0], state)


def picture(path: Path, pixels: numpy.ndarray[Any, Any]) -> Path:
    """Write an image file of (height, width) or (height, width, 3) bytes."""
    pytest.importorskip("PIL.Image").fromarray(pixels.astype(numpy.uint8)).save(path)
    return path


@pytest.fixture
def digits() -> dict[str, Any]:
    """What a run on the digits keeps of its rows."""
    pytest.importorskip("sklearn")
    return build("digits", {}).transform_state


def seven(size: int = 8) -> numpy.ndarray[Any, Any]:
    """A light seven on black."""
    pixels = numpy.zeros((size, size))
    pixels[size // 8 : size // 4, size // 4 : -size // 8] = pixels[size // 8 :, size // 2 : 5 * size // 8] = 255
    return pixels


def test_images_of_the_training_pass_in_silence(digits: dict[str, Any], tmp_path: Path) -> None:
    """A light digit on black, and raw pixels."""
    assert said(picture(tmp_path / "a.png", seven()), digits) == []
    numpy.save(tmp_path / "a.npy", numpy.full((3, 1, 8, 8), 5))
    assert said(tmp_path / "a.npy", digits) == []


def test_inverted_images_are_asked_about(digits: dict[str, Any], tmp_path: Path) -> None:
    """Dark on white, where the training had light on black."""
    (line,) = said(picture(tmp_path / "a.png", 255 - seven()), digits)
    low, _, high = digits["brightness"]
    assert line.startswith(f"images of the training had a mean brightness of {low} to {high} (0 black, 1 white), this")
    assert line.endswith("are dark and light the other way round? Nothing is inverted here.")


def test_pixels_of_another_range_are_asked_about(digits: dict[str, Any], tmp_path: Path) -> None:
    """From 0 to 1, where the training had up to 16."""
    numpy.save(tmp_path / "a.npy", numpy.full((3, 1, 8, 8), 0.5))
    (line,) = said(tmp_path / "a.npy", digits)
    assert line.endswith("these have 0.031: is their range of values another one?")


def test_sizes_and_channels_that_were_made_to_fit_are_said(digits: dict[str, Any], tmp_path: Path) -> None:
    """One line each, with how many."""
    picture(tmp_path / "a.png", seven())
    picture(tmp_path / "b.png", seven(16))
    picture(tmp_path / "c.png", numpy.stack([seven()] * 3, 2))
    assert said(tmp_path, digits) == [
        "1 of 3 images are not 8x8 as in the training, and made so",
        "1 of 3 images are in colour, the model saw grey ones; made grey",
    ]
    assert said(tmp_path / "b.png", digits) == ["the image is not 8x8 as in the training, and made so"]


def test_folder_of_images_is_resized_anyway(images: Path, tmp_path: Path) -> None:
    """So sizes say nothing there; grey ones do, and brightness."""
    state = build(f"image-folder:{images}", {"size": 8}).transform_state
    assert said(images, state) == []
    grey = picture(tmp_path / "grey.png", numpy.full((9, 7), 83))
    assert said(grey, state) == ["the image is grey, the model saw ones in colour"]
    assert "other way round?" in said(picture(tmp_path / "a.png", numpy.full((9, 7, 3), 172)), state)[0]


def test_brightness_does_not_depend_on_the_threads(images: Path) -> None:
    """A resume with more threads finds the same rows."""
    states = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        states.append(build(f"image-folder:{images}", {"size": 8}).transform_state)
    torch.set_num_threads(1)
    assert states[0] == states[1]


def test_columns_in_another_unit_and_new_words_are_asked_about(tmp_path: Path) -> None:
    """Metres for centimetres; a town that no training row had."""
    rows = "".join(f"{n % 7 or ''},{150 + n},{'Ulm' if n % 2 else 'Bonn'},{n % 2}\n" for n in range(40))
    (tmp_path / "a.csv").write_text("holes,size,town,kind\n" + rows)
    state = build(f"csv:{tmp_path}/a.csv", {}).transform_state
    assert said(tmp_path / "a.csv", state) == []
    (tmp_path / "b.csv").write_text("holes,size,town\n,1.7,Ulm\n3,1.8,Paris\n")
    unit, words = said(tmp_path / "b.csv", state)
    assert unit.startswith("column 'size': half of the rows lie ")
    assert unit.endswith(" standard deviations or more from the mean of the training: another unit?")
    assert words == "column 'town': 1 of 2 rows hold a word that the training rows did not have"


def test_features_in_another_unit_are_asked_about(tmp_path: Path) -> None:
    """By their number, where arrays have no names."""
    x = numpy.random.default_rng(0).normal(size=(40, 2))
    numpy.savez(tmp_path / "a.npz", x=x, y=numpy.arange(40) % 2)
    state = build(f"npz:{tmp_path}/a.npz", {}).transform_state
    assert said(tmp_path / "a.npz", state) == []
    numpy.save(tmp_path / "b.npy", x * [1, 100] + [0, 5000])
    (line,) = said(tmp_path / "b.npy", state)
    assert line.startswith("column 1: half of the rows")
