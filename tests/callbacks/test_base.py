"""Eight hooks in a fixed order; whatever goes wrong in a callback names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from lucid import Callback, TrainConfig, Trainer
from lucid.callbacks import HOOKS, Callbacks
from lucid.errors import CallbackError, ConfigError


def fit(*callbacks: Any, run_dir: Path | None = None, **settings: Any) -> None:
    """Train 4 steps over 2 epochs, with an evaluation and a record at the end of each."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    loader = DataLoader(TensorDataset(torch.randn(4, 2), torch.zeros(4, 1)), batch_size=2)
    config = TrainConfig(**{"epochs": 2, "log_every": "epoch", **settings})
    Trainer(
        model, torch.optim.SGD(model.parameters(), lr=0.1), F.mse_loss, callbacks=callbacks, config=config,
        run_dir=run_dir, reports=(),
    ).fit(loader, loader)  # fmt: skip


def raising(name: str) -> Any:
    """Return a callback with state, one method of which raises."""

    def fail(self: Any, *arguments: Any) -> Any:
        raise KeyError("mine")

    methods = {"state_dict": lambda self: {"n": 1}, "load_state_dict": lambda self, state: None, name: fail}
    return type("Mine", (Callback,), methods)()


def test_hooks_come_in_a_fixed_order() -> None:
    """Of each epoch: its start, its steps, the record, the evaluation with its record, its end."""
    seen: list[str] = []

    class Watch(Callback):
        pass

    for hook in HOOKS:
        setattr(Watch, hook, lambda self, *arguments, hook=hook: seen.append(hook.removeprefix("on_")))
    fit(Watch())
    epoch = ["epoch_start", "step_end", "step_end", "record", "eval_start", "record", "eval_end", "epoch_end"]
    assert seen == ["train_start", *epoch, *epoch, "train_end"]


@pytest.mark.parametrize("name", [*HOOKS, "state_dict"])
def test_an_error_in_a_callback_names_it(tmp_path: Path, name: str) -> None:
    """Class, method and error, whichever method it is."""
    with pytest.raises(CallbackError, match=rf"Mine\.{name} raised KeyError: 'mine'") as caught:
        fit(raising(name), run_dir=tmp_path)
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_error_at_the_resume_names_the_callback(tmp_path: Path) -> None:
    """Taking its state back is the callback's own work as well."""
    fit(raising("other"), run_dir=tmp_path, epochs=1)
    with pytest.raises(CallbackError, match=r"Mine\.load_state_dict raised KeyError: 'mine'"):
        fit(raising("load_state_dict"), run_dir=tmp_path)


def test_a_hook_that_is_none_is_refused() -> None:
    """A misspelt hook, another library's, or a class: nothing of these would ever be called."""
    for hook, hint in (("on_step_ended", r" Did you mean 'on_step_end'\?"), ("on_validation_batch_start", "")):
        duck = type("Duck", (), {hook: lambda self, state: None})()
        with pytest.raises(ConfigError, match=rf"Duck\.{hook} would never be called: the hooks are .*{hint}"):
            Callbacks([duck])
    with pytest.raises(ConfigError, match=r"a callback must be an object, got the class Callback: pass Callback"):
        Callbacks([Callback])


def test_states_go_back_to_their_own() -> None:
    """Two of a kind keep their own states, by their place among their kind; a new one keeps its own."""

    class Counter(Callback):
        def __init__(self, n: int) -> None:
            self.n = n

        def state_dict(self) -> dict[str, Any]:
            return {"n": self.n}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.n = state["n"]

    saved = Callbacks([Counter(1), Callback(), Counter(2)]).state_dict()
    assert saved == {"Counter": {"n": 1}, "Counter-2": {"n": 2}}
    counters = [Counter(7), Counter(8), Counter(9)]
    Callbacks(counters).load_state_dict(saved)
    assert [counter.n for counter in counters] == [1, 2, 9]
