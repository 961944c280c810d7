"""Telling the other agents what was committed (design §4.6). A copy of what the bucket says: archiving never waits for it."""

import threading

import structlog

from control.log import ControlLog
from control.records import advanced_of, claim_of
from manifests.head import Head
from model.clock import Clock
from model.errors import TransientError
from model.partition import PartitionId

RETRY_S = 30.0  # after a failure, so that a control log without a leader costs one time-out per half minute, not per step


class Announcer:
    """Safe to use from many threads."""

    def __init__(self, control: ControlLog, clock: Clock) -> None:
        self._control, self._clock = control, clock
        self._lock = threading.Lock()
        self._silent_until_s = float("-inf")

    def known_version(self, partition: PartitionId) -> int:
        """The manifest version that the control log remembers; 0 for a partition it never heard of."""
        known = self._control.state().partition(partition)
        return known.manifest_version if known else 0

    def announce(self, head: Head, *, claims: bool = False) -> bool:
        """Publish `head` unless the control log knows it, or a newer one, already; False when that failed for now.

        Nothing need be remembered for another try: every step of an archiver announces the head it holds.
        """
        known = self._control.state().partition(head.partition_id)
        if known and known.manifest_version >= head.version:
            return True
        with self._lock:
            if self._clock.monotonic_s() < self._silent_until_s:
                return False
        try:
            self._control.publish(claim_of(head) if claims else advanced_of(head))
        except TransientError as error:
            with self._lock:
                self._silent_until_s = self._clock.monotonic_s() + RETRY_S
            structlog.get_logger().warning("announcement_postponed", ntp=f"{head.topic}:{head.partition}", reason=str(error))
            return False
        return True
