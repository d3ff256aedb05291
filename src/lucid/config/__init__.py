"""The settings of a run, without torch. `train`: what Trainer, Run and the command share."""

from lucid.config.train import Every, TrainConfig

__all__ = ["Every", "TrainConfig"]
