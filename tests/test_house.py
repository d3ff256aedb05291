"""The house rules: shelves, sizes, and how far it is from the user's call to `backward`."""

from __future__ import annotations

import ast
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import lucid

SRC = Path(lucid.__file__).parent
FILES = sorted(path for path in SRC.rglob("*.py"))

SPINE = (
    "windows", "plan", "undo", "spikes", "verdict", "state", "inputs", "loss_rules", "losses", "callbacks", "tally",
    "step", "closures", "compilations", "compiled", "evaluation", "loop", "bundle", "probe", "guard", "pieces",
    "changes", "environment", "signals", "session", "run_folder", "kernels", "trainer", "run", "replay", "finders",
    "profiling", "check",
)  # fmt: skip
SHELVES = {
    "errors": 0,
    **dict.fromkeys(("protocols", "records", "config", "assets"), 1),
    **dict.fromkeys(("rng", "devices"), 2),
    **dict.fromkeys(
        ("optim", "amp", "utils", "distributed", "serialization", "metrics", "report", "datasets", "models"), 3
    ),
    **dict.fromkeys(SPINE, 4),
    **dict.fromkeys(("tasks", "trained", "build", "cli"), 5),
    "dashboard": 5,
    "_mirror": 5,
    "": 5,
}


def part(path: Path) -> str:
    """Return the part of the house that a file belongs to: `optim` for `optim/schedules.py`."""
    first = path.relative_to(SRC).parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


def imported_parts(path: Path, at_load: bool = False) -> set[str]:
    """Return the parts of Lucid that a file imports; with `at_load`, only those its loading runs."""
    tree = ast.parse(path.read_text())
    nodes = _at_load(tree) if at_load else ast.walk(tree)
    return {name for node in nodes for name in _names(node, path) if name in SHELVES}


def _at_load(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        yield node
        yield from _at_load(node)


def _names(node: ast.AST, path: Path) -> Iterator[str]:
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.level:
        package = ["lucid", *path.relative_to(SRC).parts[: -node.level]]
        modules = [".".join([*package, node.module] if node.module else package)]
    elif isinstance(node, ast.ImportFrom):
        modules = [node.module or ""]
        if node.module == "lucid":
            modules = [f"lucid.{alias.name}" for alias in node.names]
    else:
        return
    for module in modules:
        if module.startswith("lucid."):
            yield module.split(".")[1]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_a_module_imports_only_from_shelves_below(path: Path) -> None:
    """Upward and sideways imports do not exist; the spine may import within itself."""
    own = part(path)
    assert own in SHELVES, f"{own} has no shelf: give it one in docs/design/parts.md and here"
    allowed = {name for name, shelf in SHELVES.items() if shelf < SHELVES[own]} | {own}
    if SHELVES[own] in (1, 2, 4):
        allowed |= {name for name, shelf in SHELVES.items() if shelf == SHELVES[own]}
    if own == "dashboard":
        allowed = {name for name, shelf in SHELVES.items() if shelf <= 1} | {own}
    if own in ("cli", "build", ""):
        allowed = set(SHELVES)
    assert imported_parts(path) - allowed == set()


def test_no_import_cycles_between_parts() -> None:
    """Following imports that run at load never leads back."""
    graph: dict[str, set[str]] = {}
    for path in FILES:
        graph.setdefault(part(path), set()).update(imported_parts(path, at_load=True) - {part(path)})
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, f"import cycle: {' -> '.join([*trail, name])}"
        if name not in done:
            for below in sorted(graph.get(name, ())):
                visit(below, (*trail, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_sizes(path: Path) -> None:
    """A file has at most 400 lines, a function 50 code lines, a class 250 lines."""
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    code = code_lines(path)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert num_code_lines(node, code) <= 50, f"{node.name} is too long"
        if isinstance(node, ast.ClassDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < 250, f"{node.name} is too long"


def test_nine_functions_of_ten_are_short() -> None:
    """90 % of all functions have under 30 code lines."""
    lengths = []
    for path in FILES:
        code = code_lines(path)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lengths.append(num_code_lines(node, code))
    assert sum(length < 30 for length in lengths) >= 0.9 * len(lengths)


def code_lines(path: Path) -> set[int]:
    """Return the numbers of the lines that hold code: no blanks, comments or docstrings."""
    lines: set[int] = set()
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
            if token.type not in (*skipped, tokenize.ENCODING, tokenize.ENDMARKER):
                lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def num_code_lines(node: ast.AST, code: set[int]) -> int:
    """Return how many lines of a function hold code."""
    return len(code & set(range(node.lineno, node.end_lineno + 1)))  # type: ignore[attr-defined]


class _Watched(torch.nn.Module):
    """A linear model whose backward remembers the library frames above it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def _fit(num_steps: int) -> None:
    model = _Watched()
    rows = torch.utils.data.TensorDataset(torch.randn(4 * num_steps, 2), torch.zeros(4 * num_steps, 1))
    trainer = lucid.Trainer(
        model, torch.optim.SGD(model.parameters(), lr=0.1), loss=F.mse_loss,
        config=lucid.TrainConfig(epochs=1, log_every=0, device="cpu"), reports=(),
    )  # fmt: skip
    trainer.fit(torch.utils.data.DataLoader(rows, batch_size=4))


def test_the_way_to_backward_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 4 library frames in at most 3 files lie between `Trainer.fit` and `backward`."""
    seen: list[list[str]] = []
    backward = torch.Tensor.backward

    def spy(tensor: torch.Tensor, *arguments: object, **options: object) -> None:
        frame, files = sys._getframe(1), []
        while frame is not None:
            if frame.f_code.co_filename.startswith(str(SRC)):
                files.append(frame.f_code.co_filename)
            frame = frame.f_back  # type: ignore[assignment]
        seen.append(files)
        backward(tensor, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.Tensor, "backward", spy)
    _fit(2)
    assert len(seen) == 2
    assert len(seen[0]) <= 4
    assert len(set(seen[0])) <= 3


def library_calls(num_steps: int) -> tuple[int, set[tuple[str, int]]]:
    """Return how many library functions a fit calls, and the library lines it enters."""
    calls, lines = 0, set()

    def trace(frame, event, argument):  # type: ignore[no-untyped-def]
        nonlocal calls
        if not frame.f_code.co_filename.startswith(str(SRC)):
            return None
        calls += event == "call"
        lines.add((frame.f_code.co_filename, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        _fit(num_steps)
    finally:
        sys.settrace(before)
    return calls, lines


def test_a_step_makes_few_library_calls() -> None:
    """A step without callbacks makes at most 40 calls of library functions."""
    _fit(1)  # whatever happens once
    few, _ = library_calls(10)
    many, _ = library_calls(60)
    assert (many - few) / 50 <= 40


def test_a_fit_enters_few_library_lines() -> None:
    """A fit of two steps enters at most 1,500 lines of the library."""
    _, lines = library_calls(2)
    assert len(lines) <= 1500


def test_there_are_at_most_eight_hooks() -> None:
    """Callbacks have eight hooks at most."""
    assert len(lucid.callbacks.HOOKS) <= 8


def test_import_loads_no_torch() -> None:
    """`import lucid` loads neither torch nor any optional package."""
    code = "import sys, lucid; print([m for m in ('torch', 'numpy', 'rich', 'plotly', 'sklearn') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
