"""A reader of a simulated world: a real PartitionLog over a broker's directory and the bucket, and what it may answer.

It reads only, and draws from a random source of its own: with or without it a seed does the same. Its thread can be paused
at every look, every open and every call to the store, while brokers, archivers and releases go on. How old its look and its
manifest are is drawn too: its clock advances when it wants.

What it answers is compared with what directory and bucket held at any moment since the older of the two was seen (`Served`).
A gap is one only if at one of these moments the offset was nowhere; a record is right if at one of them it was readable.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import hydration.archive.hydrator
import hydration.cache.chunk_cache
from headwater_core.errors import HeadwaterError, OffsetOutOfRange, SourceChanged, TransientError
from headwater_core.partition import PartitionId, TopicPartition
from headwater_core.segments.batches import HEADER_BYTES, BatchHeader, read_batch_header
from headwater_core.segments.local_log import LocalLog, LocalSegment
from headwater_core.segments.markers import ABORT, read_marker
from hydration.answers import Isolation
from hydration.archive.archive_tier import ArchiveTier
from hydration.archive.hydrator import Hydrator
from hydration.archive.manifest_view import HeldEntries, ManifestView
from hydration.cache.chunk_cache import ChunkCache
from hydration.config import ReadPriority
from hydration.local.local_tier import LocalTier, OpenFiles
from hydration.partition_log import PartitionLog
from hydration.runfile import RunFile
from hydration.times import RecordTime
from manifests.head import Head
from manifests.repository import ManifestRepository, Versioned
from tests.headwater_core.objectstore.faulty import BAD_NETWORK, NO_FAULTS, FaultyStore
from tests.headwater_core.segments.builders import BASE_TIME
from tests.simulation.actors import Actor, Crash
from tests.simulation.agents import LookedAtLogs, PausingStore, Trouble
from tests.simulation.brokers import Batch, Brokers, Replica
from tests.simulation.bucket import Checks, Stored, Violation

if TYPE_CHECKING:
    from tests.simulation.world import World

_PAUSES_MAX = 300  # of one read; the store answers each of its calls, so more means that it goes round in circles
_READS_MAX = 500  # of one scan, for the same reason
_LISTINGS_MAX = 3
_TRIES_MAX = 3  # of a read that has to be retried
_CHUNK_BYTES = 256
_OLD_S = 60.0
_BEYOND = 1 << 62  # all offsets

Key = tuple[int, int]  # of a batch: base offset and leader epoch


# What there was to read


@dataclass(frozen=True, slots=True)
class Directory:
    """A broker's log as it is beside it, at one moment.

    removed  what it once held and has dropped since, or we have
    cuts     how often it has cut off the end of its log, in place
    acting   the newest leader epoch that the broker knows of
    leads    the broker itself, as far as it knows
    """

    batches: tuple[Batch, ...]
    start: int
    end: int
    checkpoint: int
    history: tuple[tuple[int, int], ...]
    removed: tuple[Batch, ...]
    cuts: int
    acting: int
    leads: bool

    def epoch_at(self, offset: int) -> int | None:
        return next((epoch for epoch, first in reversed(self.history) if first <= offset), None)


@dataclass(frozen=True, slots=True)
class Place:
    """One batch that may be read. `first`: the first of its offsets that must be; beyond the last one when none has to."""

    base: int
    last: int
    epoch: int
    data: bytes
    first: int

    @property
    def key(self) -> Key:
        return self.base, self.epoch

    @property
    def retained(self) -> bool:
        return self.first <= self.last


@dataclass(slots=True)
class Served:
    """What a reader that sees all of a directory and a head has to read: the batches of the newest leadership, in order.

    before    what was there before those, for the transactions in it
    removed   what the broker once had before its log; it may still know which transactions of it are open
    own       that and its log, where that reaches as far as the archive; what is archived, where it offers nothing
    floor     neither directory nor archive begins earlier
    lags      the broker's log ends before the archive begins; it will follow
    lost_to   the archive ends with a gap that ends there: what is lost in it may have ended any transaction
    proven_to      whether anything from there on counts, the archive does not know yet
    contradicted   what both hold under the same offsets, with nothing to show which is right
    still     where transactions begin that are open at the end of what is proven
    stable    the last stable offset
    outcomes  of each transactional batch: committed, aborted, open; unknown where something after it is missing
    """

    places: list[Place]
    before: list[Batch]
    removed: tuple[Batch, ...] = ()
    own: tuple[Batch | Stored, ...] = ()
    floor: int = 0
    lags: bool = False
    lost_to: int = 0
    proven_to: int = _BEYOND
    contradicted: set[Key] = field(default_factory=set)
    still: list[int] = field(default_factory=list)
    stable: int = 0
    outcomes: dict[Key, str] = field(default_factory=dict)
    by_key: dict[Key, Place] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.by_key = {place.key: place for place in self.places}
        begun: dict[int, list[Key]] = {}
        following = None
        everything: tuple[Batch | Place, ...] = (*self.before, *self.places)
        for each in everything:
            if each.base >= self.proven_to and not self.still:
                self.still = [base for keys in begun.values() for base, _ in keys]
            if following is not None and each.base != following:
                self.outcomes |= {key: "unknown" for keys in begun.values() for key in keys}
            following, key = each.last + 1, (each.base, each.epoch)
            header = header_of(each.data)
            if header.is_control:
                outcome = "aborted" if aborts(each.data) else "committed"
                self.outcomes |= {key: outcome for key in begun.pop(header.producer_id, ()) if self.outcomes[key] == "open"}
            elif header.is_transactional:
                begun.setdefault(header.producer_id, []).append(key)
                self.outcomes[key] = "open"
        if following is not None and following < self.lost_to:
            self.outcomes |= {key: "unknown" for keys in begun.values() for key in keys}
        had: list[Batch | Stored | Place] = [*(each for each in self.removed if not self._lists(each)), *self.places]
        known = [*_open_at_end(had), *_open_at_end(each for each in had if each.base < self.proven_to)]  # what ends it may be dead
        unended = [base for keys in begun.values() for base, _ in keys]
        self.stable = min([*self.still, *unended, *known, *_open_at_end(self.own), self.end])

    def _lists(self, batch: Batch) -> bool:
        return any(place.base <= batch.last and batch.base <= place.last for place in self.places)

    @property
    def end(self) -> int:
        return max((place.last + 1 for place in self.places if place.retained), default=0)


def _open_at_end(everything: Iterable[Batch | Stored | Place]) -> list[int]:
    """Where the transactions begin that no marker ends."""
    begun: dict[int, int] = {}
    for each in sorted(everything, key=lambda each: each.base):
        header = header_of(each.data)
        if header.is_control:
            begun.pop(header.producer_id, None)
        elif header.is_transactional:
            begun.setdefault(header.producer_id, each.base)
    return list(begun.values())


def served(directory: Directory, head: Head | None, stored: Callable[[Any], list[Stored]]) -> Served:
    """Where the two contradict each other, the one with the newer leadership is right.

    A directory's history begins with its log: of what is older, in files that are still there, it does not know whether it counts.
    """
    entries = [entry for entry in head.entries if not entry.gap] if head else []
    archived = [batch for entry in entries for batch in stored(entry)]
    local = [batch for batch in directory.batches if batch.last < directory.checkpoint]
    archive_end, newest = (head.last_offset + 1, head.leader_epoch) if head else (0, -1)
    proven_to, live_end = _BEYOND, archive_end
    if directory.acting > newest and directory.history:
        dead = [each.base for each in archived if {directory.epoch_at(each.base), directory.epoch_at(each.last)} - {None, each.epoch}]
        live_end = min(dead, default=archive_end)
        archived = [each for each in archived if each.base < live_end]
    elif directory.acting < newest or (directory.history and directory.history[-1][0] < newest and not directory.leads):
        known = {offset: each.epoch for each in archived for offset in (each.base, each.last)}
        offered = [each for each in local if each.last >= directory.start]
        both = {each.base: range(max(each.base, directory.start), each.last + 1) for each in offered}  # a log may begin inside a batch
        dead = [each.base for each in offered if {known.get(at, each.epoch) for at in both[each.base]} != {each.epoch}]
        local = [each for each in local if not dead or each.base < min(dead)]
        proven_to = archive_end  # what the archive does not have may be dead too: that is not known yet
    places = {
        each.base: Place(
            each.base, each.last, each.epoch, each.data, max(each.base, directory.start) if proven_to > archive_end else each.last + 1
        )
        for each in local
    }
    start = head.start_offset if head else 0
    places |= {each.base: Place(each.base, each.last, each.epoch, each.data, max(each.base, start)) for each in archived}
    here, there = {each.base: each.epoch for each in local}, {each.base: each.epoch for each in archived}
    if any(here.get(base, epoch) != epoch for base, epoch in there.items()):
        return Served([], [], contradicted={*here.items(), *there.items()})
    found = [places[base] for base in sorted(places)]
    is_empty = not directory.batches and directory.checkpoint <= directory.start
    own: tuple[Batch | Stored, ...] = (*directory.removed, *local) if local and local[-1].last + 1 >= archive_end else ()
    if directory.checkpoint <= directory.start:  # while it offers nothing, a reader may take the archive's word, though its files know more
        own = tuple(archived)
    gaps = [entry for entry in head.entries if entry.gap and entry.base_offset < live_end] if head else []
    return Served(
        found,
        [each for each in directory.removed if found and each.last < found[0].base],
        directory.removed,
        own=own,
        floor=start if archived and is_empty else 0,
        lags=bool(local) and local[-1].last + 1 < start,
        lost_to=gaps[-1].next_offset if gaps and not any(each.base >= gaps[-1].next_offset for each in archived) else 0,
        proven_to=proven_to,
    )


@lru_cache(maxsize=1 << 14)
def header_of(data: bytes) -> BatchHeader:
    return read_batch_header(data)


@lru_cache(maxsize=1 << 14)
def aborts(data: bytes) -> bool:
    return read_marker(memoryview(data), where="simulated").type == ABORT


class Moments:
    """What directory and bucket held, moment after moment, of one incarnation."""

    def __init__(self, checks: Checks) -> None:
        self._checks = checks
        self._kept: list[tuple[int, Directory, Head | None]] = []  # with the moment from which on it was so
        self.now = 0
        self._served: dict[tuple[int, int], Served] = {}
        self._ahead: dict[tuple[int, int], Directory] = {}

    def note(self, brokers: Brokers, replica: Replica, head: Head | None) -> None:
        self.now += 1
        led = brokers.leadership(replica)
        newest = max((epoch for epoch, _ in replica.history), default=-1)
        directory = Directory(
            batches=tuple(replica.batches()),
            start=max(replica.start, replica.start_checkpoint),
            end=replica.end,
            checkpoint=replica.checkpoint,
            history=replica.epochs().starts,
            removed=tuple(replica.ghost),
            cuts=replica.cuts,
            acting=max(newest, led.leader_epoch if led else -1),
            leads=led is not None and led.is_ours,
        )
        last = self._kept[-1] if self._kept else None
        if last and last[1] == directory:
            directory = last[1]
        if not last or last[1] is not directory or last[2] is not head:
            self._kept.append((self.now, directory, head))

    def _since(self, moment: int) -> list[tuple[int, Directory, Head | None]]:
        return self._kept[max(0, bisect_right(self._kept, moment, key=lambda kept: kept[0]) - 1) :]

    def cut_since(self, moment: int) -> bool:
        """Did the broker cut off the end of its log, in place, for a newer leader? Whoever looked before reads what came after in the
        same file."""
        return len({directory.cuts for _, directory, _ in self._since(moment)}) > 1

    def _with_checkpoint(self, directory: Directory, checkpoint: int) -> Directory:
        key = id(directory), checkpoint
        if key not in self._ahead:
            self._ahead[key] = replace(directory, checkpoint=checkpoint)
        return self._ahead[key]

    def since(self, moment: int) -> list[Served]:
        """For each directory and each head that there was: which of them a reader has seen together is not known."""
        kept = self._since(moment)
        directories = {id(each): each for _, each, _ in kept}
        # The checkpoint is looked at first, and may be older than a cut, or than the epoch that a new leader begins as it writes; a
        # broker's own is for seconds, while its log is filled again.
        histories = {each.history for each in directories.values()}
        if self.cut_since(moment) or len(histories) > 1 or any(each.checkpoint > each.end for each in directories.values()):
            checkpoints = {each.checkpoint for each in directories.values()}
            mixed = [self._with_checkpoint(each, checkpoint) for each in directories.values() for checkpoint in checkpoints]
            directories |= {id(each): each for each in mixed}
        heads = {id(each): each for _, _, each in kept}
        found = []
        for directory in directories.values():
            for head in heads.values():
                pair = id(directory), id(head)
                if pair not in self._served:
                    self._served[pair] = served(directory, head, self._checks.stored)
                found.append(self._served[pair])
        return found


# What it may answer


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer of a PartitionLog, its batches as bytes, in the order in which they came.

    torn   what came is not whole batches that were written. A consumer finds that out by their checksums
    """

    offset: int
    isolation: Isolation
    batches: tuple[bytes, ...]
    torn: bool
    aborted: tuple[tuple[int, int], ...]
    next_offset: int
    stable: int | None

    def hidden(self) -> Iterator[tuple[BatchHeader, bool]]:
        """Each data batch of a transaction, and whether a consumer drops it; as Kafka's consumer decides that."""
        to_come, aborting = deque(self.aborted), set[int]()
        for data in self.batches:
            header = header_of(data)
            while to_come and to_come[0][1] <= header.last_offset:
                aborting.add(to_come.popleft()[0])
            if header.is_control:
                if aborts(data):
                    aborting.discard(header.producer_id)
            elif header.is_transactional:
                yield header, header.producer_id in aborting


def check_answer(answer: Answered, among: Sequence[Served], may_be_gone: Callable[[Key], bool]) -> None:
    """`among`: what there was to read at every moment that the answer may come from."""
    if answer.torn:
        raise Violation(f"I10 what is read was never written, at {answer.offset}")
    cursor = answer.offset
    for data in answer.batches:
        header = header_of(data)
        key = header.base_offset, header.leader_epoch
        if header.last_offset < cursor or (header.base_offset < cursor and cursor > answer.offset):
            raise Violation(f"I10 {header.base_offset}..{header.last_offset} comes where {cursor} was to come")
        if not any(key in each.by_key or key in each.contradicted for each in among):
            raise Violation(f"I10 the batch at {header.base_offset} of epoch {header.leader_epoch} is read, and is on no log that counts")
        _check_hole(cursor, header.base_offset, among, may_be_gone)
        cursor = header.last_offset + 1
    _check_hole(cursor, answer.next_offset, among, may_be_gone)
    if answer.next_offset < cursor:
        raise Violation(f"I10 a reader that has read up to {cursor} is sent back to {answer.next_offset}")
    if answer.next_offset == answer.offset and all(_is_readable(each, answer.offset, answer.isolation) for each in among):
        raise Violation(f"I11 offset {answer.offset} is readable, and the answer is neither a batch nor an error")
    if answer.isolation is Isolation.READ_COMMITTED:
        _check_transactions(answer, among)


def check_time(offset: int, found: RecordTime | None, among: Sequence[Served], are_gone: Callable[[Key, int], bool]) -> None:
    """`found` is the first record at or after the time of `offset`: here each offset has a time of its own.

    are_gone  whether compaction has taken all records of a batch from an offset on
    """

    def has_no_record(key: Key) -> bool:
        places = [each.by_key[key] for each in among if key in each.by_key]
        return header_of(places[0].data).is_control or are_gone(key, max(place.first for place in places))

    if found is None:
        _check_hole(offset, _BEYOND, among, has_no_record)
        return
    if found.timestamp_ms != BASE_TIME + found.offset or found.offset < offset:
        raise Violation(f"I10 {found} is the first record at or after the time of {offset}")
    if not any(each.contradicted or any(place.base <= found.offset <= place.last for place in each.places) for each in among):
        raise Violation(f"I10 {found} is on no log that counts")
    _check_hole(offset, found.offset, among, has_no_record)


def _check_hole(start: int, end: int, among: Sequence[Served], may_be_gone: Callable[[Key], bool]) -> None:
    """No batch in [start, end) was readable at every moment."""
    if start >= end:
        return
    lacking = [place for place in among[0].places if place.base >= start and place.last < end and place.retained]
    for place in lacking:
        if all((found := each.by_key.get(place.key)) is not None and found.retained for each in among) and not may_be_gone(place.key):
            raise Violation(f"I10 offsets {place.base}..{place.last} (epoch {place.epoch}) are left out")


def _is_readable(log: Served, offset: int, isolation: Isolation) -> bool:
    if isolation is Isolation.READ_COMMITTED and offset >= log.stable:
        return False
    return any(place.first <= offset <= place.last for place in log.places)


def _check_transactions(answer: Answered, among: Sequence[Served]) -> None:
    for header, is_hidden in answer.hidden():
        key = header.base_offset, header.leader_epoch
        outcomes = {
            "unknown" if key in each.contradicted else each.outcomes[key]
            for each in among
            if key in each.outcomes or key in each.contradicted
        }
        if not is_hidden and not outcomes & {"committed", "unknown"}:
            raise Violation(f"I25 the batch at {key[0]} of producer {header.producer_id} is shown, its transaction is {sorted(outcomes)}")
        if is_hidden and outcomes == {"committed"}:
            raise Violation(f"I25 the batch at {key[0]} of producer {header.producer_id} is hidden, its transaction is committed")


def check_out_of_range(offset: int, among: Iterable[Served]) -> None:
    if all(_is_readable(each, offset, Isolation.READ_UNCOMMITTED) for each in among):
        raise Violation(f"I12 offset {offset} is reported out of range, and is readable")


# The reader


class ReaderClock:
    """The world's wall clock, and a monotonic one that advances when the reader wants: so old is what it knows."""

    def __init__(self, world: "World") -> None:
        self._world, self.passed_s = world, 0.0

    def now_ms(self) -> int:
        return self._world.clock.now_ms()

    def monotonic_s(self) -> float:
        return self.passed_s


class Beside:
    """What looks and calls to the store see of the world when it is the reader that does them."""

    def __init__(self, world: "World", random: Random) -> None:
        self._world, self.random = world, random
        self.trouble = Trouble(world, 0)
        self.running: Actor | None = None
        self.haste = random.choice((0.1, 0.3))

    @property
    def brokers(self) -> Brokers:
        return self._world.brokers

    @property
    def compacted(self) -> bool:
        return self._world.compacted

    def pause(self, at: str) -> None:
        if self.running and self.random.random() < self.haste:
            self.running.pause(at)


class Inline:
    """An executor, or the Downloads, without threads: what is submitted has been done when that returns. So pauses are the reader's."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def submit(self, work: Any, *arguments: object, **_: object) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*arguments) if callable(work) else work.run())
        except BaseException as error:
            done.set_exception(error)
        return done

    def shutdown(self, **_: object) -> None:
        pass

    def close(self) -> None:
        pass


class AgreedLogs(LookedAtLogs):
    """As LogDirs looks: two listings have to agree, so a listing that was overtaken is never believed alone."""

    def look(self, partition: TopicPartition) -> LocalLog:
        for _ in range(_LISTINGS_MAX):
            before = self._files()
            found = super().look(partition)
            if before == self._files() and {(each.path.name, each.generation.inode) for each in found.segments} <= before:
                return found
        raise SourceChanged("the directory changed during each look")

    def _files(self) -> set[tuple[str, int]]:
        directory = self._world.brokers.replicas[self._beside].directory
        return {(path.name, path.stat().st_ino) for path in directory.iterdir()}


class PausingFiles(OpenFiles):
    """The world may go on between a look at a directory and what is read of it."""

    def __init__(self, beside: Beside) -> None:
        super().__init__()
        self._beside = beside

    def get(self, segment: LocalSegment) -> RunFile:
        self._beside.pause("open")
        return super().get(segment)


class Reader:
    """One consumer at a time, beside one broker. The PartitionLog is kept from scan to scan, and with it what it knows."""

    def __init__(self, world: "World", beside: int) -> None:
        self._world, self._at = world, beside
        self.random = random = Random(f"reader {world.result.seed}")
        self._beside = Beside(world, random)
        self.clock = ReaderClock(world)
        self.store = FaultyStore(world.inner, random, BAD_NETWORK if random.random() < 0.5 else NO_FAULTS)
        self._often = random.choice((0.05, 0.1, 0.4))
        self._questions = Random(f"questions {world.result.seed}")
        self._asks_times = self._questions.random() < 0.5
        self._actor = Actor("reader")
        self._moments = Moments(world.checks)
        self._open()

    def _open(self) -> None:
        """For the incarnation that there is now."""
        random, root = self.random, self._world.root / "reader" / str(self._world.brokers.incarnation)
        self._moments = Moments(self._world.checks)
        self._look_at = self._head_at = 0
        self._is_gone = False
        self._partition = partition = self._world.brokers.partition
        store = PausingStore(self._beside, self.store)
        self._repository = ManifestRepository(store)
        with (
            patch.object(hydration.archive.hydrator, "ThreadPoolExecutor", Inline),
            patch.object(hydration.archive.hydrator, "Downloads", Inline),
            patch.object(hydration.cache.chunk_cache, "ThreadPoolExecutor", Inline),
        ):
            cache = ChunkCache(root, random.choice((0, 2_000, 1 << 20)), 3600.0, self.clock)
            self._hydrator = hydrator = Hydrator(store, cache, chunk_bytes=_CHUNK_BYTES, readahead_chunks=0)
        self._logs = AgreedLogs(self._beside, self._at)
        self._manifest = ManifestView(partition, self, HeldEntries(), self.clock, lambda name, load: hydrator.join(name, load))
        self._files = PausingFiles(self._beside)
        self._tier = LocalTier(self._look, self._files, self.clock)
        priority = random.choice((ReadPriority.LOCAL_FIRST, ReadPriority.LOCAL_FIRST, ReadPriority.OFFLOADED_FIRST))
        archive = ArchiveTier(self._manifest, hydrator)
        self._log = PartitionLog(partition, local=self._tier, archive=archive, hydrator=hydrator, priority=priority)

    def _look(self) -> LocalLog | None:
        began = self._moments.now
        found = self._logs.look(self._partition.topic_partition)
        self._look_at = began
        return found if found.partition == self._partition else None

    def load(self, partition: PartitionId) -> Versioned | None:
        """The head, for Archived."""
        began = self._moments.now
        found = self._repository.load(partition)
        self._head_at = began
        return found

    def close(self) -> None:
        self._leave()
        self._files.close()
        self._hydrator.close()

    def _leave(self) -> None:
        """The consumer is gone in the middle of what it did."""
        if self._actor.is_busy:
            self._is_gone = True
            self._actor.crash()

    # What the world has it do

    def after_action(self) -> None:
        """Something has happened; read on, or not."""
        world, random = self._world, self.random
        self._note()
        if random.random() >= self._often:
            return
        self.clock.passed_s += random.choice((0, 0, 0.01, 0.3, 2.0))
        if random.random() < 0.1 and (head := world.checks.head(self._partition)):
            self._manifest.update(head)  # the archiver of the same process has committed it
            self._head_at = self._moments.now
        if not self._actor.is_busy:
            self._begin()
        self._go_on()

    def _note(self) -> None:
        brokers = self._world.brokers
        if self._partition != brokers.partition:
            self.close()
            self._open()
        self._moments.note(brokers, brokers.replicas[self._at], self._world.checks.head(self._partition))

    def _begin(self) -> None:
        random = self.random
        isolation = random.choice(list(Isolation))
        max_bytes = random.choice((1, 300, 1 << 20))
        end = self._world.brokers.leader.end
        first = None if random.random() < 0.6 else random.randrange(end + 2)

        def scan() -> None:
            self._scan(first, isolation, max_bytes)

        def look_up() -> None:
            self._look_up(self._questions.randrange(end + 2))

        self._actor.start(look_up if self._asks_times and self._questions.random() < 0.2 else scan)

    def _go_on(self) -> None:
        self._beside.running = self._actor
        try:
            self._actor.resume()
        finally:
            self._beside.running = None

    def rest(self) -> None:
        """Nothing moves any more: a reader that begins now reads all there is."""
        self._note()
        while self._actor.is_busy:
            self._go_on()
        self.store.faults = NO_FAULTS
        self.clock.passed_s += _OLD_S
        for offset in range(max(each.end for each in self._moments.since(self._moments.now)) + 2):
            self._look_up(offset, at_rest=True)
        for isolation in Isolation:
            now = self._moments.since(self._moments.now)
            reached = self._scan(None, isolation, self.random.choice((1, 300, 1 << 20)), at_rest=True)
            wanted = min(each.stable if isolation is Isolation.READ_COMMITTED else each.end for each in now)
            if reached < wanted:
                raise Violation(f"I10 a {isolation.name} reader ends at {reached}, and {wanted} is the end")
        self._world.result.seen["a reader has read all there is"] += 1

    # What it does

    def _scan(self, first: int | None, isolation: Isolation, max_bytes: int, *, at_rest: bool = False) -> int:
        """The offset to go on with."""
        refused, cursor = False, first
        tries, is_archived = 0, False
        for _ in range(_READS_MAX):
            since = min(self._moments.now, self._look_at, self._head_at) if not at_rest else self._moments.now
            try:
                if cursor is None:
                    cursor = self._log.bounds(isolation).log_start
                    self._stay()
                    refused = True
                    _check_start(cursor, self._moments.since(since))
                answer = self._read(cursor, isolation, max_bytes)
            except OffsetOutOfRange as error:
                self._stay()
                among = self._moments.since(since)
                check_out_of_range(error.offset, among)
                self._saw("a reader gets an out-of-range error")
                if at_rest and refused:
                    raise Violation(f"I12 offset {error.offset} was the start, and is out of range: {error}") from error
                return error.offset
            except TransientError as error:
                self._saw("a reader has to retry")
                tries += 1
                if at_rest and any(each.contradicted or each.lags or each.proven_to < _BEYOND for each in self._moments.since(since)):
                    return _BEYOND  # the broker lags behind the archive; it will follow
                if at_rest:
                    raise Violation(f"I11 at rest a reader has to retry: {error}") from error
                if tries >= _TRIES_MAX:
                    return cursor or 0
                continue
            except Violation:
                raise
            except Exception as error:
                self._stay()
                raise Violation(f"I11 reading offset {cursor} fails: {type(error).__name__}: {error}") from error
            self._stay()
            if self._moments.cut_since(since):
                self._saw("a log is cut in place while it is read")
            check_answer(answer, self._moments.since(since), self._may_be_gone)
            is_archived, was_archived = self._witness(answer), is_archived
            if was_archived and answer.batches and not is_archived:
                self._saw("a reader reads across the border of the tiers")
            if answer.next_offset == cursor:
                return cursor
            cursor = answer.next_offset
        raise Violation(f"I11 a scan does not end: {cursor} after {_READS_MAX} reads")

    def _look_up(self, offset: int, *, at_rest: bool = False) -> None:
        """What a consumer that begins at a time asks."""
        since = min(self._moments.now, self._look_at, self._head_at) if not at_rest else self._moments.now
        try:
            found = self._log.offset_for_time(BASE_TIME + offset, timeout_s=None)
        except TransientError as error:
            self._saw("a reader has to retry")
            self._stay()
            if at_rest and not any(each.contradicted or each.lags or each.proven_to < _BEYOND for each in self._moments.since(since)):
                raise Violation(f"I11 at rest a reader has to retry a time: {error}") from error
            return
        except Exception as error:
            self._stay()
            raise Violation(f"I11 looking up the time of offset {offset} fails: {type(error).__name__}: {error}") from error
        self._stay()
        check_time(offset, found, self._moments.since(since), self._may_be_gone)
        self._saw("a reader looks up a time")

    def _read(self, offset: int, isolation: Isolation, max_bytes: int) -> Answered:
        """The bytes come at once: a file that is cut while they are sent is for a consumer's checksums to notice."""
        with self._log.read(offset, max_bytes, isolation, timeout_s=None) as answer:
            raw = b"".join(piece.read() for piece in answer.slices)
            batches = tuple(_batches_of(raw, self._world.brokers.known[self._partition.topic_id]))
            torn = sum(len(data) for data in batches) < answer.size_bytes
            return Answered(offset, isolation, batches, torn, tuple(answer.aborted), answer.next_offset, answer.last_stable_offset)

    def _stay(self) -> None:
        """Raises Crash when the consumer has gone: a look or a load that was not waited for may have swallowed it."""
        if self._is_gone:
            raise Crash

    def _may_be_gone(self, key: Key, first: int = 0) -> bool:
        """Has compaction taken all of a batch, from offset `first` on?"""
        brokers = self._world.brokers
        rows = brokers.rows[self._partition.topic_id].get(key, ())
        return brokers.compacted and all(brokers.may_be_gone(row) for row in rows if row.place.offset >= first)

    def _witness(self, answer: Answered) -> bool:
        """Whether what was answered is in the archive alone."""
        head = self._world.checks.head(self._partition)
        self._saw("a reader reads on" if answer.batches else "a reader finds nothing yet")
        replica = self._world.brokers.replicas[self._at]
        is_archived = bool(head and answer.batches and answer.offset < replica.segments[0].base)
        if is_archived:
            self._saw("a reader reads what is archived alone")
        if any(hidden for _, hidden in answer.hidden()):
            self._saw("a read_committed reader skips an aborted record")
        if self._beside.running and min(self._look_at, self._head_at) < self._moments.now:
            self._saw("a reader answers from what is out of date")
        return is_archived

    def _saw(self, what: str) -> None:
        self._world.result.seen[what] += 1


def _check_start(offset: int, among: Sequence[Served]) -> None:
    starts = [next((place.last for place in each.places if place.retained), offset) for each in among]
    if offset > max(starts):
        raise Violation(f"I10 the log is reported to start at {offset}, and {max(starts)} is readable")
    if offset < min(each.floor for each in among):
        raise Violation(f"I10 the log is reported to start at {offset}, and there is nothing before {min(each.floor for each in among)}")


def _batches_of(raw: bytes, known: dict[Key, set[bytes]]) -> Iterator[bytes]:
    """All before the first that was never written."""
    while len(raw) >= HEADER_BYTES:
        try:
            header = read_batch_header(raw)
        except HeadwaterError:
            return
        data, raw = raw[: header.size_bytes], raw[header.size_bytes :]
        if data not in known.get((header.base_offset, header.leader_epoch), ()):
            return
        yield data
