"""A text file for a language model over characters or bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from torch.utils.data import TensorDataset

from lucid.datasets.bundle import DataBundle
from lucid.datasets.split import split_in_order
from lucid.errors import DataError


def text(
    path: str,
    *,
    validation: float,
    test: float,
    split_seed: int,
    block_size: int = 64,
    stride: int | None = None,
    tokens: Literal["chars", "bytes"] = "chars",
) -> DataBundle:
    """Return rows of `block_size` tokens, each with the tokens one further as target. Parts are cut in file order.

    Args:
        path: UTF-8 text.
        validation: share of the text kept for validation, after the training part.
        test: share kept for the test, at the end.
        split_seed: not used: neighbouring rows of a text are too alike to be drawn.
        block_size: tokens in a row.
        stride: tokens between the starts of two rows. None: `block_size`, rows do not overlap; 1: every start.
        tokens: `chars` of this text, or `bytes`, which can say anything.

    Raises:
        DataError: cannot be read, or too short for one row in a part.
    """
    del split_seed
    if block_size < 1 or (stride is not None and stride < 1):
        raise DataError(f"data.options block_size and stride must be at least 1, got {block_size} and {stride}.")
    try:
        content = Path(path).read_bytes()
        written = content.decode("utf-8") if tokens == "chars" else ""
    except OSError as error:
        raise DataError(f"cannot read the text file {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text. Use --data.options.tokens bytes.") from error
    state: dict[str, Any] = {"kind": "text", "tokens": tokens, "block_size": block_size}
    if tokens == "chars":
        state["vocabulary"] = "".join(sorted(set(written)))
    ids = encode(written if tokens == "chars" else content, state)
    cut = split_in_order(len(ids), validation=validation, test=test)
    sizes = [len(cut.train), len(cut.validation), len(cut.test)]
    parts = [_rows(part, block_size, stride or block_size, path) for part in torch.split(ids, sizes)]
    if parts[0] is None:
        raise DataError(f"{path}: {sizes[0]} tokens to train on are fewer than one row of {block_size} + 1.")
    return DataBundle(
        train=parts[0],
        validation=parts[1],
        test=parts[2],
        task="language-modelling",
        num_outputs=256 if tokens == "bytes" else len(state["vocabulary"]),
        input_shape=(block_size,),
        transform_state=state,
        split=cut.record(),
    )


def _rows(ids: torch.Tensor, block_size: int, stride: int, path: str) -> TensorDataset | None:
    """Views on the tokens: rows that overlap take no memory."""
    if not len(ids):
        return None
    if len(ids) <= block_size:
        raise DataError(
            f"{path}: a part has {len(ids)} tokens, fewer than one row of {block_size} + 1. "
            "Lower data.options.block_size, or change data.validation and data.test."
        )
    return TensorDataset(ids[:-1].unfold(0, block_size, stride), ids[1:].unfold(0, block_size, stride))


def encode(content: str | bytes, state: dict[str, Any]) -> torch.Tensor:
    """Return token numbers (N,) int64.

    Args:
        content: characters for `chars`, anything for `bytes`.
        state: `transform_state` of kind "text".

    Raises:
        DataError: a character that the vocabulary lacks.
    """
    if state["tokens"] == "bytes":
        raw = content.encode() if isinstance(content, str) else content
        return torch.frombuffer(bytearray(raw), dtype=torch.uint8).long() if raw else torch.zeros(0, dtype=torch.int64)
    number = {character: index for index, character in enumerate(state["vocabulary"])}
    try:
        return torch.tensor([number[character] for character in content], dtype=torch.int64)
    except KeyError as error:
        known = len(number)
        raise DataError(f"the character {error.args[0]!r} is not among the {known} of the training text.") from None


def decode(ids: list[int], state: dict[str, Any]) -> str:
    """Return the text of token numbers; the inverse of `encode`."""
    if state["tokens"] == "bytes":
        return bytes(ids).decode("utf-8", "replace")
    return "".join(state["vocabulary"][index] for index in ids)
