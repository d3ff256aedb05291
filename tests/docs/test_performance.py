"""The page on performance shows what was measured, and the script for an accelerator runs."""

from __future__ import annotations

import doctest
import importlib
import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
PAGE, RESULTS = ROOT / "docs" / "performance.md", ROOT / "docs" / "performance.json"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a module of benchmarks/ by name."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


def test_every_figure_of_the_page_is_that_of_the_results(script: Any) -> None:
    """Each table of the page is the one made of docs/performance.json, and none is left out."""
    tables, text = script("tables"), PAGE.read_text()
    assert sorted(re.findall(r"<!-- bench: (\w+) -->", text)) == sorted(tables.BLOCKS)
    assert tables.fill(text, json.loads(RESULTS.read_text())) == text


def test_the_picture_is_of_these_results(script: Any) -> None:
    """The picture names every entrant of every case that was measured."""
    tables, cases = script("tables"), json.loads(RESULTS.read_text())["cases"]
    drawn = re.findall(r">([^<>\n]+)</text>", (ROOT / "docs" / "performance.svg").read_text())
    for case, result in cases.items():
        assert case in drawn
        assert {tables.label(name).replace("**", "") for name in result["entrants"]} <= set(drawn)


@pytest.mark.parametrize(
    ("ours", "bound", "word"), [([2.0, 2.0, 2.0], 1.0, "missed"), ([0.9, 1.1, 1.2], 1.0, "within the spread"),
                                ([0.9, 0.9, 0.9], 1.0, "")],
)  # fmt: skip
def test_a_target_is_missed_if_the_spread_lies_beyond_it(
    script: Any, ours: list[float], bound: float, word: str
) -> None:
    """A median on the wrong side is a miss only if the better quartile is there too."""
    stats, tables = script("stats"), script("tables")
    assert tables.verdict(stats.ratio(ours, [1.0, 1.0, 1.0]), bound, at_least=False) == word
    assert tables.verdict(stats.ratio([1.0, 1.0, 1.0], ours), 1 / bound, at_least=True) == word


@pytest.mark.parametrize("name", ["stats", "loops", "tables"])
def test_examples_of_the_scripts(script: Any, name: str) -> None:
    """The examples in their docstrings hold."""
    failed, tried = doctest.testmod(script(name))
    assert (failed, tried > 0) == (0, True)


def test_the_script_for_an_accelerator_runs(
    script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """On a CPU, in a tiny setting, it fills one table and a file with every part, and leaves torch as it was."""
    gpu, path = script("gpu"), tmp_path / "gpu.json"
    monkeypatch.setattr("sys.argv", ["gpu.py", "--device", "cpu", "--tiny", "--json", str(path)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gpu.main()
    found = json.loads(path.read_text())
    parts = ("mixed_precision", "convolutions", "gradient_checkpointing", "loop_overhead", "save_stall")
    assert [part for part in parts if "error" in found[part]] == []
    assert {"fp32, TF32", "bf16, channels last"} <= set(found["convolutions"]["speed-up"])
    rows = capsys.readouterr().out.splitlines()
    assert rows[:2] == ["| what | |", "|---|---|"]
    assert len(rows) == 2 + len(gpu.flat(found))
    assert torch.get_float32_matmul_precision() == "highest"
