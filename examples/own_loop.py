"""A hand-written loop over `lucid.Run`: the loop is yours, resume, records and checkpoints come with it.

python examples/own_loop.py                    # kill it, start it again
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

import lucid


def main() -> None:
    """Train digits with noise added to half of each batch, which no ready-made trainer does for you."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--run-dir", default="runs/own_loop")
    arguments = parser.parse_args()

    lucid.seed_everything(0)
    images, labels = load_digits(return_X_y=True)
    rows = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
    train, held_out = random_split(rows, [0.8, 0.2])
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))
    optimizer = lucid.optim.AdamW(model.parameters(), lr=2e-3)
    run = lucid.Run(
        model,
        optimizer,
        DataLoader(train, batch_size=64, shuffle=True),
        config=lucid.TrainConfig(epochs=arguments.epochs, monitor="eval/accuracy", mode="max"),
        run_dir=arguments.run_dir,
    )
    for x, y in run:
        half = len(x) // 2
        x = torch.cat([x[:half] + 0.1 * torch.randn_like(x[:half]), x[half:]])
        with run.autocast():
            loss = F.cross_entropy(model(x), y)
        run.step(loss)
        if run.eval_due:
            run.evaluate(DataLoader(held_out, batch_size=512), {"accuracy": lucid.metrics.accuracy}, F.cross_entropy)
    print(f"best accuracy {run.result.best:.4f} at step {run.result.best_step}")


if __name__ == "__main__":
    main()
