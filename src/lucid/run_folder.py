"""The folder of a run: making it, and the two files that say what the run is."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lucid.config.files import toml_text
from lucid.errors import ConfigError

_STARTS_KEPT = 100


def make_folder(folder: Path) -> Path:
    """Make the folder and those above it; return it.

    Raises:
        ConfigError: if it cannot be made, or is the address of another kind of storage.
    """
    if re.match(r"[A-Za-z][\w+.-]+:/", str(folder)):  # a path has one slash of the two
        raise ConfigError(
            f"run_dir must be a folder of this machine, got {str(folder)!r}: records are written to it line by line. "
            "Train into a folder and copy it; checkpoints alone go to such an address with lucid.serialization.Store."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error
    return folder


def describe_run(folder: Path, environment: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Add this start to `environment.json`, write `config.toml` while there is no checkpoint yet; return the run's id.

    Args:
        folder: of the run; it exists.
        environment: what this process stands on.
        settings: sections of settings in effect.

    Raises:
        ConfigError: if the folder cannot be written, or holds another kind of `environment.json`.
    """
    path = folder / "environment.json"
    try:
        known = json.loads(path.read_text()) if path.exists() else {"run_id": uuid.uuid4().hex, "starts": []}
        known["starts"] = [*known["starts"][1 - _STARTS_KEPT :], environment]
        _replace(path, json.dumps(known, indent=1))
        if not any((folder / "checkpoints").glob("*.lcs")):
            _replace(folder / "config.toml", toml_text(dict(settings)))
    except OSError as error:
        raise _unwritable(folder, error) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not a run's description: {error}. Choose another run_dir.") from error
    return str(known["run_id"])


def _unwritable(folder: Path, error: OSError) -> ConfigError:
    return ConfigError(f"run_dir {str(folder)!r} must be a folder that can be written, got: {error}. Choose another.")


def _replace(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.tmp")
    beside.write_text(text)
    beside.replace(path)
