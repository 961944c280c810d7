"""What consumer groups have committed, and where share groups are, as the archive of their topics says it."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from headwater_core.errors import CorruptData, ForeignOwner, NotFound, TruncatedData, UnsupportedFormat
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId
from headwater_core.segments.batch_walk import walk
from headwater_core.segments.markers import ABORT, COMMIT, read_marker
from headwater_core.segments.records import Record, decode_batch
from manifests.entry import Entry
from manifests.repository import ManifestRepository
from recovery.coordinators import OFFSETS, Commits
from recovery.requested_ends import end_offset_at
from recovery.runs import fetched
from recovery.share_groups import SHARE_GROUPS, ShareStates

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


class SharePlace(NamedTuple):
    """How far a share group has come. topic: its id, where nobody knows the name. start: below it, the group is done; None: not known yet.
    end, lag: as of CommittedOffset, without what the group is done with above its start"""

    group: str
    topic: str
    partition: int
    start: int | None
    end: int | None
    lag: int | None


class ArchivedShares(NamedTuple):
    """unread: what could not be read, or is not known"""

    places: list[SharePlace]
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
    ends = _Ends(repository, until_ms, unread)
    as_of_ms: int | None = None
    for partition in _partitions(repository, OFFSETS, unread):
        commits = Commits()

        def record(each: Record, transaction_of: int | None, where: str, commits: Commits = commits) -> None:
            nonlocal as_of_ms
            commits.record(each, transaction_of, where)
            as_of_ms = each.timestamp_ms if as_of_ms is None else max(as_of_ms, each.timestamp_ms)

        def marker(producer_id: int, ended: bool, commits: Commits = commits) -> None:
            commits.marker(producer_id, commits=ended)

        _read(repository, partition, until_ms, record, marker, unread)
        unread += (f"{partition.topic}:{partition.partition}: {each}" for each in sorted(commits.unknown))
        for key, committed in commits.current.items():
            end = ends.of(key.topic, key.partition) if with_ends else None
            found.append(CommittedOffset(key.group, key.topic, key.partition, committed.value.offset, end, committed.value.metadata))
    return ArchivedGroups(sorted(found), as_of_ms, unread)


def read_shares(repository: ManifestRepository, names: Mapping[str, str], *, until_ms: int | None = None) -> ArchivedShares:
    """Where share groups are, as read_groups has it for the others. names: of topics, by their ids. An archive may have none.

    Raises what the store raises.
    """
    found: list[SharePlace] = []
    unread: list[str] = []
    ends = _Ends(repository, until_ms, unread)
    for partition in _partitions(repository, SHARE_GROUPS, unread, optional=True):
        states = ShareStates()

        def record(each: Record, transaction_of: int | None, where: str, states: ShareStates = states) -> None:
            states.record(each, where)

        _read(repository, partition, until_ms, record, lambda producer_id, ended: None, unread)
        unread += (f"{partition.topic}:{partition.partition}: {each}" for each in sorted(states.unknown))
        for key, state in states.outcome().items():
            name = names.get(key.topic_id)
            end = None if name is None else ends.of(name, key.partition)
            start = None if state.start_offset < 0 else state.start_offset
            lag = None if end is None or start is None else max(0, end - start - state.within(end).done)
            found.append(SharePlace(key.group, name or key.topic_id, key.partition, start, end, lag))
    return ArchivedShares(sorted(found), unread)


def _partitions(repository: ManifestRepository, topic: str, unread: list[str], *, optional: bool = False) -> Sequence[PartitionId]:
    """What keeps it from being read is added to `unread`; that it is not archived, unless it is optional."""
    try:
        manifest = repository.resolve(topic)
    except NotFound:
        unread += [] if optional else [f"{topic} is not archived"]
        return ()
    except _DAMAGE as error:
        unread.append(str(error))
        return ()
    return repository.partitions(topic, manifest.topic_id)


def _read(
    repository: ManifestRepository,
    partition: PartitionId,
    until_ms: int | None,
    record: Callable[[Record, int | None, str], None],
    marker: Callable[[int, bool], None],
    unread: list[str],
) -> None:
    """Every record and marker that counts, in order; a record with the producer id of its transaction."""
    try:
        held = repository.load(partition)
        for entry in held.head.entries if held else ():
            if not entry.gap:
                _read_run(repository.store, entry, until_ms, record, marker)
    except _DAMAGE as error:
        unread.append(f"{partition.topic}:{partition.partition}: {error}")


def _read_run(
    store: ObjectStore,
    entry: Entry,
    until_ms: int | None,
    record: Callable[[Record, int | None, str], None],
    marker: Callable[[int, bool], None],
) -> None:
    with fetched(store, entry) as file:
        for position, header in walk(file, 0, entry.live_bytes, where=entry.key):
            file.seek(position)
            raw = file.read(header.size_bytes)
            if header.is_control:
                late = until_ms is not None and header.max_timestamp_ms > until_ms
                if not late and header.records and (kind := read_marker(raw, where=entry.key).type) in (ABORT, COMMIT):
                    marker(header.producer_id, kind == COMMIT)
                continue
            for each in decode_batch(raw, where=entry.key):
                if until_ms is None or each.timestamp_ms <= until_ms:
                    record(each, header.producer_id if header.is_transactional else None, entry.key)


class _Ends:
    """Where logs end, or ended at a time; each is looked up once. What cannot be read is added to `unread`."""

    def __init__(self, repository: ManifestRepository, until_ms: int | None, unread: list[str]) -> None:
        self._repository, self._until_ms, self._unread = repository, until_ms, unread
        self._known: dict[tuple[str, int], int | None] = {}

    def of(self, topic: str, partition: int) -> int | None:
        if (topic, partition) not in self._known:
            self._known[topic, partition] = _end(self._repository, topic, partition, self._until_ms, self._unread)
        return self._known[topic, partition]


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
