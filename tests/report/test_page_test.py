"""The test section of the report: confusion, rows with the largest loss, scatter; nothing from files is markup."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lucid.report.page_test import test_section as section

PICTURES: dict[str, Any] = {
    "classes": ["cat", "<script>alert(1)</script>"],
    "confusion": [[3, 1], [0, 4]],
    "worst": [{"row": 7, "target": 0, "answer": 1, "chance": 0.25, "image": [[[0], [255]], [[128], [64]]]}],
}


def write(folder: Path, pictures: dict[str, Any]) -> str:
    """Write the values of a test and return the section."""
    values = {"test/accuracy": 0.875, "rows": 8, "checkpoint": "step-00000008.lcs", "pictures": pictures}
    (folder / "test.json").write_text(json.dumps(values))
    return section(folder)


def test_the_confusion_matrix_has_a_cell_per_pair(tmp_path: Path) -> None:
    """Two classes make four cells and four headings."""
    text = write(tmp_path, PICTURES)
    assert text.count("<td") == 5  # four cells and the corner
    assert text.count('scope="col"') == text.count('scope="row"') == 2


def test_names_from_files_are_escaped(tmp_path: Path) -> None:
    """A class called like a script element is text."""
    text = write(tmp_path, PICTURES)
    assert "<script" not in text
    assert text.count("&lt;script&gt;") == 4 - 1


def test_a_wrong_row_has_its_picture(tmp_path: Path) -> None:
    """The image is inlined with a name for people who do not see it."""
    pytest.importorskip("PIL")
    text = write(tmp_path, PICTURES)
    assert 'alt="row 7" src="data:image/png;base64,' in text


def test_regression_shows_a_dot_per_row(tmp_path: Path) -> None:
    """Three rows give three dots and the diagonal."""
    text = write(tmp_path, {"scatter": [[1.0, 1.5], [2.0, 1.0], [3.0, 3.0]]})
    assert text.count("<circle") == 3
    assert text.count("<line") == 1


@pytest.mark.parametrize(
    "content", [None, "", "{", "[]", '{"pictures": {"worst": [{"target": 99}]}}', '{"pictures": 3}']
)
def test_a_missing_or_broken_file_gives_no_section(tmp_path: Path, content: str | None) -> None:
    """The page is made without the section."""
    if content is not None:
        (tmp_path / "test.json").write_text(content)
    assert section(tmp_path) == ""
