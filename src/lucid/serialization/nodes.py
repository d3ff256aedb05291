"""The tree of a file before it is decoded: its children, the tensors it needs, a part of it by path."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from lucid.errors import FormatError, MismatchError, nearest

Node = Any
PAIRS = ("dict", "odict", "counter", "ddict")
SEQUENCES = ("tuple", "deque", "set", "frozenset")


def children(node: Node) -> Iterator[tuple[Node, Node]]:
    """Yield (key node, node) of a container, nothing for anything else."""
    if isinstance(node, list):
        yield from enumerate(node)
    elif isinstance(node, dict):
        tag = node.get("$")
        if tag is None:
            yield from node.items()
            return
        inner = node.get("v")
        if tag in PAIRS and isinstance(inner, list):
            for pair in inner:
                if not (isinstance(pair, list) and len(pair) == 2):
                    raise FormatError("the tree has an item that is no pair of key and value.")
                yield pair[0], pair[1]
        elif (tag in SEQUENCES or tag == "nt") and isinstance(inner, list):
            yield from enumerate(inner)
        elif tag == "dc" and isinstance(inner, dict):
            yield from inner.items()


def references(node: Node) -> list[int]:
    """Return the indices of all tensors that a node needs, each once, in order."""
    found: set[int] = set()
    stack = [node] if isinstance(node, dict | list) else []
    while stack:
        item = stack.pop()
        inner: Iterable[Node] = item
        if type(item) is dict:
            tag = item.get("$")
            if tag is not None:
                index = item.get("i")
                if type(index) is int:
                    found.add(index)
                if tag in ("t", "p"):
                    continue
                parts = item.get("p")
                if tag == "sparse" and isinstance(parts, dict):
                    found.update(part for part in parts.values() if type(part) is int)
            inner = item.values()
        for part in inner:
            if type(part) is dict or type(part) is list:
                stack.append(part)
    return sorted(found)


def key_text(key: Node) -> str:
    """Return a key as paths have it: `0` for the integer 0, the member's name for an enum."""
    if isinstance(key, dict):
        return str(key.get("v"))
    return str(key)


def find(tree: Node, path: str, where: str) -> Node:
    """Return the node at a path such as `optimizer/state/0`.

    Raises:
        MismatchError: nothing is there; the message names the nearest key.
    """
    node = _descend(tree, path.strip("/").split("/"))
    if node is None:
        known = list(paths(tree, depth=3))
        raise MismatchError(f"{where} has nothing at {path!r}.{nearest(path, known)}")
    return node[0]


def _descend(node: Node, parts: list[str]) -> tuple[Node] | None:
    if not parts or parts == [""]:
        return (node,)
    table = {key_text(key): item for key, item in children(node)}
    for taken in range(1, len(parts) + 1):  # a key may hold slashes itself
        item = table.get("/".join(parts[:taken]), _ABSENT)
        if item is not _ABSENT:
            found = _descend(item, parts[taken:])
            if found is not None:
                return found
    return None


_ABSENT = object()


def paths(node: Node, depth: int, prefix: str = "") -> Iterator[str]:
    """Yield the paths of a tree, down to `depth` levels."""
    for key, item in children(node):
        path = f"{prefix}{key_text(key)}"
        yield path
        if depth > 1:
            yield from paths(item, depth - 1, path + "/")
