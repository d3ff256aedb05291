"""How many processes train together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Context:
    """The place of this process among those that train together: alone, unless told otherwise."""

    rank: int = 0
    world_size: int = 1


def current() -> Context:
    """Return the context of this process, as `torchrun` tells it by RANK and WORLD_SIZE.

    More than one process is not supported yet; the trainer refuses it.
    """
    import os

    return Context(rank=int(os.environ.get("RANK", 0)), world_size=int(os.environ.get("WORLD_SIZE", 1)))
