"""Train NAME. Everything here is yours: change the model, the data, the loop.

python train.py                          trains; again: goes on, or says that it is finished
python train.py --train.epochs 20        any setting of config.toml
lucid train config.toml                  the same run by the command, same bits
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import lucid


class Net(nn.Module):
    """Your model."""

    def __init__(self, num_outputs: int = 10, width: int = 32, dropout: float = 0.1) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(width * 16, num_outputs),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.layers(x)
        return output


def load_data(kept: int = 297) -> tuple[TensorDataset, TensorDataset]:
    """Your data: rows to train on, and rows kept for validation. Here: 1,797 handwritten digits of 8x8."""
    from lucid.datasets.digits import load_digits

    x, y = load_digits()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, validation = order[kept:], order[:kept]
    return TensorDataset(x[train], y[train]), TensorDataset(x[validation], y[validation])


def main(arguments: list[str]) -> lucid.Result:
    # 1. One configuration, typed: defaults < config.toml < environment < command line.
    config = lucid.config.load("config.toml", overrides=lucid.config.parse_overrides(arguments)).resolved()

    # 2. One seed for weights, order of the rows, dropout.
    lucid.seed_everything(config.train.seed)
    train_rows, validation_rows = load_data(**config.data.options)
    model = Net(**config.model.options)

    trainer = lucid.Trainer(
        model,
        lucid.optim.AdamW(
            lucid.optim.param_groups(model, lr=config.optimizer.lr, weight_decay=config.optimizer.weight_decay),
            lr=config.optimizer.lr,
            weight_decay=config.optimizer.weight_decay,
        ),
        loss=F.cross_entropy,
        # 3. A schedule that knows the exact number of steps.
        scheduler=lambda optimizer, total_steps: lucid.optim.build_scheduler(
            optimizer, total_steps, config.scheduler.name, **config.scheduler.options
        ),
        metrics={"accuracy": lucid.metrics.accuracy},
        # 4. Mixed precision (train.precision) and 5. clipping (train.max_grad_norm), before the update, once per step.
        config=config.train,
        run_dir=config.run_dir,
        extra_config=lucid.config.to_dict(config),
    )
    # 6. Validation after each epoch; the best checkpoint by train.monitor is kept beside the last.
    size = config.data.batch_size
    return trainer.fit(
        lucid.utils.data.DataLoader(train_rows, batch_size=size, shuffle=True),
        lucid.utils.data.DataLoader(validation_rows, batch_size=4 * size),
    )


if __name__ == "__main__":
    result = main(sys.argv[1:])
    print(f"{result.run_dir}: {result.stopped} at step {result.step}, {result.metrics}")
