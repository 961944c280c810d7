"""Keeps a control node running: what its files or its peers do must not stop the agent (design §3)."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import structlog

from headwater_core.clock import Clock
from headwater_core.control.config import ControlConfig
from headwater_core.control.control_log import PUBLISH_TIMEOUT_S
from headwater_core.control.control_records import Record
from headwater_core.control.node import ControlNode
from headwater_core.control.peer_transport import check_config
from headwater_core.control.state import EMPTY, ControlState
from headwater_core.errors import HeadwaterError, TransientError

REOPEN_S = 30.0  # between two attempts to open a node whose files or port have failed
LEADERLESS_S = 10.0  # without a leader for so long is reported
_LOOK_S = 2.0

log = structlog.get_logger()


class ControlHealth(NamedTuple):
    """
    role          "leader", "follower", or "none" while no leader is known, or there is no node
    leaderless_s  for how long that has been none, as far as the steps have seen it; 0 while a leader is known
    applied       the index of the last entry that the node has applied; 0 while there is none
    """

    role: str
    leaderless_s: float
    applied: int


class ControlSupervisor:
    """A ControlLog that is always available. While its node cannot be opened, or has failed, `state` is the last known one and `publish`
    raises TransientError; the node is opened again after a pause. Safe to use from many threads.

    `step` is one look at the node; between `start` and `close` a thread takes them. Raises UsageError for a configuration that cannot
    work, and nothing else.
    """

    def __init__(
        self,
        data_dir: Path,
        config: ControlConfig | None = None,
        *,
        clock: Clock,
        open_node: Callable[[Path, ControlConfig], ControlNode] = ControlNode,
    ) -> None:
        self._data_dir, self._config, self._clock, self._open_node = data_dir, config or ControlConfig(), clock, open_node
        check_config(self._config)
        self._lock = threading.Lock()
        self._node: ControlNode | None = None
        self._known = EMPTY
        self._reason = ""
        self._open_at_s = self._led_at_s = self._last_led_s = clock.monotonic_s()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self.step()

    def step(self) -> None:
        """Open the node when it is due; see whether it runs and has a leader; log what has changed."""
        with self._lock:
            if self._stop.is_set():
                return
            if self._node and (failure := self._node.failure):
                self._give_up(self._node, failure)
            if self._node is None and self._clock.monotonic_s() >= self._open_at_s:
                self._open()
            if self._node:
                if self._node.role != "none":
                    self._led_at_s = self._last_led_s = self._clock.monotonic_s()
                    self._report("")
                elif self._clock.monotonic_s() - self._led_at_s >= LEADERLESS_S:
                    self._report("there is no leader; are the peers running?")

    def publish(self, *records: Record, timeout_s: float = PUBLISH_TIMEOUT_S) -> None:
        """See ControlLog. TransientError while there is no node."""
        node = self._node
        if node is None:
            raise TransientError(f"control log: {self._reason}")
        node.publish(*records, timeout_s=timeout_s)

    def state(self) -> ControlState:
        """The node's, or the last one that was known."""
        node = self._node
        return node.state() if node else self._known

    def ready(self, timeout_s: float) -> bool:
        """Wait until the node has caught up; False when that takes longer, or there is none."""
        node = self._node
        try:
            return node is not None and node.ready(timeout_s)
        except HeadwaterError:
            return False

    @property
    def needs_rebuild(self) -> bool:
        node = self._node
        return node is not None and node.needs_rebuild

    @property
    def informed(self) -> bool:
        node = self._node
        return node is not None and node.informed

    @property
    def role(self) -> str:
        """See ControlNode; "none" while there is no node."""
        node = self._node
        return node.role if node is not None else "none"

    def health(self) -> ControlHealth:
        node, role = self._node, self.role
        leaderless_s = self._clock.monotonic_s() - self._last_led_s if role == "none" else 0.0
        return ControlHealth(role, leaderless_s, node.applied if node is not None else 0)

    def rebuilt(self) -> None:
        """The state has been filled from the bucket."""
        if self._node:
            self._node.rebuilt()

    def start(self) -> None:
        """Start the thread that takes the steps."""
        self._thread = threading.Thread(target=self._run, name="control-supervisor", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """May be called twice."""
        self._stop.set()
        if self._thread:
            self._thread.join()
            self._thread = None
        with self._lock:
            if self._node:
                self._known = self._node.state()
                self._node.close()
                self._node, self._reason = None, "it is closed"

    def _open(self) -> None:
        try:
            self._node = self._open_node(self._data_dir, self._config)
            self._led_at_s = self._clock.monotonic_s()
        except Exception as error:
            if not isinstance(error, HeadwaterError):
                log.exception("control_log_failed")
            self._failed(error)

    def _give_up(self, node: ControlNode, failure: HeadwaterError) -> None:
        self._known = node.state()
        self._node = None
        node.close()
        self._failed(failure)

    def _failed(self, error: Exception) -> None:
        self._open_at_s = self._clock.monotonic_s() + REOPEN_S
        self._report(str(error) or repr(error))

    def _report(self, reason: str) -> None:
        if reason == self._reason:
            return
        self._reason = reason
        if reason:
            log.error(
                "control_log_unavailable", reason=reason, consequence="archiving and reading continue; other agents learn of it later"
            )
        else:
            log.info("control_log_available")

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_S):
            self.step()
