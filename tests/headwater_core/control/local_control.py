"""A control log without a network or files."""

import threading

from headwater_core.control.control_log import PUBLISH_TIMEOUT_S
from headwater_core.control.control_records import Record, decode, encode
from headwater_core.control.state import EMPTY, ControlState, apply_all


class LocalControl:
    """A ControlLog of this process alone, in memory. Safe to use from many threads."""

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
