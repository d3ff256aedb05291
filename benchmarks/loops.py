"""Training loops side by side, correctness first. `suite.py` calls this.

Every training is a process of its own (see worker.py). In each round all entrants train the same case once, one after
another, and the order turns. Figures are CPU time per step, so that other work on the machine matters little. An
entrant whose losses differ from those of the usual loop is left out, with the reason.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CASES = ("digits", "images", "characters", "tensors")
OURS = ("lucid-trainer", "lucid-run")
HAND = ("best", "naive", "naive-fused", "limit")
PEERS = ("lightning", "fabric", "accelerate", "hf", "ignite", "skorch", "keras", "pytorch_accelerated")
DEFAULTS = tuple(f"{name}:default" for name in ("lucid-trainer", *PEERS))
ALL = (*OURS, *HAND, *PEERS, *DEFAULTS)
TOLERANCE = {"keras": 1e-3}  # its AdamW adds epsilon elsewhere
SKIPPED_STEPS = 3  # the first steps of a training make buffers

# With glibc's defaults, whether a freed block goes back to the system and its pages come anew, one fault for each 4 kB,
# hangs on the order of all blocks before it. On a small CNN that is 1,000 to 12,000 faults and 2 to 20 ms of a step of
# 42 ms: chance, not loop. Where time is measured every entrant keeps what it freed; where memory is, none keeps any.
KEEP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
RETURN = {"MALLOC_MMAP_THRESHOLD_": "65536"}


class Worker:
    """An entrant's process."""

    def __init__(self, name: str, threads: int, alone: bool = False) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "worker.py"), name, str(threads), *(["alone"] if alone else [])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE,
            env=environment | (RETURN if alone else KEEP),
        )  # fmt: skip
        self.ready = self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line else {"error": "its process ended"}

    def ask(self, **request: Any) -> dict[str, Any]:
        """Have it train once."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return {"error": "its process ended"}
        return self._answer()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Workers:
    """The processes of all entrants, started when they are first needed and kept for all cases."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._started: dict[str, Worker] = {}

    def __getitem__(self, name: str) -> Worker:
        """Return the process of an entrant."""
        if name not in self._started:
            self._started[name] = Worker(name, self._threads)
        return self._started[name]

    def close(self) -> None:
        """End all processes."""
        for worker in self._started.values():
            worker.close()
        self._started.clear()


def compare(case: str, names: list[str], rounds: int, workers: Workers) -> dict[str, Any]:
    """Run one case; return what was measured in each round by entrant, and why some were left out."""
    refused: dict[str, str] = {}
    expected = None
    for name in ["naive", *(name for name in names if name != "naive")]:
        answer = workers[name].ask(task=case, losses=True)
        reason = answer.get("error") or differs(name, answer["losses"], expected)
        if reason:
            refused[name] = reason
        elif expected is None:
            expected = answer["losses"]
    left = [name for name in names if name not in refused]
    measured: dict[str, Any] = {name: {"us": [], "mean_us": [], "wall_us": [], "faults": []} for name in left}
    for turn in range(rounds):
        first = turn * len(left) // rounds
        for name in left[first:] + left[:first]:
            answer = workers[name].ask(task=case)
            if "error" in answer:
                refused[name] = answer["error"]
                continue
            cpu, wall = (answer[clock][SKIPPED_STEPS:] for clock in ("cpu", "wall"))
            measured[name]["us"].append(round(statistics.median(cpu) * 1e6, 1))
            measured[name]["mean_us"].append(round(statistics.fmean(cpu) * 1e6, 1))
            measured[name]["wall_us"].append(round(statistics.median(wall) * 1e6, 1))
            measured[name]["faults"].append(round(answer["faults"]))
    return {"entrants": {n: f for n, f in measured.items() if n not in refused}, "refused": refused}


def differs(name: str, losses: list[float], expected: list[float] | None) -> str | None:
    """Return how losses differ from the usual loop's; None if they are the same within rounding.

    Example:
        >>> differs("ignite", [1.0, 0.5], [1.0, 0.5])
        >>> differs("ignite", [1.0, 0.6], [1.0, 0.5])
        'losses differ by up to 0.1'
        >>> differs("ignite", [1.0], [1.0, 0.5])
        '1 steps instead of 2'
    """
    if expected is None:
        return None
    if len(losses) != len(expected):
        return f"{len(losses)} steps instead of {len(expected)}"
    worst = max(abs(a - b) for a, b in zip(losses, expected, strict=True))
    limit = TOLERANCE.get(name.split(":")[0], 1e-4) * max(map(abs, expected))
    return None if worst <= limit else f"losses differ by up to {worst:.2g}"


def alone(names: list[str], cases: list[str], rounds: int, threads: int) -> dict[str, Any]:
    """Return, for each entrant, CPU seconds from process start to the first step, and peak MB in each case.

    Each is the whole life of a process that nobody prepared; all freed memory goes back to the system at once.
    """
    found: dict[str, Any] = {name: {"start_s": [], "peak_mb": {case: [] for case in cases}} for name in names}
    for turn in range(rounds):
        first = turn * len(names) // rounds
        for name in names[first:] + names[:first]:
            worker = Worker(name, threads, alone=True)
            for case in cases:
                answer = worker.ask(task=case)
                if "error" in answer:
                    found.pop(name, None)
                    break
                if case == cases[0]:
                    found[name]["start_s"].append(round(worker.ready["import_s"] + answer["first_step_s"], 3))
                found[name]["peak_mb"][case].append(round(answer["peak_mb"], 1))
            worker.close()
    return found


if __name__ == "__main__":
    sys.exit("run benchmarks/suite.py, for example: --parts digits --entrants lucid-trainer --rounds 7")
