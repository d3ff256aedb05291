"""What parts share by shape: an object fits if it has these methods."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from lucid.records import Record


@runtime_checkable
class Stateful(Protocol):
    """Has a state that goes into checkpoints."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""


@runtime_checkable
class Report(Protocol):
    """Takes the records of a run to where a person sees them."""

    def write(self, record: Record) -> None:
        """Take one record; steps never go down except after `rewind`."""

    def rewind(self, step: int) -> None:
        """Drop every record after `step`: the run goes on from there. -1 drops all."""

    def tick(self, step: int) -> None:
        """Be told that a step is done. Called every step: must cost next to nothing and read no tensor."""

    def close(self) -> None:
        """Finish; called once, also when the run fails."""
