"""What a run stood on: versions, device, code, command line. Compared at resume, kept beside the run."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

_MAX_DIFF_BYTES = 1 << 20


def describe(device: torch.device) -> dict[str, Any]:
    """Return what this process runs on, as plain values."""
    import numpy

    from lucid import __version__

    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": sys.argv,
        "pid": os.getpid(),
        "host": platform.node(),
        "platform": platform.platform(),
        "device": str(device),
        "threads": torch.get_num_threads(),
        "versions": {
            "lucid": __version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "numpy": str(numpy.__version__),
        },
        "git": _git(),
    }


def comparable(environment: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a description that a resume compares, flat."""
    flat = {f"version.{name}": value for name, value in environment["versions"].items()}
    flat["device"] = environment["device"]
    flat["threads"] = environment["threads"]
    flat["code"] = environment["git"].get("commit") if environment["git"] else None
    return flat


def without_diff(environment: dict[str, Any]) -> dict[str, Any]:
    """Return a description without the uncommitted diff, which stands beside the run and not in each checkpoint."""
    return {**environment, "git": {name: value for name, value in environment["git"].items() if name != "diff"}}


def _git() -> dict[str, Any]:
    """Return commit and uncommitted diff of the folder that the process was started in; {} outside a repository."""
    commit = _run("git", "rev-parse", "HEAD")
    if commit is None:
        return {}
    diff = _run("git", "diff", "HEAD") or ""
    return {"commit": commit.strip(), "dirty": bool(diff), "diff": diff[:_MAX_DIFF_BYTES]}


def _run(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, cwd=Path.cwd(), timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None
