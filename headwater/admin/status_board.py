"""The status of each partition as this agent last saw it, kept up to date beside its work: asked for at any time, answered from memory.

The scheduler's listings, the file system's events and the steps say which partitions to look at again. That is done here, by one thread
that leaves most of the time to others: a look reads the log's directory and a few batch headers, and asks neither the store nor the
broker. So a store that is silent changes nothing but the ages. A partition to which nothing has happened is as it was seen at the last
listing. What is archived and not here is known from the control log, and from heads that were read for it.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import structlog

from archival.broker.broker_release import ReleaseRecord
from archival.fleet import PASSES, ArchiverFleet
from archival.partition_status import NEEDS, KnownHead, PartitionStatus, backlog, status_of, stopped_by
from archival.plan.offload_trigger import LocalRetention, misfit
from archival.plan.policy import Policy
from archival.plan.role import Acting, Standby, Unfit, archiving_role
from archival.plan.stream_plan import OpenStream
from archival.watermark import WatermarkOrigin, WatermarkSource
from headwater_core.clock import Clock
from headwater_core.control.state import PartitionState
from headwater_core.errors import HeadwaterError, NotFound, TransientError
from headwater_core.partition import PartitionId, TopicPartition
from headwater_core.segments.disk import DiskHangs, Progressed
from headwater_core.segments.local_log import Glimpse, LocalLog
from headwater_core.segments.log_dirs import Listing
from hydration.cache.cache_directory import folder
from manifests.head import Head
from recovery import awaits_broker

RETRY_S = 1.0  # before what could not be looked at is looked at again
GATHER_S = 0.05  # between two rounds: what happens to one partition in that time costs one look
WORK_SHARE = 0.1  # of the time, so that ten thousand partitions that change at once do not hold up the Kafka port
AWAITED_SHARE = 0.5  # while somebody waits for a look
JOIN_S = 10.0  # between two looks at what is archived and not here
READ_AGAIN_S = 600.0  # a head that another agent changes, for its size alone
UNMEASURED = ("standby", "excluded", "recovered", "archive-only")  # another agent archives it, nobody does, or no broker writes it
ARCHIVE_ONLY = "archive-only"
DAMAGED = "damaged"

_NOT_YET = "not looked at yet"

log = structlog.get_logger()


class HeadVerdict(NamedTuple):
    """What only a head could say: this replica, in that role, archives nothing of it. It holds until the head or the role changes."""

    role: Acting | Standby
    state: str
    reason: str


class ArchiveExtent(NamedTuple):
    """From where to where an archive goes, both inclusive, by the manifest of that version."""

    version: int
    start_offset: int
    last_offset: int


NO_EXTENT = ArchiveExtent(-1, 0, -1)


class ArchiveSize(NamedTuple):
    """What a head said of its archive, and when, on the monotonic clock.

    extent   of an unusable or absent head: NO_EXTENT
    trouble  why a head could not be used; then all else is nothing
    denied   what the control log said of it when the bucket had no head: it may have been about to hear of the first one
    commit_id  of that head
    """

    extent: ArchiveExtent
    archived_bytes: int
    objects: int
    at_s: float
    trouble: str = ""
    denied: PartitionState | None = None
    commit_id: str = ""

    @property
    def is_known(self) -> bool:
        """Did a head say this?"""
        return self.extent != NO_EXTENT

    @classmethod
    def of(cls, head: Head, at_s: float) -> "ArchiveSize":
        extent = ArchiveExtent(head.version, head.start_offset, head.last_offset)
        return cls(extent, head.entries.live_bytes, head.entries.objects, at_s, commit_id=head.commit_id)

    @classmethod
    def unusable(cls, trouble: str, at_s: float) -> "ArchiveSize":
        return cls(NO_EXTENT, 0, 0, at_s, trouble)

    @classmethod
    def absent(cls, denied: PartitionState | None, at_s: float) -> "ArchiveSize":
        return cls(NO_EXTENT, 0, 0, at_s, denied=denied)


def _newest(known: PartitionState | None, size: ArchiveSize | None) -> ArchiveExtent | None:
    """By the control log, which others may have told of a newer manifest, or by a head, of which the control log may not have heard."""
    said = ArchiveExtent(known.manifest_version, known.start_offset, known.last_offset) if known is not None else None
    seen = size.extent if size is not None and size.is_known else None
    if known is not None and size is not None and known.conflicts(size.extent.version, size.commit_id):
        return seen
    return max(said, seen, key=lambda each: each.version) if said is not None and seen is not None else said or seen


@dataclass(slots=True)
class BoardEntry:
    """
    status    as it was when the partition was looked at
    at_s      when that was, and `now_s` when it was last seen to be so, on the monotonic clock
    glimpse   how the log looked from outside before the look
    is_sized  is the archive's size known, by a head?
    verdict   the head's, which outlives it: archivers with nothing to do are dropped
    partition None while the directory does not say which it is
    said_s    when its high watermark was last said to be that; None: that is not known
    is_led    does the broker beside us lead it?
    folder    of the cache: made once, since a page may need ten thousand
    """

    status: PartitionStatus
    at_s: float
    now_s: float
    glimpse: Glimpse | None = None
    is_sized: bool = False
    verdict: HeadVerdict | None = None
    partition: PartitionId | None = None
    said_s: float | None = None
    is_led: bool = False
    folder: str = ""

    def __post_init__(self) -> None:
        if self.partition is not None:
            self.folder = folder(self.partition)

    @property
    def place(self) -> tuple[str, int]:
        return self.status.topic, self.status.partition

    @property
    def is_unseen(self) -> bool:
        """Was it never looked at?"""
        return self.glimpse is None and self.status.state == "unknown" and self.status.reason == _NOT_YET

    def lag_s(self, now_s: float) -> float | None:
        """What waits has become older since the look."""
        if not self.status.lag_bytes or self.status.lag_s is None:
            return self.status.lag_s
        return self.status.lag_s + now_s - self.at_s


def state_of(entry: BoardEntry, damaged: Collection[str]) -> str:
    """Return its state, which is `damaged` where nothing more urgent is known. damaged: folders of partitions with damaged objects"""
    is_damaged = entry.folder in damaged and entry.status.state in ("archived", "due", "waiting", "paused")
    return DAMAGED if is_damaged else entry.status.state


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardSources:
    """Where a look gets what it needs; nothing of it waits for a store or a broker.

    look     at a log, and whose word its high watermark is. Raises what LogDirs.look does
    read     does work that reads a log's files, as LogDirs.read
    head     that is held
    offsets  by the control log
    policy   what may be archived, as far as that is known
    trouble  why the archiving of a partition has stopped, or its last step failed, if it did
    recovered  was this log directory made by a recovery, and has no broker started on it?
    tail_age_ms  how long the tail has waited: of a partition whose archive ends at this offset, and its high watermark
    released what its broker was asked to delete, if that was tried
    stream   what streaming offload has taken of it and not listed yet
    merge_trouble  why what is to become one object does not
    archived all partitions that the archive is known to have, and their offsets by the control log, None where it says nothing; the same
             object as long as nothing changes
    """

    look: Callable[[TopicPartition], tuple[LocalLog, WatermarkOrigin]]
    read: Callable[[LocalLog, Callable[[Progressed], BoardEntry]], BoardEntry]
    head: Callable[[PartitionId], KnownHead | None]
    offsets: Callable[[PartitionId], PartitionState | None]
    policy: Callable[[TopicPartition], Policy]
    trouble: Callable[[TopicPartition], HeadwaterError | None]
    tail_age_ms: Callable[[PartitionId, int, int | None], int]
    recovered: Callable[[Path], bool]
    released: Callable[[PartitionId], ReleaseRecord | None] = lambda _: None
    stream: Callable[[PartitionId], OpenStream | None] = lambda _: None
    merge_trouble: Callable[[PartitionId], str] = lambda _: ""
    archived: Callable[[], Mapping[PartitionId, PartitionState | None]] = dict

    @classmethod
    def of(
        cls,
        fleet: ArchiverFleet,
        offsets: Callable[[PartitionId], PartitionState | None],
        policy: Callable[[TopicPartition], Policy],
        archived: Callable[[], Mapping[PartitionId, PartitionState | None]] = dict,
    ) -> "BoardSources":
        def trouble(place: TopicPartition) -> HeadwaterError | None:
            failure = fleet.failures.get(place)
            return failure.error if failure is not None else None

        return cls(
            look=fleet.look,
            read=fleet.read,
            head=fleet.head,
            offsets=offsets,
            policy=policy,
            trouble=trouble,
            tail_age_ms=fleet.tails.age_since,
            recovered=awaits_broker,
            released=fleet.released,
            stream=fleet.open_stream,
            merge_trouble=fleet.merge_trouble,
            archived=archived,
        )


@dataclass(slots=True, eq=False)
class _Waiter:
    """Who waits for looks: at `places`, None while nothing was listed yet, of those that are `wanted`."""

    wanted: Callable[[TopicPartition], bool]
    done: Callable[[], object]
    places: set[TopicPartition] | None = None


class StatusBoard:
    """Safe to use from many threads. `round` is one round of looks; `run` takes one after the other."""

    def __init__(self, sources: BoardSources, clock: Clock) -> None:
        self.clock = clock
        self._sources = sources
        self._lock = threading.Lock()  # of the tables, held for moments
        self._wake = threading.Event()
        self._entries: dict[TopicPartition, BoardEntry] = {}
        self._elsewhere: dict[PartitionId, BoardEntry] = {}  # archived, and not here
        self._urgent: OrderedDict[TopicPartition, None] = OrderedDict()  # something was done with them: looked at before all others
        self._due: dict[TopicPartition, None] = {}
        self._in_round: dict[TopicPartition, None] = {}  # of those that were due when it began
        self._looked_at: TopicPartition | None = None  # just now
        self._waiters: list[_Waiter] = []
        self._reasons: dict[TopicPartition, str] = {}  # what the last steps said
        self._sizes: dict[PartitionId, ArchiveSize] = {}
        self._archived: Mapping[PartitionId, PartitionState | None] = {}  # as last joined
        self._join_s, self._is_join_due = float("-inf"), True
        self.is_listed = False
        self.last_commit_ms: int | None = None  # of this process, whichever partition's

    def entries(self) -> list[BoardEntry]:
        """Of all partitions here, nearly in order. An entry may change while it is read, from one true state to the next."""
        with self._lock:
            return list(self._entries.values())

    def entry(self, place: TopicPartition) -> BoardEntry | None:
        """Of a partition here."""
        with self._lock:
            return self._entries.get(place)

    def elsewhere(self) -> list[BoardEntry]:
        """Return the entries of partitions archived and not here, also where the log directories were listed only after the last join."""
        with self._lock:
            return [entry for partition, entry in self._elsewhere.items() if not self._may_be_here(partition)]

    def _may_be_here(self, partition: PartitionId) -> bool:
        entry = self._entries.get(partition.topic_partition)
        return entry is not None and entry.partition in (None, partition)

    @property
    def unseen(self) -> int:
        """How many partitions have something happened to them that was not looked at yet."""
        with self._lock:
            return len(self._urgent.keys() | self._due.keys() | self._in_round.keys())

    # What has happened

    def listed(self, listing: Listing, began_s: float) -> None:
        """A listing that began then: what looks as it did is as it was; all else is due, and unknown if it was never looked at."""
        now_ms, now_s = self.clock.now_ms(), self.clock.monotonic_s()
        with self._lock:
            are_new = not listing.partitions.keys() <= self._entries.keys()
            for place, glimpse in listing.partitions.items():
                entry = self._entries.get(place)
                if entry is not None and entry.glimpse is not None and glimpse.is_as(entry.glimpse):
                    entry.now_s = max(entry.now_s, began_s)
                    written_ms = listing.checkpoints_ms.get(glimpse.directory)
                    if written_ms is not None and entry.status.high_watermark_source == WatermarkSource.CHECKPOINT:
                        entry.said_s = now_s - max(0.0, (now_ms - written_ms) / 1000)
                else:
                    self._due[place] = None
                    if entry is None:
                        self._entries[place] = _unreadable(place, "unknown", _NOT_YET, began_s)
            if are_new:  # each page sorts them: what is in order already takes a third of the time
                self._entries = {place: self._entries[place] for place in sorted(self._entries)}
            self.is_listed = True
            for waiter in self._waiters:
                if waiter.places is None:
                    waiter.places = self._awaited(waiter.wanted)
            done = self._take_done()
        _call(done)
        self._wake.set()

    def happened(self, places: Iterable[TopicPartition]) -> None:
        with self._lock:
            self._due.update(dict.fromkeys(places))
        self._wake.set()

    def stepped(self, place: TopicPartition, reason: str) -> None:
        """Something was done with it."""
        with self._lock:
            self._urgent[place] = None
            self._reasons[place] = reason
        self._wake.set()

    def committed(self, head: Head) -> None:
        """By this agent."""
        self.last_commit_ms = self.clock.now_ms()
        with self._lock:
            self._sizes[head.partition_id] = ArchiveSize.of(head, self.clock.monotonic_s())
            self._urgent[head.partition_id.topic_partition] = None
        self._wake.set()

    def reconsider(self) -> None:
        """What may be archived has changed: settings, or what is paused."""
        with self._lock:
            self._urgent.update(dict.fromkeys(self._entries))
        self._wake.set()

    def head_read(self, partition: PartitionId, head: Head | None, trouble: str = "", *, asked_s: float) -> None:
        """What the bucket had, when it was asked then, of a partition that nobody holds a head of. trouble: why that cannot be used."""
        now_s = self.clock.monotonic_s()
        with self._lock:
            known = self._sizes.get(partition)
            if head is not None:
                if known is None or known.extent.version <= head.version or known.at_s < asked_s:  # else a commit of ours overtook it
                    self._sizes[partition] = ArchiveSize.of(head, now_s)
            elif trouble:
                self._sizes[partition] = ArchiveSize.unusable(trouble, now_s)
            elif known is None or known.at_s <= asked_s:
                self._sizes[partition] = ArchiveSize.absent(self._sources.offsets(partition), now_s)
            if partition.topic_partition in self._entries:
                self._due[partition.topic_partition] = None
            self._is_join_due = True
        self._wake.set()

    def said(self, marks: Mapping[TopicPartition, int], asked_s: float) -> None:
        """The broker gave these high watermarks when it was asked then: what it confirms is younger, all else is due."""
        with self._lock:
            for place, high_watermark in marks.items():
                entry = self._entries.get(place)
                if entry is None:
                    continue
                if (entry.status.high_watermark, entry.status.high_watermark_source) == (high_watermark, WatermarkSource.BROKER):
                    entry.said_s = max(asked_s, entry.said_s or asked_s)
                else:
                    self._due[place] = None
        self._wake.set()

    def retain(self, places: Collection[TopicPartition]) -> None:
        """All others are gone."""
        with self._lock:
            for table in (self._entries, self._due, self._in_round, self._urgent, self._reasons):
                for place in table.keys() - places:
                    del table[place]
                    self._is_join_due = True

    # Who wants to know

    def led(self) -> list[TopicPartition]:
        """What the broker beside us leads."""
        with self._lock:
            return [place for place, entry in self._entries.items() if entry.is_led]

    def unsized(self) -> list[PartitionId]:
        """Of whose archive no head has said how large it is, or only long ago."""
        old_s = self.clock.monotonic_s() - READ_AGAIN_S
        with self._lock:
            known = dict.fromkeys(self._archived, ARCHIVE_ONLY)
            known.update({entry.partition: entry.status.state for entry in self._entries.values() if entry.partition is not None})
            return [partition for partition, state in known.items() if self._is_unsized(partition, state, old_s)]

    def _is_unsized(self, partition: PartitionId, state: str, old_s: float) -> bool:
        size, known = self._sizes.get(partition), self._sources.offsets(partition)
        if size is None:
            return known is not None or state in (ARCHIVE_ONLY, "standby", "excluded")
        if not size.is_known and not size.trouble and known != size.denied:
            return True  # its first commit
        is_replaced = known is not None and known.conflicts(size.extent.version, size.commit_id)  # which of the two, the bucket knows
        return size.at_s < old_s and (bool(size.trouble) or is_replaced or size.extent != (_newest(known, size) or NO_EXTENT))

    def when_seen(self, wanted: Callable[[TopicPartition], bool], done: Callable[[], object]) -> None:
        """Call `done`, in any thread, when what has been done so far with those that are `wanted` has been looked at: at once, where there
        is nothing. They come before all others."""
        waiter = _Waiter(wanted, done)
        with self._lock:
            if self.is_listed:
                waiter.places = self._awaited(wanted)
            self._waiters.append(waiter)
            finished = self._take_done()
        _call(finished)
        self._wake.set()

    def forget(self, done: Callable[[], object]) -> None:
        """Who gave it to `when_seen` waits no longer."""
        with self._lock:
            self._waiters = [waiter for waiter in self._waiters if waiter.done is not done]

    def _awaited(self, wanted: Callable[[TopicPartition], bool]) -> set[TopicPartition]:
        """They come first from now on. The caller has the lock."""
        places = {place for place in (*self._urgent, *self._due, *self._in_round) if wanted(place)}
        places = {place for place in places if place in self._urgent or (entry := self._entries.get(place)) is None or entry.is_unseen}
        for place in places:
            self._urgent[place] = None
            self._urgent.move_to_end(place, last=False)
        if self._looked_at is not None and wanted(self._looked_at):
            places.add(self._looked_at)
        return places

    def _take_done(self, seen: TopicPartition | None = None) -> list[_Waiter]:
        """Those whose last look was made; `seen`: just now. The caller has the lock."""
        if seen is not None and seen not in self._urgent:
            for waiter in self._waiters:
                if waiter.places is not None:
                    waiter.places.discard(seen)
        done = [waiter for waiter in self._waiters if waiter.places is not None and not waiter.places]
        if done:
            self._waiters = [waiter for waiter in self._waiters if waiter not in done]
        return done

    # Looks

    def run(self, stop: threading.Event) -> None:
        """Rounds, until `stop` is set: see `wake`."""
        while not stop.is_set():
            self._wake.wait(RETRY_S)
            self._wake.clear()
            self.round(stop.wait)
            stop.wait(GATHER_S)

    def wake(self) -> None:
        """The next round begins now."""
        self._wake.set()

    def round(self, wait: Callable[[float], object] = lambda _: False) -> None:
        """Look at all that is due. `wait` sleeps for so many seconds; true ends the round."""
        with self._lock:
            self._in_round.update(self._due)
            self._due = {}
        while (place := self._take()) is not None:
            began_s = self.clock.monotonic_s()
            try:
                self._look(place, began_s)
                hangs = False
            except DiskHangs:
                hangs = True  # the time went by without work; other disks may answer
            except Exception:
                hangs = False
                log.exception("status_not_updated", partition=str(place))
            with self._lock:
                self._looked_at = None
                done = self._take_done(place)
                share = AWAITED_SHARE if self._waiters else WORK_SHARE
            _call(done)
            if not hangs and wait((self.clock.monotonic_s() - began_s) * (1 / share - 1)):
                return
        self._join()

    def _take(self) -> TopicPartition | None:
        """The next place of the round: what has become urgent comes first."""
        with self._lock:
            place = self._looked_at = next(iter(self._urgent), None) or next(iter(self._in_round), None)
            if place is not None:
                self._urgent.pop(place, None)
                self._in_round.pop(place, None)
            return place

    def _look(self, place: TopicPartition, began_s: float) -> None:
        try:
            log, origin = self._sources.look(place)
            entry = self._sources.read(log, partial(self._seen, log, origin, began_s))
        except NotFound:
            with self._lock:
                self._entries.pop(place, None)
                self._is_join_due = True
            return
        except TransientError as error:  # it changes just now, or its disk hangs: what was known stays, and becomes older
            with self._lock:
                self._due[place] = None
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
            before = self._entries.get(place)
            self._entries[place] = entry
            if before is None or before.partition != entry.partition:
                self._is_join_due = True

    def _seen(self, log: LocalLog, origin: WatermarkOrigin, at_s: float, progressed: Progressed) -> BoardEntry:
        """In a thread of the log's disk, which may hang."""
        entry = self._entry(log, origin, at_s, progressed)
        if entry.status.state != "stopped" and self._sources.recovered(log.directory.parent):
            entry.status = replace(entry.status, state="recovered", reason="read-only until a broker starts on it")
        if (released := self._sources.released(log.partition)) is not None:
            end = released.end if released.size_bytes else None
            entry.status = replace(entry.status, released_end=end, released_bytes=released.size_bytes, release_reason=released.reason)
            if (blocked := released.blocked) is not None:
                entry.status = replace(
                    entry.status,
                    release_group=blocked.group,
                    release_group_offset=blocked.offset,
                    release_blocked_ms=blocked.since_ms,
                    release_blocked_bytes=blocked.size_bytes,
                )
        entry.status = replace(entry.status, merge_trouble=self._sources.merge_trouble(log.partition))
        entry.partition, entry.folder, entry.glimpse = log.partition, folder(log.partition), log.glimpse
        if log.high_watermark is not None and origin.age_s is not None:
            entry.said_s = at_s - origin.age_s
        entry.is_led = log.leadership is not None and log.leadership.is_ours and isinstance(archiving_role(log), Acting)
        return entry

    def _entry(self, log: LocalLog, origin: WatermarkOrigin, at_s: float, progressed: Progressed) -> BoardEntry:
        partition, sources = log.partition, self._sources
        place = partition.topic_partition
        error, policy, held = sources.trouble(place), sources.policy(place), sources.head(partition)
        passes = error is None or isinstance(error, PASSES)
        trouble = "" if passes else str(error)
        offsets = _newest(sources.offsets(partition), self._sizes.get(partition)) if held is None else None
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
                origin=origin,
                stream=sources.stream(partition),
                progressed=progressed,
            )
            status = replace(status, known_age_s=held.age_s if held is not None else 0.0)
            with self._lock:
                self._sizes[partition] = (
                    ArchiveSize.of(head, at_s - (held.age_s if held is not None else 0.0))
                    if head is not None
                    else ArchiveSize.absent(sources.offsets(partition), at_s)
                )
            verdict = HeadVerdict(archiving_role(log), status.state, status.reason)
            is_final = not trouble and status.state in ("behind", *NEEDS)
            return BoardEntry(status, at_s, at_s, is_sized=True, verdict=verdict if is_final else None)
        passing = str(error) if error is not None and passes else ""
        return self._by_offsets(log, origin, offsets, policy, trouble, passing, at_s, progressed)

    def _by_offsets(
        self,
        log: LocalLog,
        origin: WatermarkOrigin,
        offsets: ArchiveExtent | None,
        policy: Policy,
        trouble: str,
        passing: str,
        at_s: float,
        progressed: Progressed,
    ) -> BoardEntry:
        """Without a head: by what was last known of it, or as unknown. `passing` is a trouble that passes by itself."""
        place = log.partition.topic_partition
        is_said = log.high_watermark is not None
        status = replace(
            PartitionStatus.unknown(place, "unknown", ""),
            topic_id=log.partition.topic_id,
            local_start=log.start_offset,
            high_watermark=log.high_watermark,
            high_watermark_source=origin.source.value if is_said else "",
            high_watermark_age_s=origin.age_s if is_said else None,
            trigger_trouble=misfit(policy.triggers, LocalRetention.of(log)),
        )
        acting = archiving_role(log)
        stands_by = isinstance(acting, Standby) and not isinstance(acting, Unfit)
        if offsets is None:
            state, reason = "unknown", passing or _NOT_YET
            if trouble and not stands_by:
                state, reason = stopped_by(trouble), trouble
            elif policy.is_excluded:
                state, reason = "excluded", policy.off
            elif isinstance(acting, Standby):
                state, reason = "standby" if stands_by else "stopped", acting.reason
            elif policy.off:
                state, reason = "paused" if policy.is_paused else "waiting", policy.off
            return BoardEntry(replace(status, state=state, reason=reason), at_s, at_s)
        lag = backlog(log, offsets.last_offset + 1, progressed) if not policy.is_excluded else None
        before, size = self._entries.get(place), self._sizes.get(log.partition)
        last_offset = offsets.last_offset if offsets.last_offset >= 0 else None
        is_as_before = (
            before is not None
            and before.partition == log.partition
            and (before.status.last_offset, before.status.archive_start) == (last_offset, offsets.start_offset)
        )
        verdict = before.verdict if before is not None and is_as_before else None
        if verdict is not None and verdict.role != acting:
            verdict = None
        if trouble and not stands_by:
            state, reason = stopped_by(trouble), trouble
        elif policy.is_excluded:
            state, reason = "excluded", policy.off
        elif isinstance(acting, Standby):
            state, reason = "standby" if stands_by else "stopped", acting.reason
        elif verdict is not None:
            state, reason = verdict.state, verdict.reason
        elif policy.is_paused:
            state, reason = "paused", policy.off
        elif lag is not None and lag.size_bytes == 0:
            state, reason = "archived", "all that is committed is archived"
        else:
            state, reason = "waiting", policy.off or passing or self._reasons.get(place, "its turn comes")
        status = replace(
            status,
            archive_start=offsets.start_offset,
            last_offset=last_offset,
            lag_bytes=lag.size_bytes if lag is not None else None,
            lag_s=lag.age_s(self.clock.now_ms()) if lag is not None else None,
            archived_bytes=size.archived_bytes if size is not None else 0,
            objects=size.objects if size is not None else 0,
            known_age_s=at_s - size.at_s if size is not None and size.extent == offsets else None,
            state=state,
            reason=reason,
        )
        return BoardEntry(status, at_s, at_s, is_sized=size is not None and size.is_known, verdict=verdict)

    # What is archived and not here

    def _join(self) -> None:
        """Now and then, and after something has left the log directories."""
        now_s = self.clock.monotonic_s()
        if not self._is_join_due and now_s - self._join_s < JOIN_S:
            return
        archived = self._sources.archived()
        with self._lock:
            if archived is self._archived and not self._is_join_due:
                for entry in self._elsewhere.values():
                    entry.now_s = now_s
            else:
                here = {entry.partition for entry in self._entries.values()}
                known = {each: state for each, state in archived.items() if not self._may_be_here(each)}
                self._sizes = {each: size for each, size in self._sizes.items() if each in here or each in archived}
                found = {each: _archive_only(each, state, self._sizes.get(each), now_s) for each, state in known.items()}
                self._elsewhere = {each: entry for each, entry in found.items() if entry is not None}
            self._archived, self._join_s, self._is_join_due = archived, now_s, False


def _archive_only(partition: PartitionId, known: PartitionState | None, size: ArchiveSize | None, now_s: float) -> BoardEntry | None:
    """None where nothing says that there is an archive of it."""
    trouble = size.trouble if size is not None else ""
    extent = _newest(known, size)
    if extent is None and not trouble:
        return None
    start, last = (extent.start_offset, extent.last_offset) if extent is not None else (None, -1)
    is_sized = size is not None and size.is_known
    status = replace(
        PartitionStatus.unknown(partition.topic_partition, ARCHIVE_ONLY, "no local log here"),
        topic_id=partition.topic_id,
        archive_start=start,
        last_offset=last if last >= 0 else None,
        archived_bytes=size.archived_bytes if size is not None else 0,
        objects=size.objects if size is not None else 0,
        known_age_s=now_s - size.at_s if size is not None and size.extent == extent else None,
    )
    if trouble:
        status = replace(status, state=stopped_by(trouble), reason=trouble)
    return BoardEntry(status, now_s, now_s, is_sized=is_sized, partition=partition)


def _call(waiters: Iterable[_Waiter]) -> None:
    for waiter in waiters:
        waiter.done()


def _unreadable(place: TopicPartition, state: str, reason: str, at_s: float) -> BoardEntry:
    return BoardEntry(PartitionStatus.unknown(place, state, reason), at_s, at_s)
