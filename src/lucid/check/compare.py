"""The first thing that differs between two runs, and what in the user's objects can be its reason."""

from __future__ import annotations

from dataclasses import dataclass

from lucid.check.digest import Digests
from lucid.check.script import Script


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two runs part."""

    step: int
    name: str
    when: str
    """In words: at the start, in a step, after it."""
    others: tuple[str, ...] = ()
    """What else differs at that moment."""


def differing(one: Digests, other: Digests) -> list[str]:
    """Return the names whose values differ, in order; what only one has, differs."""
    return [name for name in dict.fromkeys([*one, *other]) if one.get(name) != other.get(name)]


def first(one: Script, other: Script, after: int = 0, up_to: int | None = None) -> Difference | None:
    """Return the first difference in the steps after `after`, up to `up_to`; None if there is none."""
    last = max([*one.steps, *other.steps], default=0) if up_to is None else up_to
    for step in range(after + 1, last + 1):
        names = differing(one.steps.get(step, {}), other.steps.get(step, {}))
        if names:
            return Difference(step, names[0], f"in step {step}", tuple(names[1:]))
        if step == up_to:
            continue  # one of the two was left here, before what is due after the step
        names = differing(one.ends.get(step, {}), other.ends.get(step, {}))
        if names:
            return Difference(step, names[0], f"after step {step}", tuple(names[1:]))
    return None


def suspects(one: Digests, other: Digests) -> list[str]:
    """Return the attributes, globals and cells of the user's that differ, those nearest to the object first."""
    names = list(dict.fromkeys(name.removesuffix(" (length)").partition("[")[0] for name in differing(one, other)))
    return sorted(names, key=lambda name: ("(default" in name, name.count("."), name))


ADVICE = {
    "data.position": "Draw the order from a `generator` of the sampler, or from a global stream.",
    "data.values": "Let a row depend on its number alone, and draw from the global streams of torch, NumPy or `random` "
    "inside `__getitem__`: they are seeded for each row.",
    "rng": "Something outside the run draws from a global stream; draw in a hook, where it is put back.",
    "mode of": "Set modes once, before the trainer is made, and put back what you change.",
    "lr": "Let a schedule set the learning rate, or a callback with `state_dict`.",
    "loss": "Keep what the loss depends on in the model as a buffer, or make it a function of the batch.",
    "gradient of": "Keep what the gradient depends on in the model as a buffer, or make it a function of the batch.",
    "model.": "Register it with `register_buffer` (persistent), so that checkpoints hold it.",
    "optimizer": "Keep all state of the optimizer in `self.state[parameter]` or in its groups.",
    "scheduler": "Keep all state of the schedule in attributes that its `state_dict` returns and that load puts back.",
    "callbacks": "`load_state_dict` must put back all that `state_dict` gave.",
}


def advice(name: str) -> str:
    """Return what to do about a difference."""
    return next((text for start, text in ADVICE.items() if name.startswith(start)), "")


def advice_for_hidden(name: str) -> str:
    """Return what to do about state that no checkpoint holds."""
    if name.startswith("callback "):
        return "Give the callback `state_dict` and `load_state_dict`: the run saves them in every checkpoint."
    if name.startswith("model"):
        return "Make it a buffer: `self.register_buffer(name, tensor)`; checkpoints hold buffers."
    if name.startswith(("dataset", "eval dataset", "collate_fn")):
        return (
            "Draw from the global streams of torch, NumPy or `random` instead of an own generator or counter: they are "
            "seeded for each row."
        )
    if name.startswith(("loss", "train_step")):
        return "Keep it in the model as a buffer, or in a callback with `state_dict`."
    return "Keep it in the model as a buffer, in a callback with `state_dict`, or draw from the global streams."
