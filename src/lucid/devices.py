"""Which devices there are, which one to use, and how a batch gets there.

`probe` looks, everything else decides from the records that it returns, so a decision can be tested with
made-up records. No device type is named where `torch.accelerator` can answer.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import platform
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, TypeVar

import torch

from lucid.errors import ConfigError, DataError, nearest

T = TypeVar("T")

_PLAIN = (str, bytes, int, float, complex, type(None), torch.dtype, torch.device)


@dataclasses.dataclass(frozen=True, slots=True)
class Capability:
    """What one device can do."""

    type: str
    """Torch's name of the kind of device, such as "cpu", "cuda" or "mps"."""
    index: int | None = None
    """Number among the devices of its kind; None where there is only one, such as the CPU."""
    name: str = ""
    """Name for people."""
    native_bf16: bool = False
    """Whether bfloat16 arithmetic is in the hardware; emulated counts as no."""
    fp16: bool = False
    """Whether float16 is worth its scaler here: true for accelerators."""
    memory_bytes: int = 0
    """Memory of the device in bytes; 0 where it is not known."""

    @property
    def device(self) -> torch.device:
        """The device as torch names it."""
        return torch.device(self.type) if self.index is None else torch.device(self.type, self.index)

    @property
    def is_accelerator(self) -> bool:
        """Whether this is anything but the CPU."""
        return self.type != "cpu"


def probe() -> list[Capability]:
    """Return a record for every device there is, the one to prefer first; the CPU is last and always there."""
    found = []
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is not None:
        first = torch.accelerator.current_device_index()
        indices = range(torch.accelerator.device_count())
        found = [_probe_accelerator(accelerator.type, i) for i in sorted(indices, key=lambda i: i != first)]
    return [*found, _probe_cpu()]


def probe_device(device: torch.device | str) -> Capability:
    """Return the record of one device; a kind without a number means the one in use.

    Raises:
        ConfigError: if this machine does not have it.
    """
    capabilities = probe()
    chosen = choose_device(str(device), capabilities)
    return next(record for record in capabilities if record.device == chosen)


def choose_device(spec: str | torch.device = "auto", capabilities: Sequence[Capability] | None = None) -> torch.device:
    """Return the device to train on.

    Args:
        spec: "auto" for the best there is, else a torch name such as "cpu", "cuda" or "cuda:1".
        capabilities: records to choose from, the best first. None: what `probe` finds.

    Raises:
        ConfigError: if the device asked for is not there, or is no device at all.

    Example:
        >>> choose_device("auto", [Capability("cuda", 0), Capability("cpu")])
        device(type='cuda', index=0)
    """
    records = probe() if capabilities is None else list(capabilities)
    if spec == "auto":
        return records[0].device
    try:
        wanted = torch.device(spec)
    except (RuntimeError, TypeError):
        kinds = ["auto", *dict.fromkeys(record.type for record in records)]
        raise ConfigError(
            f"device must be one of {_listing(records)} or 'auto', got {spec!r}.{nearest(str(spec), kinds)}"
        ) from None
    index = None if wanted.type == "cpu" else wanted.index
    for record in records:
        if record.type == wanted.type and (index is None or (record.index or 0) == index):
            return record.device
    raise ConfigError(
        f"device {str(spec)!r} is not on this machine, which has {_listing(records)}. Take one of these or 'auto'."
    )


def best_type() -> str:
    """Return the kind of the best device there is; cheaper than a probe."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return "cpu" if accelerator is None else accelerator.type


def metal_if_available(capabilities: Sequence[Capability] | None = None) -> torch.device:
    """Return Apple's GPU (Metal) if there is one, else the best device there is.

    Args:
        capabilities: records to choose from, the best first. None: what `probe` finds.
    """
    records = probe() if capabilities is None else list(capabilities)
    metal = [record for record in records if record.type == "mps"]
    return (metal or records)[0].device


def move(batch: T, device: torch.device, non_blocking: bool = False) -> T:
    """Return the batch with every tensor on the device; containers keep their type.

    Dictionaries, lists, tuples, named tuples and dataclasses are walked; anything with a method `to` is asked to
    move itself; text, numbers and None pass. What is already there is returned as the same object.

    Args:
        batch: what a loader gave.
        device: where to.
        non_blocking: let the copy overlap with work on the host; it takes effect from pinned memory only.

    Raises:
        DataError: for an object that is none of these, with its place in the batch.
    """
    moved: T = _move(batch, device, non_blocking, "batch")
    return moved


def _move(value: Any, device: torch.device, non_blocking: bool, path: str) -> Any:
    if isinstance(value, torch.Tensor):
        return value if value.device == device else value.to(device, non_blocking=non_blocking)
    if isinstance(value, _PLAIN):
        return value
    to = getattr(value, "to", None)
    if callable(to) and not isinstance(value, type):
        return to(device, non_blocking=True) if non_blocking else to(device)

    def step(item: Any, place: str) -> Any:
        return _move(item, device, non_blocking, path + place)

    if isinstance(value, Mapping):
        return _move_mapping(value, step)
    if isinstance(value, list | tuple):
        return _move_sequence(value, step)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _move_dataclass(value, step)
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    cure = "Make it a tensor in the data set" if kind.startswith("numpy.") else "Give its class a method `to(device)`"
    raise DataError(
        f"{path} must be a tensor, text, a number, None, a container of these, or have a method `to`, got {kind}. "
        f"{cure}, or leave it out in `collate_fn`."
    )


def _move_mapping(value: Mapping[Any, Any], step: Callable[[Any, str], Any]) -> Any:
    moved = {key: step(item, f"[{key!r}]") for key, item in value.items()}
    if all(moved[key] is item for key, item in value.items()):
        return value
    if type(value) is dict:
        return moved
    if isinstance(value, MutableMapping):
        result = copy.copy(value)
        for key, item in moved.items():
            result[key] = item
        return result
    return type(value)(moved)  # type: ignore[call-arg]


def _move_sequence(value: list[Any] | tuple[Any, ...], step: Callable[[Any, str], Any]) -> Any:
    moved = [step(item, f"[{index}]") for index, item in enumerate(value)]
    if all(new is old for new, old in zip(moved, value, strict=True)):
        return value
    if type(value) is list:
        return moved
    if isinstance(value, list):
        result = copy.copy(value)
        result[:] = moved
        return result
    return type(value)._make(moved) if hasattr(value, "_make") else type(value)(moved)


def _move_dataclass(value: Any, step: Callable[[Any, str], Any]) -> Any:
    names = [field.name for field in dataclasses.fields(value)]
    moved = {name: step(getattr(value, name), f".{name}") for name in names}
    if all(new is getattr(value, name) for name, new in moved.items()):
        return value
    result = copy.copy(value)
    for name, new in moved.items():
        object.__setattr__(result, name, new)  # a frozen one too, and without running its __init__ again
    return result


def _listing(records: Sequence[Capability]) -> str:
    return ", ".join(f"{str(record.device)!r}" for record in records)


def _probe_accelerator(kind: str, index: int) -> Capability:
    device = torch.device(kind, index)
    module = torch.get_device_module(device)
    name = module.get_device_name(index) if hasattr(module, "get_device_name") else kind
    return Capability(kind, index, str(name), _has_native_bf16(kind, index), True, _memory(kind, index))


def _has_native_bf16(kind: str, index: int) -> bool:
    if kind == "mps":
        return bool(torch.backends.mps.is_macos_or_newer(14, 0))
    module = torch.get_device_module(kind)
    if not hasattr(module, "is_bf16_supported"):
        return False
    with module.device(index):  # the question is about the device in use
        try:
            return bool(module.is_bf16_supported(including_emulation=False))
        except TypeError:  # a backend that has no emulation to leave out
            return bool(module.is_bf16_supported())


def _memory(kind: str, index: int) -> int:
    module = torch.get_device_module(kind)
    if hasattr(module, "get_device_properties"):
        return int(getattr(module.get_device_properties(index), "total_memory", 0))
    return int(module.recommended_max_memory()) if hasattr(module, "recommended_max_memory") else 0


def _probe_cpu() -> Capability:
    features = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    native = any(features.get(key) for key in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16"))
    name = str(features.get("cpu_name") or platform.processor() or platform.machine())
    return Capability("cpu", None, name, native, False, _host_memory())


def _host_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not a POSIX system
        return 0
