"""What a long run adds: everything on against everything off, and the cost of a step as things grow.

python benchmarks/growth.py [--rounds 3]

CPU time of the process; ratios within a round. "Everything on": console lines to a file, records, a background
checkpoint and an evaluation each epoch, on a step of some 40 ms.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import lucid
from lucid.report import ConsoleReport


def cnn(on: bool) -> float:
    """Return CPU seconds of 48 steps of a small CNN, with everything on or off; evaluations are not counted."""
    torch.manual_seed(0)
    rows = TensorDataset(torch.randn(1536, 1, 28, 28), torch.randint(10, (1536,)))
    held_out = TensorDataset(*(tensor[:256] for tensor in rows.tensors))
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3136, 10),
    )  # fmt: skip
    spent = [0.0]

    class Clock(lucid.Callback):
        def on_eval_start(self, state: Any) -> None:
            spent[0] -= time.process_time()

        def on_eval_end(self, state: Any, metrics: Any) -> None:
            spent[0] += time.process_time()

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        trainer = lucid.Trainer(
            model, lucid.optim.AdamW(model.parameters(), lr=1e-3), loss=F.cross_entropy, callbacks=[Clock()],
            config=lucid.TrainConfig(epochs=4, log_every=10 if on else 0, save_every="epoch" if on else 0),
            run_dir=Path(folder) / "run" if on else None, reports=[ConsoleReport("plain")] if on else (),
        )  # fmt: skip
        started = time.process_time()
        eval_loader = DataLoader(held_out, batch_size=256) if on else None
        trainer.fit(DataLoader(rows, batch_size=128, shuffle=True), eval_loader)
        return time.process_time() - started - spent[0]


def step_cost(steps: int, rows: int = 4096, layers: int = 2, records: int = 0) -> float:
    """Return CPU microseconds per step of a tiny model, over the last half of a run."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(rows, 8), torch.randn(rows, 1))
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(layers)), nn.Linear(8, 1))
    marks: list[float] = []

    class Clock(lucid.Callback):
        def on_step_end(self, state: Any) -> None:
            if state.step in (steps // 2, steps):
                marks.append(time.process_time())

    with tempfile.TemporaryDirectory() as folder:
        trainer = lucid.Trainer(
            model, lucid.optim.AdamW(model.parameters(), lr=1e-4), loss=F.mse_loss, callbacks=[Clock()], reports=(),
            config=lucid.TrainConfig(
                epochs=10**6, max_steps=steps, log_every=max(1, steps // records) if records else 0, save_every=0
            ),
            run_dir=Path(folder) / "run" if records else None,
        )  # fmt: skip
        trainer.fit(DataLoader(data, batch_size=32, shuffle=True))
    return (marks[1] - marks[0]) / (steps - steps // 2) * 1e6


def curve(title: str, points: dict[str, Callable[[], float]], rounds: int) -> None:
    """Print the median cost of each point and its ratio to the first."""
    found: dict[str, list[float]] = {name: [] for name in points}
    for _ in range(rounds):
        for name, run in points.items():
            found[name].append(run())
    first = next(iter(found.values()))
    shown = ", ".join(
        f"{name}: {statistics.median(values):.0f} us "
        f"({statistics.median(a / b for a, b in zip(values, first, strict=True)):.2f}x)"
        for name, values in found.items()
    )
    print(f"{title}: {shown}")


def main() -> None:
    """Print the ratio and the curves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    cnn(True)
    ratios = [cnn(True) / cnn(False) for _ in range(rounds)]
    print(f"everything on / off: {statistics.median(ratios):.3f} [{min(ratios):.3f}-{max(ratios):.3f}], target 1.10")
    curve("steps", {str(n): lambda n=n: step_cost(n) for n in (500, 5_000, 20_000)}, rounds)
    curve("rows of data", {str(n): lambda n=n: step_cost(1_000, rows=n) for n in (4_096, 65_536, 1_048_576)}, rounds)
    curve("records", {str(n): lambda n=n: step_cost(4_000, records=n) for n in (4, 40, 400)}, rounds)


if __name__ == "__main__":
    main()
