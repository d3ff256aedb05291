"""A call in a new process, so that nothing of this one can help it to be right."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Failed:
    """What came in place of a result."""

    kind: str
    message: str
    trace: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


def choose_start(factory: Any, start: str) -> str:
    """Return "spawn" where the factory can be sent to a process that begins from nothing, else "fork"."""
    if start == "auto":
        try:
            ForkingPickler.dumps(factory)
            start = "spawn"
        except Exception:
            start = "fork"
    if start == "fork":
        torch.optim.SGD([torch.zeros(1)])  # loads much of torch once here, and not in each copy
    return start


def call(function: Callable[..., Any], *arguments: Any, start: str, hash_seed: int) -> Any:
    """Return what a function returns in a new process, or `Failed`.

    Args:
        function: of a module, so that the process can find it.
        arguments: plain values and what can be sent.
        start: "spawn" or "fork".
        hash_seed: order of sets of strings in that process; a forked one has this process' order.
    """
    context = multiprocessing.get_context(start)
    receiver, sender = context.Pipe(duplex=False)
    with _hash_seed(hash_seed):
        process = context.Process(target=_run, args=(sender, start, function, arguments))  # type: ignore[attr-defined]
        process.start()
    sender.close()
    try:
        result = receiver.recv()
    except EOFError:
        process.join()
        result = Failed("ProcessEnded", f"the process ended with code {process.exitcode} and no result", "")
    process.join()
    return result


def _run(sender: Connection, start: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    if start == "fork":  # pools of threads do not survive a fork
        torch.set_num_threads(1)
    try:
        result = function(*arguments)
    except BaseException as error:
        cause = error.__cause__
        kind = type(cause or error).__name__
        result = Failed(kind, str(error), traceback.format_exc())
    sender.send(result)
    sender.close()


@contextmanager
def _hash_seed(seed: int) -> Iterator[None]:
    before = os.environ.get("PYTHONHASHSEED")
    os.environ["PYTHONHASHSEED"] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONHASHSEED"]
        else:
            os.environ["PYTHONHASHSEED"] = before
