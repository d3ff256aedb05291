"""The browser for the report page."""

from browser import chromium

__all__ = ["chromium"]
