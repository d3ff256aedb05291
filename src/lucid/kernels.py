"""How torch computes a run: threads, kernels, layout of images in memory. Chosen once, before the run begins."""

from __future__ import annotations

import torch
from torch import nn

from lucid.config import TrainConfig
from lucid.errors import ConfigError


def check(config: TrainConfig, model: nn.Module, device: torch.device) -> None:
    """Raise `ConfigError` for a setting that could do nothing with this model or on this device."""
    if config.cudnn_benchmark and device.type != "cuda":
        raise ConfigError(
            f"train.cudnn_benchmark has cuDNN time its convolutions, and this run is on {str(device)!r}. "
            "Leave it out here, or train on an NVIDIA GPU."
        )
    if config.channels_last and not any(parameter.dim() == 4 for parameter in model.parameters()):
        raise ConfigError(
            "train.channels_last is for weights of 2-d convolutions, with 4 dimensions, and "
            f"{type(model).__name__} has none. Leave it out."
        )


def choose(config: TrainConfig, model: nn.Module) -> None:
    """Set what the settings ask for; what they leave open stays as torch has it.

    All of it holds for the whole process but the layout: convolution weights get channels last in place, so that the
    parameters stay the same objects.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    if config.deterministic:
        torch.use_deterministic_algorithms(True)
    if config.matmul_precision is not None:
        torch.set_float32_matmul_precision(config.matmul_precision)
    if config.cudnn_benchmark:
        torch.backends.cudnn.benchmark = True
    if config.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch.nn hands the layout on
