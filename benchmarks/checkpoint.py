"""Ratios of saving and restoring a training state, each against its limit and its peers in one interleaved run.

    python benchmarks/checkpoint.py [--rounds 5] [--megabytes 1200] [--parts memory,small,many,large] [--json out.json]

Every ratio is the median over the rounds of (ours / theirs) within one round, so that the load of the machine and the
state of its page cache hit both. A file is deleted before it is written again and flushed before the clock stops.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from lucid.serialization import Store, load, load_into, save
from lucid.serialization.chunks import Chunks
from lucid.serialization.memory import Buffer

State = dict[str, Any]


def training_state(megabytes: float, layers: int) -> State:
    """Return the state of a transformer-like model with AdamW: weights and two moments in float32."""
    width = max(8, int((megabytes * 1e6 / 4 / 3 / layers / 12) ** 0.5))
    shapes = {"qkv": (3 * width, width), "out": (width, width), "up": (4 * width, width), "down": (width, 4 * width)}
    shapes |= {f"{name}.bias": (shape[0],) for name, shape in list(shapes.items())} | {"norm": (width,)}
    model = {f"layers.{n}.{name}": torch.randn(shape) for n in range(layers) for name, shape in shapes.items()}
    moments = {
        n: {"step": torch.tensor(1.0), "exp_avg": torch.randn_like(w), "exp_avg_sq": torch.rand_like(w)}
        for n, w in enumerate(model.values())
    }
    return {"model": model, "optimizer": {"state": moments, "param_groups": [{"lr": 1e-3}]}, "progress": {"step": 1}}


def flatten(tree: Any, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a state by name, as safetensors needs them."""
    if isinstance(tree, torch.Tensor):
        yield prefix, tree
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from flatten(value, f"{prefix}.{key}" if prefix else str(key))


def flushed(path: Path, write: Callable[[], object]) -> None:
    """Write a file and bring it to the disk."""
    write()
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def raw_write(path: Path, buffer: Buffer, threads: int = 2, block: int = 4 << 20) -> None:
    """The limit: as many bytes from aligned memory past the page cache, and a flush."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
    os.posix_fallocate(fd, 0, buffer.size)
    starts = iter(range(0, buffer.size, block))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                low = next(starts, None)
            if low is None:
                return
            os.pwrite(fd, buffer.view[low : low + block], low)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    os.fsync(fd)
    os.close(fd)


Times = dict[str, tuple[float, float]]


def timed(action: Callable[[], object]) -> tuple[float, float]:
    """Return wall seconds, and CPU seconds of this process."""
    start, used = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - start, time.process_time() - used


class Round:
    """One state, all ways to save and restore it."""

    def __init__(self, state: State, folder: Path) -> None:
        self.state, self.folder = state, folder
        self.flat = dict(flatten(state))
        size = sum(tensor.nbytes for tensor in self.flat.values())
        self.bytes = size
        self.arena = Buffer(-(-size // 4096) * 4096)  # what the raw write writes and the warm copy reads
        self.source = np.frombuffer(self.arena.view, np.uint8)
        self.source.fill(1)
        self.target = np.ones_like(self.source)
        self.live = {"model": {k: torch.ones_like(v) for k, v in state["model"].items()}, "optimizer": {"state": {
            n: {k: torch.ones_like(v) for k, v in item.items()} for n, item in state["optimizer"]["state"].items()
        }}}  # fmt: skip
        self.live_flat = dict(flatten(self.live))
        self.store = Store(folder / f"store{size}", run_id="bench", keep_last=1, keep_best=0)
        self.step = 0

    def fresh(self, name: str) -> Path:
        path = self.folder / name
        path.unlink(missing_ok=True)
        return path

    def saving(self) -> Times:
        """Return seconds of each way to save."""
        raw, ours, pt, st = (self.fresh(name) for name in ("raw", "ours.lcs", "ours.pt", "ours.safetensors"))
        return {
            "raw": timed(lambda: raw_write(raw, self.arena)),
            "save": timed(lambda: save(self.state, ours)),
            "torch.save": timed(lambda: flushed(pt, lambda: torch.save(self.state, pt))),
            "save_file": timed(lambda: flushed(st, lambda: safetensors.torch.save_file(self.flat, st))),
        }

    def stall(self) -> Times:
        """Return the stall of an asynchronous save, and the time of one warm copy of as many bytes."""
        self.step += 1
        copy = timed(lambda: np.copyto(self.target, self.source))
        stall = timed(lambda: self.store.save(self.state, step=self.step))
        self.store.wait()
        return {"stall": stall, "copy": copy}

    def restoring(self) -> Times:
        """Return seconds of each way to fill live tensors from a warm file."""
        ours, pt = self.folder / "ours.lcs", self.folder / "ours.pt"
        check = Chunks._check

        def unverified() -> None:
            Chunks._check = lambda self, low, views: []  # type: ignore[method-assign]
            load_into(ours, self.live)
            Chunks._check = check  # type: ignore[method-assign]

        def by_torch() -> None:
            for name, tensor in flatten(torch.load(pt, weights_only=True)):
                self.live_flat[name].copy_(tensor)

        times: Times = {}
        warm(ours)
        pair = [("load_into", lambda: load_into(ours, self.live)), ("unverified", unverified)]
        for name, action in pair if self.step % 2 else reversed(pair):
            times[name] = timed(action)
        warm(pt)
        times["torch.load + copy"] = timed(by_torch)
        return times


def warm(path: Path) -> None:
    """Bring a file into the page cache."""
    block = bytearray(4 << 20)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(block):
            pass


def many_tensors(folder: Path, count: int) -> Times:
    """Return seconds for a state of very many small tensors, page cache only."""
    flat = {f"layers.{n}.weight": torch.randn(50) for n in range(count)}
    ours, pt, st = folder / "many.lcs", folder / "many.pt", folder / "many.safetensors"
    times = {"save": timed(lambda: save(flat, ours))}
    times["save_file"] = timed(lambda: flushed(st, lambda: safetensors.torch.save_file(flat, st)))
    torch.save(flat, pt)
    times["torch.load"] = timed(lambda: torch.load(pt, weights_only=True))
    times["load"] = timed(lambda: load(ours))
    return times


def peak_memory(what: str, megabytes: float, answer: Any) -> None:
    """Measure, in a process of its own, how far the resident memory rises above the state."""
    torch.set_num_threads(1)
    state = training_state(megabytes, 12)
    state["wide"] = torch.randn(1024, 2048).t()[:, ::2]  # 4 MiB that are not contiguous
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as name:
        path = Path(name) / "a.lcs"
        save({"warm": torch.ones(3 << 20)}, path)
        load_into(path, {"warm": torch.ones(3 << 20)})
        if what == "load_into":
            save(state, path)
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        before = _resident("VmHWM")
        _ = save(state, path) if what == "save" else load_into(path, state)
        answer.put((_resident("VmHWM") - before) / 1024)


def _resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    raise RuntimeError(f"no {field} in /proc/self/status")


def ratio(rounds: list[Times], ours: str, theirs: str, column: int = 0) -> float:
    """Return the median over the rounds of ours / theirs."""
    return statistics.median(times[ours][column] / max(times[theirs][column], 1e-9) for times in rounds)


class Table:
    """The rows of the result: ratio of wall times, ratio of CPU times, target."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, float, float | None, str]] = []

    def add(self, what: str, rounds: list[Times], ours: str, theirs: str, target: str) -> None:
        """Add a ratio of two things that were timed in the same rounds."""
        wall, cpu = ratio(rounds, ours, theirs), ratio(rounds, ours, theirs, 1)
        self.rows.append((what, wall, cpu, target))

    def show(self) -> None:
        """Print the table."""
        print("\n| what | wall | CPU | target (wall) |\n|---|---|---|---|")
        for what, wall, cpu, target in self.rows:
            print(f"| {what} | {wall:.2f} | {'' if cpu is None else f'{cpu:.2f}'} | {target} |")


def show_seconds(label: str, rounds: list[Times]) -> None:
    """Print the medians of the seconds themselves."""
    medians = {key: round(statistics.median(times[key][0] for times in rounds), 4) for key in rounds[0]}
    print(f"  {label}, median wall seconds: {medians}", flush=True)


def measure(megabytes: float, layers: int, rounds: int, folder: Path, table: Table) -> None:
    """Run all rounds on one state and add its rows to the table."""
    bench = Round(training_state(megabytes, layers), folder)
    label = f"{bench.bytes / 1e6:.0f} MB, {len(bench.flat)} tensors"
    bench.stall()  # the first save makes the arena
    saves, stalls, restores = [], [], []
    for _ in range(rounds):
        saves.append(bench.saving())
        stalls.append(bench.stall())
        restores.append(bench.restoring())
    bench.store.close()
    table.add(f"{label}: save / torch.save + fsync", saves, "save", "torch.save", "<= 0.6")
    table.add(f"{label}: save / safetensors + fsync", saves, "save", "save_file", "<= 0.8")
    table.add(f"{label}: save / raw direct write + fsync", saves, "save", "raw", "<= 1.3")
    allowed = 50e-6 * len(bench.flat)
    over = [statistics.median(max(t["stall"][c] - allowed, 0) / t["copy"][c] for t in stalls) for c in (0, 1)]
    table.rows.append((f"{label}: (stall - 50 us a tensor) / one warm copy", over[0], over[1], "<= 1.3"))
    table.add(f"{label}: load_into / torch.load + copy", restores, "load_into", "torch.load + copy", "<= 0.3")
    table.add(f"{label}: load_into / the same unverified", restores, "load_into", "unverified", "<= 1.25")
    for name, times in (("save", saves), ("stall", stalls), ("restore", restores)):
        show_seconds(f"{label}, {name}", times)


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description="Ratios of saving and restoring a training state.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=float, default=1200)
    parser.add_argument("--dir", type=Path, default=None, help="folder on the disk to measure")
    parser.add_argument("--parts", default="memory,small,many,large", help="which of these to run")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    table = Table()
    parts = options.parts.split(",")
    for what in ("save", "load_into") if "memory" in parts else ():
        spawn = multiprocessing.get_context("spawn")
        answer = spawn.Queue()
        process = spawn.Process(target=peak_memory, args=(what, 300, answer))
        process.start()
        table.rows.append((f"extra memory of {what}, MiB", answer.get(), None, "<= 20 (16 + one strided tensor)"))
        process.join()
    with tempfile.TemporaryDirectory(dir=options.dir) as name:
        if "small" in parts:
            measure(20, 11, options.rounds * 3, Path(name), table)
        if "many" in parts:
            many = [many_tensors(Path(name), 100_000) for _ in range(min(options.rounds, 3))]
            table.add("100,000 tensors: save / safetensors + fsync", many, "save", "save_file", "<= 1")
            table.add("100,000 tensors: load / torch.load", many, "load", "torch.load", "<= 0.3")
        if "large" in parts:
            measure(options.megabytes, 28, options.rounds, Path(name), table)
    table.show()
    if options.json:
        options.json.write_text(json.dumps(table.rows, indent=1))


if __name__ == "__main__":
    main()
