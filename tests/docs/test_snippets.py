"""Every Python snippet in the README and in docs/ runs, page by page, top to bottom."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])

# ```python blocks are shown and run; <!--python ... --> blocks are run unseen: what the reader is assumed to have.
_BLOCK = re.compile(r"^```python\n(.*?)^```$|^<!--python\n(.*?)^-->$", re.MULTILINE | re.DOTALL)


def snippets(page: Path) -> list[tuple[int, str]]:
    """Return (line, code) of each block of a page."""
    text = page.read_text()
    return [
        (text[: match.start()].count("\n") + 2, match.group(1) or match.group(2)) for match in _BLOCK.finditer(text)
    ]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if snippets(page)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_snippets_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks of a page run as one program in an empty folder; a page may name packages that it needs."""
    for package in re.findall(r"^<!-- needs: (\w+) -->$", page.read_text(), re.MULTILINE):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    space: dict[str, object] = {"__name__": "__main__"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for line, code in snippets(page):
            exec(compile("\n" * (line - 1) + code, str(page), "exec"), space)


def test_pages_name_files_that_exist() -> None:
    """A page that names a file of the repository in backticks names one that is there."""
    for page in PAGES:
        for name in re.findall(r"`((?:src|tests|docs|benchmarks|examples)/[\w./-]+)`", page.read_text()):
            assert (ROOT / name).exists(), f"{page.relative_to(ROOT)} names {name}, which does not exist"
