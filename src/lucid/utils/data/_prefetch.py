"""Moving batches to an accelerator while it computes: one thread, a few batches ahead."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from lucid.devices import move

AHEAD = 2  # batches ready on the device; more only costs its memory
_END = object()


class _Raised:
    """An error of the thread on its way to the reader."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def ahead(batches: Iterator[Any], device: torch.device, pin: bool) -> Iterator[Any]:
    """Yield batches moved by a thread that stays up to `AHEAD` batches in front.

    The thread is over when this iterator is closed or exhausted; what it had read by then is dropped.

    Args:
        batches: host batches; read in the thread, so they may not run the user's code.
        device: where to.
        pin: copy to page-locked memory first, so that the copy to the device overlaps with computing.
    """
    ready: queue.Queue[Any] = queue.Queue(AHEAD)
    stop = threading.Event()
    ship = _CudaShip(device) if device.type == "cuda" else _PlainShip(device)
    load = (lambda batch: ship.send(_pinned(batch))) if pin else ship.send
    thread = threading.Thread(target=_fill, args=(batches, load, ready, stop), name="lucid-prefetch", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not _END:
            if isinstance(item, _Raised):
                raise item.error
            yield ship.receive(item)
    finally:
        stop.set()
        while thread.is_alive():
            _drain(ready)
            thread.join(0.01)


def _fill(batches: Iterator[Any], load: Callable[[Any], Any], ready: queue.Queue[Any], stop: threading.Event) -> None:
    last: Any = _END
    try:
        for batch in batches:
            ready.put(load(batch))
            if stop.is_set():
                return
    except BaseException as error:  # it is raised again where the batches are read
        last = _Raised(error)
    finally:
        close = getattr(batches, "close", None)
        if close is not None:
            close()
        ready.put(last)


def _drain(ready: queue.Queue[Any]) -> None:
    try:
        while True:
            ready.get_nowait()
    except queue.Empty:
        return


def _pinned(batch: Any) -> Any:
    pin: Callable[[Any], Any] = torch.utils.data._utils.pin_memory.pin_memory
    return pin(batch)


class _PlainShip:
    """Moves with the device's own ordering."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def send(self, batch: Any) -> Any:
        return move(batch, self._device)

    def receive(self, item: Any) -> Any:
        return item


class _CudaShip(_PlainShip):
    """Copies on a stream of its own; the computing stream waits for the copy, not the host."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._stream: Any = torch.cuda.Stream(device)

    def send(self, batch: Any) -> Any:
        with torch.cuda.stream(self._stream):
            moved = move(batch, self._device, non_blocking=True)
            return moved, self._stream.record_event()

    def receive(self, item: Any) -> Any:
        moved, copied = item
        now = torch.cuda.current_stream(self._device)
        now.wait_event(copied)
        _keep_for(moved, now)
        return moved


def _keep_for(batch: Any, stream: torch.cuda.Stream) -> None:
    """Keep the memory of a batch from being reused before this stream is done with it."""
    if isinstance(batch, torch.Tensor):
        if batch.is_cuda:
            batch.record_stream(stream)
    elif isinstance(batch, Mapping):
        for value in batch.values():
            _keep_for(value, stream)
    elif isinstance(batch, list | tuple):
        for value in batch:
            _keep_for(value, stream)
    elif hasattr(batch, "__dict__"):
        for value in vars(batch).values():
            _keep_for(value, stream)
