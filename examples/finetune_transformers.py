"""Fine-tune a transformers text classifier. The model is built from a small configuration: nothing is downloaded.

python examples/finetune_transformers.py names.txt      # learns which names end in a vowel
"""

import argparse
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForSequenceClassification

import lucid

LENGTH = 16


class Names(Dataset[dict[str, torch.Tensor]]):
    """Names as padded byte tokens; the label says whether the last letter is a vowel."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = list(self.names[index].encode()[:LENGTH])
        row = torch.tensor(tokens + [0] * (LENGTH - len(tokens)))
        label = torch.tensor(int(self.names[index][-1] in "aeiou"))
        return {"input_ids": row, "attention_mask": (row != 0).long(), "labels": label}


def accuracy(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits and labels for the metric."""
    return model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits, batch["labels"]


def main() -> None:
    """Train on nine names of ten, evaluate on the tenth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument("--run-dir", default="runs/transformers")
    arguments = parser.parse_args()

    lucid.seed_everything(0)
    names = arguments.names.read_text().split()[: arguments.rows]
    held_out, train = Names(names[::10]), Names([name for i, name in enumerate(names) if i % 10])
    config = BertConfig(vocab_size=256, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=64, max_position_embeddings=LENGTH, num_labels=2)  # fmt: skip
    model = BertForSequenceClassification(config)
    trainer = lucid.Trainer(
        model,                                           # returns its own loss: no loss= is needed
        lucid.optim.AdamW(model.parameters(), lr=2e-3),
        metrics={"accuracy": lucid.metrics.accuracy},
        config=lucid.TrainConfig(epochs=arguments.epochs, monitor="eval/accuracy", mode="max"),
        run_dir=arguments.run_dir,
    )  # fmt: skip
    result = trainer.fit(DataLoader(train, batch_size=64, shuffle=True), DataLoader(held_out, batch_size=256))
    print(f"accuracy {result.metrics['eval/accuracy']:.4f}")


if __name__ == "__main__":
    main()
