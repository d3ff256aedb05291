"""One entrant in a process of its own: trains a case whenever it is told to, and says how long a step took.

Reads lines of JSON from stdin, answers each with one line of JSON: {"task": name, "losses": bool, ...} -> figures.
"""

from __future__ import annotations

import gc
import itertools
import json
import logging
import os
import sys
import time
import warnings
from typing import Any

START = time.perf_counter()


def entrant(name: str) -> Any:
    """Return a function of the task for a name such as "best", "lucid-trainer" or "lightning:default"."""
    base, *marks = name.split(":")
    if base.startswith("lucid-"):
        import ours

        return getattr(ours, base.removeprefix("lucid-").replace("-", "_"))
    import hand

    if hasattr(hand, base.replace("-", "_")):
        return getattr(hand, base.replace("-", "_"))
    from peers import PEERS

    return lambda task: PEERS[base](task, "default" in marks, "fused" in marks)


def main(name: str, threads: int) -> None:
    """Answer until stdin ends. What entrants print goes nowhere; LUCID_BENCH_SHOW=1 lets stderr through."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    if not os.environ.get("LUCID_BENCH_SHOW"):
        os.dup2(nowhere, 2)
    import torch

    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    import tasks

    train, made = entrant(name), {}
    answers.write(json.dumps({"ready": name, "import_s": time.perf_counter() - START}) + "\n")
    for line in sys.stdin:
        request = json.loads(line)
        key = request["task"]
        if key not in made:
            made[key] = tasks.TASKS[key]()
            made[key].lists  # noqa: B018  # work out the order before anything is timed
        answers.write(json.dumps(measure(train, made[key], request)) + "\n")


def measure(train: Any, task: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Train once; return losses if they are asked for, else CPU and wall seconds of each step."""
    import tasks

    gc.collect()
    tasks.Timed.marks = marks = tasks.Marks(losses=[] if request.get("losses") else None)
    begin = time.process_time()
    try:
        train(task)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:500]}
    if marks.losses is not None:
        return {"losses": marks.losses[-task.steps :]}
    cpu, wall = marks.cpu[-task.steps :], marks.wall[-task.steps :]
    return {
        "cpu": [b - a for a, b in itertools.pairwise(cpu)],
        "wall": [b - a for a, b in itertools.pairwise(wall)],
        "whole": time.process_time() - begin,
        "peak_mb": peak_mb(),
    }


def peak_mb() -> float:
    """Return the peak resident memory of this process so far, in MB."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
