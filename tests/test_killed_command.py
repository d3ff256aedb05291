"""The default run, killed with SIGKILL and started again, ends as if it had never been broken."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import lucid

pytest.importorskip("sklearn", reason="the digits need the demo extra")
COMMAND = [sys.executable, "-m", "lucid.cli", "train", "--train.epochs", "3", "--train.save_every", "10"]
CHECKPOINTS = Path("runs/digits/checkpoints")


def start(folder: Path) -> subprocess.Popen[bytes]:
    """Start the default run in a folder."""
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        COMMAND, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )  # fmt: skip


def kill_after(folder: Path, step: int) -> None:
    """Kill the run as soon as its checkpoint of this step is there."""
    process = start(folder)
    while not (folder / CHECKPOINTS / f"step-{step:08d}.lcs").exists():
        assert process.poll() is None, process.communicate()[1].decode()
        time.sleep(0.005)
    process.kill()
    process.communicate()


def finish(folder: Path) -> dict[str, Any]:
    """Run to the end and return the last checkpoint without what the clock decides."""
    process = start(folder)
    _, errors = process.communicate()
    assert process.returncode == 0, errors.decode()
    tree = lucid.load(max((folder / CHECKPOINTS).glob("*.lcs")))
    tree.pop("environment")
    return tree


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Return the paths at which two trees differ in value, type or dtype."""
    if type(one) is not type(other):
        return [path]
    if isinstance(one, dict):
        if list(one) != list(other):
            return [path]
        return [found for key in one for found in differences(one[key], other[key], f"{path}/{key}")]
    if isinstance(one, list | tuple):
        if len(one) != len(other):
            return [path]
        return [d for i, (a, b) in enumerate(zip(one, other, strict=True)) for d in differences(a, b, f"{path}/{i}")]
    if isinstance(one, torch.Tensor):
        return [] if one.dtype == other.dtype and torch.equal(one, other) else [path]
    return [] if bool((one == other).all() if hasattr(one, "all") else one == other) else [path]


def test_two_kills_leave_no_trace(tmp_path: Path) -> None:
    """Model, optimizer, schedule, streams and counters are equal bit for bit after two kills."""
    unbroken = finish(tmp_path / "unbroken")
    kill_after(tmp_path / "broken", 20)
    kill_after(tmp_path / "broken", 70)
    assert differences(unbroken, finish(tmp_path / "broken")) == []
