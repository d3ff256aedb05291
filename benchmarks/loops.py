"""Training loops side by side: one interleaved run on one machine, correctness first.

    python benchmarks/loops.py                     # all cases; what `make bench` runs
    python benchmarks/loops.py --cases digits --rounds 15 --entrants best,naive,lucid-trainer,lucid-run

Every entrant is a process of its own that stays; in each round all train the same case once, one after another, and
the order turns. Figures are CPU time per step, so that other work on the machine matters little, and ratios are taken
within a round. An entrant whose losses differ from those of the usual loop is left out, with the reason.
"""

from __future__ import annotations

import argparse
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
FUSED = tuple(f"{name}:fused" for name in PEERS if name != "keras")
DEFAULTS = tuple(f"{name}:default" for name in ("lightning", "hf", "ignite", "skorch", "keras", "pytorch_accelerated"))
# (ours over what, case) -> the ratio that is aimed at; 1.0 where ours may never be slower.
TARGETS = {
    "best": {"digits": 1.15, "images": 1.03, "characters": 1.03, "tensors": 1.03},
    "naive": {"digits": 0.40, "images": 1.0, "characters": 1.0, "tensors": 0.5},
    "fastest peer": {"digits": 0.40, "images": 1.0, "characters": 1.0, "tensors": 0.5},
}
TOLERANCE = {"keras": 1e-3}  # its AdamW adds epsilon elsewhere
SKIPPED_STEPS = 3  # the first steps of a training make buffers


class Worker:
    """An entrant's process."""

    def __init__(self, name: str, threads: int) -> None:
        self.name = name
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "worker.py"), name, str(threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=HERE,
        )  # fmt: skip
        self.import_s = self._answer().get("import_s")

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


def compare(case: str, names: list[str], rounds: int, threads: int) -> dict[str, Any]:
    """Run one case; return figures by entrant, and why some were left out."""
    workers, refused = {}, {}
    expected = None
    for name in ["naive", *(name for name in names if name != "naive")]:
        workers[name] = Worker(name, threads)
        answer = workers[name].ask(task=case, losses=True)
        reason = answer.get("error") or differs(name, answer["losses"], expected)
        if reason:
            refused[name] = reason
            workers.pop(name).close()
        elif expected is None:
            expected = answer["losses"]
    figures: dict[str, Any] = {name: {"median": [], "mean": [], "wall": [], "peak": []} for name in workers}
    for turn in range(rounds):
        order = list(workers)
        order = order[turn % len(order) :] + order[: turn % len(order)]
        for name in order:
            answer = workers[name].ask(task=case)
            if "error" in answer:
                refused[name] = answer["error"]
                continue
            cpu = answer["cpu"][SKIPPED_STEPS:]
            figures[name]["median"].append(statistics.median(cpu) * 1e6)
            figures[name]["mean"].append(statistics.fmean(cpu) * 1e6)
            figures[name]["wall"].append(statistics.median(answer["wall"][SKIPPED_STEPS:]) * 1e6)
            figures[name]["peak"].append(answer["peak_mb"])
    for worker in workers.values():
        worker.close()
    return {"figures": {n: f for n, f in figures.items() if len(f["median"]) == rounds}, "refused": refused}


def differs(name: str, losses: list[float], expected: list[float] | None) -> str | None:
    """Return how losses differ from the usual loop's; None if they are the same within rounding."""
    if expected is None:
        return None
    if len(losses) != len(expected):
        return f"{len(losses)} steps instead of {len(expected)}"
    worst = max(abs(a - b) for a, b in zip(losses, expected, strict=True))
    limit = TOLERANCE.get(name.split(":")[0], 1e-4) * max(map(abs, expected))
    return None if worst <= limit else f"losses differ by up to {worst:.2g}"


def ratios(figures: dict[str, Any], name: str, base: str, what: str = "median") -> tuple[float, float, float]:
    """Return median and quartiles of the ratio within rounds."""
    values = [a / b for a, b in zip(figures[name][what], figures[base][what], strict=True)]
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return middle, low, high


def table(case: str, result: dict[str, Any]) -> str:
    """Return the figures of a case as a Markdown table, with what is aimed at below."""
    figures = result["figures"]
    lines = [
        f"### {case}",
        "",
        "| entrant | step (us CPU) | x best [quartiles] | x usual [quartiles] | mean x best | peak MB |",
        "|---|---|---|---|---|---|",
    ]
    for name in sorted(figures, key=lambda n: statistics.median(figures[n]["median"])):
        own = figures[name]
        best = "{:.2f} [{:.2f}-{:.2f}]".format(*ratios(figures, name, "best"))
        usual = "{:.2f} [{:.2f}-{:.2f}]".format(*ratios(figures, name, "naive"))
        mean = ratios(figures, name, "best", "mean")[0]
        label, step = f"**{name}**" if name in OURS else name, statistics.median(own["median"])
        lines.append(f"| {label} | {step:,.0f} | {best} | {usual} | {mean:.2f} | {max(own['peak']):.0f} |")
    lines += ["", *verdicts(case, result), ""]
    lines += [f"Left out: {name}: {reason}" for name, reason in result["refused"].items()]
    return "\n".join(lines)


def verdicts(case: str, result: dict[str, Any]) -> list[str]:
    """Return one line per target: what was aimed at and what was measured."""
    figures, lines = result["figures"], []
    peers = [name for name in figures if name.split(":")[0] in PEERS]
    fastest = min(peers, key=lambda name: statistics.median(figures[name]["median"]), default=None)
    plain = min((n for n in peers if ":" not in n), key=lambda n: statistics.median(figures[n]["median"]), default=None)
    bases = [("best", "best"), ("naive", "naive"), ("fastest peer", plain), ("fastest peer", fastest)]
    for label, base in dict.fromkeys(bases):
        for name in (name for name in OURS if base is not None and name in figures):
            ratio = ratios(figures, name, base)[0]
            target = TARGETS[label][case]
            shown = label if label in figures else f"{label} ({base})"
            verdict = "met" if ratio <= target else "MISSED"
            lines.append(f"- {name} over {shown}: {ratio:.2f}, target {target}: {verdict}")
    return lines


def plot(results: dict[str, Any], path: Path) -> None:
    """Draw time per step over the best loop's, one panel per case."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "lucid"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(results), figsize=(4.2 * len(results), 6.5), squeeze=False)
    for axis, (case, result) in zip(axes[0], results.items(), strict=True):
        figures = result["figures"]
        names = sorted(figures, key=lambda n: ratios(figures, n, "best")[0], reverse=True)
        middle = [ratios(figures, name, "best") for name in names]
        colors = ["#c2410c" if name in OURS else "#64748b" if name in HAND else "#94a3b8" for name in names]
        spread = [[m - low for m, low, _ in middle], [high - m for m, _, high in middle]]
        axis.barh(names, [m for m, _, _ in middle], xerr=spread, color=colors, ecolor="#334155")
        axis.axvline(1.0, color="#334155", linewidth=0.8)
        axis.set_title(case)
        axis.set_xlabel("CPU time per step, best hand-written loop = 1")
        axis.tick_params(axis="y", labelsize=7)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Run the cases and write results.json, results.md and the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help="comma-separated (default: %(default)s)")
    parser.add_argument("--entrants", default="", help="comma-separated; default: all")
    parser.add_argument("--rounds", type=int, default=7, help="rounds per case (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=HERE.parent / "build" / "bench", help="folder of the results")
    options = parser.parse_args()
    names = options.entrants.split(",") if options.entrants else [*OURS, *HAND, *PEERS, *FUSED, *DEFAULTS]
    options.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {}
    for case in options.cases.split(","):
        results[case] = compare(case, list(dict.fromkeys(["best", "naive", *names])), options.rounds, options.threads)
        print(table(case, results[case]), flush=True)
        (options.out / "loops.json").write_text(json.dumps({"threads": options.threads, "cases": results}, indent=1))
    (options.out / "loops.md").write_text("\n\n".join(table(case, result) for case, result in results.items()))
    try:
        plot(results, options.out / "loops.svg")
    except ImportError:
        print("no plot: matplotlib is not installed here; benchmarks/setup.sh makes an environment that has it")


if __name__ == "__main__":
    main()
