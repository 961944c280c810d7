"""A model of the leaders and coordinators of a Kafka broker that starts on restored logs: what they load, write, refuse and expire.

It is made from Kafka's behaviour and knows nothing of how a recovery decides. Sources, Kafka 4.3: ProducerStateManager and
ProducerAppendInfo (leaders), TransactionStateManager, TransactionMetadata, TransactionCoordinator and TransactionMarkerChannelManager
(transactions), GroupMetadataManager, OffsetMetadataManager, ClassicGroup and ConsumerGroup (groups); KIP-890, KIP-1228, KAFKA-19999.
tests/peers/test_coordinator_facts.py checks the rules on a real broker.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from headwater_core.segments import flexible
from headwater_core.segments.batches import BatchHeader
from headwater_core.segments.coordinator_records import plain_string
from headwater_core.segments.markers import ABORT, COMMIT, read_marker
from headwater_core.segments.records import Record, decode_batch

Place = tuple[str, int]
Batch = tuple[BatchHeader, bytes]

EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = range(6)
EPOCH_MAX = 2**15 - 1
TWO_PHASE_MS = 2**31 - 1
PRODUCER_EXPIRATION_MS = 86_400_000  # producer.id.expiration.ms
OFFSETS_RETENTION_MS = 7 * 86_400_000  # offsets.retention.minutes
SESSION_TIMEOUT_MS = 45_000


class Refused(Exception):
    """A broker answers a request or a marker with an error."""


# Leaders


class Row(NamedTuple):
    """A batch as a leader and a reader of committed data see it. kind: of a marker, None: data"""

    base_offset: int
    next_offset: int
    producer_id: int
    producer_epoch: int
    is_transactional: bool
    kind: int | None
    coordinator_epoch: int
    timestamp_ms: int

    @classmethod
    def of(cls, header: BatchHeader, raw: bytes) -> "Row":
        marker = read_marker(raw) if header.is_control else None
        return cls(
            header.base_offset,
            header.next_offset,
            header.producer_id,
            header.producer_epoch,
            header.is_transactional,
            marker.type if marker else None,
            marker.coordinator_epoch if marker else -1,
            header.max_timestamp_ms,
        )


@dataclass(slots=True)
class ProducerEntry:
    epoch: int = -1
    coordinator_epoch: int = -1
    open_from: int | None = None
    timestamp_ms: int = -1


class LeaderLog:
    """One partition and its leader. end: of a log without batches"""

    def __init__(self, rows: Iterable[Row], end: int) -> None:
        self.rows, self.end = list(rows), end
        self.producers: dict[int, ProducerEntry] = {}
        for row in self.rows:
            self._enter(row)

    def copy(self) -> "LeaderLog":
        return LeaderLog(self.rows, self.end)

    def _enter(self, row: Row) -> None:
        """As it is replicated, or read again after a start: nothing is refused."""
        self.end = max(self.end, row.next_offset)
        if row.producer_id < 0:
            return
        entry = self.producers.setdefault(row.producer_id, ProducerEntry())
        entry.epoch, entry.timestamp_ms = row.producer_epoch, row.timestamp_ms
        if row.kind is not None:
            entry.open_from, entry.coordinator_epoch = None, row.coordinator_epoch
        elif row.is_transactional and entry.open_from is None:
            entry.open_from = row.base_offset

    def expire_producers(self, now_ms: int) -> None:
        self.producers = {
            producer_id: entry
            for producer_id, entry in self.producers.items()
            if entry.open_from is not None or now_ms - entry.timestamp_ms < PRODUCER_EXPIRATION_MS
        }

    def append_data(self, producer_id: int, epoch: int, now_ms: int) -> int:
        entry = self.producers.get(producer_id, ProducerEntry())
        if epoch < entry.epoch:
            raise Refused(f"INVALID_PRODUCER_EPOCH: {producer_id}/{epoch} after {entry.epoch}")
        return self._append(producer_id, epoch, None, -1, now_ms)

    def append_marker(self, producer_id: int, epoch: int, kind: int, coordinator_epoch: int, version: int, now_ms: int) -> int:
        entry = self.producers.get(producer_id, ProducerEntry())
        is_retry = version >= 2 and epoch == entry.epoch and entry.open_from is None
        if (epoch <= entry.epoch if version >= 2 else epoch < entry.epoch) and not is_retry:
            raise Refused(f"INVALID_PRODUCER_EPOCH: a marker of {producer_id}/{epoch} after {entry.epoch}")
        if coordinator_epoch < entry.coordinator_epoch:
            raise Refused(f"TRANSACTION_COORDINATOR_FENCED: {coordinator_epoch} after {entry.coordinator_epoch}")
        return self._append(producer_id, epoch, kind, coordinator_epoch, now_ms)

    def _append(self, producer_id: int, epoch: int, kind: int | None, coordinator_epoch: int, now_ms: int) -> int:
        row = Row(self.end, self.end + 1, producer_id, epoch, True, kind, coordinator_epoch, now_ms)
        self.rows.append(row)
        self._enter(row)
        return row.base_offset

    @property
    def opened(self) -> set[int]:
        """The producers with an open transaction."""
        return {producer_id for producer_id, entry in self.producers.items() if entry.open_from is not None}

    @property
    def last_stable_offset(self) -> int:
        return min((entry.open_from for entry in self.producers.values() if entry.open_from is not None), default=self.end)


def outcomes(rows: Iterable[Row]) -> dict[int, bool | None]:
    """By offset, is a reader of committed data given that record? None: its transaction is open."""
    found: dict[int, bool | None] = {}
    opened: dict[int, list[int]] = {}
    for row in rows:
        offsets = range(row.base_offset, row.next_offset)
        if row.kind is not None:
            found.update(dict.fromkeys(opened.pop(row.producer_id, ()), row.kind == COMMIT))
        elif row.is_transactional:
            opened.setdefault(row.producer_id, []).extend(offsets)
            found.update(dict.fromkeys(offsets))
        else:
            found.update(dict.fromkeys(offsets, True))
    return found


# Transactions


@dataclass(slots=True)
class TransactionMetadata:
    producer_id: int
    epoch: int
    timeout_ms: int
    status: int
    partitions: set[Place]
    started_ms: int
    next_producer_id: int = -1
    version: int = 0


def decode_state(value: bytes) -> TransactionMetadata | None:
    """None for a version that nobody here knows."""
    reader = flexible.Reader(value, "transaction")
    version = reader.i16()
    if version not in (0, 1):
        return None
    producer_id, epoch, timeout_ms, status = reader.i64(), reader.i16(), reader.i32(), reader.i8()
    partitions: set[Place] = set()
    for _ in range(max(0, reader.uvarint() - 1 if version else reader.i32())):
        topic = reader.string() if version else plain_string(reader, "topic")
        partitions |= {(topic, reader.i32()) for _ in range(reader.uvarint() - 1 if version else reader.i32())}
        if version:
            reader.tags()
    _, started_ms = reader.i64(), reader.i64()
    tags = reader.tags() if version else {}
    following = tags[1].i64() if 1 in tags else -1
    return TransactionMetadata(producer_id, epoch, timeout_ms, status, partitions, started_ms, following, tags[2].i16() if 2 in tags else 0)


@dataclass
class TransactionCoordinator:
    """Of all partitions of __transaction_state. epochs: of the coordinator, by transactional id. unknown: ids whose state it can't read"""

    logs: Mapping[Place, LeaderLog]
    next_producer_id: int
    states: dict[str, TransactionMetadata] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    refusals: list[str] = field(default_factory=list)

    def load(self, batches: Iterable[Batch], epoch: int) -> None:
        for record in records_of(batches):
            reader = flexible.Reader(record.key or b"", "transaction")
            if reader.i16():
                continue  # a key of another version is skipped
            name = plain_string(reader, "transactional id")
            self.states.pop(name, None)
            self.unknown.discard(name)
            self.epochs[name] = epoch
            if record.value is None:
                continue
            state = decode_state(record.value)
            if state is None:
                self.unknown.add(name)
            else:
                self.states[name] = state

    def run(self, now_ms: int) -> None:
        """All that it does by itself until `now_ms`: what is prepared is completed, what has timed out is aborted."""
        for name, state in sorted(self.states.items()):
            if state.status == ONGOING and state.timeout_ms != TWO_PHASE_MS and state.started_ms + state.timeout_ms < now_ms:
                self._fence(name, state, now_ms)
            elif state.status in (PREPARE_COMMIT, PREPARE_ABORT):
                self._complete(name, state, now_ms)

    def _fence(self, name: str, state: TransactionMetadata, now_ms: int) -> None:
        state.epoch = min(state.epoch + (2 if state.version >= 2 else 1), EPOCH_MAX)
        state.status = PREPARE_ABORT
        self._complete(name, state, now_ms)

    def _complete(self, name: str, state: TransactionMetadata, now_ms: int) -> None:
        """A marker that is refused is not sent again, and the state stays as it is until the coordinator moves. The others were sent with
        it: brokers answer for each log."""
        kind = COMMIT if state.status == PREPARE_COMMIT else ABORT
        refusals = len(self.refusals)
        for place in sorted(state.partitions):
            if place not in self.logs:
                continue  # of a topic that is gone
            try:
                self.logs[place].append_marker(state.producer_id, state.epoch, kind, self.epochs[name], state.version, now_ms)
            except Refused as refused:
                self.refusals.append(f"{name} stays in Prepare{'Commit' if kind == COMMIT else 'Abort'}: {place[0]}:{place[1]}: {refused}")
        if len(self.refusals) > refusals:
            return
        state.status, state.partitions = COMPLETE_COMMIT if kind == COMMIT else COMPLETE_ABORT, set()
        if state.version >= 2 and state.next_producer_id >= 0:
            state.producer_id, state.epoch, state.next_producer_id = state.next_producer_id, 0, -1

    def initialize(self, name: str, now_ms: int, version: int) -> TransactionMetadata:
        state = self.states.get(name)
        if state is not None and state.status == ONGOING:
            self._fence(name, state, now_ms)
        if state is not None and state.status in (PREPARE_COMMIT, PREPARE_ABORT):
            raise Refused("CONCURRENT_TRANSACTIONS")
        if state is None or state.epoch >= EPOCH_MAX - 1:
            state = self.states[name] = TransactionMetadata(self.next_producer_id, 0, 60_000, EMPTY, set(), -1)
            self.next_producer_id += 1
        else:
            state.epoch += 1
        self.epochs.setdefault(name, 0)
        state.status, state.partitions, state.version = EMPTY, set(), version
        return state

    def add_partition(self, name: str, producer_id: int, epoch: int, place: Place, now_ms: int) -> None:
        state = self._state_of(name, producer_id, epoch)
        if state.status in (PREPARE_COMMIT, PREPARE_ABORT):
            raise Refused("CONCURRENT_TRANSACTIONS")
        if state.status != ONGOING:
            state.started_ms = now_ms
        state.status = ONGOING
        state.partitions.add(place)

    def end(self, name: str, producer_id: int, epoch: int, kind: int, now_ms: int) -> None:
        state = self._state_of(name, producer_id, epoch)
        if state.status != ONGOING:
            raise Refused("INVALID_TXN_STATE")
        state.status = PREPARE_COMMIT if kind == COMMIT else PREPARE_ABORT
        state.epoch += state.version >= 2
        self._complete(name, state, now_ms)

    def _state_of(self, name: str, producer_id: int, epoch: int) -> TransactionMetadata:
        state = self.states.get(name)
        if state is None or state.producer_id != producer_id:
            raise Refused("INVALID_PRODUCER_ID_MAPPING")
        if state.epoch != epoch:
            raise Refused("PRODUCER_FENCED")
        return state


# Groups


class CommitKey(NamedTuple):
    group: str
    topic: str
    partition: int


class Commit(NamedTuple):
    record_offset: int
    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int
    expires_ms: int


def decode_commit(record_offset: int, value: bytes) -> Commit:
    reader = flexible.Reader(value, "commit")
    version = reader.i16()
    offset = reader.i64()
    leader_epoch = reader.i32() if version >= 3 else -1
    metadata = reader.string() if version >= 4 else plain_string(reader, "metadata")
    committed_ms = reader.i64()
    return Commit(record_offset, offset, leader_epoch, metadata, committed_ms, reader.i64() if version == 1 else -1)


@dataclass(slots=True)
class Group:
    """empty_ms: since when a classic group has been so, -1: not known. is_simple: it never had members"""

    is_simple: bool = True
    is_classic: bool = True
    members: int = 0
    empty_ms: int = -1


@dataclass
class GroupCoordinator:
    """Of one partition of __consumer_offsets."""

    commits: dict[CommitKey, Commit] = field(default_factory=dict)
    pending: dict[int, dict[CommitKey, Commit]] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)

    def load(self, batches: Iterable[Batch]) -> None:
        for header, raw in batches:
            if header.is_control:
                self.end(header.producer_id, read_marker(raw).type)
                continue
            for record in decode_batch(raw):
                self._replay(record, header.producer_id if header.is_transactional else None)

    def end(self, producer_id: int, kind: int) -> None:
        for key, commit in self.pending.pop(producer_id, {}).items():
            held = self.commits.get(key)
            if kind == COMMIT and (held is None or held.record_offset < commit.record_offset):
                self.commits[key] = commit

    def _replay(self, record: Record, producer_id: int | None) -> None:
        reader = flexible.Reader(record.key or b"", "group record")
        kind = reader.i16()
        if kind in (0, 1):
            key = CommitKey(plain_string(reader, "group"), plain_string(reader, "topic"), reader.i32())
            self._replay_commit(key, record, producer_id)
        elif kind == 2:
            self._replay_group(plain_string(reader, "group"), record.value)
        elif kind == 3:
            name = plain_string(reader, "group")
            self.groups.pop(name, None)
            if record.value is not None:
                self.groups[name] = Group(is_simple=False, is_classic=False)

    def _replay_commit(self, key: CommitKey, record: Record, producer_id: int | None) -> None:
        if record.value is None:
            self.commits.pop(key, None)
            for commits in self.pending.values():
                commits.pop(key, None)
            return
        self.groups.setdefault(key.group, Group())
        into = self.commits if producer_id is None else self.pending.setdefault(producer_id, {})
        into[key] = decode_commit(record.offset, record.value)

    def _replay_group(self, name: str, value: bytes | None) -> None:
        if value is None:
            self.groups.pop(name, None)
            return
        reader = flexible.Reader(value, "group")
        version = reader.i16()
        is_flexible = version >= 4

        def string() -> str | None:
            if is_flexible:
                return reader.nullable_string()
            size = reader.i16()
            return None if size < 0 else str(reader.take(size), "utf-8")

        protocol_type = string()
        reader.i32()
        string(), string()
        empty_ms = reader.i64() if version >= 2 else -1
        members = reader.uvarint() - 1 if is_flexible else reader.i32()
        self.groups[name] = Group(is_simple=not protocol_type, members=max(0, members), empty_ms=empty_ms)

    def lose_members(self, now_ms: int) -> None:
        """Their sessions time out, as no consumer has survived."""
        for group in self.groups.values():
            if group.members and group.is_classic:
                group.empty_ms = now_ms
            group.members = 0

    def expired(self, now_ms: int) -> Iterator[CommitKey]:
        """What the check at `now_ms` deletes, of groups without members."""
        pending = {key for commits in self.pending.values() for key in commits}
        for key, commit in self.commits.items():
            group = self.groups.get(key.group, Group())
            since_ms = commit.committed_ms
            if not group.is_simple and group.is_classic and group.empty_ms >= 0:
                since_ms = group.empty_ms
            is_over = now_ms >= commit.expires_ms if commit.expires_ms >= 0 else now_ms - since_ms >= OFFSETS_RETENTION_MS
            if is_over and key not in pending:
                yield key

    def expire(self, now_ms: int) -> None:
        for key in list(self.expired(now_ms)):
            del self.commits[key]


def records_of(batches: Iterable[Batch]) -> Iterator[Record]:
    for header, raw in batches:
        if not header.is_control:
            yield from decode_batch(raw)
