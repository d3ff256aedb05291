"""Whether a row depends on (seed, epoch, row) alone: each is read twice, as a run reads it."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from lucid.check import hidden
from lucid.check.compare import advice_for_hidden, suspects
from lucid.check.digest import digest
from lucid.check.report import Section
from lucid.check.target import Target
from lucid.utils.data import Feed

_ROWS = 4


def rows_section(target: Target, feed: Feed) -> Section:
    """Read some rows twice."""
    section = Section("rows", "does a row give the same values whenever and wherever it is read?")
    for role, loader in (("", target.train_loader), ("eval ", target.eval_loader)):
        dataset = getattr(loader, "dataset", None)
        if loader is None:
            continue
        if dataset is None or isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
            section.skipped = "a stream has no rows that can be read twice"
            continue
        keys = feed.rows(0, 0)[:_ROWS] if not role else list(range(min(_ROWS, len(dataset))))
        _read_twice(section, target, dataset, keys, role)
    return section


def _read_twice(section: Section, target: Target, dataset: Any, keys: list[Any], role: str) -> None:
    before = hidden.scan(target)
    one, other = _read(dataset, keys), _read(dataset, keys)
    row = next((key for key, a, b in zip(keys, one, other, strict=True) if a != b), None)
    if row is None:
        return
    moved = [name for name in suspects(before, hidden.scan(target)) if not name.startswith(("model", "optimizer"))]
    text = f"row {row!r} read twice under one seed gives two values"
    if moved:
        text = f"{text}; reading it moves {', '.join(moved[:3])}."
        section.fault(f"{role}data.values", text, advice_for_hidden(moved[0]))
    else:
        section.fault(
            f"{role}data.values",
            f"{text}, and nothing of your objects moves: it depends on the clock, `os.urandom` or the like.",
            "Let a row depend on its number and on the global random streams alone.",
        )


def _read(dataset: Any, keys: list[Any]) -> list[str]:
    """Return the hash of each row, read as the run reads it."""
    loader = DataLoader(dataset, batch_size=None, sampler=keys, collate_fn=_as_it_is)
    return [digest(row) for row in Feed(loader, seed=11).batches(0)]


def _as_it_is(row: Any) -> Any:
    return row
