"""A trained model back from its checkpoint, with what it needs besides the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from lucid import models, rng
from lucid.config import RunConfig, construct, to_dict
from lucid.errors import CheckpointError, ConfigError, DataError, MismatchError
from lucid.serialization import load, load_model_state, model_state


@dataclass(frozen=True)
class Trained:
    """A trained model with all that prediction needs, from a checkpoint alone."""

    model: nn.Module
    config: RunConfig
    meta: dict[str, Any]
    step: int
    path: Path


def load_model(path: str | Path, model: nn.Module | None = None) -> nn.Module:
    """Return the trained model of a checkpoint or a run's folder, in eval mode; averaged weights where there are any.

    What it needs besides its weights comes with it as `model.assets`, a plain dictionary: for a run of the command
    `task`, `class_names`, `input_shape`, `transform_state` (scaling, columns, vocabulary) and so on; for a script what
    it gave as `extra_config`. A model that has an `assets` of its own keeps that.

    Args:
        path: a `.lcs` file, or a run's folder: its best checkpoint, else its last.
        model: takes the weights, in place and on its device; every name and shape must fit. None: it is built anew, on
            the CPU, from the settings in the checkpoint, which runs of the command have.

    Raises:
        CheckpointError: no such checkpoint, a broken one, or one of a script and no `model`.
        MismatchError: the weights do not fit `model`; each name with the nearest that there is.
        ConfigError: `model` is no model, such as a class instead of an object of it, or has no memory.

    Example:
        `lucid.load_model("runs/digits")(images).argmax(1)`, `lucid.load_model("runs/mine", model=MyNet(width=32))`
    """
    if model is None:
        trained = load_trained(path)
        return _with_assets(trained.model, trained.meta)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model must be a model with weights to fill, got {model!r:.80}: give MyModel(...).")
    if any(getattr(value, "is_meta", False) for value in model.state_dict().values()):
        raise ConfigError('model has no memory (device "meta") that weights could be read into: model.to_empty first.')
    file, tree = _read(path)
    _fill(model, tree, file)
    meta, config = _meta(tree), tree.get("config", {})
    own = {name: value for name, value in config.items() if name != "train"}
    return _with_assets(model.eval(), own if meta is None else meta)


def load_trained(path: str | Path) -> Trained:
    """Build the model of a checkpoint and fill in its weights; the averaged ones where the run kept an average.

    Args:
        path: a `.lcs` file made by the command, or a run's folder: its best checkpoint, else its last.

    Raises:
        CheckpointError: no such checkpoint, a broken one, or one that was not made by the command.
    """
    file, tree = _read(path)
    meta = _meta(tree)
    if meta is None or "model" not in tree.get("config", {}):
        raise CheckpointError(
            f"{file} was made by a script, which built its model itself. Build it as the script does and give it: "
            f"lucid.load_model({str(path)!r}, model=MyModel(...))."
        )
    config = config_of(tree)
    with rng.fork(seed=0):
        model = models.build(
            config.model.name,
            config.model.options,
            input_shape=tuple(meta["input_shape"]),
            num_outputs=meta["num_outputs"],
        )
    _fill(model, tree, file)
    return Trained(model.eval(), config, meta, tree["progress"]["step"], file)


def _read(path: str | Path) -> tuple[Path, dict[str, Any]]:
    file = find_checkpoint(path)
    tree = load(file)
    if not isinstance(tree, dict) or "model" not in tree:
        raise CheckpointError(f"{file} is not a checkpoint of a run.")
    return file, tree


def _meta(tree: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a run of the command keeps about its rows; None for one of a script."""
    found: dict[str, Any] | None = tree.get("callbacks", {}).get("DataRecord")
    return found


def _fill(model: nn.Module, tree: Mapping[str, Any], file: Path) -> None:
    """Put the weights into a model; over them the average, if the run kept one: its evaluations saw that."""
    try:
        load_model_state(model, tree["model"])
    except MismatchError as error:
        raise MismatchError(f"{file}: {error}") from None
    live = model_state(model)  # the tensors themselves, so that tied weights move together
    for kept in tree.get("callbacks", {}).values():
        average = kept.get("average") if isinstance(kept, dict) else None
        if isinstance(average, dict) and set(average) <= set(live):
            for name, value in average.items():
                live[name].copy_(value)


def _with_assets(model: nn.Module, assets: dict[str, Any]) -> nn.Module:
    if not hasattr(model, "assets"):
        model.assets = assets  # type: ignore[assignment]
    return model


def config_of(tree: Mapping[str, Any]) -> RunConfig:
    """Return the configuration inside a checkpoint's tree."""
    known = to_dict(RunConfig())
    return construct(RunConfig, {name: value for name, value in tree["config"].items() if name in known})


def find_checkpoint(path: str | Path) -> Path:
    """Return the `.lcs` file that a path means: itself, or a run's best checkpoint, else its last.

    Raises:
        CheckpointError: there is none.
    """
    path = Path(path)
    if path.is_file():
        return pointed(path)
    folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    for slot in SLOTS:
        pointer = folder / slot
        if pointer.is_file() and (named := pointed(pointer)) != pointer:
            return named
    found = sorted(folder.glob("step-*.lcs")) if folder.is_dir() else []
    if not found:
        raise CheckpointError(f"no checkpoint at {path}: give a .lcs file, or the folder of a run.")
    return found[-1]


SLOTS = ("best", "last")
"""Names of the files beside checkpoints that hold the name of one."""


def pointed(path: Path) -> Path:
    """Return the checkpoint that `best` or `last` names; any other path as it is."""
    if path.name in SLOTS and path.is_file():
        named = path.with_name(path.read_bytes()[:256].decode(errors="replace").strip() or path.name)
        return named if named.is_file() else path
    return path


def load_weights(model: nn.Module, path: str) -> None:
    """Fill a fresh model with the weights of a checkpoint or a safetensors file; every name and shape must fit.

    Raises:
        ConfigError: the file cannot be read or does not fit.
    """
    file = Path(path)
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            state: Any = load_file(file)
        else:
            tree = load(find_checkpoint(file))
            state = tree.get("model", tree) if isinstance(tree, dict) else tree
        load_model_state(model, state)
    except (OSError, CheckpointError, DataError, RuntimeError) as error:
        raise ConfigError(f"model.weights = {path!r} does not fit: {error}") from error
