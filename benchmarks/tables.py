"""Tables from what `suite.py` measured, and their places in docs/performance.md. Standard library only."""

from __future__ import annotations

import re
from typing import Any

from loops import OURS, PEERS
from stats import Spread, ratio, shown, spread

Results = dict[str, Any]
LABELS = {"naive": "usual loop", "naive-fused": "usual loop, fused AdamW", "best": "best loop", "limit": "limit"}
LABELS |= {"lucid-trainer": "**Lucid trainer**", "lucid-run": "**Lucid run loop**"}
# What is aimed at: ours over what, by case; 1.0 where ours may never be slower.
TARGETS = {
    "best loop": {"digits": 1.15, "images": 1.03, "characters": 1.03, "tensors": 1.03},
    "usual loop": {"digits": 0.40, "images": 1.0, "characters": 1.0, "tensors": 0.5},
    "fastest peer": {"digits": 0.40, "images": 1.0, "characters": 1.0, "tensors": 0.5},
}


def label(name: str) -> str:
    """Return what an entrant is called in a table.

    Example:
        >>> label("hf:default"), label("naive")
        ('hf, as it comes', 'usual loop')
    """
    base, _, mark = name.partition(":")
    return LABELS.get(base, base) + (", as it comes" if mark else "")


def is_peer(name: str) -> bool:
    """Whether an entrant is another library, in whichever setting."""
    return name.split(":")[0] in PEERS


def machine(results: Results) -> str:
    """Return one paragraph: where and when it was measured, and how busy the machine was."""
    about, loads = results["about"], [part["load"] for part in results["parts"].values()]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return (
        f"{about['cpu']}, {about['cores']} cores, {about['threads']} thread; {about['system']}; "
        f"Python {about['python']}; {versions}. Measured on {about['date']}; "
        f"other work kept {min(loads):.1f} to {max(loads):.1f} cores busy."
    )


def table(results: Results) -> str:
    """Return the table of all entrants: each case, start and memory."""
    cases, alone = results["cases"], results.get("alone", {})
    first = next(iter(cases.values()))["entrants"]
    names = sorted(first, key=lambda name: spread(first[name]["us"])[0])
    names += [name for case in cases.values() for name in case["entrants"] if name not in names]
    memory = list(next(iter(alone.values()))["peak_mb"]) if alone else []
    head = [*(f"{case}: x best" for case in cases), "start, CPU s", *(f"{case}: MB" for case in memory)]
    lines = [f"| entrant | {' | '.join(head)} |", "|---" * (len(head) + 1) + "|"]
    for name in dict.fromkeys(names):
        cells = [_over_best(case, name) for case in cases.values()]
        own = alone.get(name)
        cells.append(shown(spread(own["start_s"])) if own else "")
        cells += [f"{spread(own['peak_mb'][case])[0]:.0f}" if own else "" for case in memory]
        lines.append(f"| {label(name)} | {' | '.join(cells)} |")
    steps = ", ".join(f"{case} {spread(r['entrants']['best']['us'])[0] / 1e3:.3g} ms" for case, r in cases.items())
    lines += ["", f"A step of the best loop: {steps}."]
    left_out = [f"{label(n)} in {c} ({why})" for c, r in cases.items() for n, why in r["refused"].items()]
    return "\n".join([*lines, f"Left out: {'; '.join(left_out)}."] if left_out else lines)


def _over_best(case: dict[str, Any], name: str) -> str:
    us = {entrant: measured["us"] for entrant, measured in case["entrants"].items()}
    return shown(ratio(us[name], us["best"])) if name in us else "left out" if name in case["refused"] else ""


def targets(results: Results) -> str:
    """Return the table of what is aimed at and what was measured, for the trainer and the run loop."""
    lines = ["| what | trainer | run loop | aimed at |", "|---|---|---|---|"]
    for what, values, bound, at_least in [*_times(results), *_memories(results), *_others(results)]:
        cells = [_cell(value, bound, at_least) for value in values]
        lines.append(
            f"| {what} | {' | '.join(cells + cells[:1] * (2 - len(cells)))} | {'>=' if at_least else '<='} {bound} |"
        )
    return "\n".join(lines)


def _cell(value: Spread, bound: float, at_least: bool) -> str:
    word = verdict(value, bound, at_least=at_least)
    return f"{shown(value)}, {word}" if word else shown(value)


def verdict(value: Spread, bound: float, *, at_least: bool) -> str:
    """Say whether a ratio misses what is aimed at: not where the better of its quartiles reaches it.

    Example:
        >>> verdict((1.02, 0.99, 1.04), 1.0, at_least=False)
        'within the spread'
    """
    middle, low, high = value
    met, touched = (middle >= bound, high >= bound) if at_least else (middle <= bound, low <= bound)
    return "" if met else "within the spread" if touched else "missed"


Aim = tuple[str, list[Spread], float, bool]
"""What is compared; ratios of the trainer and the run loop, or one for both; the bound; whether it is a lower one."""


def _times(results: Results) -> list[Aim]:
    found = []
    for case, result in results["cases"].items():
        us = {name: entrant["us"] for name, entrant in result["entrants"].items()}
        peer = _least(us)
        for what, base in {"best loop": "best", "usual loop": "naive", "fastest peer": peer}.items():
            named = f"{what} ({label(base)})" if base == peer else what
            found += _over(f"time, {case} / {named}", us, base, TARGETS[what][case])
    return found


def _memories(results: Results) -> list[Aim]:
    found, alone = [], results.get("alone", {})
    for case in next(iter(alone.values()))["peak_mb"] if alone else []:
        mb = {name: entrant["peak_mb"][case] for name, entrant in alone.items()}
        peer = _least(mb)
        for what, base, bound in (("best loop", "best", 1.05), ("usual loop", "naive", 1.0), ("least peer", peer, 1.0)):
            named = f"{what} ({label(base)})" if base == peer else what
            found += _over(f"peak memory, {case} / {named}", mb, base, bound)
    return found


def _over(what: str, values: dict[str, list[float]], base: str, bound: float) -> list[Aim]:
    ours = [name for name in OURS if name in values]
    if base not in values or not ours:
        return []
    return [(what, [ratio(values[name], values[base]) for name in ours], bound, False)]


def _others(results: Results) -> list[Aim]:
    found: list[Aim] = []
    if "data" in results:
        us = results["data"]["us_per_row"]
        found.append(("rows/s in memory / `index_select`", [ratio(us["plain"], us["feed"])], 0.8, True))
        found.append(("rows/s in memory / DataLoader", [ratio(us["loader"], us["feed"])], 8, True))
    if "growth" in results:
        both = results["growth"]["everything"]
        found.append(("everything on / everything off, 40 ms step", [ratio(both["on"], both["off"])], 1.1, False))
    return found


def _least(values: dict[str, list[float]]) -> str:
    """Return the peer with the lowest median."""
    return min(filter(is_peer, values), key=lambda name: spread(values[name])[0], default="")


def growth(results: Results) -> str:
    """Return the table of microseconds per step as steps, rows or records grow."""
    lines = ["| over | | | |", "|---|---|---|---|"]
    for title, points in results.get("growth", {}).items():
        if title == "everything":
            continue
        first = next(iter(points.values()))
        cells = [f"{n}: {spread(us)[0]:.0f} us, {shown(ratio(us, first))}" for n, us in points.items()]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def checkpointing(results: Results) -> str:
    """Return the table of gradient checkpointing."""
    lines = ["| model | checkpointed | peak of a step, MB | less by | time of a step |", "|---|---|---|---|---|"]
    for row in results.get("checkpointing", []):
        peak, time = row["training_peak_mb"], shown(spread(row["step"]))
        lines.append(f"| {row['name']} | {row['mode']} | {peak:.0f} | {row['saved']:.0%} | x {time} |")
    return "\n".join(lines)


BLOCKS = {"machine": machine, "table": table, "targets": targets, "growth": growth, "checkpointing": checkpointing}
_BLOCK = re.compile(r"(<!-- bench: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(page: str, results: Results) -> str:
    """Return the page with each block between `<!-- bench: name -->` and `<!-- end -->` made anew."""
    return _BLOCK.sub(lambda found: f"{found[1]}\n{BLOCKS[found[2]](results)}\n\n{found[3]}", page)


def whole(results: Results) -> str:
    """Return all tables as one text."""
    return "\n\n".join(make(results) for make in BLOCKS.values())
