"""`autocast` and `GradScaler` of torch, with the device found instead of named."""

from __future__ import annotations

from typing import Any

import torch
from torch.amp.autocast_mode import is_autocast_available

from lucid import devices
from lucid.errors import PrecisionError


class autocast(torch.autocast):  # noqa: N801 - torch's own spelling
    """Run the forward pass in a lower precision: a context manager or a decorator, like `torch.autocast`.

    Unlike torch's it finds the device, one object may be entered while it is already entered, and what the device
    cannot do is an error instead of a warning and fp32.

    Args:
        device_type: kind of device, such as "cuda". None: the best there is.
        dtype: precision of the operations that may be lowered. None: torch's default for the device.
        enabled: False turns autocast off inside the region.
        cache_enabled: whether lowered weights are kept for the length of the region. None: as it is outside.

    Raises:
        PrecisionError: if this machine lacks the device, or the device cannot autocast to `dtype`.
    """

    def __init__(
        self,
        device_type: str | None = None,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        kind = devices.best_type() if device_type is None else device_type
        if enabled:
            _check_autocast(kind, dtype)
        super().__init__(kind, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)
        self._outer: list[tuple[Any, Any, Any]] = []

    def __enter__(self) -> Any:
        entered = super().__enter__()  # type: ignore[no-untyped-call]
        self._outer.append((self.prev_cache_enabled, self.prev, self.prev_fastdtype))
        return entered

    def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> Any:
        self.prev_cache_enabled, self.prev, self.prev_fastdtype = self._outer.pop()
        return super().__exit__(exc_type, exc_val, exc_tb)


class GradScaler(torch.amp.GradScaler):
    """Scale the loss so that small fp16 gradients survive: `torch.amp.GradScaler` that finds its device.

    A state saved by a disabled scaler is empty; loading it leaves this scaler as it is. A disabled scaler keeps the
    state it was given and hands it on, so that a run may pass through a machine without fp16.

    Args:
        device: kind of device, such as "cuda". None: the best there is.
        init_scale: first factor on the loss.
        growth_factor: factor on the scale after `growth_interval` steps without inf or NaN.
        backoff_factor: factor on the scale after a step with inf or NaN.
        growth_interval: steps without inf or NaN between two growths.
        enabled: False makes every method a no-op.

    Raises:
        PrecisionError: if this machine lacks the device; torch would warn and scale nothing.
    """

    def __init__(
        self,
        device: str | None = None,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        kind = devices.best_type() if device is None else torch.device(device).type
        if enabled:
            _check_there(kind, "a scaler")
        super().__init__(kind, init_scale, growth_factor, backoff_factor, growth_interval, enabled)
        self._kept: dict[str, Any] = {}

    def has_checks(self) -> bool:
        """Whether a gradient was checked since the last update; without one, torch's `update` fails an assertion."""
        return self.is_enabled() and any(s["found_inf_per_device"] for s in self._per_optimizer_states.values())

    def has_held(self) -> bool:
        """Whether the step before was good at this very scale (a host read)."""
        return self.is_enabled() and self._get_growth_tracker() > 0

    def state_dict(self) -> dict[str, Any]:
        """Return the scale and its counters; of a disabled scaler, the state it was given, or an empty dictionary."""
        return super().state_dict() if self.is_enabled() else dict(self._kept)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state; an empty one, saved by a disabled scaler, changes nothing."""
        if not self.is_enabled():
            self._kept = dict(state_dict)
        elif state_dict:
            super().load_state_dict(state_dict)


def _check_autocast(kind: str, dtype: torch.dtype | None) -> None:
    _check_there(kind, "autocast")
    if not is_autocast_available(kind):
        raise PrecisionError(f"autocast is not available for device {kind!r}. Train in fp32 there: leave it out.")
    if dtype not in (None, torch.bfloat16, torch.float16):
        raise PrecisionError(
            f"autocast dtype must be torch.bfloat16 or torch.float16, got {dtype}. For fp32, leave autocast out."
        )
    if kind == "cuda" and dtype == torch.bfloat16 and not torch.cuda.is_bf16_supported():
        raise PrecisionError("autocast dtype torch.bfloat16 is not supported by this device. Take torch.float16.")


def _check_there(kind: str, what: str) -> None:
    if kind == "cpu":
        return
    best = devices.best_type()
    if best != kind:
        there = "only 'cpu'" if best == "cpu" else f"'cpu' and {best!r}"
        raise PrecisionError(
            f"{what} was asked for device {kind!r}, but this machine has {there}. Leave the device out: it is found."
        )
