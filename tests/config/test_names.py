"""`my_module:name`, and options that go to the user's own functions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lucid.config.names import bind, call, import_object
from lucid.errors import ConfigError


@dataclass
class Sizes:
    """The user's own settings."""

    width: int = 1


def factory(width: int, act: str = "relu", sizes: Sizes | None = None, *, num_outputs: int = 2) -> tuple[Any, ...]:
    """A user's factory."""
    return width, act, sizes, num_outputs


def test_call_gives_options_and_what_is_asked_for() -> None:
    """What the caller knows is given only where there is a parameter; options win."""
    assert call(factory, {"width": 3}, "model.options", {"num_outputs": 5, "other": 1}) == (3, "relu", None, 5)
    assert call(factory, {"width": 3, "num_outputs": 7}, "model.options", {"num_outputs": 5})[3] == 7


def test_options_become_the_users_own_dataclass() -> None:
    """A section inside the options is built strictly."""
    assert call(factory, {"width": 3, "sizes": {"width": 4}}, "model.options")[2] == Sizes(4)
    with pytest.raises(ConfigError, match=r"model.options.sizes: unknown key 'widht'.* Did you mean 'width'"):
        call(factory, {"width": 3, "sizes": {"widht": 4}}, "model.options")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"widht": 3}, "unknown key 'model.options.widht'. Did you mean 'width'? Known: width, act"),
        ({"act": "x"}, "model.options.width must be given"),
        ({"width": "3"}, "model.options.width must be a whole number, got '3'"),
    ],
)
def test_options_that_do_not_fit_are_named(options: dict[str, Any], words: str) -> None:
    """Unknown, missing, of the wrong type."""
    with pytest.raises(ConfigError) as caught:
        bind(factory, options, "model.options")
    assert words in str(caught.value)


def test_open_ended_factory_takes_any_option() -> None:
    """`**kwargs` passes everything on."""
    assert call(lambda **options: options, {"a": 1}, "x") == {"a": 1}


def test_import_object_looks_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `python -m` does."""
    (tmp_path / "module_of_mine.py").write_text("class Net:\n    b = 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert import_object("module_of_mine:Net.b", "model.name") == 3
    with pytest.raises(
        ConfigError, match=r"model.name = 'module_of_mine:Nett': module_of_mine has no 'Nett'. Did you mean 'Net'"
    ):
        import_object("module_of_mine:Nett", "model.name")


def test_missing_module_says_where_was_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An import error inside the module is the user's and stays as it is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=f"no module 'not_there' in {tmp_path}"):
        import_object("not_there:x", "data.name")
    (tmp_path / "half_there.py").write_text("import not_there_either\n")
    with pytest.raises(ModuleNotFoundError, match="not_there_either"):
        import_object("half_there:x", "data.name")
