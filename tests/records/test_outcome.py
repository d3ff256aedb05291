"""How a run stands has one set of words, and every place that shows it uses these."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import lucid.dashboard
from lucid.records import Record, words
from lucid.records.outcome import STATUSES, last_life, outcome, status_of

_DASHBOARD = Path(lucid.dashboard.__file__).parent / "static"
_GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "seeing.md"


def test_page_and_guide_have_exactly_these_words() -> None:
    """The dashboard's texts, its filter, its colours and the table of the guide are `STATUSES`."""
    views = (_DASHBOARD / "views.js").read_text()
    table = re.search(r"const STATUS_WORDS = \{(.*?)\n  \};", views, re.DOTALL)
    assert table is not None
    assert dict(re.findall(r'(\w+): "([^"]*)"', table[1])) == STATUSES
    assert '["all", ...Object.keys(STATUS_WORDS)]' in views
    assert set(re.findall(r"\.badge\.(\w+)", (_DASHBOARD / "app.css").read_text())) == set(STATUSES)
    assert {
        word: text for word, text in re.findall(r"^\| (\w+) \| (.*) \|$", _GUIDE.read_text(), re.M) if word in STATUSES
    } == STATUSES


@pytest.mark.parametrize(
    ("kind", "info", "status", "text"),
    [
        ("end", {"reason": "finished", "exit_code": 0}, "finished", "finished"),
        ("end", {"reason": "no better loss"}, "finished", "finished: no better loss"),
        ("end", {}, "finished", "finished"),
        ("stop", {"reason": "SIGTERM", "exit_code": 75}, "interrupted", "interrupted: SIGTERM"),
        ("stop", {"reason": "KeyboardInterrupt", "exit_code": 130}, "interrupted", "interrupted: KeyboardInterrupt"),
        ("stop", {"reason": "NonFiniteError: nan", "exit_code": 1}, "failed", "failed: NonFiniteError: nan"),
        ("stop", {}, "interrupted", "interrupted"),
    ],
)  # fmt: skip
def test_last_record_of_a_start_says_how_it_is_over(kind: str, info: dict[str, object], status: str, text: str) -> None:
    """One word, and the reason where there is another; a line of the log has the same."""
    record = Record(kind, 8, info=info)
    assert (status_of(record), outcome(record)) == (status, text)
    assert words.line(record) == f"{kind}  step 8  {text}"


def test_start_without_an_end_says_nothing() -> None:
    """Only its process can tell whether it is alive."""
    assert status_of(None) is None
    assert status_of(last_life([Record("stop", 3), Record("resume", 3), Record("log", 4)])) is None
