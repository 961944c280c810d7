"""The status of each partition as this agent last saw it, kept up to date beside its work: asked for at any time, answered from memory.

The scheduler's listings, the file system's events and the steps say which partitions to look at again. That is done here, by one thread
that leaves most of the time to others: a look reads the log's directory and a few batch headers, and asks neither the store nor the
broker. So a store that is silent changes nothing but the ages. A partition to which nothing has happened is as it was seen at the last
listing.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import structlog

from archival.fleet import PASSES, ArchiverFleet
from archival.partition_status import NEEDS, KnownHead, PartitionStatus, backlog, status_of, stopped_by
from archival.plan.policy import Policy
from archival.plan.role import Acting, Standby, archiving_role
from headwater_core.clock import Clock
from headwater_core.control.state import PartitionState
from headwater_core.errors import HeadwaterError, NotFound, TransientError
from headwater_core.partition import PartitionId, TopicPartition
from headwater_core.segments.disk import DiskHangs, Progressed
from headwater_core.segments.local_log import Glimpse, LocalLog
from headwater_core.segments.log_dirs import Listing
from manifests.head import Head
from recovery import awaits_broker

ROUND_S = 1.0  # a partition is looked at once in that time, however much happens to it
WORK_SHARE = 0.1  # of the time, so that ten thousand partitions that change at once do not hold up the Kafka port
UNMEASURED = ("standby", "recovered")  # another agent archives it, or no broker writes it: there is no lag of ours

_NOT_YET = "not looked at yet"

log = structlog.get_logger()


class HeadVerdict(NamedTuple):
    """What only a head could say: this replica, in that role, archives nothing of it. It holds until the head or the role changes."""

    role: Acting | Standby
    state: str
    reason: str


@dataclass(slots=True)
class BoardEntry:
    """
    status    as it was when the partition was looked at
    at_s      when that was, and `now_s` when it was last seen to be so, on the monotonic clock
    glimpse   how the log looked from outside before the look
    is_sized  is the archive's size known, by a head?
    verdict   the head's, which outlives it: archivers with nothing to do are dropped
    """

    status: PartitionStatus
    at_s: float
    now_s: float
    glimpse: Glimpse | None = None
    is_sized: bool = False
    verdict: HeadVerdict | None = None

    def lag_s(self, now_s: float) -> float | None:
        """What waits has become older since the look."""
        if not self.status.lag_bytes or self.status.lag_s is None:
            return self.status.lag_s
        return self.status.lag_s + now_s - self.at_s


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardSources:
    """Where a look gets what it needs; nothing of it waits for a store or a broker.

    look     at a log. Raises what LogDirs.look does
    read     does work that reads a log's files, as LogDirs.read
    heads    that are held, all at once
    offsets  by the control log
    policy   what may be archived, as far as that is known
    trouble  why the archiving of a partition has stopped, or its last step failed, if it did
    recovered  was this log directory made by a recovery, and has no broker started on it?
    tail_age_ms  how long the tail has waited: of a partition whose archive ends at this offset, and its high watermark
    """

    look: Callable[[TopicPartition], LocalLog]
    read: Callable[[LocalLog, Callable[[Progressed], BoardEntry]], BoardEntry]
    heads: Callable[[], Mapping[PartitionId, KnownHead]]
    offsets: Callable[[PartitionId], PartitionState | None]
    policy: Callable[[TopicPartition], Policy]
    trouble: Callable[[TopicPartition], HeadwaterError | None]
    tail_age_ms: Callable[[PartitionId, int, int | None], int]
    recovered: Callable[[Path], bool]

    @classmethod
    def of(
        cls, fleet: ArchiverFleet, offsets: Callable[[PartitionId], PartitionState | None], policy: Callable[[TopicPartition], Policy]
    ) -> "BoardSources":
        def trouble(place: TopicPartition) -> HeadwaterError | None:
            failure = fleet.failures.get(place)
            return failure.error if failure is not None else None

        return cls(
            look=fleet.look,
            read=fleet.read,
            heads=fleet.heads,
            offsets=offsets,
            policy=policy,
            trouble=trouble,
            tail_age_ms=fleet.tails.age_since,
            recovered=awaits_broker,
        )


class StatusBoard:
    """Safe to use from many threads. `round` is one round of looks; `run` takes one after the other."""

    def __init__(self, sources: BoardSources, clock: Clock) -> None:
        self.clock = clock
        self._sources = sources
        self._lock = threading.Lock()  # of the tables, held for moments
        self._entries: dict[TopicPartition, BoardEntry] = {}
        self._due: dict[TopicPartition, None] = {}
        self._reasons: dict[TopicPartition, str] = {}  # what the last steps said
        self.last_commit_ms: int | None = None  # of this process, whichever partition's

    def entries(self) -> list[BoardEntry]:
        """Of all partitions here, in no order. An entry may change while it is read, from one true state to the next."""
        with self._lock:
            return list(self._entries.values())

    @property
    def unseen(self) -> int:
        """How many partitions have something happened to them that was not looked at yet."""
        return len(self._due)

    def listed(self, listing: Listing, began_s: float) -> None:
        """A listing that began then: what looks as it did is as it was; all else is due, and unknown if it was never looked at."""
        with self._lock:
            for place, glimpse in listing.partitions.items():
                entry = self._entries.get(place)
                if entry is not None and entry.glimpse is not None and glimpse.is_as(entry.glimpse):
                    entry.now_s = max(entry.now_s, began_s)
                else:
                    self._due[place] = None
                    if entry is None:
                        self._entries[place] = _unreadable(place, "unknown", _NOT_YET, began_s)

    def happened(self, places: Iterable[TopicPartition]) -> None:
        with self._lock:
            self._due.update(dict.fromkeys(places))

    def stepped(self, place: TopicPartition, reason: str) -> None:
        with self._lock:
            self._due[place] = None
            self._reasons[place] = reason

    def committed(self, head: Head) -> None:
        self.last_commit_ms = self.clock.now_ms()
        self.happened([head.partition_id.topic_partition])

    def retain(self, places: Collection[TopicPartition]) -> None:
        """All others are gone."""
        with self._lock:
            for table in (self._entries, self._due, self._reasons):
                for place in table.keys() - places:
                    del table[place]

    def run(self, stop: threading.Event) -> None:
        """Rounds, until `stop` is set."""
        while not stop.wait(ROUND_S):
            self.round(stop.wait)

    def round(self, wait: Callable[[float], object] = lambda _: False) -> None:
        """Look at all that is due. `wait` sleeps for so many seconds; true ends the round."""
        with self._lock:
            due, self._due = self._due, {}
        heads = self._sources.heads() if due else {}
        for place in due:
            began_s = self.clock.monotonic_s()
            try:
                self._look(place, heads, began_s)
            except DiskHangs:
                continue  # the time went by without work; other disks may answer
            except Exception:
                log.exception("status_not_updated", partition=str(place))
            if wait((self.clock.monotonic_s() - began_s) * (1 / WORK_SHARE - 1)):
                return

    def _look(self, place: TopicPartition, heads: Mapping[PartitionId, KnownHead], began_s: float) -> None:
        try:
            log = self._sources.look(place)
            entry = self._sources.read(log, partial(self._seen, log, heads.get(log.partition), began_s))
        except NotFound:
            with self._lock:
                self._entries.pop(place, None)
            return
        except TransientError as error:  # it changes just now, or its disk hangs: what was known stays, and becomes older
            self.happened([place])
            with self._lock:
                known = self._entries.get(place)
                if known is None or (known.glimpse is None and known.status.state == "unknown"):
                    seen_s = began_s if known is None else known.now_s
                    self._entries[place] = _unreadable(place, "unknown", str(error), seen_s)
            if isinstance(error, DiskHangs):
                raise
            return
        except HeadwaterError as error:
            entry = _unreadable(place, "stopped", str(error), began_s)
        with self._lock:
            self._entries[place] = entry

    def _seen(self, log: LocalLog, held: KnownHead | None, at_s: float, progressed: Progressed) -> BoardEntry:
        """In a thread of the log's disk, which may hang."""
        entry = self._entry(log, held, at_s, progressed)
        if entry.status.state != "stopped" and self._sources.recovered(log.directory.parent):
            entry.status = replace(entry.status, state="recovered", reason="read-only until a broker starts on it")
        return entry

    def _entry(self, log: LocalLog, held: KnownHead | None, at_s: float, progressed: Progressed) -> BoardEntry:
        partition, sources = log.partition, self._sources
        place = partition.topic_partition
        error, policy = sources.trouble(place), sources.policy(place)
        passes = error is None or isinstance(error, PASSES)
        trouble = "" if passes else str(error)
        offsets = sources.offsets(partition) if held is None else None
        if held is not None or (offsets is None and error is None and place in self._reasons):
            head = held.head if held is not None else None  # none: a step has found none
            status = status_of(
                partition,
                log,
                head,
                policy=policy,
                tail_age_ms=sources.tail_age_ms(partition, head.next_offset, log.high_watermark) if head is not None else 0,
                now_ms=self.clock.now_ms(),
                trouble=trouble,
                progressed=progressed,
            )
            status = replace(status, known_age_s=held.age_s if held is not None else 0.0)
            verdict = HeadVerdict(archiving_role(log), status.state, status.reason)
            is_final = not trouble and status.state in ("behind", *NEEDS)
            return BoardEntry(status, at_s, at_s, log.glimpse, is_sized=True, verdict=verdict if is_final else None)
        return self._by_offsets(log, offsets, policy, trouble, str(error) if error is not None and passes else "", at_s, progressed)

    def _by_offsets(
        self, log: LocalLog, offsets: PartitionState | None, policy: Policy, trouble: str, passing: str, at_s: float, progressed: Progressed
    ) -> BoardEntry:
        """Without a head: by the control log's word, or as unknown. `passing` is a trouble that passes by itself."""
        place = log.partition.topic_partition
        status = replace(
            PartitionStatus.unknown(place, "unknown", ""),
            topic_id=log.partition.topic_id,
            local_start=log.start_offset,
            high_watermark=log.high_watermark,
        )
        acting = archiving_role(log)
        if offsets is None:
            state, reason = "unknown", passing or _NOT_YET
            if isinstance(acting, Standby):
                state, reason = "standby", acting.reason
            elif trouble:
                state, reason = stopped_by(trouble), trouble
            return BoardEntry(replace(status, state=state, reason=reason), at_s, at_s, log.glimpse)
        lag = backlog(log, offsets.last_offset + 1, progressed)
        before = self._entries.get(place)
        last_offset = offsets.last_offset if offsets.last_offset >= 0 else None
        is_as_before = (
            before is not None
            and before.is_sized
            and (before.status.topic_id, before.status.last_offset, before.status.archive_start)
            == (status.topic_id, last_offset, offsets.start_offset)
        )
        verdict = before.verdict if before is not None and is_as_before else None
        if verdict is not None and verdict.role != acting:
            verdict = None
        if isinstance(acting, Standby):
            state, reason = "standby", acting.reason
        elif trouble:
            state, reason = stopped_by(trouble), trouble
        elif verdict is not None:
            state, reason = verdict.state, verdict.reason
        elif lag is not None and lag.size_bytes == 0:
            state, reason = "archived", "all that is committed is archived"
        else:
            state = "paused" if policy.is_paused else "waiting"
            reason = policy.off or passing or self._reasons.get(place, "its turn comes")
        status = replace(
            status,
            archive_start=offsets.start_offset,
            last_offset=last_offset,
            lag_bytes=lag.size_bytes if lag is not None else None,
            lag_s=lag.age_s(self.clock.now_ms()) if lag is not None else None,
            archived_bytes=before.status.archived_bytes if before is not None and is_as_before else 0,
            objects=before.status.objects if before is not None and is_as_before else 0,
            state=state,
            reason=reason,
        )
        return BoardEntry(status, at_s, at_s, log.glimpse, is_sized=is_as_before, verdict=verdict)


def _unreadable(place: TopicPartition, state: str, reason: str, at_s: float) -> BoardEntry:
    return BoardEntry(PartitionStatus.unknown(place, state, reason), at_s, at_s)
