"""A run in a process of its own, to be killed from the outside."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from lucid import Callback, rng

from .harness import left_behind
from .settings import Built, Settings

VICTIMS = {
    "plain": Settings(rows=40, batch_size=2, epochs=3, save_every=1, eval_every=4),
    "windows": Settings(rows=46, batch_size=1, accumulation=3, epochs=3, save_every=2, ema=0.9, poison=(3,)),
    "workers": Settings(rows=24, batch_size=2, epochs=2, workers=2, persistent=True, prefetch=2, eval_every=3),
    "fp16": Settings(rows=40, batch_size=2, epochs=3, precision="fp16", optimizer="two", schedule="step", save_every=3),
    "stream": Settings(rows=40, batch_size=2, epochs=9, max_steps=60, sampler="stream", schedule="cosine"),
}


class Says(Callback):
    """Tells the parent each step."""

    def __init__(self, sender: Connection) -> None:
        self.sender = sender

    def on_step_end(self, state: Any) -> None:
        self.sender.send(state.step)


def live(sender: Connection, folder: str, name: str, ambient: int) -> None:
    """Run to the end, from the beginning or from where the folder stands; send what is left behind."""
    os.setsid()  # a group of its own, which is killed with its workers
    torch.set_num_threads(1)
    run_dir = Path(folder)
    fresh = not any((run_dir / "checkpoints").glob("*.lcs"))
    rng.seed_all(7 if fresh else ambient)
    built = Built(VICTIMS[name], run_dir, (Says(sender),))
    built.fit()
    sender.send(left_behind(built, run_dir))
