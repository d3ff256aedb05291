"""Stop cleanly: SIGTERM, SIGINT, SIGUSR1 and a time limit become a request that the loop sees after its step."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from lucid.state import TrainState

EXIT_STOPPED = 75
"""Exit code of a run that stopped with a checkpoint and is to be started again (EX_TEMPFAIL of sysexits.h)."""

EXIT_INTERRUPTED = 130
"""Exit code after Ctrl-C, which a shell expects; there is a checkpoint as well."""

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR1") if hasattr(signal, name))


class Stopped(SystemExit):
    """The run was left with a checkpoint and wants to be started again; uncaught, the process ends with code 75."""

    def __init__(self, reason: str) -> None:
        super().__init__(EXIT_STOPPED)
        self.reason = reason

    def __str__(self) -> str:
        return f"interrupted by {self.reason}; start the same run again to go on"


def exit_code(interrupt: str | None) -> int:
    """Return the exit code of a run that was left because of `interrupt`."""
    if interrupt is None:
        return 0
    return EXIT_INTERRUPTED if interrupt == "SIGINT" else EXIT_STOPPED


@contextmanager
def listen(state: TrainState) -> Iterator[None]:
    """Inside, a signal asks the loop to save and leave after its step; a second SIGINT ends at once.

    Handlers that were installed before are called too, and are back afterwards. Outside the main thread, where Python
    allows no handlers, nothing is installed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {}
    owner = os.getpid()

    def handle(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a process forked from this one: not ours to stop
            return
        name = signal.Signals(number).name
        previous = before[number]
        if name == "SIGINT" and state.interrupt == "SIGINT":
            raise KeyboardInterrupt
        state.interrupt = name
        if callable(previous) and previous is not signal.default_int_handler:
            previous(number, frame)

    for number in _SIGNALS:
        before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous if previous is not None else signal.SIG_DFL)


class Deadline:
    """A limit in seconds that leaves room for one more save.

    Args:
        seconds: limit from now. None: no limit.
    """

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds
        self.save_seconds = 0.0
        """Longest save so far; counted in."""
        self._step_seconds = 0.0
        self._last = time.monotonic()

    def wants_save_time(self) -> bool:
        """Whether there is a limit and no save was measured yet."""
        return self._end is not None and self.save_seconds == 0.0

    @contextmanager
    def watch(self, state: TrainState) -> Iterator[None]:
        """Inside, the limit also interrupts what is longer than a step: an evaluation, a slow batch."""
        if self._end is None:
            yield
            return
        left = threading.Event()

        def look() -> None:
            while not left.wait(max(self._seconds_left(), 0.0)):
                if self._seconds_left() <= 0:
                    state.interrupt = state.interrupt or "max_time"
                    return

        thread = threading.Thread(target=look, name="lucid-max-time", daemon=True)
        thread.start()
        try:
            yield
        finally:
            left.set()
            thread.join()

    def _seconds_left(self) -> float:
        """Seconds until a save must begin."""
        return float("inf") if self._end is None else self._end - time.monotonic() - 2 * self.save_seconds

    def is_near(self) -> bool:
        """Whether another step and a save might no longer fit; asked once after each step."""
        if self._end is None:
            return False
        now = time.monotonic()
        self._step_seconds, self._last = max(self._step_seconds * 0.9, now - self._last), now
        return self._seconds_left() <= self._step_seconds
