"""Raw memory: views of an address, copies between addresses, page-aligned buffers."""

from __future__ import annotations

import ctypes
import mmap


def view(address: int, size: int) -> memoryview:
    """Return a writable view of `size` bytes of memory; the caller keeps their owner alive."""
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


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
