"""How a scan is divided into tasks. Pure: from heads alone, without indexes."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from headwater.pipeline.scan.archive_snapshot import OffsetRange
from headwater.pipeline.scan.query import Query
from headwater_core.errors import DataLoss
from headwater_core.partition import PartitionId
from manifests.entry import OFFSET_MAX, Entry
from manifests.entry_tree import EntryTree

SPLIT_BYTES = 128 << 20  # as Spark cuts files: a task costs some 0.1 s before its first byte
SPLITS_MAX = 1 << 17  # even if a head claims impossible sizes; splits get larger instead
SHARED_OUT_BYTES_MIN = 4 << 20  # a smaller task is not worth another core's time


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One task: offsets [first, end) of one partition. Can be pickled.

    entries     the live entries that may hold wanted records of the range, as the head listed them
    markers     the entries whose indexes say which transactions of the range were aborted: these, or later ones
    size_bytes  about this much of the archive
    """

    cluster_id: str
    topic: str
    topic_id: str
    partition: int
    first: int
    end: int
    entries: tuple[Entry, ...]
    markers: tuple[Entry, ...] = ()
    size_bytes: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.end or self.size_bytes < 0:
            raise ValueError(f"impossible split: {self}, {self.size_bytes} bytes")

    @property
    def partition_id(self) -> PartitionId:
        return PartitionId(self.cluster_id, self.topic_id, self.partition, self.topic)

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition} [{self.first}, {self.end})"


@dataclass(frozen=True, slots=True)
class _Part:
    """Offsets [first, end) of one entry, about `size_bytes` of it."""

    entry: Entry
    first: int
    end: int
    size_bytes: int


def plan_splits(ranges: Iterable[OffsetRange], query: Query, *, cores: int = 1) -> list[Split]:
    """Splits of about query.split_bytes, in the order of `ranges`: together they hold each wanted offset once.

    A large entry is divided into equal ranges of offsets; the task finds their bytes by the entry's index. Small neighbours are
    joined. Raises DataLoss for a gap, unless the query allows gaps.

    cores  each shall have work, unless the query says how large a split is
    """
    wanted = [(each, list(_wanted(each, query))) for each in ranges]
    total = sum(part.size_bytes for _, parts in wanted for part in parts)
    split_bytes = query.split_bytes or max(min(SPLIT_BYTES, total // cores), SHARED_OUT_BYTES_MIN)
    split_bytes = max(min(split_bytes, total // query.min_partitions), total // SPLITS_MAX, 1)
    return [
        _split(each, run, query)
        for each, parts in wanted
        for run in _joined((piece for part in parts for piece in _divided(part, split_bytes)), split_bytes)
    ]


def entries_left_out(ranges: Iterable[OffsetRange], query: Query) -> int:
    """How many entries of `ranges` need not be read at all."""
    return sum(each.head.entries.objects_within(each.first, each.end) - _objects_wanted(each, query) for each in ranges)


def _objects_wanted(each: OffsetRange, query: Query) -> int:
    wanted = each.head.entries.within(each.first, each.end, query.predicate.may_match)
    return sum(not entry.gap and query.predicate.may_match(entry) for entry in wanted)


def marker_entries(entries: EntryTree, first: int, end: int) -> tuple[Entry, ...]:
    """Those of a head's entries whose indexes list the aborted transactions that offsets in [first, end) may belong to.

    An abort marker may be in any later entry, so entries are searched as long as a transaction was open. A later entry counts
    only if one of its aborts begins before `end`. Where an entry does not say where its aborts begin, its index must be read.
    """
    found: list[Entry] = []
    for entry in entries.within(first, OFFSET_MAX):
        if entry.aborted and (entry.aborted_from is None or entry.aborted_from < end):
            found.append(entry)
        if not entry.gap and entry.next_offset >= end and (entry.open_from is None or entry.open_from >= end):
            break
    return tuple(found)


def _wanted(each: OffsetRange, query: Query) -> Iterator[_Part]:
    if not query.predicate.may_hold(each.head.topic, each.head.partition):
        return
    for entry in each.head.entries.within(each.first, each.end, query.predicate.may_match):
        first, end = max(entry.base_offset, each.first), min(entry.next_offset, each.end)
        first, end = max(first, query.predicate.first_offset), min(end, query.predicate.end_offset)
        if first >= end or not query.predicate.may_match(entry):
            continue
        if not entry.gap:
            size_bytes = entry.live_bytes * (end - first) // (entry.next_offset - entry.base_offset)
            yield _Part(entry, first, end, max(size_bytes, 1))
        elif query.fail_on_data_loss:
            raise gap_error(each.head.partition_id, entry, query)


def gap_error(partition: PartitionId, entry: Entry, query: Query) -> DataLoss:
    return DataLoss(
        f"{partition}: offsets {entry.base_offset} to {entry.last_offset} were never archived, "
        f"the manifest lists a gap ({query.advice.skip_loss})"
    )


def _divided(part: _Part, split_bytes: int) -> Iterator[_Part]:
    """`part` in equal ranges of offsets, each about `split_bytes`, or up to a tenth more."""
    offsets = part.end - part.first
    count = min(max(1, -(-(10 * part.size_bytes - split_bytes) // (10 * split_bytes))), offsets)
    for number in range(count):
        first, end = part.first + offsets * number // count, part.first + offsets * (number + 1) // count
        yield _Part(part.entry, first, end, -(-part.size_bytes // count))


def _joined(parts: Iterable[_Part], split_bytes: int) -> Iterator[list[_Part]]:
    """Runs of neighbours, each up to `split_bytes`."""
    run: list[_Part] = []
    size_bytes = 0
    for part in parts:
        if run and size_bytes + part.size_bytes > split_bytes:
            yield run
            run, size_bytes = [], 0
        run.append(part)
        size_bytes += part.size_bytes
    if run:
        yield run


def _split(each: OffsetRange, parts: list[_Part], query: Query) -> Split:
    head, first, end = each.head, parts[0].first, parts[-1].end
    return Split(
        cluster_id=head.cluster_id,
        topic=head.topic,
        topic_id=head.topic_id,
        partition=head.partition,
        first=first,
        end=end,
        entries=tuple(part.entry for part in parts),
        markers=marker_entries(head.entries, first, end) if query.read_committed else (),
        size_bytes=sum(part.size_bytes for part in parts),
    )
