"""What `make bench` runs: everything, on one machine in one go, into one table, one file of results and one picture.

    python benchmarks/suite.py                       # all of it, 15 to 20 minutes
    python benchmarks/suite.py --quick               # one round of a few entrants: only to see that it works
    python benchmarks/suite.py --parts digits,data   # some parts; the other results in the file stay
    python benchmarks/suite.py --page                # all of it, and the tables and the picture of docs/performance.md

Parts: the cases `digits`, `images`, `characters`, `tensors` (loops.py); `alone` (start and memory of a fresh process),
`data` (data.py), `growth` (growth.py), `checkpointing` (gradient_checkpointing.py).
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import plot
import tables
from loops import ALL, CASES, HERE, KEEP, PEERS, Workers, alone, compare

PARTS = (*CASES, "alone", "data", "growth", "checkpointing")
NAMES = {"hf": "transformers", "ignite": "pytorch-ignite", "pytorch_accelerated": "pytorch-accelerated"}
QUICK = ("lucid-trainer", "lucid-run", "best", "naive", "ignite", "ignite:default")


def about(threads: int) -> dict[str, Any]:
    """Return the machine and the versions."""
    packages = ["torch", *dict.fromkeys(NAMES.get(name, name) for name in PEERS if name != "fabric")]
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": threads,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: version for name in packages if (version := _version(name))},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # measured without the peers
        return None


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


class Watch:
    """How long a part took, and how many cores other processes kept busy meanwhile."""

    def __init__(self) -> None:
        self._since, self._busy, self._own = time.perf_counter(), _busy(), os.times()

    def read(self) -> dict[str, float]:
        """Return both."""
        seconds, own = time.perf_counter() - self._since, os.times()
        used = sum(own[:4]) - sum(self._own[:4])  # children count once they have ended
        return {"seconds": round(seconds, 1), "load": round(max(_busy() - self._busy - used, 0.0) / seconds, 2)}


def _busy() -> float:
    """Return the CPU seconds that all processes of the machine have used."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _, _, irq, softirq = map(int, fields[:7])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def script(name: str, *options: str) -> Any:
    """Run one of the other scripts and return its results."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.json"
        command = [sys.executable, str(HERE / name), "--json", str(path), *options]
        subprocess.run(
            command, check=True, env={**os.environ, **KEEP, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL
        )
        return json.loads(path.read_text())


def measure(part: str, options: argparse.Namespace, results: dict[str, Any], workers: Workers) -> None:
    """Measure one part and put it into the results."""
    quick, rounds = options.quick, options.rounds
    names = options.entrants.split(",") if options.entrants else list(QUICK if quick else ALL)
    names = list(dict.fromkeys(["best", "naive", *names]))
    if part in CASES:
        results["cases"][part] = compare(part, names, 1 if quick else rounds, workers)
        return
    workers.close()
    if part == "alone":
        whole = [name for name in names if ":" not in name and name != "limit"]
        results["alone"] = alone(whole, list(CASES[:1] if quick else CASES), 1 if quick else 2, options.threads)
    elif part == "data":
        results["data"] = script("data.py", "--rounds", "1" if quick else "9")
    elif part == "growth":
        results["growth"] = script("growth.py", *(["--rounds", "1", "--quick"] if quick else ["--rounds", "5"]))
    else:
        shapes = [] if quick else ["--rounds", "5"]
        results["checkpointing"] = script("gradient_checkpointing.py", "--shapes", "many activations", *shapes)


def main() -> None:
    """Measure the parts asked for and write results.json, results.md and the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="", help=f"by commas (default: {','.join(PARTS)})")
    parser.add_argument("--entrants", default="", help="by commas (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each case (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one round of few entrants")
    parser.add_argument("--page", action="store_true", help="also put the results into docs/performance.md")
    parser.add_argument("--out", type=Path, default=HERE.parent / "build" / "bench", help="folder of the results")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "performance.json"
    default = [part for part in PARTS if not options.quick or part in ("digits", "alone", "data", "growth")]
    parts = options.parts.split(",") if options.parts else default
    results = json.loads(path.read_text()) if options.parts and path.exists() else {"cases": {}, "parts": {}}
    results["about"] = about(options.threads)
    workers = Workers(options.threads)
    for part in parts:
        print(f"measuring {part} ...", flush=True)
        watch = Watch()
        measure(part, options, results, workers)
        results["parts"][part] = watch.read()
        results["cases"] = {case: results["cases"][case] for case in CASES if case in results["cases"]}
        path.write_text(json.dumps(results, indent=None, separators=(",", ":")) + "\n")
    workers.close()
    text = tables.whole(results)
    (options.out / "performance.md").write_text(text + "\n")
    print(f"\n{text}\n")
    try:
        plot.draw(results, options.out / "performance.svg")
    except ImportError:
        print("no picture: matplotlib is not installed here; benchmarks/setup.sh makes an environment that has it")
    if options.page:
        docs = HERE.parent / "docs"
        for name in ("performance.json", "performance.svg"):
            shutil.copy(options.out / name, docs / name)
        page = docs / "performance.md"
        page.write_text(tables.fill(page.read_text(), results))
    print(f"In {options.out}: performance.json, performance.md, performance.svg.")


if __name__ == "__main__":
    main()
