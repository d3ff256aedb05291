"""`report.html`: a run on one page that opens anywhere, without a server and without a network.

Everything that comes from files is escaped; the page's own policy forbids any script but ours and any request.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import sys
from html import escape
from pathlib import Path
from typing import Any

from lucid import assets
from lucid.errors import RecordError
from lucid.records import Record, tail
from lucid.records.curves import Curves
from lucid.report.page_charts import charts
from lucid.report.page_tables import Run, cards, subtitle, tables, title
from lucid.report.page_test import test_section

FILE_NAME = "report.html"
_PIECE_BYTES = 1 << 20
_HERE = Path(__file__).parent


def write_page(run_dir: str | Path) -> Path | None:
    """Write the report of a run into its folder.

    Args:
        run_dir: a folder with `records.jsonl`; `config.toml`, `environment.json` and `checkpoints/` are shown if there.

    Returns:
        The file, or None if plotly is not installed: a line on stderr then says how to get it.

    Raises:
        RecordError: if the folder has no records.
    """
    folder = Path(run_dir)
    plotly = assets.plotly_script()
    if plotly is None:
        print("lucid: no report.html without plotly. Install it: pip install 'lucid-loop[demo]'", file=sys.stderr)
        return None
    path = folder / FILE_NAME
    text = page(folder, plotly.read_text(encoding="utf-8"))
    scratch = path.with_name(f".{FILE_NAME}.{os.getpid()}")
    scratch.write_text(text, encoding="utf-8", errors="replace")
    os.replace(scratch, path)
    return path


def page(folder: Path, plotly: str) -> str:
    """Return the page as text.

    Args:
        folder: of the run.
        plotly: the script that draws.
    """
    if not (folder / "records.jsonl").is_file():
        raise RecordError(f"{folder} must hold records.jsonl, it does not: give the folder of a run.")
    run = read_run(folder)
    return _fill(
        (_HERE / "page.html").read_text(encoding="utf-8"),
        {
            "nonce": secrets.token_hex(16),
            "title": escape(title(run)),
            "subtitle": escape(subtitle(run)),
            "cards": cards(run),
            "body": test_section(folder) + tables(run),
            "data": script_data(charts(run.records, run.curves, run.monitor)),
            "theme": (assets.FOLDER / "theme.css").read_text(encoding="utf-8"),
            "charts": (assets.FOLDER / "charts.js").read_text(encoding="utf-8"),
            "plotly": plotly.replace("</script", "<\\/script"),
        },
    )


def read_run(folder: Path) -> Run:
    """Read the records of a run piece by piece. Of `log` records only the curves are kept, and the last one."""
    curves, kept, num_broken, offset = Curves(), [], 0, 0
    last_log: Record | None = None
    while True:
        found = tail(folder / "records.jsonl", offset, _PIECE_BYTES)
        if found.offset == offset:
            break
        offset = found.offset
        num_broken += len(found.broken)
        for record in found.records:
            curves.add(record)
            if record.kind == "log":
                last_log = record
            else:
                kept.append(record)
                last_log = None
    return Run(folder, kept if last_log is None else [*kept, last_log], curves, num_broken)


def script_data(value: Any) -> str:
    """Return JSON that stands in a script element whatever it holds."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _fill(template: str, parts: dict[str, str]) -> str:
    """Put the parts in, in one pass: what a part holds is never looked at again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match.group(1)], template)
