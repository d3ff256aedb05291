"""Tables: CSV and Parquet, with words, missing values and targets of any kind."""

from __future__ import annotations

import csv as csv_library
import gzip
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lucid.datasets.bundle import DataBundle, pick
from lucid.datasets.columns import apply_column, as_number, fit_column, is_missing, is_numeric
from lucid.datasets.scaling import Scaler
from lucid.datasets.split import split_rows
from lucid.errors import DataError, nearest

Columns = dict[str, list[Any]]
MAX_CLASSES = 20


def table(
    path: str,
    *,
    validation: float,
    test: float,
    split_seed: int,
    target: str | list[str] | None = None,
    features: list[str] | None = None,
    drop: list[str] | None = None,
    task: str = "auto",
) -> DataBundle:
    """Return the rows of a table. What is learnt about its columns is learnt on the training rows alone.

    Args:
        path: `.csv` or `.tsv`, packed as `.gz` or not, or `.parquet`, with a header.
        validation: share of rows kept for validation.
        test: share of rows kept for the test.
        split_seed: seed of the split.
        target: column to predict; a list for several numbers or labels. None: the last column.
        features: columns to predict from. None: all but the target.
        drop: columns to leave out, such as identifiers.
        task: classification, multilabel or regression. auto: words or at most 20 different whole numbers are classes,
            several columns of zeros and ones labels, other numbers regression.

    Raises:
        DataError: no such file or column, or cells that do not fit.
    """
    columns = read_table(Path(path))
    targets = [target] if isinstance(target, str) else target or [list(columns)[-1]]
    chosen = [n for n in features or columns if n not in targets and n not in (drop or [])]
    for name in [*targets, *chosen, *(drop or [])]:
        if name not in columns:
            raise DataError(f"{path} has no column {name!r}.{nearest(name, columns)} It has {', '.join(columns)}.")
    if not chosen:
        raise DataError(f"{path}: no column is left to predict from.")
    kept = [row for row in range(len(columns[targets[0]])) if not any(is_missing(columns[n][row]) for n in targets)]
    goals = {name: [columns[name][row] for row in kept] for name in targets}
    cells = {name: [columns[name][row] for row in kept] for name in chosen}
    return _bundle(path, cells, goals, task if task != "auto" else _guess(goals), (validation, test, split_seed))


def _guess(goals: Columns) -> str:
    if len(goals) > 1:
        ones = all(as_number(cell) in (0.0, 1.0) for cells in goals.values() for cell in cells)
        return "multilabel" if ones else "regression"
    (cells,) = goals.values()
    whole = is_numeric(cells) and all(float(cell).is_integer() for cell in cells)
    kinds = len(set(cells))
    if is_numeric(cells):
        return "classification" if whole and kinds <= MAX_CLASSES else "regression"
    if kinds > MAX_CLASSES and 2 * kinds > len(cells):
        raise DataError(
            f"the target {next(iter(goals))!r} has {kinds} different words in {len(cells)} rows: it names rows, not "
            "classes. Name the column to predict: --data.options.target NAME."
        )
    return "classification"


def _bundle(path: str, cells: Columns, goals: Columns, task: str, split: tuple[float, float, int]) -> DataBundle:
    names: list[str] | None = None
    if task == "classification":
        words = [str(cell).strip() for cell in next(iter(goals.values()))]
        names = sorted(set(words), key=_by_number)
        if len(names) < 2:
            raise DataError(f"{path}: the target {next(iter(goals))!r} is {names[0]!r} in every row. Name another one.")
        place = {name: index for index, name in enumerate(names)}
        y = torch.tensor([place[word] for word in words], dtype=torch.int64)
    else:
        y = torch.stack([_numbers(path, name, column) for name, column in goals.items()], 1)
        names = list(goals) if task == "multilabel" else None
    rows = split_rows(len(y), validation=split[0], test=split[1], seed=split[2],
                      labels=y if task == "classification" else None)  # fmt: skip
    try:
        learnt = [fit_column(name, [column[row] for row in rows.train]) for name, column in cells.items()]
        x = apply_columns(learnt, cells)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    state: dict[str, Any] = {"kind": "table", "columns": learnt, "targets": list(goals)}
    if task == "regression":
        scaler = Scaler.fit(y[rows.train])
        y, state["target_scaler"] = scaler.apply(y), scaler.to_dict()
    train = pick(x, y, rows.train)
    if train is None:
        raise DataError(f"{path}: no rows to train on.")
    return DataBundle(
        train=train,
        validation=pick(x, y, rows.validation),
        test=pick(x, y, rows.test),
        task=task,
        num_outputs=len(names) if names else y.shape[1],
        input_shape=(x.shape[1],),
        class_names=names,
        transform_state=state,
        split=rows.record(),
    )


def apply_columns(learnt: Sequence[dict[str, Any]], cells: Columns) -> torch.Tensor:
    """Return (N, features) float32.

    Raises:
        DataError: a column is missing, or a cell does not fit.
    """
    for column in learnt:
        if column["name"] not in cells:
            raise DataError(f"column {column['name']!r} is missing. The model was trained on it.")
    return torch.cat([apply_column(column, cells[column["name"]]) for column in learnt], 1)


def _by_number(word: str) -> tuple[bool, float, str]:
    number = as_number(word)
    return (number is None, number or 0.0, word)


def _numbers(path: str, name: str, cells: list[Any]) -> torch.Tensor:
    numbers = [as_number(cell) for cell in cells]
    for row, number in enumerate(numbers):
        if number is None:
            raise DataError(f"{path}: target {name!r}, row {row + 1}: {cells[row]!r} is not a number.")
    return torch.tensor(numbers, dtype=torch.float32)


def read_table(path: Path) -> Columns:
    """Read a table into a list of cells per column.

    Raises:
        DataError: cannot be read, no rows, no header, a row of another length, or pyarrow missing for Parquet.
    """
    columns = _read_parquet(path) if path.suffix == ".parquet" else _read_csv(path)
    if not columns or not next(iter(columns.values())):
        raise DataError(f"{path} has no rows.")
    return columns


def _read_csv(path: Path) -> Columns:
    try:
        opener, plain = (gzip.open, path.with_suffix("")) if path.suffix == ".gz" else (open, path)
        with opener(path, "rt", newline="", encoding="utf-8-sig") as file:
            reader = csv_library.reader(file, delimiter="\t" if plain.suffix == ".tsv" else ",")
            header = [name.strip() for name in next(reader, [])]
            rows = [(reader.line_num, row) for row in reader if row]
    except (OSError, EOFError) as error:
        why = getattr(error, "strerror", None) or error
        raise DataError(f"cannot read the table {path}: {why}.") from error
    except (UnicodeDecodeError, csv_library.Error) as error:
        raise DataError(f"{path} is not a UTF-8 CSV file: {error}.") from error
    if len(header) == 1 and (other := next((one for one in ";\t|" if one in header[0]), None)):
        raise DataError(
            f"{path}: the first line is one column, {header[0]!r}. Columns are separated by commas (in .tsv by tabs), "
            f"not by {other!r}: write the table anew."
        )
    if len(set(header)) != len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise DataError(f"{path}: the header names {twice!r} twice. Every column needs a name of its own.")
    for name in header:
        if (number := as_number(name)) is not None and not number.is_integer():  # years may be names
            raise DataError(f"{path}: the first line must name the columns, got the number {name!r}. Add such a line.")
    for line, row in rows:
        if len(row) != len(header):
            raise DataError(f"{path}, line {line}: {len(row)} cells, the header has {len(header)}.")
    return {name: [row[at] for _, row in rows] for at, name in enumerate(header)}


def _read_parquet(path: Path) -> Columns:
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        raise DataError("reading Parquet needs pyarrow: pip install 'lucid-loop[parquet]'.") from error
    try:
        columns: Columns = parquet.read_table(path).to_pydict()
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read the table {path}: {error}.") from error
    return columns
