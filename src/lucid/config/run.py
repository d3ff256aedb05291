"""The dataclasses of a whole run: what to train, on what, how. Each text below a field is its `--help`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lucid.config.train import TrainConfig
from lucid.errors import ConfigError

Options = dict[str, Any]


@dataclass(kw_only=True, slots=True)
class ModelConfig:
    """What is trained. auto: cnn for images, gpt for the tokens of a text, mlp for other rows; the run's settings then
    have that name."""

    name: str = "auto"
    """mlp, cnn, resnet, gpt, timm:NAME, torchvision:NAME, transformers:NAME, my_module:factory; auto: by the data."""
    weights: str | None = None
    """Checkpoint (.lcs or .safetensors) whose weights the model starts from. None: fresh weights."""
    options: Options = field(default_factory=dict)
    """Keyword arguments of the model: --model.options.width 32."""


@dataclass(kw_only=True, slots=True)
class DataConfig:
    """What it is trained on, and how the rows are split and fed."""

    name: str = "digits"
    """digits, csv:FILE, parquet:FILE, npz:FILE, image-folder:DIR, idx:DIR, text:FILE, datasets:NAME, module:factory."""
    batch_size: int = 32
    """Rows per micro-batch."""
    eval_batch_size: int | None = None
    """Rows per batch of an evaluation. None: four times `batch_size`, as nothing is kept for a backward pass."""
    validation: float = 0.15
    """Share of the rows kept for validation; rows of a class keep their proportion."""
    test: float = 0.15
    """Share of the rows kept for the test at the end. 0: no test."""
    split_seed: int = 0
    """Seed of the split; apart from `train.seed`, so that another seed trains on the same rows."""
    num_workers: int = 0
    """Processes that read rows. Rows held in memory need none."""
    drop_last: bool = False
    """Leave out an epoch's last batch when it is short."""
    options: Options = field(default_factory=dict)
    """Keyword arguments of the data set: --data.options.target price."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "eval_batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"data.{name} must be at least 1, got {value}.")
        for name in ("validation", "test"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"data.{name} must be a share of the rows in [0, 1), got {getattr(self, name)}.")
        if self.validation + self.test >= 1:
            raise ConfigError(
                f"data.validation + data.test must leave rows to train on, got {self.validation} + {self.test}."
            )
        if self.num_workers < 0:
            raise ConfigError(f"data.num_workers must be at least 0, got {self.num_workers}.")


@dataclass(kw_only=True, slots=True)
class OptimizerConfig:
    """How a gradient becomes an update."""

    name: str = "adamw"
    """An optimizer of torch by its name in any case (adamw, sgd, ...), or my_module:Class."""
    lr: float = 3e-3
    """Base learning rate; the schedule multiplies it."""
    weight_decay: float = 0.05
    """Decay of matrices and kernels; biases and norms get none."""
    options: Options = field(default_factory=dict)
    """Other keyword arguments of the optimizer: --optimizer.options.momentum 0.9."""

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise ConfigError(f"optimizer.lr must be above 0, got {self.lr}.")
        if not self.weight_decay >= 0:
            raise ConfigError(f"optimizer.weight_decay must be at least 0, got {self.weight_decay}.")


@dataclass(kw_only=True, slots=True)
class SchedulerConfig:
    """How the learning rate goes over the run's steps."""

    name: str = "warmup_cosine"
    """warmup_cosine, warmup_linear, warmup_stable_decay, one_cycle, step_decay, constant, plateau, none,
    or my_module:factory."""
    options: Options = field(default_factory=dict)
    """Keyword arguments of the schedule: --scheduler.options.warmup_steps 20. Left out, a twentieth of the run warms
    up where the schedule has a warm-up by name."""


@dataclass(kw_only=True)
class RunConfig:
    """Everything that decides a run. The defaults train a small CNN on handwritten digits.

    Subclass it, or give `model.name`/`data.name` as `my_module:factory`, to add settings of your own.
    """

    name: str | None = None
    """Name of the run. None: the configuration file's name, else the data's."""
    run_dir: str | None = None
    """Folder of the run. None: runs/NAME."""
    trackers: list[str] = field(default_factory=list)
    """Where records go besides the run's folder: csv, tensorboard, wandb, mlflow, trackio; several by commas."""
    task: str = "auto"
    """classification, multilabel, regression, language-modelling, or my_module:train_step. auto: what the data is."""
    loss: str = "auto"
    """cross_entropy, binary_cross_entropy, mse, l1, huber, or my_module:function. auto: the task's own."""
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    train: TrainConfig = field(default_factory=lambda: TrainConfig(epochs=15))

    def resolved(self, source: Path | None = None) -> RunConfig:
        """Fill in `name` and `run_dir`; change nothing else.

        Args:
            source: the configuration file, whose name names the run.
        """
        from dataclasses import replace

        name = self.name or (source.stem if source and source.stem != "config" else None) or _short(self.data.name)
        return replace(self, name=name, run_dir=self.run_dir or f"runs/{name}")


def _short(name: str) -> str:
    """`csv:data/penguins.csv` -> `penguins`."""
    _, colon, place = name.partition(":")
    return Path(place).stem if colon and Path(place).stem else name.replace(":", "-")
