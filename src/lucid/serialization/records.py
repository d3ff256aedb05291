"""What the manifest says of each tensor beyond its header entry, checked before it is used."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from lucid.errors import FormatError, LimitError
from lucid.serialization import dtypes, layout
from lucid.serialization.slots import is_permuted


class Record(NamedTuple):
    """One tensor. `block` is None for a view of another tensor: of `base`, from byte `offset` on."""

    device: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    block: layout.Block | None = None
    stride: tuple[int, ...] | None = None
    expand: tuple[int, ...] | None = None
    base: int = -1
    offset: int = 0

    @property
    def full_shape(self) -> tuple[int, ...]:
        """Shape of the tensor as it was in the state."""
        return self.expand or self.shape


class Records:
    """The tensors that the tree can refer to, by index."""

    def __init__(self, manifest: dict[str, Any], blocks: dict[str, layout.Block], where: str) -> None:
        self._devices, self._tensors = manifest["devices"], manifest["tensors"]
        self._blocks, self._where = blocks, where
        self._checked: dict[int, Record] = {}
        if not isinstance(self._devices, list) or not isinstance(self._tensors, list):
            raise FormatError(f"{where}: devices and tensors of the manifest must be lists.")

    def __len__(self) -> int:
        return len(self._tensors)

    def name(self, index: int) -> str | None:
        """Return the name of a stored tensor in the header, None for a view."""
        block = self[index].block
        return None if block is None else block.name

    def __getitem__(self, index: Any) -> Record:
        found = self._checked.get(index) if type(index) is int else None
        if found is None:
            found = self._checked[index] = self._check(index)
        return found

    def _check(self, index: Any) -> Record:
        if type(index) is not int or not 0 <= index < len(self._tensors):
            raise FormatError(
                f"{self._where}: the tree refers to tensor {str(index)[:40]}, there are {len(self._tensors)}."
            )
        name, device, extras = self._raw(index)
        alias = extras.get("alias") if extras else None
        if alias is not None:
            return self._view(device, alias, self._what(index))
        block = self._blocks.get(name) if isinstance(name, str) else None
        if block is None:
            raise FormatError(f"{self._what(index)} is not in the header.")
        dtype = None if extras else dtypes.FROM_CODE.get(block.dtype)
        return Record(device, dtype, block.shape, block) if dtype else _stored(block, device, extras, self._what(index))

    def _what(self, index: int) -> str:
        return f"{self._where}: tensor {index} of the manifest"

    def _raw(self, index: int) -> tuple[Any, str, dict[str, Any]]:
        item = self._tensors[index]
        if not isinstance(item, list) or len(item) not in (2, 3):
            raise FormatError(f"{self._what(index)} must be a list of name, device and extras.")
        number, extras = item[1], item[2] if len(item) == 3 else {}
        if type(number) is not int or not 0 <= number < len(self._devices) or not isinstance(extras, dict):
            raise FormatError(f"{self._what(index)} must have the number of a device and a dict of extras.")
        device = self._devices[number]
        if not isinstance(device, str) or len(device) > 100:
            raise FormatError(f"{self._what(index)} must have a device with a name.")
        return item[0], device, extras

    def _view(self, device: str, alias: Any, what: str) -> Record:
        if not isinstance(alias, dict) or not {"i", "off", "shape", "stride", "dt"} <= alias.keys():
            raise FormatError(f"{what}: a view must have i, off, shape, stride and dt.")
        base, offset, dtype = alias["i"], alias["off"], dtypes.by_name(alias["dt"])
        if type(base) is not int or not 0 <= base < len(self._tensors) or type(offset) is not int or offset < 0:
            raise FormatError(f"{what}: a view must have a base and an offset.")
        stored, _, extras = self._raw(base)
        block = self._blocks.get(stored) if isinstance(stored, str) and "alias" not in extras else None
        if block is None or dtype is None or offset % dtype.itemsize:
            raise FormatError(f"{what}: a view must have a stored base, a dtype and an offset that fits it.")
        shape, stride = layout.check_sizes(alias["shape"], what), layout.check_sizes(alias["stride"], what)
        if len(shape) != len(stride):
            raise FormatError(f"{what}: shape and stride must have one length.")
        span = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
        if offset + span * dtype.itemsize > block.stop - block.start:
            raise LimitError(f"{what}: the view reaches beyond its base.")
        return Record(device, dtype, shape, None, stride, None, base, offset)


def _stored(block: layout.Block, device: str, extras: dict[str, Any], what: str) -> Record:
    shape = block.shape
    dtype = dtypes.FROM_CODE.get(block.dtype)
    if "dt" in extras:
        dtype = dtypes.by_name(extras["dt"])
        shape = layout.check_sizes(extras.get("shape"), what)
        if dtype is None or dtypes.stored_form(dtype, shape) != (block.dtype, block.shape):
            raise FormatError(f"{what}: its dtype and shape do not fit the header.")
    if dtype is None:
        raise FormatError(f"{what} has dtype {block.dtype}, which this torch lacks.")
    stride = expand = None
    if "stride" in extras:
        stride = layout.check_sizes(extras["stride"], what)
        if len(stride) != len(shape) or not is_permuted(shape, stride):
            raise FormatError(f"{what}: its stride must be a permutation of the contiguous one.")
    if "expand" in extras:
        expand = layout.check_sizes(extras["expand"], what)
        if len(expand) != len(shape) or any(n not in (1, m) for n, m in zip(shape, expand, strict=True)):
            raise FormatError(f"{what}: it cannot be expanded to {list(expand)[:8]}.")
    return Record(device, dtype, shape, block, stride, expand)
