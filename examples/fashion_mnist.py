"""Fashion-MNIST from local IDX files: a small CNN, early stopping, the best checkpoint loaded back.

python examples/fashion_mnist.py FOLDER        # holds the IDX files, gzipped or not
"""

import argparse
import gzip
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import lucid


def read_idx(folder: Path, name: str) -> torch.Tensor:
    """Return the bytes of the one file whose name fits, in the shape that its header says."""
    path = next(folder.glob(name))
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    shape = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(data[3])]
    return torch.frombuffer(bytearray(data[4 + 4 * len(shape) :]), dtype=torch.uint8).reshape(shape)


def load(folder: Path, part: str) -> TensorDataset:
    """Return images (rows, 1, 28, 28) in [0, 1] and class numbers of a part."""
    images = read_idx(folder, f"{part}*images-idx3-ubyte*")
    labels = read_idx(folder, f"{part}*labels-idx1-ubyte*")
    return TensorDataset(images[:, None].float() / 255, labels.long())


def main() -> None:
    """Train and say how good the best checkpoint is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rows", type=int, default=None, help="train on the first rows only")
    parser.add_argument("--run-dir", default="runs/fashion_mnist")
    arguments = parser.parse_args()

    lucid.seed_everything(0)
    train, test = load(arguments.folder, "train"), load(arguments.folder, "t10k")
    if arguments.rows:
        train = TensorDataset(*(tensor[: arguments.rows] for tensor in train.tensors))
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(32 * 7 * 7, 10),
    )  # fmt: skip
    trainer = lucid.Trainer(
        model,
        lucid.optim.AdamW(model.parameters(), lr=2e-3),
        loss=F.cross_entropy,
        scheduler=lambda optimizer, total_steps: lucid.optim.warmup_cosine(optimizer, total_steps // 20, total_steps),
        metrics={"accuracy": lucid.metrics.accuracy},
        config=lucid.TrainConfig(epochs=arguments.epochs, monitor="eval/accuracy", mode="max", patience=3),
        run_dir=arguments.run_dir,
    )
    result = trainer.fit(DataLoader(train, batch_size=128, shuffle=True), DataLoader(test, batch_size=500))
    best = Path(arguments.run_dir, "checkpoints", (Path(arguments.run_dir) / "checkpoints/best").read_text().strip())
    model.load_state_dict(lucid.load(best, select="model"))
    print(f"best accuracy {trainer.evaluate(DataLoader(test, batch_size=500))['eval/accuracy']:.4f} "
          f"at step {result.best_step}")  # fmt: skip


if __name__ == "__main__":
    main()
