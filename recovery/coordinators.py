"""What the coordinators of the lost cluster knew, as far as it was archived: committed offsets and transactions.

They get the records of __consumer_offsets and __transaction_state in offset order, as a coordinator that loads them.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from headwater_core.errors import CorruptData
from headwater_core.segments.coordinator_records import (
    CommitKey,
    CommitValue,
    TransactionState,
    UnknownRecord,
    decode_commit_key,
    decode_commit_value,
    decode_transaction_key,
    decode_transaction_value,
    idle_group,
    is_classic_group,
)
from headwater_core.segments.records import Record

_COMMITMENTS_MAX = 100_000  # of one partition, the newest; each may be of a kilobyte

OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"

Row = tuple[bytes, bytes | None]
"""Key and value of a record that recovery writes; without a value it is a tombstone."""

CommitPosition = Callable[[str, int, int], tuple[int, int]]
"""Of a commit's topic, partition and offset: its offset in the recovered log, and the highest leader epoch that it may name."""


class Committed(NamedTuple):
    """record_offset: of the record in __consumer_offsets; key as it stands there."""

    record_offset: int
    key: bytes
    value: CommitValue


@dataclass(slots=True)
class Commits:
    """The committed offsets in one partition of __consumer_offsets.

    What a transaction commits counts once its marker is there, and then only where nothing later was committed.
    """

    current: dict[CommitKey, Committed] = field(default_factory=dict)
    idle_groups: dict[bytes, bytes] = field(default_factory=dict)  # records of classic groups without members
    pending: dict[int, dict[CommitKey, Committed]] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)

    def record(self, record: Record, transaction_of: int | None, where: str) -> None:
        """transaction_of: the producer id of a transactional batch."""
        key = None
        try:
            if is_classic_group(record.key or b""):
                self._group(record, where)
                return
            key = decode_commit_key(record.key or b"", where)
            if key is None:
                return
            value = None if record.value is None else decode_commit_value(record.value, where)
        except (UnknownRecord, CorruptData) as error:
            self.unknown.add(str(error) if isinstance(error, UnknownRecord) else f"a record that cannot be decoded, {error.reason}")
            if key is not None:
                self.current.pop(key, None)  # an older commit must not come back over one that only its broker can read
            return
        if value is None:
            for commits in (self.current, *self.pending.values()):
                commits.pop(key, None)  # a transaction that is committed later does not bring it back
            return
        into = self.current if transaction_of is None else self.pending.setdefault(transaction_of, {})
        into[key] = Committed(record.offset, record.key or b"", value)

    def marker(self, producer_id: int, *, commits: bool) -> None:
        """The producer's transaction has ended."""
        for key, committed in self.pending.pop(producer_id, {}).items():
            if commits and self._is_newest(key, committed):
                self.current[key] = committed

    @property
    def rows(self) -> int:
        """How many `rewritten` gives."""
        return sum(1 for _ in self._certain()) + len(self.idle_groups)

    def rewritten(self, now_ms: int, position: CommitPosition) -> Iterator[Row]:
        """Yield what a broker counts the age of, as of `now_ms`: each commit, and each classic group without members."""
        for named, committed in sorted(self._certain()):
            offset, epoch_max = position(named.topic, named.partition, committed.value.offset)
            yield committed.key, committed.value.rewritten(offset, epoch_max=epoch_max, commit_ms=now_ms)
        for key, value in sorted(self.idle_groups.items()):
            yield key, idle_group(value, OFFSETS, since_ms=now_ms)

    def _certain(self) -> Iterator[tuple[CommitKey, Committed]]:
        """Yield the commits that no open transaction may replace: a broker takes no older record's place."""
        pending = {key for commits in self.pending.values() for key in commits}
        return ((key, committed) for key, committed in self.current.items() if key not in pending)

    def _group(self, record: Record, where: str) -> None:
        """Its record is never part of a transaction."""
        key = record.key or b""
        self.idle_groups.pop(key, None)
        if record.value is not None and idle_group(record.value, where, since_ms=0) is not None:
            self.idle_groups[key] = record.value

    def outcome(self) -> Iterator[tuple[CommitKey, Committed]]:
        """What a group may see later: of each key the last commit, and what open transactions would commit."""
        yield from self.current.items()
        for commits in self.pending.values():
            yield from ((key, committed) for key, committed in commits.items() if self._is_newest(key, committed))

    def _is_newest(self, key: CommitKey, committed: Committed) -> bool:
        held = self.current.get(key)
        return held is None or held.record_offset < committed.record_offset


class Commitment(NamedTuple):
    """A transaction that its coordinator had decided to commit, in these partitions."""

    transactional_id: str
    state: TransactionState
    partitions: frozenset[tuple[str, int]]


@dataclass(slots=True)
class States:
    """The transactions in __transaction_state, by transactional id.

    live         keys of all ids that have a state, also one that cannot be decoded
    unreadable   ids whose last state cannot be decoded: what is in `current` of them is older
    commitments  those of all transactions that `may_be_torn` says
    """

    current: dict[str, TransactionState] = field(default_factory=dict)
    live: dict[bytes, None] = field(default_factory=dict)
    commitments: deque[Commitment] = field(default_factory=lambda: deque(maxlen=_COMMITMENTS_MAX))
    unknown: set[str] = field(default_factory=set)
    unreadable: set[str] = field(default_factory=set)
    may_be_torn: Callable[[Commitment], bool] = lambda commitment: False

    def record(self, record: Record, where: str) -> None:
        key, transactional_id = record.key or b"", None
        self.live.pop(key, None)
        try:
            transactional_id = decode_transaction_key(key, where)
            if record.value is not None:
                self.live[key] = None
            state = None if record.value is None else decode_transaction_value(record.value, where)
        except (UnknownRecord, CorruptData) as error:
            self.unknown.add(str(error) if isinstance(error, UnknownRecord) else f"a record that cannot be decoded, {error.reason}")
            if transactional_id is not None:
                self.unreadable.add(transactional_id)
            return
        self.unreadable.discard(transactional_id)
        before = self.current.pop(transactional_id, None)
        if state is None:
            return
        self.current[transactional_id] = state
        is_news = before is None or not before.is_committed or before.marker_epoch != state.marker_epoch or bool(state.partitions)
        if state.is_committed and is_news:
            partitions = state.partitions or (before.partitions if before is not None else frozenset())
            commitment = Commitment(transactional_id, state, partitions)
            if self.may_be_torn(commitment):
                self.commitments.append(commitment)

    def unfinished(self) -> Mapping[tuple[str, int], Mapping[int, TransactionState]]:
        """The states of transactions that a coordinator has not ended, by (topic, partition) and producer id."""
        found: dict[tuple[str, int], dict[int, TransactionState]] = {}
        for transactional_id, state in self.current.items():
            if state.unfinished and transactional_id not in self.unreadable:
                for place in state.partitions:
                    found.setdefault(place, {})[state.producer_id] = state
        return found
