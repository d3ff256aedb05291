"""Read a file straight into live tensors: no second copy of the state, and nothing written before all of it fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lucid.errors import MismatchError, nearest
from lucid.serialization import memory
from lucid.serialization.decode import Decoder, decoding
from lucid.serialization.handle import Source
from lucid.serialization.nodes import PAIRS, Node, children, find, key_text, references
from lucid.serialization.reader import Reader
from lucid.serialization.records import Record

Path = tuple[Any, ...]

SHOWN = 10  # problems listed in one message


def load_into(
    path: Source, target: Any, *, select: str | None = None, strict: bool = True, types: Sequence[type] = ()
) -> Any:
    """Read a file into the tensors of `target`, in place, with every checksum verified.

    The tree of the file and `target` are walked together. A tensor in both must have one shape and dtype and is
    filled in place; devices and memory layouts may differ. Where `target` has nothing (`None`, an empty container) the
    part of the file is loaded fresh: the state of an optimizer that has made no step yet, for instance.

    Args:
        path: a file, its path or URL.
        target: nested dicts, lists and tuples with the live tensors.
        select: path of the part of the file that `target` stands for, such as `model`. None: all of it.
        strict: whether a tensor that only one side has is an error. False: those of the file are loaded fresh, those
            of `target` stay as they are.
        types: enums, dataclasses and named tuples that the file may hold.

    Returns:
        The state of the file, in which the filled tensors are the very objects of `target`.

    Raises:
        MismatchError: keys, shapes or dtypes differ; no tensor has been touched. Also: tensors that are tied in
            `target` have different values in the file, which shows only while reading.
        ChecksumError: bytes changed; the tensors of `target` then hold undefined values.

    Example:
        >>> import tempfile, torch, lucid.serialization as s
        >>> weight = torch.zeros(2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = s.save({"weight": torch.ones(2), "step": 3}, f"{folder}/a.lcs")
        ...     s.load_into(f"{folder}/a.lcs", {"weight": weight})["step"], weight
        (3, tensor([1., 1.]))
    """
    with memory.no_collection(), Reader(path) as reader:
        match = Match(reader, types)
        with decoding(reader.where):
            node = reader.tree if select is None else find(reader.tree, select, reader.where)
            match.walk(node, target, ())
        match.check(strict)
        tensors = match.fill(references(node))
        live = {index: pairs[0][1] for index, pairs in match.pairs.items()}
        with decoding(reader.where):
            return Decoder(tensors, types, live).decode(node)


class Match:
    """Pairs the tensors of a file with live ones."""

    def __init__(self, reader: Reader, types: Sequence[type]) -> None:
        self.reader = reader
        self.pairs: dict[int, list[tuple[Path, torch.Tensor]]] = {}
        self._keys = Decoder({}, types)
        self._wrong: list[str] = []
        self._missing: list[str] = []
        self._unexpected: list[str] = []

    def walk(self, node: Node, target: Any, path: Path) -> None:
        """Pair what a node and a part of the live state have in common."""
        if isinstance(target, torch.Tensor):
            self._pair(node, target, path)
        elif isinstance(target, Mapping) and target:
            self._table(self._items(node), target, path)
        elif isinstance(target, list | tuple) and target:
            self._table(self._items(node), dict(enumerate(target)), path)

    def _items(self, node: Node) -> dict[Any, Node]:
        if isinstance(node, dict) and "$" not in node:
            return node
        pairs = isinstance(node, dict) and node["$"] in PAIRS
        return {self._keys.decode(key) if pairs else key: item for key, item in children(node)}

    def _table(self, items: dict[Any, Node], target: Mapping[Any, Any], path: tuple[Any, ...]) -> None:
        for key, item in items.items():
            if key in target:
                self.walk(item, target[key], (*path, key))
            else:
                self._unexpected.extend(_tensor_paths(item, (*path, key)))
        for key, value in target.items():
            if key not in items:
                self._missing.extend(_live_paths(value, (*path, key)))

    def _pair(self, node: Node, target: torch.Tensor, path: Path) -> None:
        if not _is_tensor(node):
            self._wrong.append(f"{_show(path)} is a tensor in the live state and none in the file")
            return
        record = self.reader.records[node["i"]]
        shape = record.full_shape
        if target.shape != shape:
            self._wrong.append(f"tensor {_show(path)} has shape {shape}, the live state expects {tuple(target.shape)}")
        elif target.dtype is not record.dtype:
            self._wrong.append(f"tensor {_show(path)} has dtype {record.dtype}, the live state expects {target.dtype}")
        else:
            self.pairs.setdefault(node["i"], []).append((path, target))

    def check(self, strict: bool) -> None:
        """Raise `MismatchError` if the two sides differ."""
        problems = list(self._wrong)
        if strict:
            problems += [
                f"tensor {name!r} of the live state is not in the file.{nearest(name, self._unexpected)}"
                for name in self._missing
            ]
            problems += [f"tensor {name!r} of the file is not in the live state" for name in self._unexpected]
        if problems:
            more = f"\n  and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
            raise MismatchError(
                f"{self.reader.where} does not fit the live state:\n  " + "\n  ".join(problems[:SHOWN]) + more
            )

    def fill(self, needed: Sequence[int]) -> dict[int, torch.Tensor]:
        """Read all needed tensors, into live ones where there are any."""
        direct: dict[int, torch.Tensor] = {}
        taken: set[int] = set()
        for index in needed:
            pairs = self.pairs.get(index, [])
            if not pairs:
                continue
            tensor = pairs[0][1]
            if _is_direct(self.reader.records[index], tensor) and (address := tensor.data_ptr()) not in taken:
                direct[index] = tensor
                taken.add(address)
        fresh = [index for index in needed if index not in self.pairs]
        made = self.reader.read([*direct, *fresh], direct)
        with torch.no_grad():
            for index, pairs in self.pairs.items():
                if len(pairs) == 1 and index in direct:
                    continue
                self._copy(index, pairs, direct, taken)
        filled = [tensor for pairs in self.pairs.values() for _, tensor in pairs if not tensor.is_inference()]
        torch.autograd.graph.increment_version(filled)  # bytes came in behind autograd's back
        return made

    def _copy(
        self, index: int, pairs: list[tuple[Path, torch.Tensor]], direct: Mapping[int, torch.Tensor], taken: set[int]
    ) -> None:
        """Copy to the targets that could not be read into: other devices and layouts, views, second names."""
        rest = pairs[1:] if index in direct else pairs
        source = direct.get(index)
        for path, target in rest:
            if source is None:
                source = self.reader.read([index])[index]  # one at a time: memory for one tensor
            if target.data_ptr() == source.data_ptr() and target.stride() == source.stride():
                continue
            if target.numel() and target.data_ptr() in taken and not torch.equal(target.cpu(), source):
                raise MismatchError(
                    f"{self.reader.where}: {_show(path)} shares its memory with another tensor of the live state, but "
                    "the file has other values for it: the live model is tied, the saved one was not."
                )
            target.copy_(source)
            taken.add(target.data_ptr())


def _show(path: Path) -> str:
    return repr("/".join(map(str, path)))


def _is_tensor(node: Node) -> bool:
    return isinstance(node, dict) and node.get("$") in ("t", "p")


def _is_direct(record: Record, tensor: torch.Tensor) -> bool:
    """Say whether the bytes of the file are the bytes of the live tensor's memory."""
    return (
        record.block is not None
        and record.stride is None
        and record.expand is None
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not (tensor.is_conj() or tensor.is_neg())
    )


def _tensor_paths(node: Node, path: tuple[Any, ...]) -> list[str]:
    if _is_tensor(node):
        return ["/".join(map(str, path))]
    return [name for key, item in children(node) for name in _tensor_paths(item, (*path, key_text(key)))]


def _live_paths(value: Any, path: tuple[Any, ...]) -> list[str]:
    if isinstance(value, torch.Tensor):
        return ["/".join(map(str, path))]
    if isinstance(value, Mapping):
        return [name for key, item in value.items() for name in _live_paths(item, (*path, key))]
    if isinstance(value, list | tuple):
        return [name for at, item in enumerate(value) for name in _live_paths(item, (*path, at))]
    return []
