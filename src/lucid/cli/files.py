"""`lucid inspect`, `verify` and `export`: what lies on the disk."""

from __future__ import annotations

import json as json_library
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from lucid.cli.settings import arguments, existing
from lucid.errors import CheckpointError, ConfigError

SHOWN_LENGTH = 100
"""Characters of a value that are printed."""


def inspect(words: Sequence[str]) -> int:
    """Say what a checkpoint or a run holds."""
    return arguments(inspect_path, words, "inspect")


def inspect_path(path: tyro.conf.Positional[Path], json: bool = False) -> int:
    """What a checkpoint or a run holds. Only headers are read. Exit code 1 if one of a run's is broken.

    Example: lucid inspect runs/digits

    Args:
        path: a .lcs file: every tensor and value; or the folder of a run: one line per checkpoint.
        json: print JSON.
    """
    from lucid.serialization import inspect

    path = _existing(path)
    found, broken = [], []
    for file in _files(path):
        try:
            found.append(inspect(file))
        except CheckpointError as error:
            if not path.is_dir():
                raise
            broken.append((str(file), str(error)))
    if json:
        bad = [{"file": file, "error": error} for file, error in broken]
        print(json_library.dumps([info.to_dict() for info in found] + bad, default=str))
    elif path.is_dir():
        print(_table([(info.file, info.meta, info.bytes) for info in found]))
        print("".join(f"BAD  {error}\n" for _, error in broken), end="")
    else:
        print("\n".join(_shortened(line) for line in str(found[0]).splitlines()))
    return 1 if broken else 0


def _existing(path: Path) -> Path:
    """Return what is there, for a run's `best` or `last` the checkpoint that they name."""
    from lucid.trained import pointed

    return pointed(existing(path))


def _files(path: Path) -> list[Path]:
    files = sorted(path.rglob("*.lcs")) if path.is_dir() else [path]
    if not files:
        raise CheckpointError(f"{path} holds no .lcs file.")
    return files


def _table(rows: list[tuple[str, dict[str, object], int]]) -> str:
    lines = [("checkpoint", "step", "value", "bytes")]
    lines += [(file, str(meta.get("step", "")), _number(meta.get("value")), f"{size:,}") for file, meta, size in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in lines
    )


def _number(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, int | float) else ""


def _shortened(line: str) -> str:
    return line if len(line) <= 2 * SHOWN_LENGTH else line[: 2 * SHOWN_LENGTH - 3] + "..."


def verify(words: Sequence[str]) -> int:
    """Check the bytes of a checkpoint or a run."""
    return arguments(verify_path, words, "verify")


def verify_path(path: tyro.conf.Positional[Path], json: bool = False) -> int:
    """Read every byte of a checkpoint, or of all of a run, and compare checksums. Exit code 1 if one is wrong.

    Example: lucid verify runs/digits

    Args:
        path: a .lcs file or a folder.
        json: print JSON.
    """
    from lucid.serialization import verify

    report = verify(_existing(path))
    print(json_library.dumps(report.to_dict()) if json else report)
    return 0 if report.ok else 1


def export(words: Sequence[str]) -> int:
    """Write weights for other programs."""
    return arguments(export_weights, words, "export")


def export_weights(
    checkpoint: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")],
    out: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE.safetensors")],
    select: str = "model",
) -> int:
    """Write the weights of a checkpoint as a safetensors file.

    Example: lucid export runs/digits digits.safetensors

    Args:
        checkpoint: a .lcs file, or the folder of a run (its best checkpoint).
        out: file to write.
        select: part of the checkpoint, such as "model" or "callbacks/EMA/average".
    """
    from lucid.serialization import export_safetensors
    from lucid.trained import find_checkpoint

    if out.exists():
        raise ConfigError(f"{out} exists. Nothing was changed; choose another name.")
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"no such folder: {out.absolute().parent}.")
    source = find_checkpoint(existing(checkpoint))
    size = export_safetensors(source, out, select=select)
    print(f"{out}: {size:,} bytes, from {source}")
    return 0
