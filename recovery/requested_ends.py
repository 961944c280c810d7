"""Where logs are to end, before their archive does: at a point in time, or at an offset.

A log ends before the first batch whose greatest timestamp is later than the time, markers of transactions included: what had not been
committed by then is open where the log ends. Producers set timestamps, so later batches may hold earlier records; they are counted. A
timestamp that is later than its record's publication says nothing of when it was written, and ends no log (`Entry.is_late`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

from msgspec.structs import replace

from headwater_core.errors import UsageError
from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.batch_walk import walk
from headwater_core.segments.batches import BatchHeader
from headwater_core.segments.records import decode_batch
from headwater_core.threads import ContextThreads
from manifests.entry import Entry
from manifests.entry_tree import EntryTree
from manifests.head import Head
from manifests.page import Item
from recovery.discovery import ArchivedTopic
from recovery.local_part import readable
from recovery.open_transactions import DAMAGE, RunIndexes
from recovery.recovery_plan import Options, Place, RequestedEnd
from recovery.runs import fetched

OUT_OF_ORDER_READS_MAX = 16  # runs of one partition that are fetched to count records out of order, unless all of them are wanted
_READERS = 8

IsLate = Callable[[Entry, BatchHeader], bool]


def find_ends(found: Sequence[ArchivedTopic], options: Options, store: ObjectStore) -> Mapping[Place, RequestedEnd]:
    """The ends of those logs that are to end before their archive, by the archive's topic and partition.

    Reads the archive: the run in which a log ends, indexes of runs before it, and runs after it to count. What is damaged there ends the
    log before it. Raises UsageError for an offset of a partition that is not recovered, and what the store raises.
    """
    heads = {(topic.manifest.topic, number): head for topic in found for number, head in topic.heads.items()}
    offsets = _offsets(options)
    if unknown := sorted(offsets.keys() - heads.keys()):
        raise UsageError(f"an end for {unknown[0][0]}:{unknown[0][1]}, which is not recovered")

    wanted = sorted(heads if options.to_time_ms is not None else offsets)
    with ContextThreads(_READERS, "recover-ends") as pool:
        ends = pool.map(lambda place: find_end(heads[place], place[0], options, store), wanted)
        return {place: end for place, end in zip(wanted, ends, strict=True) if end is not None}


def find_end(head: Head, topic: str, options: Options, store: ObjectStore) -> RequestedEnd | None:
    """The end of one of them, of which `head` may have become another since; None: with its archive. topic: by the archive's name.
    Raises what the store raises."""
    head = replace(head, entries=readable(head.entries))
    ends = []
    if (offset := _offsets(options).get((topic, head.partition))) is not None:
        ends.append(_at_offset(store, head, offset))
    if options.to_time_ms is not None:
        ends.append(_at_time(store, head, options.to_time_ms, None if options.count_all else OUT_OF_ORDER_READS_MAX))
    return min((each for each in ends if each is not None), key=lambda each: each.offset, default=None)


def _offsets(options: Options) -> dict[Place, int]:
    return {_place_of(text): offset for text, offset in options.to_offsets.items()}


def _place_of(text: str) -> Place:
    topic, _, number = text.rpartition(":")
    if not topic or not number.isdecimal() or not number.isascii() or len(number) > 10:
        raise UsageError(f"{text[:300]!r} is not TOPIC:PARTITION")
    return topic, int(number)


def _at_offset(store: ObjectStore, head: Head, offset: int) -> RequestedEnd | None:
    """Before the batch that holds `offset`, or that is the first one after it."""
    if offset >= head.next_offset:
        return None
    offset = max(offset, head.start_offset)
    entry = head.entries.at(offset)
    after = head.entries.split_at(offset)[1]
    if entry is None or entry.gap or entry.base_offset == offset:
        return RequestedEnd(offset=offset, records=after.records)
    end, records = _end_in(store, entry, lambda header: header.last_offset >= offset)
    return RequestedEnd(offset=offset if end is None else end, records=records + head.entries.split_at(entry.next_offset)[1].records)


class EndInRun(NamedTuple):
    """entry: the run in which a log ends, or before it; offset: the first one that is late; records: of the run, from there on"""

    entry: Entry
    offset: int
    records: int


def end_offset_at(head: Head, time_ms: int, store: ObjectStore) -> int:
    """Where the log of `head` ended at that time, as far as it is archived; reads the run that holds it. Raises what the store raises."""
    found = _end_at_time(store, replace(head, entries=readable(head.entries)), time_ms)
    return head.next_offset if found is None else max(found.offset, head.start_offset)


def _end_at_time(store: ObjectStore, head: Head, time_ms: int) -> EndInRun | None:
    def is_late(entry: Entry, header: BatchHeader) -> bool:
        time = header.max_timestamp_ms
        return time > time_ms and (header.is_control or not entry.is_late(time))  # markers have the brokers' time

    def may_be_late(item: Item) -> bool:
        return item.newest_ms is not None and item.newest_ms > time_ms

    found, before = None, head.entries
    for entry in filter(may_be_late, head.entries.where(may_be_late)):
        end, records = _end_in(store, entry, partial(is_late, entry))
        if end is not None:
            found, before = EndInRun(entry, end, records), head.entries.split_at(entry.base_offset)[0]
            break
    if (marked := _with_late_marker(store, before, is_late)) is None:
        return found
    end, records = _end_in(store, marked, partial(is_late, marked))
    return EndInRun(marked, marked.base_offset if end is None else end, records)


def _at_time(store: ObjectStore, head: Head, time_ms: int, reads_max: int | None) -> RequestedEnd | None:
    found = _end_at_time(store, head, time_ms)
    if found is None:
        return None
    after = head.entries.split_at(found.entry.next_offset)[1]
    in_order, at_least = _count(store, chain([found.entry], after), time_ms, found.offset, reads_max)
    records = found.records + after.records
    return RequestedEnd(
        offset=max(found.offset, head.start_offset), records=records, out_of_order=min(in_order, records), at_least=at_least
    )


def _with_late_marker(store: ObjectStore, before: EntryTree, is_late: IsLate) -> Entry | None:
    """The first entry of `before`, whose records are none of them late, with a marker that is; indexes say which have markers.

    Markers have the brokers' time, so those before a marker that is not late are not late either. The times of records say nothing of
    them: producers set those, to years ago, too.
    """
    found = None
    for entry in _from_the_end(before, _may_have_marker):
        try:
            if all(state.coordinator_epoch < 0 for state in RunIndexes(store, [entry]).of(0).producers):
                continue
            late = any(map(partial(is_late, entry), _headers(store, entry)))
        except DAMAGE:
            continue  # what is damaged is found again where it is recovered
        if not late:
            break
        found = entry
    return found


def _may_have_marker(item: Item) -> bool:
    """Not where each offset has a record, or nothing has a producer id."""
    if item.max_producer_id < 0 or (isinstance(item, Entry) and item.gap):
        return False
    return item.records != item.next_offset - item.base_offset or (isinstance(item, Entry) and item.is_cut)


def _from_the_end(tree: EntryTree, may_hold: Callable[[Item], bool]) -> Iterator[Entry]:
    """Entries that `may_hold` what is wanted, the newest first; pages that do not are not read."""
    for item in reversed(tree.items):
        if not may_hold(item):
            continue
        if isinstance(item, Entry):
            yield item
        else:
            yield from _from_the_end(EntryTree(tree.pages.read(item), tree.pages), may_hold)


def _end_in(store: ObjectStore, entry: Entry, ends: Callable[[BatchHeader], bool]) -> tuple[int | None, int]:
    """The base offset of the first batch that `ends` the log, and the records from there on; all of the entry when it cannot be read."""
    end, records = None, 0
    try:
        for header in _headers(store, entry):
            if end is None and ends(header):
                end = header.base_offset
            if end is not None and not header.is_control:
                records += header.records
    except DAMAGE:
        return entry.base_offset, entry.records
    return end, records


def _headers(store: ObjectStore, entry: Entry) -> Iterator[BatchHeader]:
    with fetched(store, entry) as file:
        yield from (header for _, header in walk(file, 0, entry.live_bytes, where=entry.key))


def _count(store: ObjectStore, entries: Iterable[Entry], time_ms: int, end: int, reads_max: int | None) -> tuple[int, bool]:
    """The records from offset `end` on that are not later than the time, and whether there may be more, where too many runs would have to
    be fetched, or one cannot be read. A run is passed over where each of its batches begins with a later record, as its entry says."""
    count, reads, at_least = 0, 0, False
    for entry in entries:
        if entry.gap or entry.first_timestamp_ms is None or entry.first_timestamp_ms > time_ms:
            continue
        if entry.last_timestamp_ms is not None and entry.last_timestamp_ms <= time_ms and entry.base_offset >= end:
            count += entry.records
        elif reads == reads_max:
            at_least = True
        else:
            reads += 1
            try:
                count += _early_records(store, entry, time_ms, end)
            except DAMAGE:
                at_least = True
    return count, at_least


def _early_records(store: ObjectStore, entry: Entry, time_ms: int, end: int) -> int:
    count = 0
    with fetched(store, entry) as file:
        for position, header in walk(file, 0, entry.live_bytes, where=entry.key):
            if header.is_control or header.base_offset < end:
                continue
            if header.max_timestamp_ms <= time_ms:
                count += header.records
            elif header.records > 1:
                file.seek(position)
                count += sum(record.timestamp_ms <= time_ms for record in decode_batch(file.read(header.size_bytes), where=entry.key))
    return count
