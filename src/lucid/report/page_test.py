"""The part of the report page about the test rows: confusion matrix, most wrong rows, answers against targets."""

from __future__ import annotations

import base64
import io
import json
from html import escape
from pathlib import Path
from typing import Any

from lucid.records import words


def test_section(folder: Path) -> str:
    """Return the section as HTML; empty where the run kept no test rows, or `test.json` cannot be read."""
    try:
        tested = json.loads((folder / "test.json").read_text(encoding="utf-8"))
        shown = tested.get("pictures") or {}
        parts = [_confusion(shown), _worst(shown), _scatter(shown)]
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError):
        return ""
    values = ", ".join(
        f"{escape(name.removeprefix('test/'))} {escape(words.number(value))}"
        for name, value in tested.items()
        if name.startswith("test/") and isinstance(value, int | float)
    )
    rows = escape(str(tested.get("rows", "?")))
    head = f'<h2 id="test">Test</h2><p class="muted">{rows} rows that training never saw: {values}</p>'
    return head + "".join(parts)


def _confusion(shown: dict[str, Any]) -> str:
    """Return the matrix as a table: true class by row, answer by column, darker is more."""
    matrix, names = shown.get("confusion"), [str(name) for name in shown.get("classes", ())]
    if not matrix:
        return ""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>{"".join(_cell(n, sum(row), i == j) for j, n in enumerate(row))}</tr>'
        for i, (name, row) in enumerate(zip(names, matrix, strict=True))
    )
    return (
        '<figure class="confusion"><figcaption>Confusion: true class by row, answer by column</figcaption>'
        f'<div class="scroll"><table><thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        "</figure>"
    )


def _cell(number: int, total: int, right: bool) -> str:
    share = number / total if total else 0.0
    tone = "var(--c0)" if right else "var(--bad)"
    strength = round(100 * (share if right else min(1.0, 4 * share)) * 0.7)
    style = f' style="background:color-mix(in srgb, {tone} {strength}%, transparent)"' if number else ""
    return f"<td{style}>{number or ''}</td>"


def _worst(shown: dict[str, Any]) -> str:
    names = [str(name) for name in shown.get("classes", ())]
    items = []
    for one in shown.get("worst", ()):
        target, answer = escape(names[int(one["target"])]), escape(names[int(one["answer"])])
        picture = _image(one.get("image"), f"row {int(one['row'])}")
        items.append(
            f"<li>{picture}<span>is <b>{target}</b>, answered <b>{answer}</b><br>"
            f'<span class="muted">row {int(one["row"])}, chance of the truth {100 * float(one["chance"]):.3g} %</span>'
            "</span></li>"
        )
    if not items:
        return ""
    title = "<figcaption>The rows with the largest loss</figcaption>"
    return f'<figure class="worst-rows">{title}<ul class="worst">{"".join(items)}</ul></figure>'


def _image(pixels: Any, name: str) -> str:
    """Return an image element; nothing without Pillow (extra `images`)."""
    if not pixels:
        return ""
    try:
        import numpy
        from PIL import Image
    except ImportError:
        return ""
    array = numpy.asarray(pixels, dtype=numpy.uint8)
    file = io.BytesIO()
    Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array[:, :, :3]).save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    return f'<img alt="{escape(name)}" src="data:image/png;base64,{data}">'


def _scatter(shown: dict[str, Any]) -> str:
    """Return answers against targets as a small drawing; the diagonal is a perfect model."""
    points = [(float(target), float(answer)) for target, answer in shown.get("scatter", ())]
    if not points:
        return ""
    values = [value for point in points for value in point]
    low, high = min(values), max(values)
    scale = 100 / ((high - low) or 1.0)
    dots = "".join(
        f'<circle cx="{(target - low) * scale:.2f}" cy="{100 - (answer - low) * scale:.2f}" r=".9"/>'
        for target, answer in points
    )
    return (
        '<figure class="scatter"><figcaption>Answers (up) against targets (right)</figcaption>'
        f'<svg viewBox="-4 -4 108 108" role="img" aria-label="{len(points)} rows from {words.number(low)} to '
        f'{words.number(high)}"><line x1="0" y1="100" x2="100" y2="0"/>{dots}</svg></figure>'
    )
