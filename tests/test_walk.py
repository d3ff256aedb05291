"""The walk of a newcomer, by the command alone: train, kill, go on, predict, a project, a plain file, verify, ui."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch

import lucid

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
pytest.importorskip("sklearn", reason="the digits need the demo extra")
pytest.importorskip("uvicorn", reason="the dashboard needs the ui extra")
image = pytest.importorskip("PIL.Image", reason="images need Pillow")

COMMAND = [sys.executable, "-m", "lucid.cli"]
SHORT = ["train", "--train.epochs", "3", "--train.save_every", "10"]
END = "step-00000120.lcs"


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start a program in a folder; `lucid` is the command."""
    folder.mkdir(exist_ok=True)
    program = [*COMMAND, *words[1:]] if words[0] == "lucid" else [sys.executable, *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        program, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )  # fmt: skip


def say(folder: Path, *words: str) -> str:
    """Run a program that must end well, and return what it printed."""
    process = start(folder, *words)
    out, errors = process.communicate()
    assert process.returncode == 0, out + errors
    return out


def weights(file: Path) -> dict[str, torch.Tensor]:
    """Return the weights in a checkpoint."""
    found: dict[str, torch.Tensor] = lucid.load(file)["model"]
    return found


def differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return the names whose tensors are not the same bits."""
    names = sorted(set(one) | set(other))
    return [name for name in names if name not in one or name not in other or not torch.equal(one[name], other[name])]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a person whose run was killed in the middle and started again, to its end."""
    home = tmp_path_factory.mktemp("home")
    process = start(home, "lucid", *SHORT)
    while not (home / "runs/digits/checkpoints/step-00000050.lcs").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    process.kill()
    assert process.wait() == -9
    process.communicate()
    assert not (home / "runs/digits/checkpoints" / END).exists()
    assert "Run digits finished: 120 steps, 3 epochs." in say(home, "lucid", *SHORT)
    return home


def test_killed_run_goes_on_to_the_same_bits(home: Path, tmp_path: Path) -> None:
    """Weights of the last checkpoint equal those of a run that was never broken."""
    say(tmp_path, "lucid", *SHORT)
    end = Path("runs/digits/checkpoints") / END
    assert differing(weights(home / end), weights(tmp_path / end)) == []


def test_run_answers_for_a_picture(home: Path) -> None:
    """A seven drawn by a person, light on black."""
    seven = torch.zeros(64, 64, dtype=torch.uint8)
    seven[6:14, 12:52] = 255
    for row in range(14, 60):
        left = 46 - row // 3
        seven[row, left : left + 8] = 255
    image.fromarray(seven.numpy()).save(home / "seven.png")
    header, answer = say(home, "lucid", "predict", "runs/digits", "seven.png").splitlines()
    assert header == "row,answer,probability"
    assert answer.startswith("seven.png,7,")


def test_new_project_trains_and_passes_its_own_tests(home: Path) -> None:
    """And the command trains it to the same bits."""
    say(home, "lucid", "new", "mine")
    say(home / "mine", "train.py", "--train.epochs", "1", "--run_dir", "a")
    say(home / "mine", "lucid", "train", "config.toml", "--train.epochs", "1", "--run_dir", "b")
    one, other = (weights(max((home / "mine" / run / "checkpoints").glob("*.lcs"))) for run in "ab")
    assert differing(one, other) == []
    assert "2 passed" in say(home / "mine", "-m", "pytest", "-q", "-p", "no:cacheprovider")


def test_ejected_file_gives_the_bits_of_the_run(home: Path) -> None:
    """In plain PyTorch, from the configuration that lies in the run's folder."""
    say(home, "lucid", "eject", "runs/digits/config.toml", "--out", "plain.py")
    assert "import lucid" not in (home / "plain.py").read_text()
    say(home, "plain.py")
    plain = torch.load(home / "last.pt", weights_only=True)
    assert differing(plain, weights(home / "runs/digits/checkpoints" / END)) == []


def test_verify_finds_one_flipped_bit(home: Path) -> None:
    """Before, every file is right; after it, this one is named, with exit code 1."""
    assert "BAD" not in say(home, "lucid", "verify", "runs/digits")
    last = home / "runs/digits/checkpoints" / END
    whole = last.read_bytes()
    middle = len(whole) // 2
    last.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    process = start(home, "lucid", "verify", "runs/digits")
    out, _ = process.communicate()
    last.write_bytes(whole)
    assert process.returncode == 1
    assert [line.split()[1] for line in out.splitlines() if line.startswith("BAD")] == [
        f"runs/digits/checkpoints/{END}"
    ]


def test_ui_serves_the_run(home: Path) -> None:
    """The page answers 200."""
    process = start(home, "lucid", "ui", "runs", "--port", "0")
    assert process.stdout is not None
    try:
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None, process.communicate()
        with urllib.request.urlopen(found[0]) as page:
            assert page.status == 200
    finally:
        process.terminate()
        process.communicate()
