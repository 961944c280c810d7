"""Announces to the other agents what was committed (design §4.6). A copy of what the bucket says: archiving never waits for it."""

import threading
from collections.abc import Collection
from typing import Any

import structlog

from headwater_core.clock import Clock
from headwater_core.control.control_log import PUBLISH_TIMEOUT_S, ControlLog
from headwater_core.control.control_records import Advanced, Claim, Retired
from headwater_core.errors import HeadwaterError
from headwater_core.partition import PartitionId
from manifests.head import Head

RETRY_S = 30.0  # after a failure, so that a control log without a leader costs one time-out per half minute
GATHER_S = 0.1  # many partitions' records go into one command, which costs a sync of the control log, and a wait for its peers
LAST_PUBLISH_S = 2.0  # what the end of the program waits for a last announcement
_BATCH = 500  # records per command: about 100 KB, and at most the half of a command's limit

log = structlog.get_logger()


class Announcer:
    """Keeps what is to be announced, the newest head of each partition, until the control log has it. Safe to use from many threads.

    Between `start` and `close` one thread does all publishing, and no other thread waits for the control log. Without that thread
    each announcement publishes what is due by itself, which suits tests and the simulation.
    """

    def __init__(self, control: ControlLog, clock: Clock) -> None:
        self._control, self._clock = control, clock
        self._due: dict[PartitionId, Advanced | Claim | Retired] = {}
        self._lock = threading.Lock()  # of `_due`, held for moments
        self._publishing = threading.Lock()
        self._failing = False
        self._paused_until_s = float("-inf")
        self._thread: threading.Thread | None = None
        self._wake, self._stop = threading.Event(), threading.Event()

    def known_version(self, partition: PartitionId) -> int:
        """The manifest version that the control log remembers; 0 when it remembers none, which is no proof that there was none."""
        return self._control.state().known_version(partition)

    @property
    def informed(self) -> bool:
        """Does the control log know all that was announced? Not while it has no leader, or is being rebuilt."""
        return self._control.informed

    def announce(self, head: Head, *, claims: bool = False) -> None:
        """Publish `head`, sooner or later, unless the control log knows it or a newer one already."""
        if not self._control.state().knows(head.partition_id, head.version, head.commit_id):
            self._put(head.partition_id, claim_of(head) if claims else advanced_of(head))
            self._publish_soon()

    def retire_absent(self, present: Collection[PartitionId], writer: str) -> Collection[PartitionId]:
        """Remove from the control log what `writer` was the last to hold and what its log directories no longer hold; which that is. It is
        the same until the control log has removed it.

        present  every partition of them, from a survey that found no problem
        """
        absent = []
        for partition, known in self._control.state().partitions():
            if known.owner == writer and partition not in present:
                gone = Retired(
                    cluster_id=partition.cluster_id,
                    topic_id=partition.topic_id,
                    partition=partition.partition,
                    topic=partition.topic,
                    version=known.manifest_version,
                    commit_id=known.commit_id,
                )
                self._put(partition, gone)
                absent.append(partition)
        self._publish_soon()
        return absent

    def publish_due(self, *, timeout_s: float = PUBLISH_TIMEOUT_S) -> None:
        """Publish what is due. Whatever the control log fails with, it is due again after a pause: archiving continues without it."""
        if not self._publishing.acquire(blocking=False):
            return
        try:
            while self._clock.monotonic_s() >= self._paused_until_s and (batch := self._batch()):
                try:
                    self._control.publish(*batch.values(), timeout_s=timeout_s)
                except HeadwaterError as error:
                    self._pause(str(error))
                    return
                with self._lock:
                    for partition, record in batch.items():
                        if self._due.get(partition) is record:  # nothing newer has come meanwhile
                            del self._due[partition]
                if self._failing:
                    self._failing = False
                    log.info("announcements_resumed")
        finally:
            self._publishing.release()

    def start(self) -> None:
        """From now on one thread publishes."""
        self._thread = threading.Thread(target=self._run, name="announcer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Publish what is still due, unless the control log is failing, and stop."""
        if self._thread:
            self._stop.set()
            self._wake.set()
            self._thread.join()
            self._thread = None

    def _put(self, partition: PartitionId, record: Advanced | Claim | Retired) -> None:
        with self._lock:
            due = self._due.get(partition)
            if due is None or due.version <= record.version:
                self._due[partition] = record

    def _publish_soon(self) -> None:
        if self._thread:
            self._wake.set()
        else:
            self.publish_due()

    def _batch(self) -> dict[PartitionId, Advanced | Claim | Retired]:
        """The next command. `retired` has one of its own: an older agent leaves out a whole command with a record it does not know."""
        with self._lock:
            due = list(self._due.items())
        retiring = bool(due) and isinstance(due[0][1], Retired)
        return dict([each for each in due if isinstance(each[1], Retired) == retiring][:_BATCH])

    def _pause(self, reason: str) -> None:
        self._paused_until_s = self._clock.monotonic_s() + RETRY_S
        if not self._failing:
            self._failing = True
            log.warning("announcements_postponed", reason=reason)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._publish_safely(PUBLISH_TIMEOUT_S)
            self._wake.wait(RETRY_S if self._failing else None)
            self._stop.wait(GATHER_S)
            self._wake.clear()
        self._publish_safely(LAST_PUBLISH_S)

    def _publish_safely(self, timeout_s: float) -> None:
        try:
            self.publish_due(timeout_s=timeout_s)
        except Exception as error:  # a defect of ours is no reason to stop announcing
            log.exception("announcements_failed")
            self._pause(repr(error))


def claim_of(head: Head) -> Claim:
    """The control record of a head that claims its partition."""
    return Claim(**_facts(head))


def advanced_of(head: Head) -> Advanced:
    """The control record of any other head."""
    return Advanced(**_facts(head))


def _facts(head: Head) -> dict[str, Any]:
    return {name: getattr(head, name) for name in Advanced.__struct_fields__}  # a claim's are the same
