"""What the coordinators of the lost cluster knew, as far as it was archived: committed offsets and unfinished transactions.

They get the records of __consumer_offsets and __transaction_state in offset order, as a coordinator that loads them.
"""

from collections.abc import Iterator, Mapping
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
)
from headwater_core.segments.records import Record

OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"


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
    pending: dict[int, dict[CommitKey, Committed]] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)

    def record(self, record: Record, transaction_of: int | None, where: str) -> None:
        """transaction_of: the producer id of a transactional batch."""
        try:
            key = decode_commit_key(record.key or b"", where)
            if key is None:
                return
            value = None if record.value is None else decode_commit_value(record.value, where)
        except UnknownRecord as unknown:
            self.unknown.add(str(unknown))
            return
        except CorruptData as error:
            self.unknown.add(f"a record that cannot be decoded, {error.reason}")
            return
        if value is None:
            self.current.pop(key, None)
            return
        into = self.current if transaction_of is None else self.pending.setdefault(transaction_of, {})
        into[key] = Committed(record.offset, record.key or b"", value)

    def marker(self, producer_id: int, *, commits: bool) -> None:
        """The producer's transaction has ended."""
        for key, committed in self.pending.pop(producer_id, {}).items():
            if commits and self._is_newest(key, committed):
                self.current[key] = committed

    def outcome(self) -> Iterator[tuple[CommitKey, Committed]]:
        """What a group may see later: of each key the last commit, and what open transactions would commit."""
        yield from self.current.items()
        for commits in self.pending.values():
            yield from ((key, committed) for key, committed in commits.items() if self._is_newest(key, committed))

    def _is_newest(self, key: CommitKey, committed: Committed) -> bool:
        held = self.current.get(key)
        return held is None or held.record_offset < committed.record_offset


@dataclass(slots=True)
class States:
    """The transactions in __transaction_state, by transactional id."""

    current: dict[str, TransactionState] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)

    def record(self, record: Record, where: str) -> None:
        try:
            transactional_id = decode_transaction_key(record.key or b"", where)
            state = None if record.value is None else decode_transaction_value(record.value, where)
        except UnknownRecord as unknown:
            self.unknown.add(str(unknown))
            return
        except CorruptData as error:
            self.unknown.add(f"a record that cannot be decoded, {error.reason}")
            return
        self.current.pop(transactional_id, None)
        if state is not None:
            self.current[transactional_id] = state

    def unfinished(self) -> Mapping[tuple[str, int], frozenset[int]]:
        """The producer ids whose transactions a coordinator will end, by (topic, partition)."""
        found: dict[tuple[str, int], set[int]] = {}
        for state in self.current.values():
            if state.unfinished:
                for place in state.partitions:
                    found.setdefault(place, set()).add(state.producer_id)
        return {place: frozenset(ids) for place, ids in found.items()}
