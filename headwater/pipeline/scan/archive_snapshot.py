"""The heads of the partitions that a scan reads, each read once."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

import structlog

from headwater.pipeline.scan.pieces import cut, fetch, read_index
from headwater.pipeline.scan.query import Bound, Edge, Place, Predicate, Query, Selection, Time
from headwater_core.clock import SystemClock, time_text
from headwater_core.counts import count_text
from headwater_core.errors import CorruptData, DataLoss, ForeignOwner, HeadwaterError, NotFound, TransientError, UnsupportedFormat
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId, TopicPartition
from headwater_core.segments.batches import check_batch
from headwater_core.segments.records import Record, decode_batch
from headwater_core.threads import ContextThreads
from manifests import keys
from manifests.entry import Entry
from manifests.head import Head
from manifests.repository import ManifestRepository
from manifests.topic import turn_command
from manifests.topic_survey import survey_topics

NAMED_MAX = 5  # open transactions in one message
WORKERS = 8  # documents loaded at once
MISSING_MAX = 1000  # partitions without a manifest in one event
REPLANS_MAX = 8  # because objects were replaced while they were read
_TIME_PIECE_BYTES = 256 << 10  # the index leads to within 64 KiB of a time

_DAMAGE = (CorruptData, ForeignOwner, UnsupportedFormat)  # of one document: others can still be read

log = structlog.get_logger()


class OpenTransactionAtEnd(NamedTuple):
    """A transaction that is open from `offset` on: the last `offsets` offsets of its archive are not read because of it."""

    topic: str
    partition: int
    offset: int
    offsets: int


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [first, end) of one partition."""

    head: Head
    first: int
    end: int

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The live entries, gaps included, that hold some of these offsets."""
        return tuple(self.head.entries.within(self.first, self.end))

    def open_transaction(self, query: Query) -> OpenTransactionAtEnd | None:
        """The transaction that ends the range, before the query would."""
        requested = (query.ending.at(self.head.topic, self.head.partition), query.predicate.end_offset)
        if self.end in requested or not self.end == latest(self.head, read_committed=query.read_committed) < self.head.next_offset:
            return None
        return OpenTransactionAtEnd(self.head.topic, self.head.partition, self.end, self.head.next_offset - self.end)


@dataclass(frozen=True, slots=True)
class LostDocument:
    """The document `key` of a topic, or of one of its partitions, that is damaged, or missing though another document refers to it."""

    topic: str
    partition: int | None
    key: str
    error: HeadwaterError

    def covers(self, place: TopicPartition) -> bool:
        return self.topic == place.topic and self.partition in (None, place.partition)


@dataclass(frozen=True, slots=True)
class ArchiveSnapshot:
    """The heads of the partitions that a query selects, by topic and partition; `lost` are those that cannot be read."""

    heads: tuple[Head, ...]
    lost: tuple[LostDocument, ...] = ()

    @classmethod
    def read(cls, store: ObjectStore, query: Query) -> "ArchiveSnapshot":
        """All heads, or none: raises the error of the first document that is lost, and what `survey` raises."""
        found = cls.survey(store, query)
        for each in found.lost:
            raise _advised(each.error, query.advice.set_aside)
        return found

    @classmethod
    def survey(cls, store: ObjectStore, query: Query) -> "ArchiveSnapshot":
        """The heads that can be read, and the documents that are lost. Raises NotFound when a named topic or partition is not in the
        archive, or no topic matches."""
        repository = ManifestRepository(store)
        with ContextThreads(WORKERS, "snapshot") as pool:
            listed = [topic for topic, _ in repository.incarnations()] if query.selection.has_wildcards else []
            found = {topic for topic in listed if query.selection.matches(topic)}.union(query.selection.named)
            if not found:
                raise NotFound(f"no topic in {store.url} matches")
            topics = sorted(topic for topic in found if query.predicate.topics is None or topic in query.predicate.topics)
            surveyed = list(pool.map(partial(_partitions, repository, query.selection), topics))
            lost = [each for each in surveyed if isinstance(each, LostDocument)]
            partitions = [each for some in surveyed if not isinstance(some, LostDocument) for each in some]
            held = {each.topic_partition for each in partitions}
            for each in sorted(query.selection.assigned):
                if each.topic in topics and each not in held and not any(one.covers(each) for one in lost):
                    raise NotFound(f"{each} is not in {store.url}")
            wanted = [
                each
                for each in partitions
                if query.selection.holds(each.topic, each.partition) and query.predicate.may_hold(each.topic, each.partition)
            ]
            loaded = list(pool.map(partial(_load, repository), wanted))
            lost += [each for each in loaded if isinstance(each, LostDocument)]
            return cls(tuple(each for each in loaded if isinstance(each, Head)), tuple(lost))

    def ranges(self, store: ObjectStore, query: Query) -> list[OffsetRange]:
        """The same as `bounds`, without partitions that have no offsets."""
        return [each for each in self.bounds(store, query) if each.first < each.end]

    def bounds(self, store: ObjectStore, query: Query) -> list[OffsetRange]:
        """The offsets that the query's bounds mean, by these heads.

        Reads from the store only where a bound is a time. Raises DataLoss and NotFound for bounds that the archive does not have.
        """
        for which, bound in (("starting", query.starting), ("ending", query.ending)):
            self._check_named(which, bound, query)

        def range_of(head: Head) -> OffsetRange:
            first = place_offset(store, head, query.starting, query, starting=True)
            end = place_offset(store, head, query.ending, query, starting=False)
            return OffsetRange(head, max(first, query.predicate.first_offset), min(end, query.predicate.end_offset))

        with ContextThreads(WORKERS, "snapshot") as pool:
            return list(pool.map(range_of, self.heads))

    def _check_named(self, which: str, bound: Bound, query: Query) -> None:
        known = {head.partition_id.topic_partition for head in self.heads}
        for each in sorted(bound.named):
            lost = any(one.covers(each) for one in self.lost)
            if each not in known and not lost and query.predicate.may_hold(each.topic, each.partition):
                raise NotFound(f"the {which} offsets name {each}, which is not one of the selected partitions")


def describe_open(transactions: Sequence[OpenTransactionAtEnd]) -> str:
    """A sentence for people, about those that hide most. The others are only counted."""
    if not transactions:
        return ""
    most = sorted(transactions, key=lambda transaction: (-transaction.offsets, transaction))[:NAMED_MAX]
    named = [f"{topic}:{partition} from offset {offset} on ({count_text(offsets, 'offset')})" for topic, partition, offset, offsets in most]
    more = f", and {count_text(len(transactions) - NAMED_MAX, 'more partition')}" if len(transactions) > NAMED_MAX else ""
    return f"not read because a transaction is open: {', '.join(named)}{more}"


def load_head(repository: ManifestRepository, partition: PartitionId) -> Head:
    """The partition's head. Raises CorruptData when it is damaged, or missing though something lists it."""
    held = repository.load(partition)
    if held is None:
        raise CorruptData(keys.head(partition), 0, "it is listed, but it does not exist")
    return held.head


def latest(head: Head, *, read_committed: bool) -> int:
    """The offset after the last one that can be read: the archive's end, or with `read_committed` its last stable offset."""
    held = next((entry for entry in reversed(head.entries) if not entry.gap), None)  # a gap says nothing of transactions
    open_from = held.open_from if read_committed and held is not None else None
    return head.next_offset if open_from is None else max(min(open_from, head.next_offset), head.start_offset)


def place_offset(store: ObjectStore, head: Head, bound: Bound, query: Query, *, starting: bool) -> int:
    """The offset that `bound` means in one partition, between its start and `latest`.

    Raises DataLoss for an offset or a time that the archive does not have, as far as the query does not allow that.
    """
    place: Place = bound.at(head.topic, head.partition)
    end = latest(head, read_committed=query.read_committed)
    match place:
        case Edge.EARLIEST:
            return head.start_offset
        case Edge.LATEST:
            return end
        case Time(ms):
            found = offset_for_time(store, head, ms, end, starting=starting)
            if found is None and starting and query.require_time:
                raise DataLoss(
                    f"{head.partition_id} has no record at or after {ms}; startingOffsetsByTimestampStrategy=latest skips the partition"
                )
            return end if found is None else found
        case int(offset):
            if query.fail_on_data_loss and not head.start_offset <= offset <= end:
                undecided = f"; a transaction is open from offset {end} on" if end < offset <= head.next_offset else ""
                raise DataLoss(
                    f"{head.partition_id}: offset {offset} was requested, the archive has [{head.start_offset}, {end})"
                    f"{undecided} ({query.advice.skip_loss})"
                )
            return min(max(offset, head.start_offset), end)


def offset_for_time(store: ObjectStore, head: Head, timestamp_ms: int, end: int, *, starting: bool = False) -> int | None:
    """The first offset below `end` whose record is at or after `timestamp_ms`, as in Kafka's ListOffsets; None when there is none.

    Unlike there, a record that is dated later than it was published is passed over, with a warning: its time does not say when it was
    written. When an object was replaced meanwhile, the head is read again.

    starting  where only such records are found, the first of them counts: nothing is to be left out that may be wanted

    Raises CorruptData for an object that is damaged, or listed and missing, and TransientError when objects are replaced again and again.
    """
    wanted = Predicate.of_offsets(head.start_offset, end, timestamp_ms)
    for _ in range(REPLANS_MAX):
        late_records: list[Record] = []
        for entry in head.entries:
            if entry.gap or not wanted.may_match(entry):
                continue
            try:
                found, late = _first_not_older(store, entry, wanted, timestamp_ms)
            except NotFound as error:
                head = load_head(ManifestRepository(store), head.partition_id)
                if any(each.key == entry.key for each in head.entries.within(entry.base_offset, entry.next_offset)):
                    raise CorruptData(entry.key, 0, f"the manifest lists it, the store does not have it ({error})") from error
                break
            if late is not None:
                late_records.append(late)
            if found is not None:
                _report_skipped(head, late_records)
                if entry.published_ms is None and found.timestamp_ms > SystemClock().now_ms():
                    _report_late(head, found, is_skipped=False)
                return found.offset
        else:
            if starting and late_records:
                _report_late(head, late_records[0], is_skipped=False)
                return late_records[0].offset
            _report_skipped(head, late_records)
            return None
    raise TransientError(
        f"{head.partition_id}: its objects were replaced {REPLANS_MAX} times while a time was searched in them; try again later"
    )


def _first_not_older(store: ObjectStore, entry: Entry, wanted: Predicate, timestamp_ms: int) -> tuple[Record | None, Record | None]:
    """The first record of the entry that is not older, and the first before it that is dated later than it was published."""
    late: Record | None = None
    first, end = max(wanted.first_offset, entry.base_offset), min(wanted.end_offset, entry.next_offset)
    for piece in cut(entry, read_index(store, entry), first, end, timestamp_ms, _TIME_PIECE_BYTES):
        at, where = 0, f"{entry.key} from byte {piece.position} on"
        with fetch(store, piece) as buffer:
            while at < len(buffer):
                header = check_batch(buffer, at, where=where)
                batch = buffer[at : at + header.size_bytes]
                at += header.size_bytes
                if header.max_timestamp_ms < timestamp_ms or header.is_control or header.last_offset < first:
                    continue
                for record in decode_batch(batch, where=where):
                    if record.timestamp_ms < timestamp_ms or not first <= record.offset < end:
                        continue
                    if not entry.is_late(record.timestamp_ms):
                        return record, late
                    late = late or record
    return None, late


def _report_skipped(head: Head, late_records: Iterable[Record]) -> None:
    for record in late_records:
        _report_late(head, record, is_skipped=True)


def _report_late(head: Head, record: Record, *, is_skipped: bool) -> None:
    log.warning(
        "late_record_found",
        topic=head.topic,
        partition=head.partition,
        offset=record.offset,
        dated=time_text(record.timestamp_ms),
        is_skipped=is_skipped,
    )


def _partitions(repository: ManifestRepository, selection: Selection, topic: str) -> list[PartitionId] | LostDocument:
    """The archived partitions of the requested incarnation; none for a topic whose creation was interrupted."""
    topic_id = selection.topic_ids.get(topic)
    try:
        if topic_id is None:
            manifest, current = repository.resolve_name(topic)
            for undecided in repository.undecided(current):
                _warn_of_undecided(topic, undecided)
        elif (found := repository.load_topic(topic, topic_id)) is not None:
            manifest = found
        else:
            raise NotFound(f"topic {topic}@{topic_id} is not in the archive; `headwater topics list --all` lists every incarnation")
    except NotFound:
        lost = survey_topics(repository.store, topic).unreadable if topic_id is None else []
        if lost:
            return LostDocument(topic, None, lost[0].key, lost[0].error)
        if topic in selection.named:
            raise
        return []
    except _DAMAGE as error:
        lost = survey_topics(repository.store, topic).unreadable if topic_id is None else []
        key = lost[0].key if lost else keys.topic_manifest(topic, topic_id) if topic_id else keys.current(topic)
        return LostDocument(topic, None, key, error)
    partitions = repository.partitions(topic, manifest.topic_id)
    numbers = {each.partition for each in partitions}
    absent = tuple(number for number in range(min(manifest.partitions, MISSING_MAX)) if number not in numbers)
    if absent:
        _warn_of_absent(topic, absent)
    return partitions


def _load(repository: ManifestRepository, partition: PartitionId) -> Head | LostDocument:
    try:
        return load_head(repository, partition)
    except _DAMAGE as error:
        return LostDocument(partition.topic, partition.partition, keys.head(partition), error)


def _advised(error: HeadwaterError, advice: str) -> HeadwaterError:
    """The same error, followed by `advice`."""
    if isinstance(error, CorruptData) and advice:
        return type(error)(error.where, error.position, f"{error.reason} ({advice})")
    return error


@lru_cache(maxsize=1024)
def _warn_of_undecided(topic: str, topic_id: str) -> None:
    log.warning("incarnation_passed_over", topic=topic, topic_id=topic_id, command=turn_command(topic, topic_id))


@lru_cache(maxsize=1024)  # once per process: a stream reads snapshots again and again
def _warn_of_absent(topic: str, absent: tuple[int, ...]) -> None:
    log.warning("partitions_without_manifest", topic=topic, partitions=absent)
