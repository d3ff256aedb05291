"""Tables: words, missing values, targets; learnt on training rows, the same for new rows."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
import torch

from lucid.datasets import build, read_rows
from lucid.datasets.columns import apply_column, fit_column
from lucid.errors import DataError

HOUSES = "size,town,garden,price\n" + "".join(
    f"{50 + number},{'abc'[number % 3]},{'' if number % 5 == 0 else 'yes'},{100.5 + 3 * number}\n"
    for number in range(40)
)


@pytest.fixture
def houses(tmp_path: Path) -> Path:
    """A table with numbers, words and missing cells."""
    path = tmp_path / "houses.csv"
    path.write_text(HOUSES)
    return path


def test_number_column_fills_with_the_median_and_says_so() -> None:
    """Two features: the scaled number, and whether it was missing."""
    column = fit_column("a", ["1", "2", "NA", "9"])
    assert (column["median"], column["missing"]) == (2.0, True)
    out = apply_column(column, ["2", "?"])
    assert out[0, 0] == out[1, 0]
    assert out[:, 1].tolist() == [0.0, 1.0]


def test_word_column_keeps_a_place_for_missing_and_none_for_unseen() -> None:
    """A missing value is a word of its own; an unseen word is all zeros."""
    column = fit_column("a", ["x", "", "y"])
    assert column["words"] == ["", "x", "y"]
    assert apply_column(column, ["y", None, "new"]).tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 0]]


def test_one_word_in_a_column_of_numbers_is_no_kind_of_word() -> None:
    """Else each number would become a feature of its own; a few numbers among words are words."""
    numbers = [str(number) for number in range(40)]
    with pytest.raises(DataError, match="column 'a' holds 'oops' among 40 numbers"):
        fit_column("a", [*numbers, "oops"])
    assert fit_column("a", ["1", "2", "3"] * 20 + ["crew"])["kind"] == "words"
    assert fit_column("a", numbers + ["x"] * 10)["kind"] == "words"


def test_target_of_one_class_is_refused(tmp_path: Path) -> None:
    """Accuracy 100 % would say nothing."""
    (tmp_path / "one.csv").write_text("a,kind\n" + "1,x\n2,x\n" * 10)
    with pytest.raises(DataError, match=r"one.csv: the target 'kind' is 'x' in every row"):
        build(f"csv:{tmp_path / 'one.csv'}", {}, validation=0.2, test=0.2, split_seed=0)


def test_table_without_a_header_is_refused(tmp_path: Path) -> None:
    """Else its first row would be the names; years are names."""
    (tmp_path / "bare.csv").write_text("M,0.455,15\n" + "F,0.5,7\nM,0.4,9\n" * 10)
    with pytest.raises(DataError, match=r"bare.csv: the first line must name the columns, got the number '0.455'"):
        build(f"csv:{tmp_path / 'bare.csv'}", {}, validation=0.2, test=0.2, split_seed=0)
    (tmp_path / "years.csv").write_text("land,2019,2020\n" + "a,0.5,7\nb,0.4,9\n" * 10)
    assert build(f"csv:{tmp_path / 'years.csv'}", {}, validation=0.2, test=0.2, split_seed=0).input_shape == (3,)


def test_words_where_numbers_were_are_named() -> None:
    """With column and row."""
    column = fit_column("a", ["1", "2"])
    with pytest.raises(DataError, match="column 'a', row 2: 'x' is not a number"):
        apply_column(column, ["1", "x"])


def test_table_becomes_features_and_a_scaled_target(houses: Path) -> None:
    """1 + 3 + 2 features; the training target has mean 0."""
    bundle = build(f"csv:{houses}", {})
    x, y = bundle.train.tensors  # type: ignore[attr-defined]
    assert (bundle.task, bundle.input_shape, x.shape[1]) == ("regression", (6,), 6)
    torch.testing.assert_close(y.mean(0), torch.zeros(1), atol=1e-6, rtol=0)


def test_new_rows_are_prepared_like_training_rows(houses: Path, tmp_path: Path) -> None:
    """From the saved state alone; the target's column may be missing, others may stand elsewhere."""
    bundle = build(f"csv:{houses}", {}, validation=0, test=0)
    (tmp_path / "new.csv").write_text("town,size,garden\na,50,\nb,51,yes\n")
    x, names = read_rows(tmp_path / "new.csv", bundle.transform_state)
    assert torch.equal(x, bundle.train.tensors[0][:2])  # type: ignore[attr-defined]
    assert names == ["row 1", "row 2"]
    (tmp_path / "new.csv").write_text("town,garden\na,\n")
    with pytest.raises(DataError, match="column 'size' is missing"):
        read_rows(tmp_path / "new.csv", bundle.transform_state)


def test_target_of_words_or_few_numbers_is_classes(houses: Path) -> None:
    """In the order of numbers where they are numbers."""
    assert build(f"csv:{houses}", {"target": "town"}).class_names == ["a", "b", "c"]
    houses.write_text("x,y\n" + "".join(f"{number},{number % 12}\n" for number in range(60)))
    bundle = build(f"csv:{houses}", {})
    assert (bundle.task, bundle.class_names) == ("classification", [str(number) for number in range(12)])


def test_rows_without_a_target_are_left_out(houses: Path) -> None:
    """There is nothing to learn from them."""
    houses.write_text(HOUSES.replace("yes", "no", 4))
    bundle = build(f"csv:{houses}", {"target": "garden"}, validation=0, test=0)
    assert (bundle.split["train"], bundle.class_names) == (32, ["no", "yes"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"target": "prize"}, "has no column 'prize'. Did you mean 'price'? It has size, town, garden, price"),
        ({"features": ["price"]}, "no column is left to predict from"),
    ],
)
def test_columns_that_are_not_there_are_named(houses: Path, options: dict[str, Any], words: str) -> None:
    """With the nearest, and all."""
    with pytest.raises(DataError) as caught:
        build(f"csv:{houses}", options)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1\n", "line 2: 1 cells, the header has 2"),
        ("a,a\n1,2\n", "the header names 'a' twice"),
        ("a;b\n1;2\n", "the first line is one column, 'a;b'. Columns are separated by commas"),
        ("a,b\n", "has no rows"),
        ("x,name\n" + "".join(f"1,n{number}\n" for number in range(30)), "names rows, not classes"),
    ],
)
def test_broken_tables_are_named(houses: Path, text: str, words: str) -> None:
    """With the line."""
    houses.write_text(text)
    with pytest.raises(DataError, match=words):
        build(f"csv:{houses}", {})


def test_packed_table_gives_what_the_plain_one_gives(houses: Path, tmp_path: Path) -> None:
    """Also for new rows; a torn file is named."""
    packed = tmp_path / "houses.csv.gz"
    packed.write_bytes(gzip.compress(HOUSES.encode()))
    one, other = build(f"csv:{houses}", {}), build(f"csv:{packed}", {})
    assert torch.equal(one.train.tensors[0], other.train.tensors[0])  # type: ignore[attr-defined]
    assert len(read_rows(packed, other.transform_state)[0]) == 40
    packed.write_bytes(gzip.compress(HOUSES.encode())[:-20])
    with pytest.raises(DataError, match=r"cannot read the table .*houses.csv.gz"):
        build(f"csv:{packed}", {})


def test_parquet_gives_what_csv_gives(houses: Path, tmp_path: Path) -> None:
    """Same rows, same features."""
    arrow: Any = pytest.importorskip("pyarrow")
    parquet: Any = pytest.importorskip("pyarrow.parquet")
    from lucid.datasets.table import read_table

    columns = read_table(houses)
    columns |= {name: [float(cell) for cell in columns[name]] for name in ("size", "price")}
    columns["garden"] = [cell or None for cell in columns["garden"]]
    parquet.write_table(arrow.table(columns), tmp_path / "houses.parquet")
    one, other = build(f"csv:{houses}", {}), build(f"parquet:{tmp_path}/houses.parquet", {})
    assert torch.equal(one.train.tensors[0], other.train.tensors[0])  # type: ignore[attr-defined]
