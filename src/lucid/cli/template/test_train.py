"""Fast checks of the project: it learns, and a broken run ends with the bits of an unbroken one."""

from pathlib import Path

import torch
import train

import lucid

FAST = ["--train.save_every", "4", "--train.eval_every", "4", "--scheduler.name", "constant"]
FAST += ["--scheduler.options.warmup_steps", "0"]


def run(folder: Path, steps: int) -> dict[str, torch.Tensor]:
    """Train so many steps in all, and return the weights."""
    train.main(["--run_dir", str(folder), "--train.max_steps", str(steps), *FAST])
    weights: dict[str, torch.Tensor] = lucid.load(folder / "checkpoints" / f"step-{steps:08d}.lcs")["model"]
    return weights


def test_two_epochs_teach_most_digits(tmp_path: Path) -> None:
    result = train.main(["--run_dir", str(tmp_path / "run"), "--train.epochs", "2"])
    assert result.metrics["eval/accuracy"] > 0.8


def test_resumed_run_has_the_bits_of_an_unbroken_one(tmp_path: Path) -> None:
    run(tmp_path / "broken", 4)
    broken, whole = run(tmp_path / "broken", 8), run(tmp_path / "whole", 8)
    assert all(torch.equal(broken[name], whole[name]) for name in whole)
