"""`kill -9` at any moment of a save leaves a whole checkpoint that is never older than the last durable one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

WRONG = ("bad files", "older than durable", "refused", "mixed states", "wrong best", "litter", "pointer to nothing")


def sweep(folder: Path, kills: int, seed: int) -> dict[str, int]:
    """Run the program that kills and return its counts."""
    tests = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "serialization.killing", str(folder), str(kills), str(seed)],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(tests), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    counts: dict[str, int] = json.loads(done.stdout)
    return counts


def test_kill_at_random_moments(tmp_path: Path) -> None:
    """Twenty kills: nothing is ever broken, lost, mixed or left over."""
    counts = sweep(tmp_path, 20, 1)
    assert counts["kills"] == 20
    assert {name: counts.get(name, 0) for name in WRONG} == dict.fromkeys(WRONG, 0)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_kill_sweep(tmp_path: Path) -> None:
    """Four hundred kills, a good part of them in the middle of a write."""
    counts = sweep(tmp_path, 400, 2)
    print(counts)
    assert counts["kills"] == 400
    assert counts["kills during a write"] >= 40
    assert {name: counts.get(name, 0) for name in WRONG} == dict.fromkeys(WRONG, 0)
