"""From a nested state to plain JSON nodes and a list of slots.

`null`, booleans, strings, ints within 2^53, finite floats, lists and string-keyed dicts are themselves; all else is
`{"$": tag, ...}`. The table is in docs/format.md.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import math
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from lucid.errors import ConfigError, UnsupportedTypeError
from lucid.serialization import values
from lucid.serialization.slots import Slot, array_slot, bytes_slot, tensor_slot

MAX_DEPTH = 128
LONG_BYTES = 256  # longer byte strings are stored as data, not as text
LONG_INTS = 256  # so are lists of at least so many integers (the states of random generators, orders of rows)

Path = tuple[object, ...]
FACTORIES: dict[str, Any] = {
    "dict": dict, "list": list, "set": set, "tuple": tuple, "int": int, "float": float, "str": str, "bool": bool,
    "Counter": Counter, "OrderedDict": OrderedDict, "deque": deque,
}  # fmt: skip
_FACTORY_NAMES = {factory: name for name, factory in FACTORIES.items()}


def class_name(cls: type) -> str:
    """Return the name under which a class of `types=` stands in a file."""
    return f"{cls.__module__}:{cls.__qualname__}"


def check_types(types: Sequence[type]) -> dict[str, type]:
    """Return the classes the caller allows, by name.

    Raises:
        ConfigError: one of them is no enum, dataclass or named tuple.
    """
    for cls in types:
        if not (
            isinstance(cls, type)
            and (issubclass(cls, enum.Enum) or dataclasses.is_dataclass(cls) or is_named_tuple(cls))
        ):
            raise ConfigError(f"types must list enums, dataclasses and named tuples, got {cls!r}.")
    return {class_name(cls): cls for cls in types}


def is_named_tuple(cls: type) -> bool:
    """Say whether a class was made by `NamedTuple` or `namedtuple`."""
    return issubclass(cls, tuple) and cls is not tuple and isinstance(getattr(cls, "_fields", None), tuple)


def show(path: Sequence[object]) -> str:
    """Return a path in the state as messages and `select` have it: `optimizer/state/0/exp_avg`."""
    return "/".join(map(str, path)) or "the state itself"


class Encoder:
    """Walks one state; afterwards `slots` has what is to be stored as bytes."""

    def __init__(self, types: Sequence[type] = ()) -> None:
        self.types = check_types(types)
        self.slots: list[Slot] = []
        self._known: dict[int, list[tuple[torch.Tensor, int]]] = {}  # by address

    def encode(self, value: Any, path: Path = ()) -> Any:
        """Return the node of a value.

        Raises:
            UnsupportedTypeError: something in it cannot be stored; the message has the path.
        """
        kind = type(value)
        if kind is str or kind is bool or value is None:
            return value
        writer = _WRITERS.get(kind)
        if writer is not None:
            if len(path) > MAX_DEPTH:
                raise UnsupportedTypeError(
                    f"{show(path[:4])}/...: a state must nest at most {MAX_DEPTH} levels. Does it contain itself?"
                )
            return writer(self, value, path)
        small = values.WRITERS.get(kind)
        if small is not None:
            try:
                return {"$": small.tag, "v": small.write(value)}
            except TypeError as error:
                raise self._unsupported(value, path, str(error)) from None
        return self._rare(value, path)

    def _rare(self, value: Any, path: Path) -> Any:
        if isinstance(value, np.generic):
            return self._numpy_scalar(value, path)
        if isinstance(value, np.dtype):
            return {"$": "npdtype", "v": values.write_numpy_dtype(value)}
        if isinstance(value, torch.Tensor):
            raise self._unsupported(value, path, "a tensor subclass; store its plain tensors")
        kind = type(value)
        name = class_name(kind)
        if isinstance(value, enum.Enum) or is_named_tuple(kind) or dataclasses.is_dataclass(kind):
            if self.types.get(name) is not kind:
                raise self._unsupported(value, path, f"list {kind.__qualname__} in types= to store it")
            return self._named(value, name, path)
        raise self._unsupported(value, path, "store its state_dict() or plain values")

    def _named(self, value: Any, name: str, path: Path) -> Any:
        if isinstance(value, enum.Enum):
            if value.name not in type(value).__members__:
                raise self._unsupported(value, path, "a combination of flags without a name; store its .value")
            return {"$": "enum", "c": name, "v": value.name}
        if isinstance(value, tuple):
            names = type(value)._fields  # type: ignore[attr-defined]
            items = [self.encode(item, (*path, at)) for at, item in zip(names, value, strict=True)]
            return {"$": "nt", "c": name, "v": items}
        fields = {f.name: self.encode(getattr(value, f.name), (*path, f.name)) for f in dataclasses.fields(value)}
        return {"$": "dc", "c": name, "v": fields}

    def _unsupported(self, value: Any, path: Path, advice: str) -> UnsupportedTypeError:
        kind = type(value)
        return UnsupportedTypeError(
            f"{show(path)} must be a tensor, an array or a plain value, got {kind.__module__}.{kind.__qualname__}: "
            f"{advice}."
        )

    def add(self, slot: Slot) -> int:
        """Store a slot and return its index."""
        self.slots.append(slot)
        return len(self.slots) - 1

    # --- numbers and bytes -----------------------------------------------------------------------------------------

    def _int(self, value: int, path: Path) -> Any:
        return value if -(1 << 53) <= value <= 1 << 53 else {"$": "int", "v": values.write_int(value)}

    def _float(self, value: float, path: Path) -> Any:
        return value if math.isfinite(value) else {"$": "f", "v": values.write_float(value)}

    def _bytes(self, value: bytes | bytearray, path: Path) -> Any:
        tag = "bytes" if type(value) is bytes else "bytearray"
        if len(value) <= LONG_BYTES:
            return {"$": tag, "v": base64.b64encode(value).decode()}
        return {"$": tag, "i": self.add(bytes_slot(value, path))}

    # --- containers ------------------------------------------------------------------------------------------------

    def _items(self, value: Sequence[Any], path: Path) -> list[Any]:
        return [self.encode(item, (*path, at)) for at, item in enumerate(value)]

    def _list(self, value: list[Any], path: Path) -> Any:
        packed = self._long_ints(value, path, "list")
        return packed if packed is not None else self._items(value, path)

    def _tuple(self, value: tuple[Any, ...], path: Path) -> Any:
        packed = self._long_ints(value, path, "tuple")
        return packed if packed is not None else {"$": "tuple", "v": self._items(value, path)}

    def _long_ints(self, value: Sequence[Any], path: Path, kind: str) -> Any:
        if len(value) < LONG_INTS or not all(type(item) is int for item in value):
            return None
        if min(value) < -(1 << 63) or max(value) >= 1 << 63:
            return None
        return {"$": "ints", "k": kind, "i": self.add(array_slot(np.array(value, np.int64), path))}

    def _set(self, value: set[Any] | frozenset[Any], path: Path) -> Any:
        members = sorted(value, key=_order)  # a set's own order changes from process to process, the bytes must not
        return {"$": type(value).__name__, "v": [self.encode(item, (*path, "{}")) for item in members]}

    def _deque(self, value: deque[Any], path: Path) -> Any:
        return {"$": "deque", "v": self._items(list(value), path), "n": value.maxlen}

    def _size(self, value: torch.Size, path: Path) -> Any:
        return {"$": "size", "v": [int(n) for n in value]}

    def _slice(self, value: slice, path: Path) -> Any:
        return {"$": "slice", "v": self._items((value.start, value.stop, value.step), path)}

    def _dict(self, value: dict[Any, Any], path: Path) -> Any:
        for key in value:
            if type(key) is not str or key == "$":
                return {"$": "dict", "v": self._pairs(value, path)}
        return {key: self.encode(item, (*path, key)) for key, item in value.items()}

    def _pairs(self, value: dict[Any, Any], path: Path) -> list[Any]:
        return [[self._key(key, path), self.encode(item, (*path, key))] for key, item in value.items()]

    def _key(self, key: Any, path: Path) -> Any:
        if isinstance(key, torch.Tensor | np.ndarray):
            raise self._unsupported(key, (*path, "key"), "a tensor or array cannot be a key")
        return self.encode(key, (*path, "key"))

    def _ordered(self, value: OrderedDict[Any, Any], path: Path) -> Any:
        node = {"$": "odict", "v": self._pairs(value, path)}
        metadata = getattr(value, "_metadata", None)  # module versions, which torch hangs on a state_dict
        if metadata is not None:
            node["m"] = self.encode(metadata, (*path, "_metadata"))
        return node

    def _counter(self, value: Counter[Any], path: Path) -> Any:
        return {"$": "counter", "v": self._pairs(value, path)}

    def _default(self, value: defaultdict[Any, Any], path: Path) -> Any:
        factory = value.default_factory
        if factory is not None and factory not in _FACTORY_NAMES:
            raise self._unsupported(value, path, f"its default factory {factory!r} is code; store dict(...) instead")
        name = None if factory is None else _FACTORY_NAMES[factory]
        return {"$": "ddict", "v": self._pairs(value, path), "d": name}

    # --- torch -----------------------------------------------------------------------------------------------------

    def _tensor(self, value: torch.Tensor, path: Path) -> Any:
        if value.layout is not torch.strided:
            return self._sparse(value, path)
        if value.is_quantized:
            return self._quantized(value, path)
        node: dict[str, Any] = {"$": "t", "i": self._tensor_index(value, path)}
        if value.requires_grad:
            node["g"] = True
        return node

    def _parameter(self, value: torch.nn.Parameter, path: Path) -> Any:
        return {"$": "p", "i": self._tensor_index(value, path), "g": value.requires_grad}

    def _tensor_index(self, value: torch.Tensor, path: Path) -> int:
        if value.is_meta:
            raise self._unsupported(value, path, "a tensor on the meta device has no data")
        if value.is_nested:
            raise self._unsupported(value, path, "a nested tensor has no storable form; store list(value.unbind())")
        data = value.detach() if value.requires_grad else value
        address = data.data_ptr()  # 0 for an empty tensor
        known = self._known.setdefault(address, []) if address else []
        for other, index in known:
            if _tied(value, other):
                return index  # stored once
        slot = tensor_slot(data, path)
        if slot is None:
            raise self._unsupported(value, path, f"dtype {value.dtype} has no storable form; convert it")
        known.append((value, self.add(slot)))
        return len(self.slots) - 1

    def _sparse(self, value: torch.Tensor, path: Path) -> Any:
        parts: dict[str, torch.Tensor]
        if value.layout is torch.sparse_coo:
            parts = {"indices": value._indices(), "values": value._values()}
        elif value.layout in (torch.sparse_csr, torch.sparse_bsr):
            parts = {"compressed": value.crow_indices(), "plain": value.col_indices(), "values": value.values()}
        elif value.layout in (torch.sparse_csc, torch.sparse_bsc):
            parts = {"compressed": value.ccol_indices(), "plain": value.row_indices(), "values": value.values()}
        else:
            raise self._unsupported(value, path, f"layout {value.layout} has no storable form; convert it")
        node: dict[str, Any] = {name: self._tensor_index(part, (*path, name)) for name, part in parts.items()}
        coalesced = value.layout is torch.sparse_coo and value.is_coalesced()
        kind = str(value.layout)[6:]
        return {"$": "sparse", "k": kind, "n": list(value.shape), "p": node, "q": coalesced, "g": value.requires_grad}

    def _quantized(self, value: torch.Tensor, path: Path) -> Any:
        if value.qscheme() is not torch.per_tensor_affine:
            raise self._unsupported(value, path, f"{value.qscheme()} has no storable form; dequantize it")
        index = self._tensor_index(value.int_repr(), path)
        kind = str(value.dtype)[6:]
        return {"$": "q", "i": index, "dt": kind, "s": values.write_float(value.q_scale()), "z": value.q_zero_point()}

    def _torch_generator(self, value: torch.Generator, path: Path) -> Any:
        return {"$": "tgen", "d": str(value.device), "v": self.encode(value.get_state(), path)}

    # --- numpy and random ------------------------------------------------------------------------------------------

    def _array(self, value: np.ndarray[Any, Any], path: Path) -> Any:
        if value.dtype == object:
            return {"$": "ndobj", "n": list(value.shape), "v": self._items(value.ravel().tolist(), path)}
        if value.dtype.hasobject:
            raise self._unsupported(value, path, "its dtype holds objects")
        fortran = value.ndim > 1 and value.flags.f_contiguous and not value.flags.c_contiguous
        form = values.write_numpy_dtype(value.dtype)
        if values.read_numpy_dtype(form) != value.dtype:
            raise self._unsupported(value, path, f"its dtype {value.dtype} has padding or titles; use a packed one")
        node = {"$": "nd", "d": form, "n": list(value.shape), "i": self.add(array_slot(value, path))}
        return {**node, "o": "F"} if fortran else node

    def _numpy_scalar(self, value: np.generic, path: Path) -> Any:
        if isinstance(value, np.void | np.object_):
            raise self._unsupported(value, path, "store it as an array")
        return {"$": "nps", "d": value.dtype.str, "v": base64.b64encode(value.tobytes()).decode()}

    def _numpy_generator(self, value: np.random.Generator, path: Path) -> Any:
        source = value.bit_generator
        if type(source).__name__ not in BIT_GENERATORS:
            raise self._unsupported(value, path, f"its bit generator {type(source).__name__} is not one of NumPy's")
        return {"$": "npgen", "k": type(source).__name__, "v": self.encode(dict(source.state), path)}

    def _numpy_state(self, value: np.random.RandomState, path: Path) -> Any:
        return {"$": "nprs", "v": self.encode(value.get_state(legacy=False), path)}

    def _python_random(self, value: random.Random, path: Path) -> Any:
        return {"$": "pyrandom", "v": self.encode(value.getstate(), path)}


def _tied(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Say whether two tensors at one address are the same bytes read the same way."""
    if one is not other and (one.is_conj() or one.is_neg() or other.is_conj() or other.is_neg()):
        return False
    return (
        one.shape == other.shape
        and one.stride() == other.stride()
        and one.dtype is other.dtype
        and one.device == other.device
    )


def _order(item: Any) -> str:
    """Return a text by which the members of a set are sorted, the same in every process."""
    if isinstance(item, frozenset):
        return "{" + ",".join(sorted(map(_order, item))) + "}"
    if isinstance(item, tuple):
        return "(" + ",".join(map(_order, item)) + ")"
    return f"{type(item).__name__}:{item!r}"


BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")

_WRITERS: dict[type, Callable[[Encoder, Any, Path], Any]] = {
    int: Encoder._int,
    float: Encoder._float,
    bytes: Encoder._bytes,
    bytearray: Encoder._bytes,
    list: Encoder._list,
    tuple: Encoder._tuple,
    set: Encoder._set,
    frozenset: Encoder._set,
    deque: Encoder._deque,
    dict: Encoder._dict,
    OrderedDict: Encoder._ordered,
    Counter: Encoder._counter,
    defaultdict: Encoder._default,
    slice: Encoder._slice,
    torch.Size: Encoder._size,
    torch.Tensor: Encoder._tensor,
    torch.nn.Parameter: Encoder._parameter,
    torch.Generator: Encoder._torch_generator,
    np.ndarray: Encoder._array,
    np.random.Generator: Encoder._numpy_generator,
    np.random.RandomState: Encoder._numpy_state,
    random.Random: Encoder._python_random,
}
