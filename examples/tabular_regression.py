"""Regression from a CSV file that has holes and a text column.

python examples/tabular_regression.py california_housing.csv.gz --target median_house_value
"""

import argparse

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

import lucid
from lucid.datasets import build
from lucid.models.mlp import MLP


def main() -> None:
    """Train, and say how much of the variance is explained on rows that training never saw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv")
    parser.add_argument("--target", required=True)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--run-dir", default="runs/tabular")
    arguments = parser.parse_args()

    lucid.seed_everything(0)
    data = build(f"csv:{arguments.csv}", {"target": arguments.target, "task": "regression"})
    model = MLP(num_outputs=data.num_outputs, input_shape=data.input_shape)
    trainer = lucid.Trainer(
        model,
        lucid.optim.AdamW(lucid.optim.param_groups(model, weight_decay=0.01), lr=2e-3),
        loss=F.mse_loss,
        scheduler=lambda optimizer, total_steps: lucid.optim.warmup_cosine(optimizer, total_steps // 20, total_steps),
        metrics={"r2": lucid.metrics.R2()},
        config=lucid.TrainConfig(epochs=arguments.epochs, ema_decay=0.99),
        run_dir=arguments.run_dir,
    )
    trainer.fit(DataLoader(data.train, batch_size=128, shuffle=True), DataLoader(data.validation, batch_size=1024))
    held_out = trainer.evaluate(DataLoader(data.test, batch_size=1024))
    print(f"R2 {held_out['eval/r2']:.3f} on {len(data.test)} held-out rows, {torch.get_num_threads()} threads")


if __name__ == "__main__":
    main()
