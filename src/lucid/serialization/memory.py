"""Raw memory: views of an address, copies between addresses, page-aligned buffers."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import sys
from collections.abc import Iterator

BLOCK = 1 << 20  # bytes handled at a time: small enough to be hashed while still in the cache of the core


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Pause the cyclic garbage collector: it would go over every new node of a large tree again and again."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


# The interpreter's own call: an array type of ctypes for each new size would cost more than all the rest.
_WRITABLE = 0x200  # PyBUF_WRITE
_view = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)(
    ("PyMemoryView_FromMemory", ctypes.pythonapi)
)


# A slice of one view of everything takes a third of the time of a call for each view.
_EVERYTHING: memoryview = _view(1, sys.maxsize, _WRITABLE)


def view(address: int, size: int) -> memoryview:
    """Return a writable view of `size` bytes of memory; the caller keeps their owner alive."""
    return _EVERYTHING[address - 1 : address - 1 + size]


def copy(target: int, source: int, size: int) -> None:
    """Copy bytes from address to address. The interpreter lock is released meanwhile."""
    ctypes.memmove(target, source, size)


class Buffer:
    """Page-aligned anonymous memory, as direct I/O needs it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._map = mmap.mmap(-1, max(size, 1))
        self.view = memoryview(self._map)
        self.address = ctypes.addressof(ctypes.c_ubyte.from_buffer(self._map))


# Fresh memory is several times slower than used memory, so scratch blocks are kept for the next save or load.
_spare: list[Buffer] = []
SPARE = 8


@contextlib.contextmanager
def scratch(size: int) -> Iterator[Buffer]:
    """Lend a buffer of at least `size` bytes."""
    try:
        buffer = _spare.pop()
    except IndexError:
        buffer = Buffer(size)
    if buffer.size < size:
        buffer = Buffer(size)
    try:
        yield buffer
    finally:
        if buffer.size <= BLOCK and len(_spare) < SPARE:
            _spare.append(buffer)
