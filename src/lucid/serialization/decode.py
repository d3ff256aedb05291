"""From JSON nodes back to the nested state. Nothing here imports by name or calls what the file names."""

from __future__ import annotations

import base64
import dataclasses
import enum
import random
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from lucid.errors import CheckpointError, ClassNotAllowedError, FormatError, LimitError
from lucid.serialization import values
from lucid.serialization.encode import BIT_GENERATORS, FACTORIES, MAX_DEPTH, check_types, is_named_tuple

Node = Any


@contextmanager
def decoding(where: str) -> Iterator[None]:
    """Turn whatever a broken or hostile tree makes Python or torch raise into a `FormatError`."""
    try:
        yield
    except CheckpointError as error:
        if where not in str(error):
            error.args = (f"{where}: {error}",)
        raise
    except Exception as error:  # whatever it is, it comes from the file
        raise FormatError(f"{where}: the tree is broken: {type(error).__name__}: {str(error)[:200]}") from error


class Decoder:
    """Builds values from nodes.

    `tensors` has the tensor of each index that the nodes refer to; of these, `live` are handed out as they are.
    """

    def __init__(
        self,
        tensors: Mapping[int, torch.Tensor],
        types: Sequence[type] = (),
        live: Mapping[int, torch.Tensor] | None = None,
    ) -> None:
        self.tensors = tensors
        self.types = check_types(types)
        self._live = live or {}
        self._made: dict[tuple[int, str, bool], torch.Tensor] = {}
        # What may be copied out of tensors: each once. Else a small file could name one large tensor many times.
        self._room: int | None = None

    def decode(self, node: Node, depth: int = 0) -> Any:
        """Return the value of a node; a tag this reader does not know is a `FormatError`."""
        if depth > 2 * MAX_DEPTH:
            raise FormatError(f"the tree must nest at most {2 * MAX_DEPTH} levels.")
        if type(node) is list:
            return [self.decode(item, depth + 1) for item in node]
        if type(node) is not dict:
            return node
        tag = node.get("$")
        if tag is None:
            return {key: self.decode(item, depth + 1) for key, item in node.items()}
        reader = _READERS.get(tag) if isinstance(tag, str) else None
        if reader is not None:
            return reader(self, node, depth + 1)
        small = values.READERS.get(tag) if isinstance(tag, str) else None
        if small is None:
            raise FormatError(
                f"the tree has the unknown tag {str(tag)[:40]!r}: a newer version wrote it, or it is broken."
            )
        return small(node["v"])

    def _items(self, node: Node, depth: int) -> list[Any]:
        return [self.decode(item, depth) for item in node["v"]]

    def _pairs(self, node: Node, depth: int) -> list[tuple[Any, Any]]:
        return [(self.decode(key, depth), self.decode(item, depth)) for key, item in node["v"]]

    # --- torch -----------------------------------------------------------------------------------------------------

    def _tensor(self, node: Node, depth: int) -> torch.Tensor:
        if node["i"] in self._live:
            return self._live[node["i"]]
        # One object for each tensor that was tied, so that an in-place change is seen under all its names.
        key = (node["i"], node["$"], bool(node.get("g", False)))
        made = self._made.get(key)
        if made is None:
            made = self.tensors[key[0]]
            if key[1] == "p":
                made = torch.nn.Parameter(made.detach(), requires_grad=key[2])
            elif key[2] or made.requires_grad:
                made = made.detach().requires_grad_(key[2])
            self._made[key] = made
        return made

    def _plain(self, index: int) -> torch.Tensor:
        """Return a tensor that is about to be copied; a view that claims more than there is in memory is refused."""
        if self._room is None:
            self._room = sum(tensor.untyped_storage().nbytes() for tensor in self.tensors.values())
        tensor = self.tensors[index].detach()
        size = tensor.numel() * tensor.element_size()
        self._room -= size
        if self._room < 0 or size > tensor.untyped_storage().nbytes():
            raise LimitError("the tree uses more bytes than the file has.")
        return tensor

    def _sparse(self, node: Node, depth: int) -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls these layouts experimental whenever one is made
            return self._sparse_parts(node)

    def _sparse_parts(self, node: Node) -> torch.Tensor:
        parts = {name: self._plain(index) for name, index in node["p"].items()}
        kind = node["k"]
        if kind == "sparse_coo":
            made = torch.sparse_coo_tensor(
                parts["indices"], parts["values"], node["n"], is_coalesced=bool(node["q"]), check_invariants=True
            )
        elif kind in ("sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc"):
            made = torch.sparse_compressed_tensor(
                parts["compressed"], parts["plain"], parts["values"], node["n"], layout=getattr(torch, kind),
                check_invariants=True,
            )  # fmt: skip
        else:
            raise FormatError(f"the tree has the unknown layout {str(kind)[:40]!r}.")
        return made.requires_grad_(bool(node["g"]))

    def _quantized(self, node: Node, depth: int) -> torch.Tensor:
        part = self._plain(node["i"])
        return torch._make_per_tensor_quantized_tensor(part, values.read_float(node["s"]), int(node["z"]))

    def _torch_generator(self, node: Node, depth: int) -> torch.Generator:
        made = torch.Generator(node["d"])
        made.set_state(self.decode(node["v"], depth).clone())
        return made

    # --- bytes and numbers -----------------------------------------------------------------------------------------

    def _bytes(self, node: Node, depth: int) -> bytes | bytearray:
        kind = bytes if node["$"] == "bytes" else bytearray
        if "i" in node:
            return kind(self._plain(node["i"]).numpy().tobytes())
        return kind(base64.b64decode(node["v"], validate=True))

    def _ints(self, node: Node, depth: int) -> list[int] | tuple[int, ...]:
        made: list[int] = self._plain(node["i"]).tolist()
        return made if node["k"] == "list" else tuple(made)

    def _array(self, node: Node, depth: int) -> np.ndarray[Any, Any]:
        dtype = values.read_numpy_dtype(node["d"])
        flat = self._plain(node["i"]).reshape(-1).view(torch.uint8).numpy()
        if dtype.itemsize == 0:
            return np.empty(node["n"], dtype) if flat.size == 0 and _few(node["n"]) else _bad_array()
        made = flat.view(dtype).reshape(node["n"])
        return np.asfortranarray(made) if node.get("o") == "F" else made

    def _object_array(self, node: Node, depth: int) -> np.ndarray[Any, Any]:
        items = self._items(node, depth)
        made: np.ndarray[Any, Any] = np.empty(len(items), object)
        for at, item in enumerate(items):
            made[at] = item
        return made.reshape(node["n"])

    def _numpy_scalar(self, node: Node, depth: int) -> Any:
        dtype = values.read_numpy_dtype(node["d"])
        raw = base64.b64decode(node["v"], validate=True)
        if dtype.itemsize == 0:
            return dtype.type()
        return np.frombuffer(raw, dtype)[0]

    def _numpy_generator(self, node: Node, depth: int) -> np.random.Generator:
        kind = node["k"]
        if kind not in BIT_GENERATORS:
            raise FormatError(f"the tree has the unknown bit generator {str(kind)[:40]!r}.")
        source = getattr(np.random, kind)()
        source.state = self.decode(node["v"], depth)
        return np.random.Generator(source)

    def _numpy_state(self, node: Node, depth: int) -> np.random.RandomState:
        made = np.random.RandomState()
        made.set_state(self.decode(node["v"], depth))
        return made

    def _python_random(self, node: Node, depth: int) -> random.Random:
        made = random.Random()
        made.setstate(self.decode(node["v"], depth))
        return made

    # --- containers and the caller's classes -----------------------------------------------------------------------

    def _ordered(self, node: Node, depth: int) -> OrderedDict[Any, Any]:
        made: OrderedDict[Any, Any] = OrderedDict(self._pairs(node, depth))
        if "m" in node:
            made._metadata = self.decode(node["m"], depth)  # type: ignore[attr-defined]
        return made

    def _default(self, node: Node, depth: int) -> defaultdict[Any, Any]:
        factory: Any = None if node["d"] is None else FACTORIES[node["d"]]
        return defaultdict(factory, self._pairs(node, depth))

    def _class(self, node: Node) -> type:
        name = node["c"]
        cls = self.types.get(name) if isinstance(name, str) else None
        if cls is None:
            raise ClassNotAllowedError(
                f"the file holds an object of the class {str(name)[:200]!r}, which types= does not list: add the class "
                "to types= if you trust the file."
            )
        return cls

    def _enum(self, node: Node, depth: int) -> Any:
        cls = self._class(node)
        if not issubclass(cls, enum.Enum):
            raise FormatError(f"the file says that {cls.__qualname__} is an enum, which it is not.")
        return cls.__members__[node["v"]]

    def _dataclass(self, node: Node, depth: int) -> Any:
        cls = self._class(node)
        names = {field.name for field in dataclasses.fields(cls)}
        if set(node["v"]) != names:
            raise FormatError(f"{cls.__qualname__} has the fields {sorted(names)}, the file has {sorted(node['v'])}.")
        made: Any = object.__new__(cls)  # no __init__, no __post_init__: nothing of the class runs
        for name, item in node["v"].items():
            object.__setattr__(made, name, self.decode(item, depth))
        return made

    def _named_tuple(self, node: Node, depth: int) -> Any:
        cls = self._class(node)
        items = self._items(node, depth)
        if not is_named_tuple(cls) or len(items) != len(cls._fields):  # type: ignore[attr-defined]
            raise FormatError(f"{cls.__qualname__} does not have the {len(items)} fields of the file.")
        return tuple.__new__(cls, items)


def _few(shape: list[int]) -> bool:
    return len(shape) <= 64 and all(type(n) is int and 0 <= n < 1 << 20 for n in shape)


def _bad_array() -> Any:
    raise FormatError("an array of elements without bytes has a wrong shape.")


_READERS: dict[str, Callable[[Decoder, Node, int], Any]] = {
    "t": Decoder._tensor,
    "p": Decoder._tensor,
    "sparse": Decoder._sparse,
    "q": Decoder._quantized,
    "tgen": Decoder._torch_generator,
    "bytes": Decoder._bytes,
    "bytearray": Decoder._bytes,
    "ints": Decoder._ints,
    "nd": Decoder._array,
    "ndobj": Decoder._object_array,
    "nps": Decoder._numpy_scalar,
    "npgen": Decoder._numpy_generator,
    "nprs": Decoder._numpy_state,
    "pyrandom": Decoder._python_random,
    "tuple": lambda self, node, depth: tuple(self._items(node, depth)),
    "set": lambda self, node, depth: set(self._items(node, depth)),
    "frozenset": lambda self, node, depth: frozenset(self._items(node, depth)),
    "deque": lambda self, node, depth: deque(self._items(node, depth), node["n"]),
    "size": lambda self, node, depth: torch.Size(node["v"]),
    "slice": lambda self, node, depth: slice(*self._items(node, depth)),
    "dict": lambda self, node, depth: dict(self._pairs(node, depth)),
    "odict": Decoder._ordered,
    "counter": lambda self, node, depth: Counter(dict(self._pairs(node, depth))),
    "ddict": Decoder._default,
    "enum": Decoder._enum,
    "dc": Decoder._dataclass,
    "nt": Decoder._named_tuple,
}
