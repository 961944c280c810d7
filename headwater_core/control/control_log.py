"""The interface between the agents that publish and read control records, and what replicates these."""

from typing import Protocol

from headwater_core.control.control_records import Record
from headwater_core.control.state import ControlState

PUBLISH_TIMEOUT_S = 10.0


class ControlLog(Protocol):
    """Where agents coordinate. A hint to every agent, never a permission: truth is in the bucket (design §3)."""

    def publish(self, *records: Record, timeout_s: float = PUBLISH_TIMEOUT_S) -> None:
        """Return when the records are agreed and applied here. Repeating a publish is harmless.

        Raises UnknownOutcome when no answer came in time, and TransientError when there is no leader to ask.
        """
        ...

    def state(self) -> ControlState:
        """What is known by now; a value, it does not change any more."""
        ...

    @property
    def informed(self) -> bool:
        """Has `state` caught up with what was agreed before, and is nothing known to be missing?"""
        ...

    def close(self) -> None:
        """May be called twice."""
        ...
