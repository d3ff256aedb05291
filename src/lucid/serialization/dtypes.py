"""Element types: how each torch dtype is stored in the words of safetensors.

Most have a name there. The rest is stored through another type (complex128 as F64 with a last dimension of 2, small
integers as bytes) with the true dtype in the manifest.
"""

from __future__ import annotations

import torch

DIRECT: dict[torch.dtype, str] = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.uint16: "U16", torch.int16: "I16",
    torch.uint32: "U32", torch.int32: "I32", torch.uint64: "U64", torch.int64: "I64",
    torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64",
    torch.complex64: "C64", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ", torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
}  # fmt: skip
for _name, _code in (("float8_e8m0fnu", "F8_E8M0"),):
    if hasattr(torch, _name):
        DIRECT[getattr(torch, _name)] = _code
FROM_CODE: dict[str, torch.dtype] = {code: dtype for dtype, code in DIRECT.items()}

# Stored as (code, width in bytes): the bytes are the same, the last dimension tells the parts of one element.
PAIRS: dict[torch.dtype, str] = {torch.complex128: "F64", torch.complex32: "F16"}

_SMALL = [f"{kind}{bits}" for kind in ("uint", "int") for bits in range(1, 8)]
_BITS = ["bits8", "bits16", "bits1x8", "bits2x4", "bits4x2"]
RAW: set[torch.dtype] = {getattr(torch, name) for name in (*_SMALL, *_BITS) if hasattr(torch, name)}

FLOAT4: torch.dtype | None = getattr(torch, "float4_e2m1fn_x2", None)

_ALL: dict[str, torch.dtype] = {
    str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)
}


def stored_form(dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]] | None:
    """Return the safetensors dtype and shape for a dense tensor, or None if the dtype cannot be stored."""
    code = DIRECT.get(dtype)
    if code is not None:
        return code, shape
    if dtype in PAIRS:
        return PAIRS[dtype], (*shape, 2)
    if dtype is FLOAT4 and shape:
        return "F4", (*shape[:-1], shape[-1] * 2)  # two elements in a byte
    if dtype in RAW or dtype is FLOAT4:
        return "U8", shape if dtype.itemsize == 1 else (*shape, dtype.itemsize)
    return None


def name_of(dtype: torch.dtype) -> str:
    """Return `float32` for `torch.float32`."""
    return str(dtype)[6:]


def by_name(name: object) -> torch.dtype | None:
    """Return the torch dtype of that name, or None. Only dtypes can come out of it."""
    return _ALL.get(name) if isinstance(name, str) else None
