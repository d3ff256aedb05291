"""`lucid evaluate` and `lucid predict`: a trained model at work."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from lucid.cli.settings import arguments, existing
from lucid.errors import ConfigError, DataError

if TYPE_CHECKING:
    import torch

    from lucid.trained import Trained


def evaluate(words: Sequence[str]) -> int:
    """Judge a checkpoint."""
    return arguments(evaluate_checkpoint, words, "evaluate")


def evaluate_checkpoint(
    checkpoint: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")],
    on: Literal["test", "validation", "train"] = "test",
    json: bool = False,
    device: str = "auto",
) -> int:
    """Judge a trained model on rows of its own data.

    Example: lucid evaluate runs/digits --on validation

    Args:
        checkpoint: a .lcs file, or the folder of a run (its best checkpoint).
        on: which rows.
        json: print JSON.
        device: where: "auto" takes the best there is, as the training does; else a torch name such as "cpu".
    """
    values = judge(checkpoint, on, device)
    if json:
        print(_json(values))
    else:
        width = max(map(len, values))
        print("\n".join(f"{name:<{width}}  {value}" for name, value in values.items()))
    return 0


def judge(checkpoint: Path, on: str, where: str = "auto") -> dict[str, Any]:
    """Return the metrics of a checkpoint on its own rows, computed on a device.

    Raises:
        DataError: there are no such rows, or the data changed since the training.
    """
    from lucid import evaluation
    from lucid.amp import Precision
    from lucid.build import build_data
    from lucid.devices import choose_device
    from lucid.losses import Supervised, UserStep
    from lucid.tasks import make_task
    from lucid.trained import load_trained
    from lucid.utils.data import DataLoader

    device = choose_device(where)
    trained = load_trained(existing(checkpoint))
    data = build_data(trained.config)
    if data.split != trained.meta["split"]:
        raise DataError(f"the data changed since the training: rows were {trained.meta['split']}, are {data.split}.")
    rows = getattr(data, on)
    if rows is None:
        raise DataError(f"no rows were kept for {on}: data.{on} was 0.")
    task = make_task(trained.config.task, trained.config.loss, data.task, data.transform_state)
    step = UserStep(task.train_step, task.eval_step) if task.train_step else Supervised(task.loss)
    size = trained.config.data.eval_batch_size or 4 * trained.config.data.batch_size
    values = evaluation.evaluate(
        trained.model.to(device),
        DataLoader(rows, batch_size=size),
        task.metrics,
        eval_step=step.evaluate,
        precision=Precision.choose(trained.config.train.precision, device),
        device=device,
    )
    found: dict[str, Any] = {name.replace("eval/", f"{on}/"): value for name, value in values.items()}
    return {**found, "rows": len(rows), "checkpoint": str(trained.path), "step": trained.step}


def predict(words: Sequence[str]) -> int:
    """Print answers of a trained model."""
    return arguments(predict_rows, words, "predict")


def predict_rows(
    checkpoint: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")],
    source: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="ROWS")],
    out: Path | None = None,
    json: bool = False,
    length: int = 200,
    temperature: float = 0.8,
    seed: int = 0,
    device: str = "auto",
) -> int:
    """Answers of a trained model for new rows. Everything needed is in the checkpoint.

    Example: lucid predict runs/digits seven.png

    Args:
        checkpoint: a .lcs file, or the folder of a run (its best checkpoint).
        source: what the model was trained on: a table, an image or a folder of images, a .npy or .npz file, or, for a
            language model, a text file that it goes on writing. Nothing is inverted: the digits are light on black.
            What is odd about the rows is said on the error stream.
        out: write a CSV file instead of printing.
        json: print a JSON line per row.
        length: tokens that a language model writes.
        temperature: how freely it chooses; 0 always takes the likeliest.
        seed: of its choices.
        device: where: "auto" takes the best there is, as the training does; else a torch name such as "cpu".
    """
    from lucid.devices import choose_device
    from lucid.trained import load_trained

    place = choose_device(device)
    trained = load_trained(existing(checkpoint))
    trained.model.to(place)
    if trained.meta["task"] == "language-modelling":
        print(write_on(trained, source, length, temperature, seed))
        return 0
    answers = answer(trained, source)
    _show(answers, out, json)
    return 0


def answer(trained: Trained, source: Path) -> list[dict[str, Any]]:
    """Return one answer per row of a file, computed where the model is; say what is odd about the rows."""
    import torch

    from lucid.datasets import read_rows
    from lucid.datasets.doubts import doubts

    state = trained.meta["transform_state"]
    if "kind" not in state:
        raise ConfigError(
            "the model was trained on data of your own, whose rows only your code can read. "
            "Use lucid.load_model(path) there."
        )
    x, names = read_rows(source, state)
    for line in doubts(source, x, state):
        print(f"lucid: note: {line}", file=sys.stderr)
    device = next(trained.model.parameters()).device
    with torch.no_grad():
        output = torch.cat([trained.model(part.to(device)).cpu() for part in torch.split(x, 1024)])
    return [{"row": name, **one} for name, one in zip(names, _answers(trained, output), strict=True)]


def _answers(trained: Trained, output: torch.Tensor) -> list[dict[str, Any]]:
    from lucid.datasets.scaling import Scaler

    meta = trained.meta
    if meta["task"] == "classification":
        best = output.softmax(1).max(1)
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [{"answer": meta["class_names"][index], "probability": round(p, 4)} for index, p in pairs]
    if meta["task"] == "multilabel":
        labels = meta["class_names"] or [str(number) for number in range(output.shape[1])]
        said = [[n for n, p in zip(labels, row, strict=True) if p > 0.5] for row in output.sigmoid().tolist()]
        return [{"answer": " ".join(names)} for names in said]
    scaler = meta["transform_state"].get("target_scaler")
    values = Scaler.from_dict(scaler).undo(output) if scaler else output
    targets = meta["transform_state"].get("targets") or [f"y{number}" for number in range(values.shape[1])]
    if len(targets) == 1:
        return [{"answer": value} for (value,) in values.tolist()]
    return [dict(zip(targets, row, strict=True)) for row in values.tolist()]


def write_on(trained: Trained, source: Path, length: int, temperature: float, seed: int) -> str:
    """Return a text with `length` more tokens by a language model."""
    import torch

    from lucid.datasets.rows import read_rows
    from lucid.datasets.text import decode

    state = trained.meta["transform_state"]
    ids = read_rows(source, state)[0]
    device = next(trained.model.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _ in range(length):
            logits = trained.model(ids[:, -state["block_size"] :].to(device))[:, -1].cpu()
            if temperature > 0:
                chosen = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
            else:
                chosen = logits.argmax(-1, keepdim=True)
            ids = torch.cat([ids, chosen], 1)
    return decode(ids[0].tolist(), state)


def _show(answers: list[dict[str, Any]], out: Path | None, as_json: bool) -> None:
    if out is not None:
        with out.open("w", newline="", encoding="utf-8") as file:
            _csv(answers, file)
        print(f"{len(answers)} answers in {out}")
    elif as_json:
        print("\n".join(_json(one) for one in answers))
    else:
        _csv(answers, sys.stdout)


def _csv(answers: list[dict[str, Any]], file: Any) -> None:
    writer = csv.DictWriter(file, list(answers[0]) if answers else ["row", "answer"])
    writer.writeheader()
    writer.writerows(answers)


def _json(values: dict[str, Any]) -> str:
    return json.dumps(values)
