"""Configuration files: both formats, the line of every key, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from lucid.config import RunConfig, load, read, to_dict, write
from lucid.errors import ConfigError

TOML = """name = "x"

[train]
epochs = 3
max_grad_norm = "none"

[model.options]
note = \"\"\"
epochs = 9
\"\"\"
width = 8
"""
YAML = """name: x
train:
  epochs: 3
  max_grad_norm: null
optimizer:
  lr: 1e-3
data:
  name: on
"""


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    """A TOML file."""
    path = tmp_path / "run.toml"
    path.write_text(TOML)
    return path


def test_read_toml_knows_the_line_of_each_key(toml: Path) -> None:
    """Lines count from 1; a line inside a long string is no key."""
    lines = read(toml).lines
    assert lines == {
        "name": 1, "train": 3, "train.epochs": 4, "train.max_grad_norm": 5, "model.options": 7,
        "model.options.note": 8, "model.options.width": 11,
    }  # fmt: skip


def test_read_yaml_knows_the_line_of_each_key(tmp_path: Path) -> None:
    """Nested keys have their own line."""
    path = tmp_path / "run.yaml"
    path.write_text(YAML)
    assert read(path).lines["train.max_grad_norm"] == 4
    assert read(path).where("optimizer.lr") == f"{path}, line 6"


def test_yaml_numbers_and_words_are_those_of_yaml_1_2(tmp_path: Path) -> None:
    """1e-3 is a number, `on` is a word, null is None."""
    path = tmp_path / "run.yaml"
    path.write_text(YAML)
    config = load(path, environ={})
    assert (config.optimizer.lr, config.data.name, config.train.max_grad_norm) == (0.001, "on", None)


def test_none_is_a_word_in_toml(toml: Path) -> None:
    """TOML has no null: "none" stands for it."""
    assert load(toml, environ={}).train.max_grad_norm is None


@pytest.mark.parametrize("suffix", [".toml", ".yaml"])
def test_broken_file_is_named(tmp_path: Path, suffix: str) -> None:
    """A file that is neither TOML nor YAML is an error with its name and the place."""
    path = tmp_path / f"run{suffix}"
    path.write_text("a = 1\nb = [1,,\n" if suffix == ".toml" else "a: [1,\nb: }")
    with pytest.raises(ConfigError, match=rf"(?s){path} is not valid (TOML|YAML): .*line 2"):
        load(path, environ={})


def test_missing_file_and_other_kinds_are_refused(tmp_path: Path) -> None:
    """The message says which file and which endings."""
    with pytest.raises(ConfigError, match=r"cannot read the configuration file .*none.toml: No such file"):
        load(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match=r"must end in \.toml, \.yaml, \.yml, got run\.json"):
        load("run.json")


def test_written_file_reads_back_equal(tmp_path: Path) -> None:
    """Every setting, None and nested options included, survives the round trip."""
    config = RunConfig(name="x", run_dir=None)
    config.model.options = {"width": 3, "act": None, "sizes": [1, 2], "nested": {"a": 1.5}}
    config.train.max_grad_norm = None
    write(tmp_path / "run.toml", to_dict(config))
    assert load(tmp_path / "run.toml", environ={}) == config
