"""A real Chromium for the tests of pages; they are skipped where it, or Playwright, is missing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A running browser, for one module: while it runs, no other event loop can."""
    api = pytest.importorskip("playwright.sync_api")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("needs a chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_FLAGS)
        yield browser
        browser.close()


class Watched:
    """A page, and everything that should not happen on it: errors, dialogs, requests to elsewhere."""

    def __init__(self, page: Any, allowed: str) -> None:
        self.page = page
        self.trouble: list[str] = []
        page.on("console", lambda message: self._note(message.type in ("error", "warning"), message.text))
        page.on("pageerror", lambda error: self._note(True, str(error)))
        page.on("dialog", lambda dialog: (self._note(True, "a dialog"), dialog.dismiss()))
        page.on("request", lambda request: self._note(not request.url.startswith(allowed), request.url))

    def _note(self, bad: bool, text: str) -> None:
        if bad:
            self.trouble.append(text)


def open_page(browser: Any, url: str, allowed: str, **options: Any) -> Watched:
    """Return a page opened at `url` that may only ask for addresses that start with `allowed`."""
    watched = Watched(browser.new_page(**options), allowed)
    watched.page.goto(url)
    return watched


def until(page: Any, expression: str) -> None:
    """Wait until an expression is true. The page's policy forbids it to evaluate text, so it is asked from outside."""
    for _ in range(1000):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(20)
    raise AssertionError(expression)
