"""`lucid.check` is a module that can be called, for Python and for type checkers alike."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import lucid
from lucid.check import CallableModule, run

_SNIPPET = """
import lucid
import lucid.check as module
from lucid.check import run
from lucid.check.report import Report

def make() -> object: ...

found: list[Report] = [lucid.check(make, steps=4), module.run(make), run(make)]
lucid.check(make, stepz=4)
"""


def test_calling_the_module_takes_what_run_takes() -> None:
    """The same parameters with the same defaults."""
    assert isinstance(lucid.check, CallableModule)
    called, direct = inspect.signature(lucid.check), inspect.signature(run)
    assert called == direct


@pytest.mark.slow
def test_type_checker_knows_the_call_and_its_parameters(tmp_path: Path) -> None:
    """The stub says what the module is: a right call passes, a misspelt option does not."""
    api = pytest.importorskip("mypy.api")
    (tmp_path / "snippet.py").write_text(_SNIPPET)
    out, _, code = api.run(["--strict", "--config-file=", "--cache-dir", str(tmp_path), str(tmp_path / "snippet.py")])
    assert (code, out.count("error:")) == (1, 1), out
    assert 'snippet.py:10: error: Unexpected keyword argument "stepz"' in out
