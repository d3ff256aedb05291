"""Where a setting comes from: defaults < file < environment < command line; and what a mistake is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lucid.config import RunConfig, load, parse_overrides
from lucid.errors import ConfigError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file that sets one nested value."""
    path = tmp_path / "run.toml"
    path.write_text("[train]\nepochs = 5\n")
    return path


def typed(*words: str) -> dict[str, object]:
    """Overrides as typed in a shell."""
    return dict(parse_overrides(words))


def message(text: str, tmp_path: Path) -> str:
    """The error of a file with this text, the file's folder left out."""
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path, environ={})
    return str(caught.value).replace(f"{tmp_path}/", "")


def test_each_layer_covers_the_one_below(file: Path) -> None:
    """A nested value: default 15, file 5, environment 6, command line 7."""
    environ = {"LUCID_TRAIN__EPOCHS": "6"}
    assert load(environ={}).train.epochs == 15
    assert load(file, environ={}).train.epochs == 5
    assert load(file, environ=environ).train.epochs == 6
    assert load(file, environ=environ, overrides=typed("--train.epochs", "7")).train.epochs == 7


@dataclass
class Inner:
    """A section in a section."""

    a: int = 1
    b: int = 1


@dataclass
class Outer:
    """A section whose default is not that of its class."""

    inner: Inner = field(default_factory=lambda: Inner(a=2, b=2))
    c: int = 1


@dataclass(kw_only=True)
class Nested(RunConfig):
    """A run with sections of its own."""

    outer: Outer = field(default_factory=lambda: Outer(Inner(3, 3), c=3))


def test_a_section_set_in_part_keeps_the_rest(file: Path) -> None:
    """One setting of a section leaves the others as they are in the run's own default, at any depth."""
    assert load(environ={}, overrides=typed("--train.seed", "1")).train.epochs == 15

    mine = load(file, cls=Nested, environ={}, overrides=typed("--outer.inner.b", "4"))
    assert mine.outer == Outer(Inner(3, 4), c=3)


def test_base_lies_below_the_file(file: Path) -> None:
    """Settings of a checkpoint are the weakest after the defaults."""
    base = {"train": {"epochs": 2, "seed": 9}}
    config = load(file, environ={}, base=base)
    assert (config.train.epochs, config.train.seed) == (5, 9)
    assert base == {"train": {"epochs": 2, "seed": 9}}


def test_misspelt_top_level_key_names_the_nearest(tmp_path: Path) -> None:
    """With file and line."""
    assert message('\nnmae = "x"\n', tmp_path) == "unknown key 'nmae' (run.toml, line 2). Did you mean 'name'?"


def test_misspelt_nested_key_names_the_nearest(tmp_path: Path) -> None:
    """With its section."""
    expected = "unknown key 'train.epoch' (run.toml, line 2). Did you mean 'train.epochs'?"
    assert message("[train]\nepoch = 1\n", tmp_path) == expected


def test_key_at_the_wrong_level_names_its_place(tmp_path: Path) -> None:
    """A known word in the wrong section, also from deeper to higher."""
    assert message("epochs = 1\n", tmp_path).endswith("Did you mean 'train.epochs'?")
    assert message('[train]\nrun_dir = "x"\n', tmp_path).endswith("Did you mean 'run_dir'?")


def test_word_of_another_library_names_ours(tmp_path: Path) -> None:
    """What other trainers call a setting is understood in the message."""
    assert message("[optimizer]\nlearning_rate = 1\n", tmp_path).endswith("Did you mean 'optimizer.lr'?")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('epochs = "3"', "train.epochs must be a whole number, got '3' (run.toml, line 2)."),
        ("epochs = true", "train.epochs must be a whole number, got True (run.toml, line 2)."),
        ("epochs = 2.5", "train.epochs must be a whole number, got 2.5 (run.toml, line 2)."),
        ("compile = 1", "train.compile must be true or false, got 1 (run.toml, line 2)."),
        ('eval_every = "step"', "train.eval_every must be a whole number or \"epoch\", got 'step' (run.toml, line 2)."),
        ("epochs = 0", "train.epochs must be a whole number of at least 1, got 0 (run.toml, line 2)."),
    ],
)
def test_wrong_type_or_value_says_what_came_and_where(tmp_path: Path, line: str, words: str) -> None:
    """What must be what, what came, where."""
    assert message(f"[train]\n{line}\n", tmp_path) == words


def test_all_mistakes_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    """One line each."""
    assert len(message("a = 1\n[train]\nb = 1\nepochs = 'x'\n", tmp_path).splitlines()) == 3


def test_section_that_is_a_value_is_refused(tmp_path: Path) -> None:
    """`train = 3` cannot hold keys."""
    assert message("train = 3\n", tmp_path) == "train must be a section with keys, got 3 (run.toml, line 1)."


def test_mistake_in_the_environment_names_the_variable() -> None:
    """And the nearest key."""
    expected = r"unknown key 'train.epoch' \(environment variable LUCID_TRAIN__EPOCH\). Did you mean 'train.epochs'"
    with pytest.raises(ConfigError, match=expected):
        load(environ={"LUCID_TRAIN__EPOCH": "1"})


def test_other_programs_variables_are_left_alone() -> None:
    """LUCID_HOME belongs to somebody else."""
    assert load(environ={"LUCID_HOME": "/", "PATH": "x"}) == RunConfig()


def test_mistake_on_the_command_line_names_the_option() -> None:
    """As it was typed."""
    with pytest.raises(ConfigError, match=r"train.epochs must be a whole number, got 'x' \(option --train.epochs\)"):
        load(environ={}, overrides=typed("--train.epochs=x"))


def test_typed_words_become_what_the_setting_is() -> None:
    """Numbers, none, truth, lists and free options, with dashes or underscores."""
    words = "--train.max-grad-norm none --train.compile --model.options.width 3 --model.options.act relu --name 7"
    config = load(environ={}, overrides=typed(*words.split(), "--model.options.sizes=[1, 2]"))
    assert config.train.max_grad_norm is None
    assert config.train.compile is True
    assert config.model.options == {"width": 3, "act": "relu", "sizes": [1, 2]}
    assert config.name == "7"


def test_word_without_an_option_is_refused() -> None:
    """A forgotten dash is no silent loss."""
    with pytest.raises(ConfigError, match=r"'train.epochs' belongs to no option"):
        parse_overrides(["train.epochs", "3"])


def test_users_own_sections_and_fields_are_typed_too() -> None:
    """A subclass of RunConfig with a section of its own."""

    @dataclass(kw_only=True)
    class Extra:
        alpha: float = 0.5

    @dataclass(kw_only=True)
    class Mine(RunConfig):
        extra: Extra = field(default_factory=Extra)

    config = load(cls=Mine, environ={}, overrides=typed("--extra.alpha", "2"))
    assert (config.extra.alpha, config.train.epochs) == (2.0, 15)
    with pytest.raises(ConfigError, match=r"Did you mean 'extra.alpha'"):
        load(cls=Mine, environ={}, overrides=typed("--extra.alhpa", "2"))


def test_resolved_names_the_run_after_file_or_data() -> None:
    """The folder follows the name unless it is given."""
    assert RunConfig().resolved().run_dir == "runs/digits"
    assert RunConfig().resolved(Path("a/houses.toml")).run_dir == "runs/houses"
    config = load(environ={}, overrides=typed("--data.name", "csv:data/cars.csv", "--run_dir", "x"))
    assert (config.resolved().name, config.resolved().run_dir) == ("cars", "x")


def test_an_option_without_its_value_says_so() -> None:
    """`--optimizer.lr` with nothing behind it got no value, not the word true."""
    with pytest.raises(ConfigError, match=r"optimizer\.lr must be a number, got no value"):
        load(environ={}, overrides=parse_overrides(["--optimizer.lr", "--train.epochs", "3"]))
