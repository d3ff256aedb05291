"""One report made of many."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

from lucid.protocols import Report
from lucid.records import Record


class Reports:
    """Hands every record to several reports.

    The records file must not fail: an error in a report whose `required` is true is raised. Any other report that
    fails is named once on stderr and left out from then on; the run goes on.

    Args:
        reports: in the order in which they are called. None of them: a report that does nothing.
    """

    required = True

    def __init__(self, reports: Iterable[Report] = ()) -> None:
        self.reports = list(reports)
        self._listening = [report for report in self.reports if _listens(report)]

    def write(self, record: Record) -> None:
        """Hand one record to all."""
        self._each(lambda report: report.write(record))

    def rewind(self, step: int) -> None:
        """Have all drop what lies after `step`."""
        self._each(lambda report: report.rewind(step))

    def tick(self, step: int) -> None:
        """Tell those that draw progress that a step is done."""
        for report in self._listening:
            try:
                report.tick(step)
            except Exception as error:
                self._failed(report, error)

    def tell(self, text: str) -> None:
        """Have a sentence that is no record read by a person, where a report can."""
        self._each(lambda report: getattr(report, "tell", _ignore)(text))

    def close(self) -> None:
        """Close all, also those after one that fails."""
        failed: Exception | None = None
        for report in list(self.reports):
            try:
                self._guard(report, lambda report: report.close())
            except Exception as error:  # raised below, when the others are closed
                failed = failed or error
        if failed is not None:
            raise failed

    def _each(self, call: Callable[[Report], None]) -> None:
        for report in list(self.reports):
            self._guard(report, call)

    def _guard(self, report: Report, call: Callable[[Report], None]) -> None:
        try:
            call(report)
        except Exception as error:
            self._failed(report, error)

    def _failed(self, report: Report, error: Exception) -> None:
        """Raise the error of a report that must not fail; leave any other report out."""
        if getattr(report, "required", False):
            raise error
        self.reports.remove(report)
        self._listening = [each for each in self.reports if _listens(each)]
        print(
            f"lucid: {type(report).__name__} failed and is left out from here on, the run goes on: "
            f"{type(error).__name__}: {error}",
            file=sys.stderr,
        )


def _ignore(text: str) -> None:
    """A report that only takes records has nothing to tell."""


def _listens(report: Report) -> bool:
    """Return False for a report whose `tick` does nothing, so that it is not called every step."""
    return not getattr(report, "tick_is_idle", False)
