"""Eight hooks, and the object that calls them: a hook that nobody uses costs nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from lucid.errors import CallbackError, ConfigError, LucidError, nearest
from lucid.state import TrainState

HOOKS = (
    "on_train_start",
    "on_epoch_start",
    "on_step_end",
    "on_eval_start",
    "on_eval_end",
    "on_record",
    "on_epoch_end",
    "on_train_end",
)


class Callback:
    """Something that happens beside the loop. Override the hooks you need.

    A callback with state of its own also defines `state_dict` and `load_state_dict`: the state is saved in every
    checkpoint and given back before the run goes on. To end the run, call `state.request_stop(reason)`.

    Example:
        >>> class StopWhenGood(Callback):
        ...     def on_eval_end(self, state, metrics):
        ...         if metrics and metrics["eval/loss"] < 0.1:
        ...             state.request_stop("good enough")
    """

    changes_in_eval = True
    """Whether the hooks of an evaluation change what `state_dict` gives. False spares each evaluation a copy of it."""

    def on_train_start(self, state: TrainState) -> None:
        """Before the first step of this process, after a resume."""

    def on_epoch_start(self, state: TrainState) -> None:
        """Before the first step of an epoch."""

    def on_step_end(self, state: TrainState) -> None:
        """After each step; gradients are still there, clipped."""

    def on_eval_start(self, state: TrainState) -> None:
        """Before an evaluation."""

    def on_eval_end(self, state: TrainState, metrics: dict[str, float] | None) -> None:
        """After an evaluation; `metrics` is None if it raised or was interrupted."""

    def on_record(self, state: TrainState, record: Any) -> None:
        """After a record was written."""

    def on_epoch_end(self, state: TrainState) -> None:
        """After the last step of an epoch and its evaluation, before its checkpoint."""

    def on_train_end(self, state: TrainState) -> None:
        """When the run ends or is left, also after an error."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must hold of this callback."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""


class Callbacks:
    """Calls the hooks of several callbacks in order.

    `callbacks.on_step_end(state)` runs only the callbacks that override the hook, worked out once.

    Raises:
        ConfigError: for a class in place of an object of it, and for a method that looks like a hook and is none.
    """

    def __init__(self, callbacks: Sequence[Any] = ()) -> None:
        self._all = list(callbacks)
        self._held: dict[str, Any] | None = None
        for callback in self._all:
            _check(callback)
        for hook in HOOKS:
            setattr(self, hook, _fan_out(hook, self._all))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"callbacks have no hook {name!r}; there are {', '.join(HOOKS)}")

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each callback that has any, by class name and place among its kind."""
        if self._held is not None:
            return self._held
        found: dict[str, Any] = {}
        for name, callback in self._named():
            if hasattr(callback, "state_dict") and (state := _run(callback, "state_dict", callback.state_dict)):
                found[name] = state
        return found

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Give each callback its state back; a callback that is new keeps its own."""
        for name, callback in self._named():
            if name in state:
                _run(callback, "load_state_dict", callback.load_state_dict, state[name])

    @contextmanager
    def undone_unless(self, done: Callable[[], bool]) -> Iterator[None]:
        """What the hooks do inside counts in a checkpoint only if `done()` afterwards; else it will happen again."""
        moving = {name for name, callback in self._named() if _changes_in_eval(callback)}
        before = {n: copy.deepcopy(state) if n in moving else state for n, state in self.state_dict().items()}
        yield
        if not done():
            self._held = before

    def names(self) -> list[str]:
        """Return the name of each callback that is not the run's own, as a checkpoint has it."""
        return [name for name, _ in self._named() if not name.startswith("_")]

    def _named(self) -> list[tuple[str, Any]]:
        seen: dict[str, int] = {}
        named = []
        for callback in self._all:
            kind = type(callback).__name__
            seen[kind] = seen.get(kind, 0) + 1
            named.append((kind if seen[kind] == 1 else f"{kind}-{seen[kind]}", callback))
        return named


def _check(callback: Any) -> None:
    kind = callback if isinstance(callback, type) else type(callback)
    if kind is callback:
        raise ConfigError(f"a callback must be an object, got the class {kind.__name__}: pass {kind.__name__}(...).")
    for name in dir(kind):
        if name.startswith("on_") and name not in HOOKS and callable(getattr(kind, name)):
            raise ConfigError(
                f"{kind.__name__}.{name} would never be called: the hooks are {', '.join(HOOKS)}.{nearest(name, HOOKS)}"
            )


def _run(callback: Any, name: str, method: Callable[..., Any], *arguments: Any) -> Any:
    """Call a method of a callback; an error in it names both."""
    try:
        return method(*arguments)
    except LucidError:
        raise
    except Exception as error:
        raise CallbackError(f"{type(callback).__name__}.{name} raised {type(error).__name__}: {error}") from error


def _changes_in_eval(callback: Any) -> bool:
    """Whether an evaluation may change the state of a callback: it has a hook there and does not say otherwise."""
    hooks = ("on_eval_start", "on_eval_end", "on_record")
    return getattr(callback, "changes_in_eval", True) and any(_overrides(callback, hook) for hook in hooks)


def _overrides(callback: Any, hook: str) -> bool:
    return getattr(type(callback), hook, None) not in (None, getattr(Callback, hook))


def _fan_out(hook: str, callbacks: Sequence[Any]) -> Callable[..., None]:
    methods = [(callback, getattr(callback, hook)) for callback in callbacks if _overrides(callback, hook)]
    if not methods:
        return _nothing

    def call(*arguments: Any) -> None:
        for callback, method in methods:
            _run(callback, hook, method, *arguments)

    return call


def _nothing(*arguments: Any) -> None:
    """What a hook does that nobody uses."""
