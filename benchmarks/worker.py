"""One entrant in a process of its own: trains a case whenever it is told to, and says how long a step took.

Reads lines of JSON from stdin, answers each with one line of JSON: {"task": name, "losses": bool, ...} -> figures.

It loads what the entrant needs once. Each training is a process of its own that is forked from it, so that none finds
the memory as another left it. With "alone" it trains in this very process, whose memory is then that of a real run.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import json
import logging
import os
import resource
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any


def entrant(name: str) -> Callable[[Any], Any]:
    """Return a function of the task for a name such as "best", "lucid-trainer" or "lightning:default".

    All that it needs is loaded before it is returned.
    """
    base, _, mark = name.partition(":")
    default = mark == "default"
    if base.startswith("lucid-"):
        import ours

        import lucid

        lucid.optim.AdamW, lucid.Trainer, lucid.Run  # noqa: B018  # loaded when asked for
        train = getattr(ours, base.removeprefix("lucid-").replace("-", "_"))
        return partial(train, default=True) if default else train
    import hand
    import torch

    if base != "limit":
        torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])  # loads the compiler, as it does for everybody
    if hasattr(hand, base.replace("-", "_")):
        return getattr(hand, base.replace("-", "_"))
    from peers import MODULES, PEERS

    for module in MODULES[base]:
        importlib.import_module(module)
    return partial(PEERS[base], default=default)


def main(name: str, threads: int, alone: bool) -> None:
    """Answer until stdin ends. What entrants print goes nowhere; LUCID_BENCH_SHOW=1 lets stderr through."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    if not os.environ.get("LUCID_BENCH_SHOW"):
        os.dup2(nowhere, 2)
    import torch

    torch.set_num_threads(1 if not alone else threads)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    train, made = entrant(name), {}
    answers.write(json.dumps({"ready": name, "import_s": time.process_time()}) + "\n")
    import tasks

    for line in sys.stdin:
        request = json.loads(line)
        key = request["task"]
        if key not in made:
            made[key] = tasks.TASKS[key]()
            made[key].lists  # noqa: B018  # work out the order before anything is timed
        gc.collect()
        if alone:
            Path("/proc/self/clear_refs").write_text("5")  # the peak is from now on
            answers.write(json.dumps(measure(train, made[key], request)) + "\n")
            continue
        child = os.fork()
        if not child:
            torch.set_num_threads(threads)
            answers.write(json.dumps(measure(train, made[key], request)) + "\n")
            os._exit(0)
        if status := os.waitpid(child, 0)[1]:
            answers.write(json.dumps({"error": f"its process ended with status {status}"}) + "\n")


def measure(train: Callable[[Any], Any], task: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Train once; return losses if they are asked for, else CPU and wall seconds of each step."""
    import tasks

    tasks.Timed.marks = marks = tasks.Marks(losses=[] if request.get("losses") else None)
    begin, faults = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
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
        "first_step_s": marks.cpu[0] - begin,
        "faults": (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults) / task.steps,
        "peak_mb": peak_mb(),
    }


def peak_mb() -> float:
    """Return the peak resident memory of this process so far, in MB."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), "alone" in sys.argv)
