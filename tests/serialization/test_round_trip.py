"""What is saved comes back: values, bits, types, order, sharing."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lucid.errors import ClassNotAllowedError, ConfigError, UnsupportedTypeError
from lucid.serialization import load, save

from . import states
from .states import ALL_DTYPES, INITIALISED, TYPES, Color, Pair, Point, of_dtype, same, torture


def packed(state: Any, **options: Any) -> bytes:
    """Return the bytes of the file of a state."""
    file = io.BytesIO()
    save(state, file, **options)
    return file.getvalue()


def unpacked(raw: bytes, **options: Any) -> Any:
    """Return the state of the bytes of a file."""
    return load(io.BytesIO(raw), **options)


@pytest.mark.parametrize("name", list(torture()), ids=str)
def test_every_kind_of_thing_comes_back(name: Any) -> None:
    """Each part of the torture state is equal in bits and types after a save and a load."""
    part = torture()[name]
    assert same(part, unpacked(packed(part, types=TYPES), types=TYPES))


def test_whole_torture_state_comes_back_in_order() -> None:
    """All of it in one file, and the keys in their order."""
    state = torture()
    loaded = unpacked(packed(state, types=TYPES), types=TYPES)
    assert list(map(repr, state)) == list(map(repr, loaded))
    assert same(state, loaded)


def test_save_load_save_gives_the_same_bytes() -> None:
    """A loaded state saves to the same file, tied and strided tensors included."""
    first = packed(torture(), types=TYPES)
    assert packed(unpacked(first, types=TYPES), types=TYPES) == first


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3, 4)], ids=str)
def test_every_dtype_and_shape(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Random bits of every torch dtype come back, 0-d and empty ones too."""
    tensor = of_dtype(dtype, shape)
    assert same(tensor, unpacked(packed(tensor)))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("dtype", [torch.qint8, torch.quint8, torch.qint32], ids=str)
def test_quantized_tensors_come_back(dtype: torch.dtype) -> None:
    """Codes, scale and zero point of a per-tensor quantized tensor are kept."""
    tensor = torch.quantize_per_tensor(torch.randn(4), 0.1, 3, dtype)
    assert same(tensor, unpacked(packed(tensor)))


def test_strides_of_permuted_tensors_come_back() -> None:
    """A transposed and a channels-last tensor keep their layout; a gappy slice comes back contiguous."""
    layouts, gaps = torture()["layouts"], torture()["gaps"]
    assert [t.stride() for t in unpacked(packed(layouts))] == [t.stride() for t in layouts]
    assert all(t.is_contiguous() for t in unpacked(packed(gaps)))


def test_tied_and_aliased_tensors_share_memory_again() -> None:
    """A change in one name is seen under all the others, and the data is stored once."""
    wide = torch.zeros(64, 64)
    state = {"a": wide, "tied": wide, "view": wide.t(), "row": wide[3], "base missing": [wide[0:40], wide[20:60]]}
    raw = packed(state)
    assert len(raw) < 2 * wide.nbytes
    loaded = unpacked(raw)
    assert loaded["a"] is loaded["tied"]
    loaded["a"][3, 5] = 7
    assert loaded["view"][5, 3] == 7
    assert loaded["row"][5] == 7
    loaded["a"][30, 0] = 9
    assert loaded["base missing"][0][30, 0] == loaded["base missing"][1][10, 0] == 9


def test_overlap_without_a_covering_tensor_is_stored_once() -> None:
    """Two slices that overlap, neither covering the other, share their memory after loading."""
    wide = torch.arange(100.0)
    raw = packed([wide[:60], wide[40:]])
    left, right = unpacked(raw)
    assert torch.equal(left, wide[:60])
    assert torch.equal(right, wide[40:])
    left[50] = -1
    assert right[10] == -1


def test_disjoint_views_of_one_storage_stay_apart() -> None:
    """A state that was loaded into one block of memory does not become one tensor."""
    block = torch.arange(10.0)
    first, second = unpacked(packed([block[:5], block[5:]]))
    assert first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()


def test_parameters_keep_requires_grad() -> None:
    """Parameters come back as parameters, leaves as leaves."""
    state = torture()
    loaded = unpacked(packed([state["parameter"], state["frozen"], state["leaf"]]))
    assert [type(t) for t in loaded] == [torch.nn.Parameter, torch.nn.Parameter, torch.Tensor]
    assert [t.requires_grad for t in loaded] == [True, False, True]
    assert all(t.is_leaf for t in loaded)


def test_module_versions_of_a_state_dict_are_kept() -> None:
    """What torch hangs on a state dict, the versions of the modules, comes back."""
    state = torch.nn.BatchNorm1d(3).state_dict()
    assert unpacked(packed(state))._metadata == state._metadata


@pytest.mark.parametrize("kind", ["text", "long", "nested"])
def test_bytes_do_not_depend_on_the_order_of_sets(kind: str) -> None:
    """The same set built in two orders gives the same file: of text, of members stored as data, of sets."""
    names = [f"name{n}" for n in range(50)]
    if kind == "text":
        first, second = set(names), set(reversed(names))
    elif kind == "long":
        long = [name.encode() * 99 for name in names]
        first, second = set(long), set(reversed(long))
    else:
        # 0 and 8 fall into one slot of a small set, so their order is that in which they came.
        first = {frozenset([0, 8]), frozenset([4])}
        second = {frozenset([8, 0]), frozenset([4])}
    assert first == second
    assert repr(first) != repr(second)  # else this shows nothing
    assert packed(first) == packed(second)


def test_classes_come_back_without_running_their_code() -> None:
    """A dataclass of `types` is rebuilt field by field; its initialiser does not run."""
    raw = packed([Point(1, 2), Color.RED, Pair(3, 4)], types=TYPES)
    INITIALISED.clear()
    assert same(unpacked(raw, types=TYPES), [vars_only(1, 2), Color.RED, Pair(3, 4)])
    assert len(INITIALISED) == 0


def vars_only(x: int, y: int) -> Point:
    """Return a point without its initialiser."""
    point = object.__new__(Point)
    point.x, point.y = x, y
    return point


def test_classes_that_types_does_not_list_are_refused_both_ways() -> None:
    """Save names the path, load names the class."""
    with pytest.raises(UnsupportedTypeError, match=r"^a/1 must be .*list Color in types="):
        packed({"a": [1, Color.RED]})
    raw = packed({"a": Color.RED}, types=[Color])
    with pytest.raises(ClassNotAllowedError, match=r"states:Color.*types="):
        unpacked(raw)
    with pytest.raises(ConfigError, match="types must list enums"):
        packed({}, types=[int])


class Odd(dict):  # type: ignore[type-arg]
    """A subclass that would lose what it adds."""


def cycle() -> list[Any]:
    """Return a list that contains itself."""
    loop: list[Any] = []
    loop.append(loop)
    return loop


def ragged() -> torch.Tensor:
    """Return rows of two lengths in one tensor."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch calls them a prototype
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (lambda: 0, "state_dict"),
        (torch.nn.Linear(1, 1), "state_dict"),
        (object(), "state_dict"),
        (Odd(), "state_dict"),
        (torch.empty(2, device="meta"), "meta device"),
        (ragged(), "nested tensor"),
        (torch.ones(2, requires_grad=True).to_mkldnn(), "layout"),
        (cycle(), "contain itself"),
        ({torch.ones(1): 1}, "cannot be a key"),
        (states.defaultdict(lambda: 0), "default factory"),
        (np.array([(None,)], dtype=[("a", "O")]), "objects"),
        (np.zeros(1, np.dtype([("a", "i1"), ("b", "i4")], align=True)), "padding"),
    ],
    ids=[
        "function",
        "module",
        "object",
        "subclass",
        "meta",
        "nested",
        "mkldnn",
        "cycle",
        "key",
        "factory",
        "objects",
        "padding",
    ],
)
def test_what_cannot_be_stored_fails_at_save_with_its_path(value: Any, reason: str) -> None:
    """The error names the place in the state and says what to do."""
    with pytest.raises(UnsupportedTypeError, match=f"^optimizer/state/0.*{reason}"):
        packed({"model": torch.ones(1), "optimizer": {"state": {0: value}}})


def test_meta_must_be_small_and_plain(tmp_path: Path) -> None:
    """A tensor in `meta` is refused: inspecting a file must not need its data."""
    with pytest.raises(UnsupportedTypeError, match="meta must hold small plain values"):
        save({}, tmp_path / "a.lcs", meta={"a": torch.ones(1)})


def keys() -> st.SearchStrategy[Any]:
    """Return keys of all kinds."""
    return st.one_of(st.text(max_size=5), st.integers(), st.none(), st.booleans(), st.binary(max_size=3))


def tensors() -> st.SearchStrategy[torch.Tensor]:
    """Return tensors of all dtypes, contiguous, permuted, sliced or expanded."""
    changes = [lambda t: t, lambda t: t.t(), lambda t: t[1:], lambda t: t[:, ::2], lambda t: t[:1].expand(3, -1)]
    sizes = st.tuples(st.integers(0, 4), st.integers(0, 4))
    return st.builds(
        lambda dtype, shape, change: change(of_dtype(dtype, shape)) if shape[0] else of_dtype(dtype, shape),
        st.sampled_from([d for d in ALL_DTYPES if ("bits" not in str(d) and "int" not in str(d)) or d.itemsize > 1]),
        sizes,
        st.sampled_from(changes),
    )


LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.complex_numbers(), st.text(), st.binary(max_size=400),
    st.decimals(allow_nan=False), st.fractions(), st.dates(), st.datetimes(), st.timedeltas(), st.uuids(), tensors(),
    st.sampled_from(Color), st.lists(st.integers(-5, 5), min_size=256, max_size=300),
)  # fmt: skip


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return containers of `inner`."""
    return st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys(), inner, max_size=4),
        st.dictionaries(keys(), inner, max_size=4).map(states.OrderedDict),
        st.lists(inner, max_size=3).map(states.deque),
    )


@settings(max_examples=300, deadline=None)
@given(st.recursive(LEAVES, nested, max_leaves=12))
def test_any_tree_comes_back_and_saves_to_the_same_bytes(state: Any) -> None:
    """Random trees: equal after load, equal bytes after the next save, readable by safetensors."""
    raw = packed(state, types=TYPES)
    loaded = unpacked(raw, types=TYPES)
    assert same(state, loaded)
    assert packed(loaded, types=TYPES) == raw
