"""What the terminal shows while a run trains."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Literal, Protocol, TextIO

from lucid.errors import ConfigError, nearest
from lucid.protocols import Report
from lucid.records import Record, words

Mode = Literal["auto", "rich", "plain", "json", "quiet"]
_MODES = ("auto", "rich", "plain", "json", "quiet")


class ConsoleReport:
    """Writes a run to the terminal.

    Args:
        mode: "rich": tables and a progress bar. "plain": one line per record. "json": the lines of
            `records.jsonl`. "quiet": nothing. "auto": rich if the stream is a terminal, else plain.
        stream: where to write. None: standard output.
        ending: say in "rich" how the run ended. False: the caller says it.

    Raises:
        ConfigError: if there is no such mode.
    """

    def __init__(self, mode: Mode = "auto", stream: TextIO | None = None, *, ending: bool = True) -> None:
        if mode not in _MODES:
            known = ", ".join(map(repr, _MODES))
            raise ConfigError(f"mode of the console must be one of {known}, got {mode!r}.{nearest(str(mode), _MODES)}")
        out = sys.stdout if stream is None else stream
        if mode == "auto":
            mode = "rich" if out.isatty() else "plain"
        self.mode: Mode = mode
        self._shown = _choose(mode, out, ending)
        self.write = self._shown.write
        self.rewind = self._shown.rewind
        self.tick = self._shown.tick
        self.close = self._shown.close
        self.tell: Callable[[str], None] = self._shown.tell
        self.tick_is_idle = mode != "rich"


def _choose(mode: Mode, stream: TextIO, ending: bool) -> _Shown:
    if mode == "rich":
        from lucid.report.live import LiveReport

        return LiveReport(stream, ending=ending)
    if mode == "quiet":
        return _Quiet()
    return _Lines(stream, as_json=mode == "json")


class _Shown(Report, Protocol):
    """A report that a person reads."""

    def tell(self, text: str) -> None:
        """Show a sentence that is no record."""


class _Quiet:
    """Shows nothing."""

    def write(self, record: Record) -> None:
        """Do nothing."""

    def rewind(self, step: int) -> None:
        """Do nothing."""

    def tick(self, step: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def tell(self, text: str) -> None:
        """Do nothing."""


class _Lines(_Quiet):
    """One line per record, for log files and other programs."""

    def __init__(self, stream: TextIO, *, as_json: bool) -> None:
        self._stream = stream
        self._as_json = as_json

    def write(self, record: Record) -> None:
        """Write one line."""
        self._stream.write(record.to_line() if self._as_json else words.line(record) + "\n")
        self._stream.flush()

    def tell(self, text: str) -> None:
        """Write one line; among records for other programs it has no place."""
        if not self._as_json:
            print(text, file=self._stream, flush=True)
