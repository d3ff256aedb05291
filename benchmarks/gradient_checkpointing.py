"""What gradient checkpointing saves and costs on small transformers, on a CPU.

    python benchmarks/gradient_checkpointing.py [--rounds 9] [--dropout 0.1] [--shapes 'in between'] [--json out.json]

Memory: each mode runs three training steps in a process of its own. "training peak" is the most that was allocated
at once during the last step for weights, gradients, optimizer state and activations together, from torch's record of
allocations; "RSS" is how far the first two steps raised the process's high-water mark above what it held with the
model built (Linux only): coarser, since it counts what the allocator keeps for itself, but measured by the system.
Time: all modes in one process, steps interleaved, median of the ratios within a round. It is processor time of the one
thread, which is wall time on an idle machine and does not change when others load it. "blocks" is forward and backward,
"step" includes the optimizer.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from stats import spread
from torch import Tensor, nn
from torch.nn import functional as F

from lucid.optim import AdamW
from lucid.utils import checkpoint, checkpoint_blocks

VOCABULARY = 256


@dataclasses.dataclass(frozen=True)
class Shape:
    """One transformer and its batch."""

    name: str
    layers: int
    width: int
    length: int
    rows: int
    dropout: float = 0.1


SHAPES = (
    Shape("many activations", layers=12, width=128, length=128, rows=16),
    Shape("long sequence", layers=6, width=128, length=512, rows=4),
    Shape("in between", layers=4, width=256, length=64, rows=8),
    Shape("heavy weights", layers=4, width=512, length=64, rows=4),
)
MODES: dict[str, Any] = {"none": None, "every block": "all", "every 2nd block": 2}


class Transformer(nn.Module):
    """A causal language model of pre-norm blocks with dropout."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, shape.width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                shape.width,
                4,
                4 * shape.width,
                dropout=shape.dropout,
                activation="gelu",
                batch_first=True,
                norm_first=True,
            )
            for _ in range(shape.layers)
        )
        self.head = nn.Linear(shape.width, VOCABULARY)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(shape.length))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, src_mask=self.mask, is_causal=True)
        logits: Tensor = self.head(x)
        return logits


class Training:
    """A model with its optimizer and one fixed batch."""

    def __init__(self, model: Transformer, shape: Shape, mode: str) -> None:
        self.model = model
        if MODES[mode] is not None:
            checkpoint_blocks(model, MODES[mode])
        self.optimizer = AdamW(model.parameters(), lr=1e-4)
        self.tokens = torch.randint(VOCABULARY, (shape.rows, shape.length))

    def forward_backward(self) -> None:
        """Compute all gradients."""
        logits = self.model(self.tokens)
        F.cross_entropy(logits.flatten(0, 1), self.tokens.flatten()).backward()

    def step(self) -> None:
        """Do one whole training step."""
        self.forward_backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def measure_memory(shape: Shape, mode: str) -> dict[str, float]:
    """Return megabytes of a training step, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_memory_of_step, (shape, mode))


def _memory_of_step(shape: Shape, mode: str) -> dict[str, float]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warm = torch.randn(64, 64, requires_grad=True)
    checkpoint(torch.mm, warm, warm).sum().backward()  # torch loads 70 MB of modules at the first one: not the model's
    training = Training(Transformer(shape), shape, mode)
    held = _reset_high_water()
    training.step()
    training.step()
    raised = _high_water() - held
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        training.step()
    persistent = sum(t.nbytes for t in (*training.model.parameters(), *training.model.buffers()))
    persistent += sum(t.nbytes for s in training.optimizer.state.values() for t in s.values() if t.numel() > 1)
    return {
        "training_peak_mb": (persistent + _peak_above_start(profile)) / 1e6,
        "weights_and_moments_mb": persistent / 1e6,
        "rss_mb": raised / 1e6,
    }


def _reset_high_water() -> int:
    """Forget the most memory held so far, and return what is held now, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return _high_water()


def _high_water() -> int:
    """Return the most resident memory held since the last reset, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024


def _peak_above_start(profile: Any) -> int:
    """Most bytes alive at once that were allocated during the profiled step."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    changes = [event for event in events if event.get("name") == "[memory]"]
    live = peak = 0
    for event in sorted(changes, key=lambda event: event["ts"]):
        live += event["args"]["Bytes"]
        peak = max(peak, live)
    return peak


def measure_time(shape: Shape, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return per mode the time over that without checkpointing in each round, steps interleaved."""
    torch.manual_seed(0)
    model = Transformer(shape)
    runs = {mode: Training(copy.deepcopy(model), shape, mode) for mode in MODES}
    for training in runs.values():
        training.step()
    ratios: dict[str, dict[str, list[float]]] = {mode: {"blocks": [], "step": []} for mode in MODES}
    for _ in range(rounds):
        times = {mode: _times(training) for mode, training in runs.items()}
        for mode, parts in ratios.items():
            for part, values in parts.items():
                values.append(round(times[mode][part] / times["none"][part], 3))
    return ratios


def _times(training: Training) -> dict[str, float]:
    start = time.process_time()
    training.forward_backward()
    middle = time.process_time()
    training.optimizer.step()
    training.optimizer.zero_grad()
    return {"blocks": middle - start, "step": time.process_time() - start}


def main() -> None:
    """Measure every shape in every mode and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="timed steps of each mode (default: 9)")
    parser.add_argument("--dropout", type=float, default=0.1, help="dropout of the blocks (default: 0.1)")
    parser.add_argument("--shapes", default="", help="names of models by commas (default: all)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, 1 thread, {sys.platform}, dropout {options.dropout}")
    print("| model | mode | training peak MB | less by | RSS MB | blocks | step |")
    print("|---|---|---|---|---|---|---|")
    figures = []
    wanted = options.shapes.split(",") if options.shapes else [shape.name for shape in SHAPES]
    for shape in (dataclasses.replace(shape, dropout=options.dropout) for shape in SHAPES if shape.name in wanted):
        times = measure_time(shape, options.rounds)
        plain = None
        for mode in MODES:
            memory = measure_memory(shape, mode)
            plain = plain or memory["training_peak_mb"]
            saved = 1 - memory["training_peak_mb"] / plain
            figures.append({**dataclasses.asdict(shape), "mode": mode, **memory, "saved": saved, **times[mode]})
            print(
                f"| {shape.name} | {mode} | {memory['training_peak_mb']:.0f} | {saved:.0%} | {memory['rss_mb']:.0f} "
                f"| x {spread(times[mode]['blocks'])[0]:.2f} | x {spread(times[mode]['step'])[0]:.2f} |",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
