"""The guide's loop with nothing around it, for regression: model, optimizer, schedule, scaler, checkpoint.

python examples/guide_regression.py
"""

import argparse
from pathlib import Path

import lucid.nn as nn
import lucid.nn.functional as F
import torch
from sklearn.datasets import load_diabetes

import lucid
from lucid.amp import GradScaler
from lucid.optim import AdamW
from lucid.optim.lr_scheduler import CosineAnnealingLR
from lucid.utils.data import DataLoader, TensorDataset


def main() -> None:
    """Train, save after each epoch, go on from the file if there is one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.lcs"))
    arguments = parser.parse_args()

    lucid.manual_seed(0)
    features, target = (torch.tensor(part, dtype=torch.float32) for part in load_diabetes(return_X_y=True))
    rows = TensorDataset(features * 20, (target[:, None] - 152) / 77)
    train, held_out = lucid.utils.data.random_split(rows, [0.8, 0.2])
    loader = DataLoader(train, batch_size=32, shuffle=True)

    device = lucid.metal_if_available()
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
    opt = AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    sched = CosineAnnealingLR(opt, t_max=arguments.epochs * len(loader))
    scaler = GradScaler(enabled=False)  # fp32 here; with float16 leave `enabled` out
    start = 0
    if arguments.checkpoint.exists():
        state = lucid.serialization.load(arguments.checkpoint)
        for name, part in (("model", model), ("opt", opt), ("sched", sched), ("scaler", scaler)):
            part.load_state_dict(state[name])
        start = state["epoch"] + 1
    for epoch in range(start, arguments.epochs):
        model.train()
        for x, y in loader:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            loss = F.mse_loss(model(x), y)
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            sched.step()
        parts = {"model": model, "opt": opt, "sched": sched, "scaler": scaler}
        state = {name: part.state_dict() for name, part in parts.items()}
        lucid.serialization.save({**state, "epoch": epoch}, arguments.checkpoint)
    values = lucid.evaluate(model, DataLoader(held_out, batch_size=100), {"r2": lucid.metrics.R2()}, loss=F.mse_loss)
    print(f"epochs {start} to {arguments.epochs - 1}: R2 {values['eval/r2']:.3f}")


if __name__ == "__main__":
    main()
