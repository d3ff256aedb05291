"""Look at checkpoints without loading them: what is inside, and is every byte right."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lucid.errors import CheckpointError
from lucid.serialization import dtypes
from lucid.serialization.decode import Decoder, decoding
from lucid.serialization.handle import Source
from lucid.serialization.nodes import Node, children, key_text
from lucid.serialization.reader import Reader


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file. `path` is what `select=` takes; `bytes` is 0 for a second name of stored data."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    device: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Info:
    """What a file holds."""

    file: str
    version: str
    bytes: int
    meta: dict[str, Any]
    """What the writer noted: for a checkpoint of a run its `run_id`, `step` and `value`."""
    tensors: list[TensorInfo]
    values: dict[str, Any]
    """The plain values of the state by path; of others a word for their kind."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        total = sum(tensor.bytes for tensor in self.tensors)
        lines = [f"{self.file}: format {self.version}, {self.bytes} bytes, {len(self.tensors)} tensors ({total} bytes)"]
        lines += [f"  {key} = {value!r}" for key, value in self.meta.items()]
        wide = max((len(tensor.path) for tensor in self.tensors), default=0)
        lines += [
            f"  {tensor.path:<{wide}}  {tensor.dtype:<10} {list(tensor.shape)!s:<20} {tensor.device:<7} {tensor.bytes}"
            for tensor in self.tensors
        ]
        return "\n".join(lines + [f"  {path} = {value!r}" for path, value in self.values.items()])


def inspect(path: Source) -> Info:
    """Return what a file holds; only its header and manifest are read (and verified), not its tensors.

    Raises:
        FormatError: no `.lcs` file, or a broken one.
        ChecksumError: header or manifest changed since they were written.
    """
    with Reader(path) as reader, decoding(reader.where):
        user = Decoder({}).decode(reader.user)
        tensors: list[TensorInfo] = []
        values: dict[str, Any] = {}
        seen: set[int] = set()
        for name, node in _leaves(reader.tree, ""):
            if isinstance(node, dict) and node.get("$") in ("t", "p"):
                record = reader.records[node["i"]]
                first = record.block is not None and node["i"] not in seen
                seen.add(node["i"])
                size = record.block.stop - record.block.start if record.block and first else 0
                kind = dtypes.name_of(record.dtype)
                tensors.append(TensorInfo(name, kind, record.full_shape, record.device, size))
            else:
                values[name] = f"<{node['$']}>" if isinstance(node, dict) and "$" in node else node
        version = ".".join(map(str, (1, reader.footer.minor)))
        return Info(reader.where, version, reader.size, user if isinstance(user, dict) else {}, tensors, values)


def _leaves(node: Node, path: str) -> Iterator[tuple[str, Node]]:
    items = list(children(node))
    if not items:
        yield path, node
    for key, item in items:
        yield from _leaves(item, f"{path}/{key_text(key)}" if path else key_text(key))


@dataclass(frozen=True, slots=True)
class FileReport:
    """Whether one file is right; if not, why."""

    file: str
    ok: bool
    bytes: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """Whether all files are right."""

    files: list[FileReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What is not wrong but worth knowing: files of writers that died, pointers to files that are gone."""

    @property
    def ok(self) -> bool:
        """Whether every file is right."""
        return all(file.ok for file in self.files)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {"ok": self.ok, **asdict(self)}

    def __str__(self) -> str:
        lines = [f"{'ok ' if file.ok else 'BAD'}  {file.file}  {_said(file)}" for file in self.files]
        return "\n".join(lines + [f"note {note}" for note in self.notes])


def _said(file: FileReport) -> str:
    """Return the size of a right file or what is wrong with a bad one, whose message begins with its path again."""
    return file.reason.removeprefix(file.file).lstrip(": ") if file.reason else f"{file.bytes:,} bytes"


def verify(path: Source) -> Report:
    """Read every byte of a file, or of all `.lcs` files below a folder, and compare the checksums.

    Raises:
        CheckpointError: a folder without any `.lcs` file.
        OSError: there is nothing at `path`.
    """
    if not isinstance(path, str | os.PathLike) or not os.path.isdir(path):
        return Report([_verify_file(path)])
    files, notes = [], []
    for item in sorted(Path(path).rglob("*")):
        if ".lcs.tmp-" in item.name:
            notes.append(f"{item} is left over from a writer that died; the next run removes it.")
        elif item.suffix == ".lcs":
            files.append(_verify_file(item))
        elif item.name in ("last", "best") and item.is_file():
            notes += _pointer(item)
    if not files:
        raise CheckpointError(f"{path} must hold .lcs files, there are none below it.")
    return Report(files, notes)


def _verify_file(path: Source) -> FileReport:
    name, size = str(path), 0
    try:
        with Reader(path) as reader:
            name, size = reader.where, reader.size
            reader.chunks.verify()
            with decoding(reader.where):
                for index in range(len(reader.records)):
                    _ = reader.records[index]
        return FileReport(name, True, size)
    except CheckpointError as error:
        return FileReport(name, False, size, str(error))


def _pointer(path: Path) -> list[str]:
    target = path.read_text(errors="replace").strip()
    if target.endswith(".lcs") and not (path.parent / Path(target).name).exists():
        return [f"{path} names {target}, which is not there; the newest step counts, not the pointer."]
    return []
