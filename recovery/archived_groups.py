"""What consumer groups have committed, as the archive of __consumer_offsets says it."""

from typing import NamedTuple

from headwater_core.errors import CorruptData, ForeignOwner, NotFound, TruncatedData, UnsupportedFormat
from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.batch_walk import walk
from headwater_core.segments.markers import ABORT, COMMIT, read_marker
from headwater_core.segments.records import decode_batch
from manifests.entry import Entry
from manifests.repository import ManifestRepository
from recovery.coordinators import OFFSETS, Commits
from recovery.requested_ends import end_offset_at
from recovery.runs import fetched

_DAMAGE = (CorruptData, TruncatedData, NotFound, UnsupportedFormat, ForeignOwner)


class CommittedOffset(NamedTuple):
    """end: where the archive of that partition ends, or ended at the time in question; None where it has none, or another incarnation's.
    metadata: the text that the group gave with it"""

    group: str
    topic: str
    partition: int
    offset: int
    end: int | None
    metadata: str = ""

    @property
    def lag(self) -> int | None:
        return None if self.end is None else max(0, self.end - self.offset)


class ArchivedGroups(NamedTuple):
    """as_of_ms: the newest record that was read; unread: what could not be read, or is not known"""

    offsets: list[CommittedOffset]
    as_of_ms: int | None
    unread: list[str]


def read_groups(repository: ManifestRepository, *, until_ms: int | None = None, with_ends: bool = True) -> ArchivedGroups:
    """The offsets that groups have committed.

    until_ms   by records up to this time alone, and by where logs ended then; what the topic's cleaner had dropped when it was archived is
               not known
    with_ends  ends of logs are compared

    Raises what the store raises.
    """
    found: list[CommittedOffset] = []
    unread: list[str] = []
    ends: dict[tuple[str, int], int | None] = {}
    as_of_ms: int | None = None
    try:
        manifest = repository.resolve(OFFSETS)
    except NotFound:
        return ArchivedGroups([], None, [f"{OFFSETS} is not archived"])
    except _DAMAGE as error:
        return ArchivedGroups([], None, [str(error)])
    for partition in repository.partitions(OFFSETS, manifest.topic_id):
        commits = Commits()
        try:
            held = repository.load(partition)
            for entry in held.head.entries if held else ():
                newest_ms = None if entry.gap else _read(repository.store, entry, commits, until_ms)
                as_of_ms = max((each for each in (as_of_ms, newest_ms) if each is not None), default=None)
        except _DAMAGE as error:
            unread.append(f"{partition.topic}:{partition.partition}: {error}")
        unread += (f"{partition.topic}:{partition.partition}: {each}" for each in sorted(commits.unknown))
        for key, committed in commits.current.items():
            place = key.topic, key.partition
            if with_ends and place not in ends:
                ends[place] = _end(repository, *place, until_ms, unread)
            found.append(
                CommittedOffset(key.group, key.topic, key.partition, committed.value.offset, ends.get(place), committed.value.metadata)
            )
    return ArchivedGroups(sorted(found), as_of_ms, unread)


def _read(store: ObjectStore, entry: Entry, commits: Commits, until_ms: int | None) -> int | None:
    """The newest time of its records that count."""
    newest_ms = None
    with fetched(store, entry) as file:
        for position, header in walk(file, 0, entry.live_bytes, where=entry.key):
            file.seek(position)
            raw = file.read(header.size_bytes)
            if header.is_control:
                late = until_ms is not None and header.max_timestamp_ms > until_ms
                if not late and header.records and (kind := read_marker(raw, where=entry.key).type) in (ABORT, COMMIT):
                    commits.marker(header.producer_id, commits=kind == COMMIT)
                continue
            for record in decode_batch(raw, where=entry.key):
                if until_ms is None or record.timestamp_ms <= until_ms:
                    commits.record(record, header.producer_id if header.is_transactional else None, entry.key)
                    newest_ms = max(newest_ms or 0, record.timestamp_ms)
    return newest_ms


def _end(repository: ManifestRepository, topic: str, partition: int, until_ms: int | None, unread: list[str]) -> int | None:
    try:
        held = repository.load(repository.resolve(topic).partition_id(partition))
        if held is not None and until_ms is not None:
            return end_offset_at(held.head, until_ms, repository.store)
    except NotFound:
        return None
    except _DAMAGE as error:
        unread.append(f"{topic}:{partition}: {error}")
        return None
    return held.head.next_offset if held else None
