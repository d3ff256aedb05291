"""What can only be measured on an accelerator, as one short script that needs Lucid and torch alone.

    python benchmarks/gpu.py                       # minutes on one GPU
    python benchmarks/gpu.py --device cpu --tiny   # only to see that it works

Prints one table: speed-up of mixed precision by batch size, what TF32, channels last and cuDNN's search do for
convolutions, gradient checkpointing in memory and time, what the loop adds to a step, and for how long a save stops the
training. Every figure is a median over interleaved repeats. `--json` keeps them all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lucid.utils.checkpoint import checkpoint
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import lucid
from lucid import kernels, loop
from lucid.verdict import QueuedVerdict, make_verdict


class Net(nn.Module):
    """Transformer blocks over rows of 64 tokens; with `saving`, every block is computed again in the backward pass."""

    def __init__(self, width: int, depth: int, saving: bool = False) -> None:
        super().__init__()
        block = [nn.TransformerEncoderLayer(width, 8, 4 * width, 0.0, batch_first=True) for _ in range(depth)]
        self.blocks, self.head, self.saving = nn.ModuleList(block), nn.Linear(width, 10), saving

    def forward(self, x: Tensor) -> Tensor:
        """Return logits `(rows, 10)` for `(rows, 64, width)`."""
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.saving else block(x)
        return self.head(x.mean(1))


class Bench:
    """Sizes and device of the measurements."""

    def __init__(self, device: str, tiny: bool) -> None:
        self.device, self.is_tiny = torch.device(device), tiny
        self.width, self.depth, self.steps, self.repeats = (32, 2, 2, 1) if tiny else (512, 8, 30, 5)
        self.batches = (2, 4) if tiny else (32, 64, 128, 256)

    def wait(self) -> None:
        """Wait until the device is done."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def data(self, batch: int) -> tuple[Tensor, Tensor]:
        """Return one batch on the device."""
        x = torch.randn(batch, 64, self.width, device=self.device)
        return x, torch.randint(10, (batch,), device=self.device)

    def model(self, saving: bool = False) -> Net:
        """Return a model on the device, always with the same weights."""
        torch.manual_seed(0)
        return Net(self.width, self.depth, saving).to(self.device)

    def seconds(self, step: Callable[[], Any]) -> float:
        """Return the seconds of one step, over `steps` of them."""
        self.wait()
        began = time.perf_counter()
        for _ in range(self.steps):
            step()
        self.wait()
        return (time.perf_counter() - began) / self.steps

    def medians(self, entrants: dict[str, Callable[[], Any]]) -> dict[str, float]:
        """Return median milliseconds per step of each, measured in turn."""
        for step in entrants.values():
            step()
        times: dict[str, list[float]] = {name: [] for name in entrants}
        for _ in range(self.repeats):
            for name, step in entrants.items():
                times[name].append(self.seconds(step) * 1e3)
        return {name: statistics.median(values) for name, values in times.items()}


def plain_step(bench: Bench, mode: str, batch: int, saving: bool = False) -> Callable[[], Any]:
    """Return a hand-written step: autocast, fused AdamW, clipping, nothing read on the host."""
    model, (x, y) = bench.model(saving), bench.data(batch)
    optimizer = lucid.optim.AdamW(model.parameters(), lr=1e-4)
    precision = lucid.amp.Precision(mode, bench.device.type)

    def step() -> None:
        with precision.autocast():
            loss = F.cross_entropy(model(x), y)
        precision.scale(loss).backward()
        if precision.scaler is None:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        else:
            precision.scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            precision.scaler.step(optimizer)
            precision.update()
        optimizer.zero_grad()

    return step


def mixed_precision(bench: Bench) -> dict[str, Any]:
    """Speed-up over fp32 by batch size."""
    found = {}
    for batch in bench.batches:
        ms = bench.medians({mode: plain_step(bench, mode, batch) for mode in ("fp32", "bf16", "fp16")})
        found[f"batch {batch}"] = {"ms": ms, "speed-up": {mode: ms["fp32"] / ms[mode] for mode in ("bf16", "fp16")}}
    return found


class Pictures(nn.Module):
    """Convolutions with batch norm on images of 3 channels."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, width, 3, stride=2, padding=1)]
        for _ in range(depth):
            layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)]
        self.body, self.head = nn.Sequential(*layers), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits `(rows, 10)` for `(rows, 3, height, width)`."""
        return self.head(self.body(x).mean((2, 3)))


def convolutions(bench: Bench) -> dict[str, Any]:
    """Time of a step on images over plain fp32, with each of the settings in `lucid.kernels`."""
    settings: dict[str, dict[str, Any]] = {
        "fp32": {},
        "fp32, TF32": {"matmul_precision": "high"},
        "fp32, channels last": {"channels_last": True},
        "bf16": {"precision": "bf16"},
        "bf16, channels last": {"precision": "bf16", "channels_last": True},
    }
    if bench.device.type == "cuda":
        searched = {"precision": "bf16", "channels_last": True, "cudnn_benchmark": True}
        settings["bf16, channels last, search"] = searched
    side, batch = (8, 4) if bench.is_tiny else (128, 64)
    x = torch.randn(batch, 3, side, side, device=bench.device)
    y = torch.randint(10, (batch,), device=bench.device)
    steps = {name: _picture_step(bench, lucid.TrainConfig(**given), x, y) for name, given in settings.items()}
    ms = bench.medians(steps)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.benchmark = torch.backends.cudnn.allow_tf32 = False
    return {"ms": ms, "speed-up": {name: ms["fp32"] / value for name, value in ms.items() if name != "fp32"}}


def _picture_step(bench: Bench, config: lucid.TrainConfig, x: Tensor, y: Tensor) -> Callable[[], Any]:
    torch.manual_seed(0)
    model = Pictures(bench.width // 4, bench.depth).to(bench.device)
    kernels.choose(config, model)
    optimizer = lucid.optim.AdamW(model.parameters(), lr=1e-4)
    precision = lucid.amp.Precision("bf16" if config.precision == "bf16" else "fp32", bench.device.type)
    x = x.contiguous(memory_format=torch.channels_last) if config.channels_last else x

    def step() -> None:
        torch.set_float32_matmul_precision(config.matmul_precision or "highest")
        torch.backends.cudnn.allow_tf32 = config.matmul_precision is not None  # as it comes, convolutions use it
        torch.backends.cudnn.benchmark = config.cudnn_benchmark
        with precision.autocast():
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def gradient_checkpointing(bench: Bench) -> dict[str, Any]:
    """Peak memory and time with every block checkpointed, over without."""
    steps = {name: plain_step(bench, "fp32", bench.batches[-1], name == "saving") for name in ("plain", "saving")}
    ms = bench.medians(steps)
    found: dict[str, Any] = {"ms": ms, "time": ms["saving"] / ms["plain"]}
    if bench.device.type == "cuda":
        for name, step in steps.items():
            before = torch.cuda.memory_allocated(bench.device)
            torch.cuda.reset_peak_memory_stats(bench.device)
            step()
            found[f"{name}_mb"] = (torch.cuda.max_memory_allocated(bench.device) - before) / 2**20
        found["memory"] = found["saving_mb"] / found["plain_mb"]
    return found


class Form(lucid.Callback):
    """Has a run settle its steps in one of the two forms of `lucid.verdict`."""

    def __init__(self, form: Any) -> None:
        self.form = form

    def on_train_start(self, state: Any) -> None:
        """Set the form."""
        state.verdict = make_verdict(state.device, self.form)


def fit_step(bench: Bench, batch: int, form: str) -> Callable[[int], float]:
    """Return a function that trains some steps with the trainer and returns seconds per step."""
    model = bench.model()
    x, y = bench.data(batch)
    ready = [(x, y)] * bench.steps

    def train(steps: int) -> float:
        config = lucid.TrainConfig(
            epochs=-(-steps // bench.steps), max_steps=steps, log_every=0, eval_every=0, save_every=0,
            device=str(bench.device), precision="fp32",
        )  # fmt: skip
        optimizer = lucid.optim.AdamW(model.parameters(), lr=1e-4)
        trainer = lucid.Trainer(
            model, optimizer, loss=F.cross_entropy, config=config, reports=(), callbacks=[Form(form)]
        )  # fmt: skip
        bench.wait()
        began = time.perf_counter()
        trainer.fit(ready)
        bench.wait()
        return (time.perf_counter() - began) / steps

    return train


def loop_overhead(bench: Bench) -> dict[str, Any]:
    """Trainer in both forms over the hand-written step, by size of the network, on the smallest batch."""
    usual = bench.width, bench.depth
    found = {}
    for width, depth in (usual, (max(bench.width // 8, 8), max(bench.depth // 4, 1))):
        bench.width, bench.depth = width, depth
        found[f"width {width}, depth {depth}"] = _overhead(bench)
    bench.width, bench.depth = usual
    return found


def _overhead(bench: Bench) -> dict[str, Any]:
    """Milliseconds per step; set-up is taken out by a second, longer fit."""
    few, many = bench.steps, 4 * bench.steps
    forms = {form: fit_step(bench, bench.batches[0], form) for form in ("at once", "queued")}
    hand = plain_step(bench, "fp32", bench.batches[0])
    times: dict[str, list[float]] = {name: [] for name in ("hand", *forms)}
    for train in forms.values():
        train(few)
    hand()
    for _ in range(bench.repeats):
        for form, train in forms.items():
            times[form].append((train(many) * many - train(few) * few) / (many - few) * 1e3)
        times["hand"].append(bench.seconds(hand) * 1e3)
    ms = {name: statistics.median(values) for name, values in times.items()}
    has_queued = type(make_verdict(bench.device, "queued")) is QueuedVerdict
    return {"ms": ms, "has_queued": has_queued, **{form: ms[form] / ms["hand"] for form in forms}}


def save_stall(bench: Bench) -> dict[str, Any]:
    """How long one asynchronous save holds up the training."""
    stalls: list[float] = []

    with tempfile.TemporaryDirectory() as folder:
        model = bench.model()
        optimizer = lucid.optim.AdamW(model.parameters(), lr=1e-4)
        rows = TensorDataset(*(part.cpu() for part in bench.data(8 * bench.batches[0])))
        config = lucid.TrainConfig(epochs=3, save_every=2, log_every=0, device=str(bench.device), precision="fp32")
        trainer = lucid.Trainer(model, optimizer, loss=F.cross_entropy, config=config, run_dir=folder, reports=())
        with trainer.session(DataLoader(rows, batch_size=bench.batches[0])) as session:
            save = session.services.save

            def timed(state: Any, window: Any) -> None:
                bench.wait()
                began = time.perf_counter()
                save(state, window)
                stalls.append((time.perf_counter() - began) * 1e3)

            session.services.save = timed
            loop.fit(session.state, session.windows(), trainer.step(), session.plan, session.services)
    mb = sum(p.numel() * 12 for p in model.parameters()) / 2**20
    return {"ms": statistics.median(stalls), "worst_ms": max(stalls), "saves": len(stalls), "state_mb": mb}


def flat(tree: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return the figures of nested parts with their names, one below the other."""
    found = []
    for name, value in tree.items():
        place = f"{prefix}{name}".replace("_", " ")
        found += flat(value, f"{place}: ") if isinstance(value, dict) else [(place, value)]
    return found


def main() -> None:
    """Measure everything and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="torch's name of the device (default: %(default)s)")
    parser.add_argument("--tiny", action="store_true", help="sizes that only show that it works")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    bench = Bench(options.device, options.tiny)
    found = {"device": options.device, "torch": torch.__version__}
    if bench.device.type == "cuda":
        found["name"] = torch.cuda.get_device_name(bench.device)
    for part in (mixed_precision, convolutions, gradient_checkpointing, loop_overhead, save_stall):
        try:
            found[part.__name__] = part(bench)
        except (RuntimeError, lucid.errors.LucidError) as error:
            found[part.__name__] = {"error": f"{type(error).__name__}: {error}"}
    print("| what | |\n|---|---|")
    for name, value in flat(found):
        print(f"| {name} | {value:.4g} |" if isinstance(value, float) else f"| {name} | {value} |")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
