"""What is stored as bytes: one `Slot` for each tensor, array or long byte string found in a state."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lucid.serialization import dtypes


@dataclass(slots=True)
class Slot:
    """One run of bytes of the data region, and where in memory they are.

    `address` is 0 when the bytes must be made first (non-contiguous, conjugated or on a device); `dense()` makes them.
    `owner` keeps the memory alive. `extras` is what safetensors cannot say (see docs/format.md).
    """

    path: tuple[object, ...]
    code: str
    shape: tuple[int, ...]
    size: int
    address: int
    owner: Any
    device: str = "cpu"
    extras: dict[str, Any] | None = None

    def dense(self) -> tuple[int, Any]:
        """Return the address of the bytes in host memory and the object that owns them."""
        if self.address or not self.size:
            return self.address, self.owner
        tensor = self.owner.detach().resolve_conj().resolve_neg().cpu().contiguous()
        return tensor.data_ptr(), tensor


def tensor_slot(tensor: torch.Tensor, path: tuple[object, ...]) -> Slot | None:
    """Return the slot of a strided tensor, or None if its dtype cannot be stored."""
    shape = tuple(tensor.shape)
    extras: dict[str, Any] | None = None
    contiguous = tensor.is_contiguous()
    if not contiguous and tensor.numel():
        stride = tensor.stride()
        if 0 in stride and any(n > 1 and s == 0 for n, s in zip(shape, stride, strict=True)):
            # An expanded tensor: its extent once, and the shape to which it is expanded.
            extras = {"expand": list(shape)}
            for dim, (n, s) in enumerate(zip(shape, stride, strict=True)):
                if n > 1 and s == 0:
                    tensor = tensor.narrow(dim, 0, 1)
            shape, contiguous = tuple(tensor.shape), tensor.is_contiguous()
        elif is_permuted(shape, stride):
            extras = {"stride": list(stride)}
    code, stored_shape = dtypes.DIRECT.get(tensor.dtype), shape
    if code is None:
        form = dtypes.stored_form(tensor.dtype, shape)
        if form is None:
            return None
        code, stored_shape = form
        extras = {**(extras or {}), "dt": dtypes.name_of(tensor.dtype), "shape": list(shape)}
    device = "cpu" if tensor.is_cpu else str(tensor.device)
    direct = contiguous and device == "cpu" and not tensor.is_conj() and not tensor.is_neg()
    size = tensor.nbytes
    address = tensor.data_ptr() if direct and size else 0
    return Slot(path, code, stored_shape, size, address, tensor, device, extras)


def array_slot(array: np.ndarray[Any, Any], path: tuple[object, ...]) -> Slot:
    """Return the slot of a NumPy array of plain elements, stored in C order."""
    dense = np.ascontiguousarray(array)
    code = _NUMPY.get(dense.dtype.str)
    shape = array.shape if code else (dense.nbytes,)
    return Slot(path, code or "U8", shape, dense.nbytes, dense.__array_interface__["data"][0], dense)


def bytes_slot(data: bytes | bytearray, path: tuple[object, ...]) -> Slot:
    """Return the slot of a byte string."""
    array = np.frombuffer(bytes(data), np.uint8)
    return Slot(path, "U8", (len(data),), len(data), array.__array_interface__["data"][0], array)


_NUMPY = {
    "|b1": "BOOL", "|u1": "U8", "|i1": "I8", "<u2": "U16", "<i2": "I16", "<u4": "U32", "<i4": "I32",
    "<u8": "U64", "<i8": "I64", "<f2": "F16", "<f4": "F32", "<f8": "F64", "<c8": "C64",
}  # fmt: skip


def is_permuted(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Say whether a layout is a contiguous one with its dimensions in another order, so that no byte is unused."""
    expected = 1
    for size, step in sorted(((n, s) for n, s in zip(shape, stride, strict=True) if n > 1), key=lambda pair: pair[1]):
        if step != expected:
            return False
        expected *= size
    return True


def extent(tensor: torch.Tensor) -> int:
    """Return how many bytes of memory a strided tensor spans from its first element."""
    if not tensor.numel():
        return 0
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def numel(shape: tuple[int, ...]) -> int:
    """Return the number of elements of a shape."""
    return math.prod(shape)
