"""`lucid.<module>` is `torch.<module>` wherever Lucid has none of its own."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

import pytest
import torch

import lucid
from lucid._mirror import _is_own

PACKAGES = [name for name in lucid._MODULES if hasattr(getattr(torch, name, None), "__path__")]
"""Those that torch has as well."""


def test_module_of_torch_is_the_same_object_under_both_names() -> None:
    """Whatever torch keeps in it is there once, and it keeps torch's name."""
    module = importlib.import_module("lucid.nn.functional")
    assert module is torch.nn.functional
    assert module.__spec__ is not None
    assert module.__spec__.name == "torch.nn.functional"


@pytest.mark.parametrize("name", PACKAGES)
def test_no_module_of_torch_takes_the_place_of_a_name_of_ours(name: str) -> None:
    """Python puts an imported module into its package: a function or class of ours there needs a file of its own."""
    ours = vars(importlib.import_module(f"lucid.{name}"))
    of_torch = [own for own in ours if importlib.util.find_spec(f"torch.{name}.{own}") is not None]
    assert [own for own in of_torch if not isinstance(ours[own], ModuleType) and not _is_own(f"{name}.{own}")] == []
