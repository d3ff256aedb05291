"""Where the records of a run go.

`jsonl`: the file that everything else is drawn from. `console`: the terminal. `fanout`: one report made of many.
`page`: `report.html`. `trackers`: TensorBoard, CSV, W&B, MLflow, trackio.
"""

from lucid.report.console import ConsoleReport
from lucid.report.fanout import Reports
from lucid.report.jsonl import JsonlReport

__all__ = ["ConsoleReport", "JsonlReport", "Reports"]
