"""`map_location`: which device a loaded tensor goes to, with torch's meanings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from lucid.errors import CheckpointError

MapLocation = str | torch.device | Mapping[str, str] | Callable[[Any, str], Any] | None


def placer(map_location: MapLocation, where: str) -> Callable[[torch.Tensor, str], torch.Tensor]:
    """Return the function that moves a CPU tensor whose file recorded a device.

    Raises:
        CheckpointError: (from the function) the device is not there; the message names it.
    """

    def place(tensor: torch.Tensor, recorded: str) -> torch.Tensor:
        if map_location is None:
            wanted: Any = recorded
        elif callable(map_location):
            storage = map_location(tensor.untyped_storage(), recorded)
            wanted = recorded if storage is None else storage.device
        elif isinstance(map_location, Mapping):
            wanted = map_location.get(recorded, recorded)
        else:
            wanted = map_location
        try:
            return tensor.to(wanted)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            raise CheckpointError(
                f"{where}: a tensor must go to {str(wanted)!r}, which is not here: {str(error)[:200]} "
                'Load with map_location="cpu".'
            ) from error

    return place
