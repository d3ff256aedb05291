"""Copy functions and classes of ours into another file, with all that they need and nothing more."""

from __future__ import annotations

import ast
import importlib
import json
import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_ERRORS = re.compile(r"\b(DataError|ConfigError)\b")


@dataclass
class Code:
    """Source text and the import lines that it needs."""

    imports: set[str] = field(default_factory=set)
    text: str = ""

    def __add__(self, other: Code) -> Code:
        """Return both, one after the other."""
        parts = [part for part in (self.text.strip("\n"), other.text.strip("\n")) if part]
        return Code(self.imports | other.imports, "\n\n\n".join(parts) + "\n")


def literal(value: Any) -> str:
    """Return a plain value as Python source, its texts in double quotes."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{literal(key)}: {literal(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(literal, value)) + "]"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(literal, value)) + ("," if len(value) == 1 else "") + ")"
    return repr(value)


def code(text: str, *imports: str) -> Code:
    """Return indented text as code."""
    return Code(set(imports), textwrap.dedent(text).strip("\n") + "\n")


def lift(module: str, *names: str, drop: tuple[str, ...] = ()) -> Code:
    """Return the source of names of a module with everything of that module that they use.

    Args:
        module: dotted name; its file must be plain Python.
        names: functions, classes or constants.
        drop: functions whose calls are left out where they stand alone, such as checks of arguments.
    """
    source = Path(str(importlib.import_module(module).__file__)).read_text(encoding="utf-8")
    tree = ast.parse(source)
    defined = {name: node for node in tree.body for name in _names(node)}
    imported = {alias.asname or alias.name: (node, alias) for node in tree.body for alias in _aliases(node)}
    wanted, queue = dict[str, None](), list(names)
    lines: set[str] = set()
    while queue:
        name = queue.pop(0)
        if name in wanted:
            continue
        if name in defined and name not in drop:
            wanted[name] = None
            queue += [part.id for part in ast.walk(defined[name]) if isinstance(part, ast.Name)]
            if "Any" in ast.dump(defined[name]):
                queue.append("Any")
        elif name in imported:
            lines.add(_import_line(*imported[name]))
    nodes = {id(defined[name]): defined[name] for name in wanted}
    ordered = sorted(nodes.values(), key=lambda node: node.lineno)
    text = "\n\n\n".join(_text(source, node, drop) for node in ordered)
    own = {line for line in lines if line and "lucid" not in line}
    return Code(own, _ERRORS.sub("ValueError", text) + "\n")


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []


def _aliases(node: ast.stmt) -> list[ast.alias]:
    return node.names if isinstance(node, ast.Import | ast.ImportFrom) else []


def _import_line(node: ast.stmt, alias: ast.alias) -> str:
    name = alias.name if alias.asname is None else f"{alias.name} as {alias.asname}"
    if isinstance(node, ast.ImportFrom):
        return "" if node.module == "__future__" else f"from {node.module} import {name}"
    return f"import {name}"


def _text(source: str, node: ast.stmt, drop: tuple[str, ...]) -> str:
    """Return the text of a statement, its docstrings cut to their first line, dropped calls left out."""
    lines = source.splitlines()
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
    gone: set[int] = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef | ast.ClassDef):
            gone |= _after_first_line(inner, lines)
        if isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Call):
            function = inner.value.func
            if isinstance(function, ast.Name) and function.id in drop:
                gone |= set(range(inner.lineno, (inner.end_lineno or inner.lineno) + 1))
    kept = [lines[number - 1] for number in range(first, (node.end_lineno or first) + 1) if number not in gone]
    return "\n".join(kept)


def _after_first_line(node: ast.FunctionDef | ast.ClassDef, lines: list[str]) -> set[int]:
    """Close a docstring of several lines on its first line; return the numbers of the others."""
    first = node.body[0]
    if not (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    ):
        return set()
    end = first.end_lineno or first.lineno
    if end > first.lineno and not lines[first.lineno - 1].endswith('"""', 4 + first.col_offset):
        lines[first.lineno - 1] += '"""'
    return set(range(first.lineno + 1, end + 1))
