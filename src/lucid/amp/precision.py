"""`Precision`: which precision a run uses, and everything a step does because of it.

    loss inside `autocast()` -> `scale(loss).backward()` -> `unscale(optimizers)` -> clip, step or skip -> `update()`

For fp32 and bf16 the last three cost a comparison: `Precision("fp32")` is the null object.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lucid import devices
from lucid.amp.tools import GradScaler, autocast
from lucid.devices import Capability
from lucid.errors import ConfigError, PrecisionError, nearest

Mode = Literal["fp32", "bf16", "fp16"]

_DTYPES: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
_HALF = (torch.float16, torch.bfloat16)


def choose_mode(spec: str, capability: Capability) -> Mode:
    """Return the precision for a device: a pure function of its record.

    "auto" takes bf16 where the hardware has it, else fp16 on an accelerator, else fp32. On a CPU it always takes fp32:
    from one processor to the next bf16 was measured between 5 times faster and 50 times slower, and a run should not
    change its numbers with the CPU that it lands on. By name, the CPU takes all three.

    Args:
        spec: "auto", "fp32", "bf16" or "fp16".
        capability: the device's record.

    Raises:
        PrecisionError: if the device lacks the precision asked for.
        ConfigError: for an unknown name.

    Example:
        >>> choose_mode("auto", Capability("cuda", 0, native_bf16=True, fp16=True))
        'bf16'
        >>> choose_mode("auto", Capability("cuda", 0, fp16=True))
        'fp16'
        >>> choose_mode("auto", Capability("cpu", native_bf16=True))
        'fp32'
    """
    accelerator = capability.is_accelerator
    if spec == "auto":
        if accelerator and capability.native_bf16:
            return "bf16"
        return "fp16" if accelerator and capability.fp16 else "fp32"
    if spec == "fp32":
        return "fp32"
    if spec == "bf16" and (capability.native_bf16 or not accelerator):
        return "bf16"
    if spec == "fp16" and (capability.fp16 or not accelerator):
        return "fp16"
    if spec in ("bf16", "fp16"):
        has = [mode for mode, there in (("bf16", capability.native_bf16), ("fp16", capability.fp16)) if there]
        raise PrecisionError(
            f"precision {spec!r} is not in the hardware of {str(capability.device)!r} ({capability.name}); "
            f"it has {', '.join(['fp32', *has])}. Take one of these or 'auto'."
        )
    known = ("auto", "fp32", "bf16", "fp16")
    raise ConfigError(f"precision must be one of {', '.join(known)}, got {spec!r}.{nearest(str(spec), known)}")


class Precision:
    """One precision on one kind of device.

    Args:
        mode: "fp32", "bf16" or "fp16". Parameters stay fp32 in all of them.
        device_type: kind of device the forward pass runs on.
        scaler: scaler for fp16. None: a new one. Other modes have none.

    Attributes:
        mode: as given.
        device_type: as given.
        scaler: the scaler of fp16, None for fp32 and bf16.
    """

    def __init__(self, mode: Mode = "fp32", device_type: str = "cpu", scaler: GradScaler | None = None) -> None:
        if mode not in ("fp32", "bf16", "fp16"):
            raise ConfigError(f"precision mode must be 'fp32', 'bf16' or 'fp16', got {mode!r}.")
        if scaler is not None and mode != "fp16":
            raise ConfigError(f"a scaler belongs to fp16, but the precision mode is {mode!r}. Leave the scaler out.")
        self.mode: Mode = mode
        self.device_type = device_type
        self.scaler = GradScaler(device_type) if mode == "fp16" and scaler is None else scaler
        # Written into a checkpoint again by a run without a scaler, so that fp16 goes on where it was.
        self._kept: dict[str, Any] = {}
        self._context: AbstractContextManager[Any] = (
            nullcontext() if mode == "fp32" else autocast(device_type, dtype=_DTYPES[mode])
        )

    @classmethod
    def choose(cls, spec: str, device: torch.device | str | Capability) -> Precision:
        """Return the precision for a device, or for the record of one.

        Raises:
            PrecisionError: if the device lacks the precision asked for.
        """
        capability = device if isinstance(device, Capability) else devices.probe_device(device)
        return cls(choose_mode(spec, capability), capability.type)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context of the forward pass and the loss: the same object every time, which nests."""
        return self._context

    def scale(self, loss: Tensor) -> Tensor:
        """Return what to call `backward` on: the loss itself unless this is fp16."""
        return loss if self.scaler is None else self.scaler.scale(loss)

    def unscale(self, optimizers: Iterable[Optimizer]) -> None:
        """Bring the gradients back to their true size, once per step; optimizers without gradients are left out."""
        if self.scaler is None:
            return
        for optimizer in optimizers:
            if any(p.grad is not None for group in optimizer.param_groups for p in group["params"]):
                self.scaler.unscale_(optimizer)

    def update(self) -> None:
        """Adjust the scale, after the step or the skip; a step in which no gradient came leaves it as it is."""
        if self.scaler is not None and self.scaler.has_checks():
            self.scaler.update()

    def check_model(self, model: nn.Module) -> None:
        """Refuse a model that would train parameters in half precision; frozen ones may be what they are.

        Raises:
            PrecisionError: for trainable half-precision parameters. An update smaller than a 256th of a bf16 weight is
                lost, layers of fp32 do not take their outputs, and in fp16 their gradients cannot be unscaled.
        """
        names = [name for name, p in model.named_parameters() if p.requires_grad and p.dtype in _HALF]
        if names:
            shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            raise PrecisionError(
                f"precision {self.mode!r} needs fp32 parameters, but these are in half precision: {shown}. Leave out "
                "`model.half()` (or call `model.float()`): "
                + (
                    "for a forward pass in half precision take 'bf16' or 'fp16', whose autocast lowers it."
                    if self.mode == "fp32"
                    else "autocast lowers the forward pass by itself."
                )
            )

    def describe(self) -> str:
        """Return the precision in words, with what governs fp32 matrix products."""
        matmul = torch.get_float32_matmul_precision()
        words = {
            "fp32": f"fp32 (matrix products: {matmul}{'' if matmul == 'highest' else ', TF32 allowed'})",
            "bf16": "bf16 autocast, fp32 parameters, no scaler",
            "fp16": "fp16 autocast, fp32 parameters, loss scaled",
        }[self.mode]
        unsure = self.device_type == "cpu" and self.mode != "fp32"
        return f"{words}; on a CPU this can be slower than fp32" if unsure else words

    def state_dict(self) -> dict[str, Any]:
        """Return the mode and the scaler's state; without a scaler, the scaler's state that was loaded before."""
        return {"mode": self.mode, "scaler": dict(self._kept) if self.scaler is None else self.scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the scaler's state, whatever mode wrote it; the mode stays as it is here."""
        saved = state.get("scaler") or {}
        self._kept = dict(saved)
        if self.scaler is not None:
            self.scaler.load_state_dict(saved)
