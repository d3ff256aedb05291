"""Tables in an ejected file: only the kinds of columns that the table has."""

from __future__ import annotations

from lucid.build import Built
from lucid.cli.ejecting.data import PARTS, SCALE, SPLIT, Loading, function
from lucid.cli.ejecting.lift import Code, code, literal
from lucid.datasets.columns import MISSING

IS_MISSING = code(
    f'''
    def is_missing(cell):
        """Whether a cell holds nothing."""
        if isinstance(cell, str):
            return cell.strip().lower() in {literal(MISSING)}
        return cell is None or cell != cell
    '''
)
NUMBER = code(
    '''
    def number(cells, rows):
        """A column of numbers at mean 0 and standard deviation 1, learnt on some rows; where cells are missing there,
        they take the median, and a second feature says that they were missing."""
        missing = torch.tensor([is_missing(cell) for cell in cells])
        values = torch.tensor([0.0 if is_missing(cell) else float(cell) for cell in cells], dtype=torch.float64)
        held = values[rows][~missing[rows]]
        median = held.median()
        filled = torch.cat([held, median.expand(len(rows) - len(held))])
        std = float(filled.std(correction=0)) or 1.0
        scaled = (torch.where(missing, median, values) - filled.mean()) / std
        return torch.stack([scaled, missing] if len(held) < len(rows) else [scaled], 1).float()
    '''
)
WORD = code(
    '''
    def word(cells, rows):
        """A column of words as a feature per word that some rows hold; a missing one is a word of its own."""
        words = ["" if is_missing(cell) else str(cell).strip() for cell in cells]
        known = sorted({words[row] for row in rows.tolist()})
        return torch.tensor([[float(one == other) for other in known] for one in words])
    '''
)


def table(built: Built, place: str) -> Loading:
    """Return the loading of a table."""
    task, state = built.data.task, built.data.transform_state
    kinds = {column["name"]: column["kind"] for column in state["columns"]}
    reader, read = _reader(place)
    features = ", ".join(f"{literal(name)}: {'number' if kinds[name] == 'number' else 'word'}" for name in kinds)
    targets = list(state["targets"])
    lines = [f"table = {read}", f"features = {{{features}}}"]
    if task == "classification":
        lines += [
            f"kept = [row for row, cell in enumerate(table[{literal(targets[0])}]) if not is_missing(cell)]",
            f"goals = [str(table[{literal(targets[0])}][row]).strip() for row in kept]",
            f"names = {literal(built.data.class_names)}",
            "y = torch.tensor([names.index(goal) for goal in goals])",
            "parts = split(len(y), y)",
        ]
    else:
        lines += [
            f"targets = [table[name] for name in {literal(targets)}]",
            "kept = [row for row, cells in enumerate(zip(*targets)) if not any(map(is_missing, cells))]",
            "y = torch.tensor([[float(cells[row]) for cells in targets] for row in kept])",
            "parts = split(len(y))",
        ]
    if task == "regression":
        lines += ["mean, std = mean_and_std(y[parts[0]])", "y = (y - mean) / std"]
    lines += [
        "columns = [feature([table[name][row] for row in kept], parts[0]) for name, feature in features.items()]",
        "x = torch.cat(columns, 1)",
        f"return {PARTS.format(rows='parts')}",
    ]
    made = reader + IS_MISSING
    for kind, text in (("number", NUMBER), ("words", WORD)):
        made = made + (text if kind in kinds.values() else Code())
    made = made + SPLIT + (SCALE if task == "regression" else Code())
    words = "Rows of a table; what is learnt of a column is learnt on the training rows."
    return Loading(made + function(words, lines))


def _reader(place: str) -> tuple[Code, str]:
    if place.endswith(".parquet"):
        return Code({"import pyarrow.parquet"}), f"pyarrow.parquet.read_table({literal(place)}).to_pydict()"
    packed = place.endswith(".gz")
    opened = 'gzip.open(path, "rt", newline="", encoding="utf-8-sig")' if packed else (
        'open(path, newline="", encoding="utf-8-sig")'
    )  # fmt: skip
    tabs = ', delimiter="\\t"' if place.removesuffix(".gz").endswith(".tsv") else ""
    text = code(
        f'''
        def read_table(path):
            """The columns of a table, each a list of its cells."""
            with {opened} as file:
                header, *rows = [row for row in csv.reader(file{tabs}) if row]
            return {{name.strip(): list(cells) for name, cells in zip(header, zip(*rows))}}
        ''',
        "import csv",
        *(["import gzip"] if packed else []),
    )
    return text, f"read_table({literal(place)})"
