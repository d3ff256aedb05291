"""Kill a process that saves, at random moments, and look at what it leaves. Run by `test_kill.py` as a program.

    python killing.py FOLDER KILLS SEED

Prints one JSON line of counts. It forks its victims, so it is a process of its own that has no threads.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import torch

from lucid.serialization import Store, verify
from lucid.serialization.retention import Entry

SIZE = 1 << 20  # numbers in each of two tensors: a file of 8 MiB


def victim(folder: Path, asynchronous: bool, told: int) -> None:
    """Save states whose every number is the step, as fast as possible, and tell each step that is durable."""
    first, second = torch.zeros(SIZE), torch.zeros(SIZE // 1024, 1024).t()
    with Store(folder, run_id="a", keep_last=2, keep_best=1, asynchronous=asynchronous) as store:
        entry = store.latest()
        step = entry.step if entry else 0
        os.write(told, b"0\n")
        while True:
            step += 1
            first.fill_(step)
            second.fill_(step)
            store.save({"first": first, "second": second, "step": step}, step=step, value=float(step % 7))
            first.fill_(-1)
            second.fill_(-1)
            if not asynchronous or step % 3 == 0:
                store.wait()
                os.write(told, b"%d\n" % step)


def kill_one(folder: Path, delay: float, asynchronous: bool) -> int:
    """Start a victim, kill it `delay` seconds after it is ready, and return the last step it called durable."""
    reading, told = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)
        try:
            victim(folder, asynchronous, told)
        finally:
            os._exit(1)
    os.close(told)
    text = os.read(reading, 2)
    time.sleep(delay)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while more := os.read(reading, 1 << 16):
        text += more
    os.close(reading)
    return max(map(int, text.split()), default=0)


def check(folder: Path, least: int, counts: Counter[str]) -> None:
    """Count what is wrong in the folder after a kill."""
    counts["temporary files left"] += sum(1 for item in folder.iterdir() if ".tmp-" in item.name)
    names = [item for item in folder.iterdir() if item.suffix == ".lcs"]
    counts["bad files"] += sum(not report.ok for report in verify(folder).files) if names else 0
    with Store(folder, run_id="a", keep_last=2) as store:
        entry = store.latest()
        counts["older than durable"] += (entry.step if entry else 0) < least
        counts["refused"] += len(store.refused)
        if entry is not None:
            counts["mixed states"] += not consistent(store, entry)
        best = min((e for e in store.entries()), key=lambda e: (e.value, e.step), default=None)
        found = store.best()
        counts["wrong best"] += (found.step if found else 0) != (best.step if best else 0)
    counts["litter"] += sum(1 for item in folder.iterdir() if ".tmp-" in item.name)
    pointer = folder / "last"
    if pointer.exists() and not (folder / pointer.read_text().strip()).exists():
        counts["pointer to nothing"] += 1


def consistent(store: Store, entry: Entry) -> bool:
    """Say whether every number of a state is its step."""
    state = store.load(entry)
    step = state["step"]
    return bool(step == entry.step and torch.all(state["first"] == step) and torch.all(state["second"] == step))


def main() -> None:
    """Run all kills."""
    folder, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    dice = random.Random(seed)
    counts: Counter[str] = Counter(kills=0)
    longest = 0.12
    for number in range(kills):
        before = counts["temporary files left"]
        least = kill_one(folder, dice.uniform(0, longest), asynchronous=number % 2 == 0)
        check(folder, least, counts)
        counts["kills"] += 1
        counts["kills during a write"] += counts["temporary files left"] > before
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
