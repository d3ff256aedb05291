"""A small run of the command's kind, from a configuration: for tests of what is built and what comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lucid.build import Built, build
from lucid.config import RunConfig, load


def config(rows: Path, **changes: Any) -> RunConfig:
    """A small run on these rows."""
    settings = {
        "run_dir": str(rows.parent / "run"),
        "data.name": f"npz:{rows}",
        "data.batch_size": 8,
        "model.name": "mlp",
        "train.epochs": 2,
    }
    return load(environ={}, overrides={**settings, **changes}).resolved()


def trained(rows: Path, **changes: Any) -> Built:
    """Build and train."""
    built = build(config(rows, **changes), reports=())
    built.trainer.fit(built.train_loader, built.validation_loader)
    return built
