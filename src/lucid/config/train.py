"""The settings of a training run: what `Trainer`, `Run` and the command share."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Literal

from lucid.errors import ConfigError

Every = int | Literal["epoch"]


@dataclass(kw_only=True, slots=True)
class TrainConfig:
    """Settings of a run. Every count is in optimizer steps unless its text says otherwise."""

    epochs: int = 10
    """Passes over the training data."""
    max_steps: int | None = None
    """Stop after this many steps even if epochs are left. None: as many as `epochs` give."""
    seed: int = 0
    """One number from which every random stream of the run is derived."""
    device: str = "auto"
    """Where to train: "auto" takes the best device there is, else a torch name such as "cpu" or "cuda:1"."""
    threads: int | None = None
    """CPU threads of torch. None: torch's choice; the command takes 1 for a small model, which more slow down."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Forward precision. "auto": bf16 where the device has it natively, else fp16 on an accelerator, else fp32."""
    gradient_accumulation_steps: int = 1
    """Micro-batches per step. A short last window of an epoch counts what it holds."""
    max_grad_norm: float | None = 1.0
    """Clip limit (global L2 norm; see `clip`). None: no clipping, the norm is still reported."""
    clip: Literal["norm", "value", "adaptive"] = "norm"
    """How `max_grad_norm` limits the gradient: global norm, per element, or per tensor against its weight's norm."""
    log_every: Every = 50
    """Steps between log records, or "epoch". 0: only the last step."""
    eval_every: Every = "epoch"
    """Steps between evaluations, or "epoch". 0: only the last step."""
    save_every: Every = "epoch"
    """Steps between checkpoints, or "epoch". 0: only the last step. With a `monitor` each new best is saved too."""
    keep_last: int = 2
    """Newest checkpoints kept."""
    keep_every: int = 0
    """Also keep each checkpoint whose step is a multiple of this. 0: none."""
    keep_best: int = 1
    """Best checkpoints kept by `monitor`, in a slot of their own."""
    monitor: str | None = None
    """Metric that decides what is best; each new best is saved. None: eval/loss, among what is saved anyway."""
    mode: Literal["min", "max"] | None = None
    """Direction of `monitor`. Required unless the monitor is a loss."""
    patience: int = 0
    """Stop after this many evaluations without a better monitor. 0: never."""
    ema_decay: float | None = None
    """Keep an exponential moving average of the weights with this decay, used for evaluation. None: off."""
    non_finite: Literal["skip", "raise", "rollback"] = "skip"
    """What a NaN or inf in loss or gradient does: leave out the step, stop, or go back to the last checkpoint."""
    max_skips: int = 10
    """Steps in a row that may be left out before the run stops with an error."""
    spike_factor: float | None = None
    """Treat a loss or gradient norm above this many times its running median like NaN (see `non_finite`). None: off."""
    spike_window: int = 100
    """Steps that the running median of `spike_factor` is taken over."""
    max_time: float | None = None
    """Seconds after which the run saves and stops, the time of that save counted in. None: no limit."""
    save_errors: Literal["stop", "continue"] = "continue"
    """What a disk that is full or fails does after retries: stop the run, or go on and try at the next save."""
    changes: Literal["refuse", "accept"] = "refuse"
    """What a resume does with settings that change the run: refuse with a table of them, or go on with the new ones."""
    compile: bool = False
    """Compile forward pass, loss and backward pass as one function; `model.compile()` where that cannot be."""
    deterministic: bool = False
    """Ask torch for deterministic kernels (`torch.use_deterministic_algorithms`)."""
    matmul_precision: Literal["highest", "high", "medium"] | None = None
    """Of float32 matrix products, as in `torch.set_float32_matmul_precision`; "high" is TF32. None: what torch has."""
    cudnn_benchmark: bool = False
    """Have cuDNN time its convolutions and take the fastest: for batches of one shape. Not with `deterministic`."""
    channels_last: bool = False
    """Lay out the weights of 2-d convolutions with channels last: often faster on a GPU in half precision."""

    def __post_init__(self) -> None:
        self.check()

    def check(self, where: str = "train") -> None:
        """Raise `ConfigError` for the first setting that cannot work.

        Args:
            where: what to call this section in messages.
        """
        for name in ("epochs", "gradient_accumulation_steps", "max_skips", "spike_window"):
            _at_least(where, name, getattr(self, name), 1)
        for name in ("keep_last", "keep_every", "keep_best", "patience", "seed"):
            _at_least(where, name, getattr(self, name), 0)
        if self.keep_last < 1:
            raise ConfigError(f"{where}.keep_last must be at least 1, got {self.keep_last}: a run resumes from it.")
        for name in ("max_steps", "threads"):
            if getattr(self, name) is not None:
                _at_least(where, name, getattr(self, name), 1)
        for name in ("log_every", "eval_every", "save_every"):
            value = getattr(self, name)
            if value != "epoch":
                _at_least(where, name, value, 0, hint=' or "epoch"')
        for name in ("max_grad_norm", "max_time"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and value > 0 and not math.isnan(value)):
                raise ConfigError(f"{where}.{name} must be a number above 0, or None for none, got {value!r}.")
        if self.ema_decay is not None and not (_is_number(self.ema_decay) and 0 < self.ema_decay < 1):
            raise ConfigError(f"{where}.ema_decay must lie between 0 and 1, or None for none, got {self.ema_decay!r}.")
        if self.spike_factor is not None and not (_is_number(self.spike_factor) and self.spike_factor > 1):
            raise ConfigError(f"{where}.spike_factor must be above 1, or None for off, got {self.spike_factor!r}.")
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ConfigError(f"{where}.{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}.")
        if self.cudnn_benchmark and self.deterministic:
            raise ConfigError(
                f"{where}.cudnn_benchmark must be false with {where}.deterministic: what is fastest may differ from "
                "process to process, and with it the bits."
            )
        if self.monitor is not None and self.mode is None and not self.monitor.endswith("loss"):
            raise ConfigError(
                f'{where}.mode must be "min" or "max" for the monitor {self.monitor!r}: '
                "say whether lower or higher is better."
            )

    @property
    def monitor_mode(self) -> Literal["min", "max"]:
        """Direction of the monitor; a loss is better when lower."""
        return self.mode or "min"

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain values."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


_CHOICES: dict[str, tuple[str | None, ...]] = {
    "precision": ("auto", "fp32", "bf16", "fp16"),
    "clip": ("norm", "value", "adaptive"),
    "mode": ("min", "max", None),
    "matmul_precision": ("highest", "high", "medium", None),
    "non_finite": ("skip", "raise", "rollback"),
    "save_errors": ("stop", "continue"),
    "changes": ("refuse", "accept"),
}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _at_least(where: str, name: str, value: object, least: int, hint: str = "") -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{where}.{name} must be a whole number of at least {least}{hint}, got {value!r}.")
