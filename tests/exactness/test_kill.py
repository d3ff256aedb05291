"""SIGKILL at random moments, from the outside, again and again: the run that comes to its end is the unbroken one."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from .victim import VICTIMS, live

KILLS = int(os.environ.get("LUCID_KILLS", "200"))
"""Kills of the sweep, over all settings."""


class Life:
    """One process of a run. It is forked: what it needs of torch is loaded once, here."""

    def __init__(self, folder: Path, name: str, ambient: int) -> None:
        torch.optim.SGD([torch.zeros(1)])
        context = multiprocessing.get_context("fork")
        self._receiver, sender = context.Pipe(duplex=False)
        self.process = context.Process(target=live, args=(sender, str(folder), name, ambient))
        self.process.start()
        sender.close()

    def kill_after(self, steps: int, seconds: float) -> bool:
        """Kill it and its workers some time after so many steps; return whether it was still alive."""
        with contextlib.suppress(EOFError):
            for _ in range(steps):
                self._receiver.recv()
        time.sleep(seconds)
        is_alive = self.process.is_alive()
        if is_alive:
            os.kill(self.process.pid or 0, signal.SIGKILL)
        self.process.join()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid or 0, signal.SIGKILL)
        return is_alive and self.process.exitcode == -signal.SIGKILL

    def to_the_end(self) -> Any:
        """Wait for its end; return what it left behind."""
        last = None
        try:
            while True:
                last = self._receiver.recv()
        except EOFError:
            self.process.join()
        assert isinstance(last, dict), f"the run ended with code {self.process.exitcode} after step {last}"
        return last


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", VICTIMS)
def test_kills_at_random_moments(tmp_path: Path, name: str) -> None:
    """A fifth of the sweep's kills, in each setting, at random moments of the first steps of a life."""
    kills, runs, chance = 0, 0, random.Random(name)
    whole = Life(tmp_path / "whole", name, 0).to_the_end()
    while kills < KILLS // len(VICTIMS):
        folder = tmp_path / f"broken-{runs}"
        for _ in range(10):
            life = Life(folder, name, chance.randrange(1000))
            kills += life.kill_after(chance.randrange(0, 7), chance.random() * 0.03)
        broken = Life(folder, name, chance.randrange(1000)).to_the_end()
        for part, value in whole.items():
            assert broken[part] == value, f"{part} after {kills} kills"
        runs += 1
    print(f"{name}: {kills} kills in {runs} runs")


def test_three_kills(tmp_path: Path) -> None:
    """Three kills, one before there is a checkpoint."""
    whole = Life(tmp_path / "whole", "plain", 0).to_the_end()
    for steps, seconds in ((0, 0.0), (2, 0.0), (5, 0.004)):
        Life(tmp_path / "broken", "plain", 3).kill_after(steps, seconds)
    assert Life(tmp_path / "broken", "plain", 4).to_the_end() == whole
