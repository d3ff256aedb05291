"""How many processes train together. One process is the same object as many, so the spine has no branch for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Context:
    """The place of this process among those that train together: alone, unless told otherwise."""

    rank: int = 0
    world_size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes records and pictures."""
        return self.rank == 0

    def all_sum(self, value: T) -> T:
        """Return the sum of `value` over all processes."""
        return value

    def any(self, flag: bool) -> bool:
        """Return whether `flag` is true in any process: one decision for all."""
        return flag

    def barrier(self) -> None:
        """Wait until every process is here."""


def current() -> Context:
    """Return the context of this process.

    More than one process is not supported yet; `torchrun` with more than one is refused by the trainer.
    """
    import os

    return Context(rank=int(os.environ.get("RANK", 0)), world_size=int(os.environ.get("WORLD_SIZE", 1)))
