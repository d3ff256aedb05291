"""A small table to train on, and a way to run the command in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lucid.cli import main

Lucid = Callable[..., tuple[int, str, str]]


@pytest.fixture
def lucid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Lucid:
    """Run the command in a folder of its own; return exit code, output and errors."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        code = main(words)
        found = capsys.readouterr()
        return code, found.out, found.err

    return run


@pytest.fixture
def flowers(tmp_path: Path) -> str:
    """Settings of a run that takes a moment: 60 rows, three kinds."""
    rows = "".join(f"{number % 3 + number / 100},{(number * 7) % 5},{'abc'[number % 3]}\n" for number in range(60))
    (tmp_path / "flowers.csv").write_text("long,wide,kind\n" + rows)
    (tmp_path / "flowers.toml").write_text(
        '[data]\nname = "csv:flowers.csv"\nbatch_size = 8\n\n[model]\nname = "mlp"\n\n[model.options]\nwidth = 8\n'
        "\n[optimizer]\nlr = 0.02\n\n[train]\nepochs = 3\n"
    )
    return "flowers.toml"
