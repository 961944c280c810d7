"""The archivers of one agent, and what one step of one partition comes to: whatever goes wrong there is that partition's trouble alone."""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from random import Random
from uuid import uuid4

import structlog

from archival.announcer import Announcer
from archival.archiver import ArchiverEquipment, PartitionArchiver
from archival.config import ArchivalConfig
from archival.due_queue import DueQueue
from archival.looks import CleanerLooks
from archival.obstacle import Obstacle
from archival.partition_status import KnownHead
from archival.release import Releaser, plan_release
from archival.source import OpenSegment, open_segment
from archival.step_plan import Idle, PolicyFor, archiving_role
from archival.tails import Tails
from archival.topics import TopicFacts, TopicRecords
from headwater_core.clock import Clock
from headwater_core.control.control_log import ControlLog
from headwater_core.errors import HeadwaterError, NotFound, SourceChanged, TransientError, UnsupportedFormat
from headwater_core.files import error_kind
from headwater_core.layouts import open_layout
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId, TopicPartition
from headwater_core.segments.disk import DiskHangs
from headwater_core.segments.local_log import LocalLog
from headwater_core.segments.log_dirs import Listing, LogDirs, parse_directory_name
from headwater_core.threads import DaemonThreads
from manifests.head import Head
from manifests.repository import ManifestRepository
from manifests.topic import Owner, Sight

_log = structlog.get_logger()

STOP_S = 1.0  # between two looks whether a pass is to be stopped
READ_AGAIN_S = 900.0  # what was found damaged, though it looks the same: a bad cable may have been replaced
WORKERS = 4  # partitions at once: enough to keep a store busy with small segments, few enough to bound memory
LATE_S = 30.0  # a step that takes longer may hang with its disk; most segments are sent within that, and where not, a few more are at once
LOG_DIRS = TopicPartition("log.dirs", 0)  # stands for the log directories as a whole, where partitions are reported


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOutcome:
    """What one step, or all steps of a pass, did for one partition.

    progressed  there may be more to do
    quiet       there will be nothing more to do until something happens to the log
    gone        the partition is not there any more
    error       why it could not do all; None when it did
    """

    place: TopicPartition
    objects: int = 0
    archived_bytes: int = 0
    released_bytes: int = 0
    last_offset: int | None = None
    reason: str = ""
    elapsed_s: float = 0.0
    progressed: bool = False
    quiet: bool = False
    gone: bool = False
    error: HeadwaterError | None = None

    def after(self, earlier: "PartitionOutcome | None") -> "PartitionOutcome":
        """Both together."""
        if earlier is None:
            return self
        return replace(
            self,
            objects=earlier.objects + self.objects,
            archived_bytes=earlier.archived_bytes + self.archived_bytes,
            released_bytes=earlier.released_bytes + self.released_bytes,
            elapsed_s=round(earlier.elapsed_s + self.elapsed_s, 3),
        )


@dataclass(frozen=True, slots=True)
class _Known:
    """until_s  when to read again whatever it looks like"""

    obstacle: Obstacle
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetEquipment:
    """What the archivers of one agent work with.

    settings_for  what the operator has set for a topic, by its name
    data_dir      where what must outlive the process is kept
    owned         nobody else works on the log directories: what is archived may be released there
    owner         see TopicRecords
    """

    dirs: LogDirs
    store: ObjectStore
    repository: ManifestRepository
    control: ControlLog
    settings_for: Callable[[str], ArchivalConfig]
    data_dir: Path
    owned: bool
    writer: str
    clock: Clock
    new_uid: Callable[[], str] = lambda: uuid4().hex
    open_segment: OpenSegment = open_segment
    owner: Callable[[], Owner | None] | None = None


class ArchiverFleet:
    """The archivers of one agent, made as partitions are found. `troubles` says what keeps which partition from being archived.

    Safe to use from many threads: one archiver takes one step at a time.
    """

    def __init__(self, equipment: FleetEquipment) -> None:
        self._equipment, self._clock = equipment, equipment.clock
        self.logs = equipment.dirs
        self.troubles: dict[TopicPartition, str] = {}
        self._unread = ""  # why the metadata log cannot be read
        self.unexpected = 0  # exceptions that nobody planned for: defects, each logged with its traceback
        self.committed: Callable[[Head], object] = lambda head: None  # told of every head that a step has committed
        self.announcer = Announcer(equipment.control, equipment.clock)
        self._topics = TopicRecords(equipment.repository, self._describe, clock=equipment.clock, owner=equipment.owner)
        self._tails = Tails(equipment.data_dir / "tails.json", equipment.clock)
        self._looks = CleanerLooks(equipment.data_dir / "cleaners.json", equipment.clock)
        self._shared = ArchiverEquipment(
            logs=equipment.dirs,
            store=equipment.store,
            repository=equipment.repository,
            announcer=self.announcer,
            topics=self._topics,
            tails=self._tails,
            looks=self._looks,
            writer=equipment.writer,
            new_uid=equipment.new_uid,
            open_segment=equipment.open_segment,
        )
        self._releaser = Releaser(logs=self.logs, repository=equipment.repository, writer=equipment.writer, owned=equipment.owned)
        self._archivers: dict[PartitionId, PartitionArchiver] = {}
        self._identities: dict[TopicPartition, PartitionId] = {}  # as last looked at
        self._widest: dict[str, TopicPartition] = {}  # the last partition of each topic, by number, in the last listing
        self._users: Counter[PartitionId] = Counter()  # of archivers
        self._swept: set[PartitionId] = set()
        self._obstacles: dict[PartitionId, _Known] = {}
        self._seen_s: dict[PartitionId, float] = {}  # when the bucket last said what an archiver's head says
        self._making = threading.Lock()

    def heads(self) -> dict[PartitionId, KnownHead]:
        """The heads that the archivers hold, and how old that knowledge is."""
        with self._making:
            archivers = dict(self._archivers)
        now_s = self._clock.monotonic_s()
        return {
            partition: KnownHead(archiver.head, round(now_s - self._seen_s.get(partition, now_s), 3))
            for partition, archiver in archivers.items()
            if archiver.head is not None
        }

    def listing(self) -> Listing:
        """Which partitions there are. Raises what makes the log directories unusable as a whole."""
        listing = self.logs.listing()
        self._widest = {place.topic: place for place in listing.partitions}
        unread = str(listing.unread or "")
        if unread != self._unread:
            self._unread = unread
            if unread:
                _log.error("leadership_unknown", reason=f"{unread}. Until then the agents of all replicas archive each partition in turn")
            else:
                _log.info("leadership_known")
        return listing

    def step(self, place: TopicPartition, policy_for: PolicyFor, *, below: int | None = None, anew: bool = False) -> PartitionOutcome:
        """One step of one partition, with at most one commit; then what is archived of an owned directory is released.

        below  take the log for committed up to here only
        anew   read even what was found damaged and has not changed since

        Raises nothing that a partition can be the reason of: the outcome says it, and `troubles`.
        """
        started_s = self._clock.monotonic_s()
        archiver: PartitionArchiver | None = None
        try:
            log = self.logs.look(place)
            with self._in_hand(log.partition) as archiver:
                if (known := self._obstacles.get(log.partition)) and not anew and self._still(known, log):
                    done = PartitionOutcome(place=place, error=known.obstacle.error)
                else:
                    done = self._advance(archiver, log, policy_for, below)
        except NotFound as missing:
            done = self._missing(place, missing)
        except Exception as error:
            done = PartitionOutcome(place=place, error=self.trouble(place, error))
        head = archiver.head if archiver else None
        elapsed_s = round(self._clock.monotonic_s() - started_s, 3)
        done = replace(done, last_offset=head.last_offset if head else None, elapsed_s=elapsed_s)
        self.note(done)
        return done

    def _advance(self, archiver: PartitionArchiver, log: LocalLog, policy_for: PolicyFor, below: int | None) -> PartitionOutcome:
        settings = self._equipment.settings_for(log.partition.topic)
        seen = log
        if below is not None and log.high_watermark is not None and log.high_watermark > below:
            seen = replace(log, high_watermark=below)
        before = archiver.head
        self._obstacles.pop(log.partition, None)
        try:
            outcome = archiver.step(policy_for(settings), seen)
        except HeadwaterError as error:
            if obstacle := Obstacle.of(error, log, archiver.head.next_offset if archiver.head else 0):
                self._obstacles[log.partition] = _Known(obstacle, self._clock.monotonic_s() + READ_AGAIN_S)
            raise
        if archiver.head is not None and archiver.head is not before:
            self._seen_s[log.partition] = self._clock.monotonic_s()
        done = PartitionOutcome(place=log.partition.topic_partition, reason=outcome.reason, progressed=outcome.progressed)
        head = archiver.head
        if not (outcome.progressed or log.topic_policy_proves_compaction):  # where the cleaner is must be seen often
            caught_up = head is not None and (log.high_watermark or 0) <= head.next_offset
            done = replace(done, quiet=caught_up or isinstance(archiving_role(log), Idle))
        if outcome.entry and not outcome.entry.gap:
            done = replace(done, objects=1, archived_bytes=outcome.entry.live_bytes)
        try:
            if outcome.progressed and head:
                self.committed(head)
            if self._equipment.owned and settings.release and self._may_release(archiver, log):
                done = replace(done, released_bytes=self._releaser.release(archiver).size_bytes)
        except Exception as error:
            done = replace(done, error=self.trouble(done.place, error))  # beside what the step has done
        return done

    def _still(self, known: "_Known", log: LocalLog) -> bool:
        return self._clock.monotonic_s() < known.until_s and known.obstacle.stands(log)

    def _may_release(self, archiver: PartitionArchiver, log: LocalLog) -> bool:
        """Is it worth to ask the bucket? Not for an idle log, apart from the first time: side files may be left from a crash."""
        if archiver.partition not in self._swept:
            self._swept.add(archiver.partition)
            return True
        head = archiver.head
        covered = head is not None and len(log.segments) > 1 and log.segments[1].base_offset <= head.next_offset
        return covered and bool(plan_release(log, head, self._equipment.writer).segments)

    def _missing(self, place: TopicPartition, missing: NotFound) -> PartitionOutcome:
        """Is the partition not there, or something that it needs?"""
        try:
            self.logs.look(place)
        except NotFound:
            with self._making:
                gone = self._identities.pop(place, None)
            self._drop(lambda partition: partition == gone)
            return PartitionOutcome(place=place, reason="gone", gone=True)
        except Exception as error:
            return PartitionOutcome(place=place, error=self.trouble(place, error))
        return PartitionOutcome(place=place, error=missing)

    def trouble(self, place: TopicPartition, error: Exception) -> HeadwaterError:
        """What to say of any exception. One that nobody planned for is logged here, with its traceback."""
        match error:
            case HeadwaterError():
                return error
            case OSError():  # a file vanished, a disk filled up: this partition's trouble, and perhaps not for long
                return error_kind(error)(f"{place}: {error}")
        words = f"unexpected {type(error).__name__}: {error}"
        self.unexpected += 1
        _log.error("archive_failed", partition=str(place), exc_info=error)
        return HeadwaterError(words)

    def note(self, outcome: PartitionOutcome) -> None:
        """Keep `troubles` true."""
        if outcome.error and not isinstance(outcome.error, TransientError):
            self.troubles[outcome.place] = str(outcome.error)
        else:
            self.troubles.pop(outcome.place, None)

    def retain(self, places: Collection[TopicPartition]) -> None:
        """Forget all that is known of other partitions: they are gone from the log directories.

        What is kept by identity waits until each place has been looked at, since its name does not tell which incarnation it is.
        """
        for place in [each for each in self.troubles.copy() if each not in places and each != LOG_DIRS]:
            self.troubles.pop(place, None)
        with self._making:
            for place in [each for each in self._identities if each not in places]:
                del self._identities[place]
            present = set(self._identities.values())
            are_all = len(present) == len(places)
        self._drop(lambda partition: partition not in present)
        if are_all:
            self._tails.retain(present)
            self._topics.retain(present)
            self.announcer.retire_absent(present, self._equipment.writer)

    def save(self) -> None:
        """Write down what must outlive the process. Raises DiskFull and TransientError."""
        self._looks.save()
        self._tails.save()

    def run(
        self,
        policy_for: PolicyFor,
        *,
        wanted: Callable[[TopicPartition], bool] = lambda _: True,
        stop: threading.Event | None = None,
    ) -> Iterator[PartitionOutcome]:
        """One pass over what is there now of the wanted partitions, several at a time, each reported when it is done.

        Partitions take turns, step by step. What becomes committed after the pass has begun is not its business, so it ends
        however fast a log grows. Ends soon after `stop` is set.
        """
        listing = self.listing()
        for path, error in listing.problems:
            place = parse_directory_name(path.name)
            if place is None or wanted(place):
                yield PartitionOutcome(place=place or LOG_DIRS, error=error)
        bounds = {each: seen.high_watermark for each, seen in listing.partitions.items() if wanted(each)}
        ended = threading.Event()  # this pass, whoever else waits for `stop`
        queue, lock = DueQueue(Random()), threading.Lock()
        queue.add(bounds)
        sums: dict[TopicPartition, PartitionOutcome] = {}
        outcomes: SimpleQueue[PartitionOutcome | None] = SimpleQueue()

        def turn() -> bool:
            with lock:
                place = queue.take(0.0)
            if place is None:
                return False
            outcome = self.step(place, policy_for, below=bounds[place], anew=True)
            with lock:
                sums[place] = outcome = outcome.after(sums.get(place))
                if outcome.progressed:
                    queue.again(place)
                elif not isinstance(outcome.error, SourceChanged):
                    queue.done(place)
                    outcomes.put(outcome)
                elif not queue.changed(place, 0.0):
                    outcomes.put(outcome)
            return True

        def work() -> None:
            try:
                while not (ended.is_set() or (stop is not None and stop.is_set())) and turn():
                    pass
            finally:
                outcomes.put(None)

        workers = DaemonThreads(WORKERS, "archive")
        working = [workers.submit(work) for _ in range(min(WORKERS, len(bounds)))]
        try:
            for _ in working:
                while (outcome := _next(outcomes, stop)) is not None:
                    yield outcome
        finally:
            ended.set()
            ends = wait(working, LATE_S)
            workers.shutdown(wait=not ends.not_done)
        for each in ends.done:
            each.result()
        with suppress(HeadwaterError):
            again = self.listing()
            if not listing.problems and not again.problems:
                self.retain({*listing.partitions, *again.partitions})
        self.save()

    def _describe(self, partition: PartitionId) -> TopicFacts:
        """What the broker's metadata log says of the topic, when it speaks of this very incarnation."""
        try:
            metadata = self.logs.metadata()
        except (UnsupportedFormat, DiskHangs):
            return TopicFacts()
        if metadata is None:
            return TopicFacts(partitions=self._partitions_here(partition))
        topic = metadata.topics.get(partition.topic)
        if topic is None or topic.topic_id != partition.topic_id:
            return TopicFacts(sight=Sight(is_replaced=True))
        count = max(topic.partitions, default=-1) + 1
        return TopicFacts(partitions=count or None, configs=dict(topic.configs), sight=Sight(as_of=metadata.end_offset))

    def _partitions_here(self, partition: PartitionId) -> int | None:
        """So many, at least, has its topic: else each higher number that comes by would be written down anew."""
        widest = self._widest.get(partition.topic)
        if widest is None:
            return None
        identity = self._identities.get(widest)
        if identity is None:
            try:
                identity = self.logs.look(widest).partition
            except HeadwaterError:
                return None
            with self._making:  # another thread may be going through the table
                self._identities[widest] = identity
        return widest.partition + 1 if identity.topic_id == partition.topic_id else None

    @contextmanager
    def _in_hand(self, partition: PartitionId) -> Iterator[PartitionArchiver]:
        """The one archiver of `partition`: its lock is what keeps two steps, and release, apart. It is kept while it is in use."""
        with self._making:
            self._identities[partition.topic_partition] = partition
            archiver = self._archivers.get(partition)
            if archiver is None:
                archiver = self._archivers[partition] = self._archiver(partition)
            self._users[partition] += 1
        try:
            yield archiver
        finally:
            with self._making:
                self._users[partition] -= 1
                if not self._users[partition]:
                    del self._users[partition]

    def _drop(self, is_gone: Callable[[PartitionId], bool]) -> None:
        with self._making:
            for partition in [each for each in self._archivers if is_gone(each) and each not in self._users]:
                del self._archivers[partition]
                self._swept.discard(partition)
                self._obstacles.pop(partition, None)
                self._seen_s.pop(partition, None)

    def _archiver(self, partition: PartitionId) -> PartitionArchiver:
        return PartitionArchiver(partition, self._shared, open_layout(self._equipment.settings_for(partition.topic).layout))


def _next(outcomes: "SimpleQueue[PartitionOutcome | None]", stop: threading.Event | None) -> PartitionOutcome | None:
    """The next outcome; None when a worker has ended, or does not after `stop` was set."""
    while True:
        has_to_end = stop is not None and stop.is_set()
        try:
            return outcomes.get(timeout=LATE_S if has_to_end else STOP_S)
        except Empty:
            if has_to_end:
                return None
