"""What a long run adds: everything on against everything off, and the cost of a step as things grow.

python benchmarks/growth.py [--rounds 3] [--json out.json]

CPU time of the process; ratios within a round. "Everything on": console lines to a file, records, a background
checkpoint and an evaluation each epoch, on a step of some 40 ms.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from stats import ratio, shown, spread
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


def curve(points: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Return what each point cost in each round."""
    found: dict[str, list[float]] = {name: [] for name in points}
    for _ in range(rounds):
        for name, run in points.items():
            found[name].append(round(run(), 2))
    return found


def measure(rounds: int, quick: bool) -> dict[str, Any]:
    """Return the seconds with everything on and off, and microseconds per step as things grow."""
    part = 20 if quick else 1
    steps, rows = [n // part for n in (2_000, 10_000, 40_000)], [n // part for n in (4_096, 65_536, 1_048_576)]
    records = (4, 40, 400)
    cnn(True)
    return {
        "everything": curve({"on": lambda: cnn(True), "off": lambda: cnn(False)}, rounds),
        "steps": curve({f"{n:,}": lambda n=n: step_cost(n) for n in steps}, rounds),
        "rows of data": curve({f"{n:,}": lambda n=n: step_cost(2_000 // part, rows=n) for n in rows}, rounds),
        "records written": curve({f"{n}": lambda n=n: step_cost(4_000 // part, records=n) for n in records}, rounds),
    }


def main() -> None:
    """Print the ratio and the curves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the steps: only to see that it works")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = measure(options.rounds, options.quick)
    print("everything on / off:", shown(ratio(found["everything"]["on"], found["everything"]["off"])))
    for title, points in found.items():
        first = next(iter(points.values()))
        shares = {name: shown(ratio(values, first)) for name, values in points.items()}
        print(title, {name: f"{spread(values)[0]:.4g} ({shares[name]})" for name, values in points.items()})
    if options.json:
        options.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
