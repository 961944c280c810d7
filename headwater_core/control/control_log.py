"""The seam between those who publish and read control records and the machinery that replicates them."""

import threading
from typing import Protocol

from headwater_core.control.control_records import Record, decode, encode
from headwater_core.control.state import EMPTY, ControlState, apply_all

PUBLISH_TIMEOUT_S = 10.0


class ControlLog(Protocol):
    """Where agents coordinate. A hint for everyone, never a permission: truth is in the bucket (design §3)."""

    def publish(self, *records: Record, timeout_s: float = PUBLISH_TIMEOUT_S) -> None:
        """Return when the records are agreed and applied here. Repeating a publish is harmless.

        Raises UnknownOutcome when no answer came in time, and TransientError when there is no leader to ask.
        """
        ...

    def state(self) -> ControlState: ...

    @property
    def informed(self) -> bool:
        """Has `state` caught up with what was agreed before, and is nothing known to be missing?"""
        ...

    def close(self) -> None: ...


class LocalControl:
    """A control log of this process alone, kept nowhere: for tests and the simulation. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = EMPTY

    def publish(self, *records: Record, timeout_s: float = PUBLISH_TIMEOUT_S) -> None:
        agreed = decode(encode(records))
        with self._lock:
            self._state = apply_all(self._state, agreed)

    def state(self) -> ControlState:
        return self._state

    @property
    def informed(self) -> bool:
        return True

    def close(self) -> None:
        pass
