"""The sections that compare runs: repeatable, resume, neutral validation."""

from __future__ import annotations

from collections.abc import Callable

from lucid.check.child import Failed
from lucid.check.compare import Difference, advice, advice_for_hidden, differing, first, suspects
from lucid.check.report import Section
from lucid.check.script import Script

_SHOWN = 4


def repeatable(one: Script, other: Script, same_hashes: Callable[[], Script | Failed]) -> Section:
    """The same steps twice, in two processes that begin with the same seeds.

    Args:
        one: the unbroken run.
        other: the same run in another process, left earlier.
        same_hashes: plays `other` again with the hash seed of `one`; only called where there is a difference.
    """
    last = max(other.steps, default=0)
    section = Section("repeatable", f"do the same {last} steps twice give the same bits?")
    made = differing(one.initial, other.initial)
    found = Difference(0, made[0], "as the factory made it", tuple(made[1:])) if made else None
    found = found or first(one, other, up_to=last)
    if found is None:
        return section
    again = same_hashes()
    if isinstance(again, Script) and not differing(one.initial, again.initial) and not first(one, again, up_to=last):
        section.fault(
            _named(found),
            f"differs {found.when}, and only because sets of strings are ordered otherwise in each process.",
            "Sort what comes out of a set, or of `hash()`: `sorted(set(names))`.",
        )
        return section
    moved = suspects(one.hidden.get(found.step, {}), other.hidden.get(found.step, {}))
    text = f"differs {found.when} between two processes with the same seeds."
    if moved:
        section.fault(_named(found), f"{text} So does {_list(moved)}.", advice_for_hidden(moved[0]))
    else:
        section.fault(
            _named(found),
            f"{text} No state of your objects explains it: look for the clock, `os.urandom`, threads, "
            "or a kernel that is not deterministic.",
            'Make it a function of the seed; for kernels set `deterministic = true` in the section "train".',
        )
    return section


def resume(one: Script, before: Script, after: Script, is_repeatable: bool) -> Section:
    """Unbroken against broken and gone on with in a new process.

    Args:
        one: the unbroken run.
        before: the run that was left.
        after: the run that went on from its checkpoint.
        is_repeatable: whether unbroken runs are equal among themselves.
    """
    left, last = max(before.steps, default=0), max(one.steps, default=0)
    section = Section("resume", f"{last} steps against {left} + {last - left} in a new process: the same bits?")
    _not_restored(section, before, after, left)
    _lost_state(section, one, before, after, left, is_repeatable)
    if not is_repeatable:
        section.skipped = "the run is not repeatable, so there is nothing to compare with"
        return section
    found = first(one, after, after=left, up_to=last)
    if found is None:
        return section
    names = _reasons(one, before, after, left)
    text = f"is the first to differ, {found.when}."
    if _is_other_data(found, one, after):
        section.fault(
            _named(found),
            f"{text} {_OTHER_DATA}",
            _SEED_DATA,
        )
    elif names:
        section.fault(
            _named(found), f"{text} Behind it: {_list(names)}, which no checkpoint holds.", advice_for_hidden(names[0])
        )
    else:
        section.fault(_named(found), text, advice(found.name))
    return section


def refused(failed: Failed) -> Section:
    """Return the section where the new process did not go on from the checkpoint."""
    section = Section("resume", "does a new process go on from the checkpoint?")
    if failed.kind == "ResumeError" and "data.content" in failed.message:
        section.fault("data.content", _OTHER_DATA, _SEED_DATA)
    else:
        section.fault(failed.kind, failed.message, "Look at the traceback in the JSON form.")
    section.facts["traceback"] = failed.trace
    return section


_OTHER_DATA = "The data set is another one than before the break: its contents were drawn when it was made."
_SEED_DATA = "Call `lucid.seed_everything(seed)` before the data is made or split, or give `random_split` a generator."


def _not_restored(section: Section, before: Script, after: Script, left: int) -> None:
    names = differing(before.ends.get(left, {}), after.ends.get(0, {}))
    for name in names[:_SHOWN]:
        section.fault(name, "is not what it was when the checkpoint was made.", advice(name))


def _lost_state(section: Section, one: Script, before: Script, after: Script, left: int, is_repeatable: bool) -> None:
    """A callback's state that the unbroken run has at its end and the resumed one has not."""
    if not is_repeatable:
        return
    last = max(one.steps, default=0)
    names = suspects(one.hidden.get(last, {}), after.hidden.get(last, {}))
    at_once = _reasons(one, before, after, left)
    lost = [name for name in names if name.startswith("callback ") and name in at_once]
    if lost:
        section.fault(lost[0], f"is lost by the break ({_list(lost)}).", advice_for_hidden(lost[0]))


def _reasons(one: Script, before: Script, after: Script, left: int) -> list[str]:
    """State that was there before the break and is not after it: what moved, or was drawn at the start."""
    own = suspects(one.hidden.get(left, {}), before.hidden.get(left, {}))  # the clock, a file name: never the same
    return [name for name in suspects(before.hidden.get(left, {}), after.hidden.get(0, {})) if name not in own]


def _is_other_data(found: Difference, one: Script, after: Script) -> bool:
    """Whether the data differed before the first step already."""
    if not found.name.startswith("data."):
        return False
    start = [n for n in differing(one.hidden.get(0, {}), after.hidden.get(0, {})) if n.startswith("dataset")]
    moved = set(differing(one.hidden.get(0, {}), one.hidden.get(max(one.steps, default=0), {})))
    return bool(set(start) - moved)


def neutral(one: Script, other: Script | Failed, has_eval: bool) -> Section:
    """With and without more evaluations."""
    section = Section("neutral", "does training give the same bits with more evaluations in between?")
    if not has_eval:
        section.skipped = "there is no evaluation data"
        return section
    if isinstance(other, Failed):
        section.fault("evaluation", f"raised {other}.")
        return section
    found = first(one, other, up_to=max(one.steps, default=0))
    if found is None:
        return section
    moved = list(dict.fromkeys(name.removesuffix(" (length)").partition("[")[0] for name in other.moved_by_evaluation))
    text = f"differs {found.when} if there are more evaluations."
    if moved:
        text += f" An evaluation moves {_list(moved)}."
    section.fault(
        _named(found),
        text,
        "Nothing that training uses may change in eval mode: look at `self.training` before you write.",
    )
    return section


def _named(found: Difference) -> str:
    return found.name


def _list(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
