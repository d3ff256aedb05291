"""The picture of docs/performance.md: time per step over the best loop's, one panel per case."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loops import HAND, OURS
from stats import ratio
from tables import label

GREY, OWN, BY_HAND, OTHERS = "#8a8f98", "#e8590c", "#4c8bf5", "#9aa3af"  # readable on white and on black


def draw(results: dict[str, Any], path: Path) -> None:
    """Write the picture as SVG, with a transparent ground; bars are medians, lines quartiles.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({
        "svg.hashsalt": "lucid", "svg.fonttype": "none", "font.size": 9, "text.color": GREY, "axes.labelcolor": GREY,
        "axes.edgecolor": GREY, "xtick.color": GREY, "ytick.color": GREY,
    })  # fmt: skip
    from matplotlib import pyplot

    cases = results["cases"]
    figure, axes = pyplot.subplots(1, len(cases), figsize=(4.6 * len(cases), 5.6), squeeze=False)
    for axis, (case, result) in zip(axes[0], cases.items(), strict=True):
        us = {name: entrant["us"] for name, entrant in result["entrants"].items()}
        ratios = {name: ratio(values, us["best"]) for name, values in us.items()}
        names = sorted(ratios, key=lambda name: -ratios[name][0])
        colors = [OWN if name.split(":")[0] in OURS else BY_HAND if name in HAND else OTHERS for name in names]
        middle, low, high = zip(*(ratios[name] for name in names), strict=True)
        spread = [[m - a for m, a in zip(middle, low, strict=True)], [b - m for m, b in zip(middle, high, strict=True)]]
        axis.barh([label(name).replace("**", "") for name in names], middle, xerr=spread, color=colors, ecolor=GREY)
        axis.axvline(1.0, color=GREY, linewidth=0.8, linestyle="--")
        axis.set_title(case)
        axis.set_xlabel("CPU time per step, best loop = 1")
        axis.tick_params(axis="y", labelsize=8, length=0)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, transparent=True, metadata={"Date": None})
