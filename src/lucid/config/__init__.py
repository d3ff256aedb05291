"""The settings of a run, without torch.

`train`: what Trainer, Run and the command share. `run`: a whole run. `schema`: plain values to dataclasses, strictly.
`files`: TOML and YAML with line numbers. `layers`: defaults < file < environment < command line. `diff`: what differs.
`names`: `my_module:factory` and its options. `rules`: what a resumed run may change.
"""

from lucid.config.diff import Change, diff
from lucid.config.files import read, write
from lucid.config.layers import load, parse_overrides
from lucid.config.run import DataConfig, ModelConfig, OptimizerConfig, RunConfig, SchedulerConfig
from lucid.config.schema import construct, to_dict
from lucid.config.train import Every, TrainConfig

__all__ = [
    "Change",
    "DataConfig",
    "Every",
    "ModelConfig",
    "OptimizerConfig",
    "RunConfig",
    "SchedulerConfig",
    "TrainConfig",
    "construct",
    "diff",
    "load",
    "parse_overrides",
    "read",
    "to_dict",
    "write",
]
