"""A character-level GPT on a text file in nanoGPT's small CPU setting: 4 layers, 4 heads, 128 wide, block 64, batch 12.

python examples/char_gpt.py shakespeare.txt
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import lucid
from lucid.datasets import build
from lucid.models.gpt import GPT


def loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of logits (B, T, V) against targets (B, T)."""
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def sample(model: nn.Module, vocabulary: str, length: int, block: int) -> str:
    """Return text drawn from the model, one character at a time."""
    tokens = torch.zeros(1, 1, dtype=torch.int64)
    with torch.no_grad():
        for _ in range(length):
            chances = model(tokens[:, -block:])[:, -1].softmax(-1)
            tokens = torch.cat([tokens, torch.multinomial(chances, 1)], 1)
    return "".join(vocabulary[token] for token in tokens[0, 1:].tolist())


def main() -> None:
    """Train, evaluate, write a few lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("--max-steps", type=int, default=2000)
    parser.add_argument("--eval-every", type=int, default=200)
    parser.add_argument("--run-dir", default="runs/char_gpt")
    arguments = parser.parse_args()

    lucid.seed_everything(1337)
    data = build(f"text:{arguments.text}", {"block_size": 64, "stride": 1}, validation=0.1, test=0.0)
    rare = torch.utils.data.Subset(data.validation, range(0, len(data.validation), 64))
    model = GPT(data.num_outputs, data.input_shape, layers=4, heads=4, width=128, dropout=0.0)
    groups = lucid.optim.param_groups(model, weight_decay=0.1)
    trainer = lucid.Trainer(
        model,
        lucid.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99)),
        loss=loss,
        scheduler=lambda optimizer, total: lucid.optim.warmup_cosine(optimizer, 100, 2000, min_lr_ratio=0.1),
        config=lucid.TrainConfig(
            max_steps=arguments.max_steps, seed=1337, log_every=50, eval_every=arguments.eval_every,
            save_every=arguments.eval_every,
        ),
        run_dir=arguments.run_dir,
    )  # fmt: skip
    trainer.fit(DataLoader(data.train, batch_size=12, shuffle=True), DataLoader(rare, batch_size=96))
    model.eval()
    print(sample(model, data.transform_state["vocabulary"], 300, 64))


if __name__ == "__main__":
    main()
