"""What coordinators write: committed offsets in __consumer_offsets, transactions in __transaction_state.

Sources: Kafka 4.3's schemas OffsetCommitKey, OffsetCommitValue, GroupMetadataValue, TransactionLogKey, TransactionLogValue, and how its
TransactionMetadata changes epochs (KIP-890).
"""

import struct
from dataclasses import dataclass
from typing import NamedTuple

from headwater_core.errors import CorruptData
from headwater_core.segments import flexible

_COMMITS = (0, 1)  # record types; 0 is the older one
_CLASSIC_GROUP = 2
_GROUPS_MAX = 23  # up to here everything else is about groups and their members: consumer, share and streams groups
_COMMIT_VERSION_MAX = 4
_STATE_VERSION_MAX = 1
_UNFINISHED = (1, 2, 3, 7)  # Ongoing, PrepareCommit, PrepareAbort, PrepareEpochFence: a coordinator continues these
_STATUSES = ("empty", "ongoing", "prepare-commit", "prepare-abort", "complete-commit", "complete-abort", "dead", "prepare-epoch-fence")
_EPOCH_FROM, _FLEXIBLE_COMMIT_FROM = 3, 4  # versions of the commit value
_EXPIRING_COMMIT = 1  # the one version of it with an expire time
_GROUP_TIME_FROM, _FLEXIBLE_GROUP_FROM, _GROUP_VERSION_MAX = 2, 4, 4  # versions of the classic group's value
_PREVIOUS_ID, _CLIENT_VERSION = 0, 2  # tags of a transaction's state
_EPOCH_BUMPED_FROM = 2  # client transaction version from which each end of a transaction has an epoch above its data's
_TWO_PHASE_TIMEOUT_MS = 2**31 - 1  # a transaction without a time-out is in a two-phase commit (KIP-939)
_I64 = struct.Struct(">q")


class CommitKey(NamedTuple):
    """Which group's offset of which partition."""

    group: str
    topic: str
    partition: int


class CommitValue(NamedTuple):
    """raw: the whole record value, which also holds what is not read here."""

    offset: int
    raw: bytes

    @property
    def leader_epoch(self) -> int:
        """Return the epoch that a consumer waits for, -1 for none."""
        version = int.from_bytes(self.raw[:2], "big", signed=True)
        return int.from_bytes(self.raw[10:14], "big", signed=True) if version >= _EPOCH_FROM else -1

    @property
    def metadata(self) -> str:
        """The text that the group gave with it, trailing NUL bytes of some clients included; "" where it cannot be read."""
        try:
            reader, is_flexible = self._at_metadata()
            return reader.string() if is_flexible else plain_string(reader, reader.where)
        except CorruptData:
            return ""

    @property
    def commit_ms(self) -> int:
        """When it was made. Raises CorruptData where the metadata before it cannot be read."""
        return self._at_times().i64()

    @property
    def expires(self) -> bool:
        """Whether it has an expire time of its own. Raises as commit_ms."""
        reader = self._at_times()
        reader.take(8)
        return int.from_bytes(self.raw[:2], "big") == _EXPIRING_COMMIT and reader.i64() != -1

    def rewritten(self, offset: int, *, epoch_max: int, commit_ms: int) -> bytes:
        """Return the same commit at `offset`, made at `commit_ms` and without an expire time of its own.

        epoch_max  a leader epoch above it is left out: a consumer would wait for a leader of that epoch

        Raises CorruptData where the metadata cannot be read: the time stands behind it.
        """
        reader = self._at_times()
        raw, at = bytearray(self.raw), reader.position
        _I64.pack_into(raw, 2, offset)
        if self.leader_epoch > epoch_max:
            raw[10:14] = flexible.i32(-1)
        reader.take(8)
        _I64.pack_into(raw, at, commit_ms)
        if int.from_bytes(raw[:2], "big") == _EXPIRING_COMMIT:
            reader.take(8)
            _I64.pack_into(raw, at + 8, -1)
        return bytes(raw)

    def _at_times(self) -> flexible.Reader:
        reader, is_flexible = self._at_metadata()
        _ = reader.string() if is_flexible else plain_string(reader, reader.where)
        return reader

    def _at_metadata(self) -> tuple[flexible.Reader, bool]:
        reader = flexible.Reader(self.raw, "committed offset")
        version = reader.i16()
        reader.take(12 if version >= _EPOCH_FROM else 8)
        return reader, version >= _FLEXIBLE_COMMIT_FROM


class UnknownRecord(Exception):
    """A record of a kind or version that this version does not know: the caller leaves it alone."""


def decode_commit_key(key: bytes, where: str) -> CommitKey | None:
    """None for records about groups themselves. Raises UnknownRecord, CorruptData."""
    reader = flexible.Reader(key, where)
    kind = reader.i16()
    if kind not in _COMMITS:
        if 0 <= kind <= _GROUPS_MAX:
            return None
        raise UnknownRecord(f"record type {kind} of __consumer_offsets")
    return CommitKey(plain_string(reader, where), plain_string(reader, where), reader.i32())


def decode_commit_value(value: bytes, where: str) -> CommitValue:
    """Raises UnknownRecord, CorruptData."""
    reader = flexible.Reader(value, where)
    version = reader.i16()
    if not 0 <= version <= _COMMIT_VERSION_MAX:
        raise UnknownRecord(f"version {version} of a committed offset")
    commit = CommitValue(reader.i64(), value)
    commit.rewritten(commit.offset, epoch_max=-1, commit_ms=0)  # all that is changed later can be read
    return commit


def is_classic_group(key: bytes) -> bool:
    """Return whether a key of __consumer_offsets is that of a classic group's own record."""
    return int.from_bytes(key[:2], "big", signed=True) == _CLASSIC_GROUP and len(key) > 2


def idle_group(value: bytes, where: str, *, since_ms: int) -> bytes | None:
    """Return the record of a classic group without members as if it were without them since `since_ms`; None where it has members, or the
    record has no such time. Raises UnknownRecord, CorruptData."""
    reader = flexible.Reader(value, where)
    version = reader.i16()
    if not 0 <= version <= _GROUP_VERSION_MAX:
        raise UnknownRecord(f"version {version} of a classic group")
    if version < _GROUP_TIME_FROM:
        return None
    is_flexible = version >= _FLEXIBLE_GROUP_FROM
    _nullable(reader, is_flexible)  # protocol type
    reader.i32()  # generation
    _nullable(reader, is_flexible)  # protocol
    _nullable(reader, is_flexible)  # leader
    at = reader.position
    reader.i64()
    if _count(reader, is_flexible):
        return None
    raw = bytearray(value)
    _I64.pack_into(raw, at, since_ms)
    return bytes(raw)


def _nullable(reader: flexible.Reader, is_flexible: bool) -> None:
    """Pass a string, or null."""
    size = reader.uvarint() - 1 if is_flexible else reader.i16()
    reader.take(max(0, size))


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionState:
    """unfinished: its coordinator will write markers to `partitions`, (topic, partition) each. status: of the transaction, as Kafka calls
    it. marked_id, data_epoch, marker_epoch: as the transaction's data and markers have them in the logs; -1: not known"""

    producer_id: int
    unfinished: bool
    partitions: frozenset[tuple[str, int]]
    producer_epoch: int = -1
    status: str = ""
    marked_id: int = -1
    data_epoch: int = -1
    marker_epoch: int = -1
    is_two_phase: bool = False
    started_ms: int = -1
    updated_ms: int = -1

    @property
    def is_committed(self) -> bool:
        """Its coordinator had decided to commit."""
        return self.status in ("prepare-commit", "complete-commit")

    def ends(self, data_epoch: int | None) -> bool:
        """Will its coordinator end by itself the transaction that is open in a log with data of this epoch? None: the log has none of it.

        Leaders refuse a marker that is older than the data they have; one after a timeout has a later epoch than the state. A two-phase
        transaction has no timeout.
        """
        newest = self.data_epoch
        if self.status == "ongoing":
            if self.is_two_phase:
                return False
            newest = self.producer_epoch + 1
        return self.unfinished and (data_epoch is None or data_epoch <= newest)


def decode_transaction_key(key: bytes, where: str) -> str:
    """The transactional id. Raises UnknownRecord, CorruptData."""
    reader = flexible.Reader(key, where)
    if version := reader.i16():
        raise UnknownRecord(f"version {version} of a transaction's key")
    return plain_string(reader, where)


def decode_transaction_value(value: bytes, where: str) -> TransactionState:
    """Raises UnknownRecord, CorruptData."""
    reader = flexible.Reader(value, where)
    version = reader.i16()
    if not 0 <= version <= _STATE_VERSION_MAX:
        raise UnknownRecord(f"version {version} of a transaction's state")
    is_flexible = version == _STATE_VERSION_MAX
    producer_id, producer_epoch, timeout_ms = reader.i64(), reader.i16(), reader.i32()
    status = reader.i8()
    named: set[tuple[str, int]] = set()
    for _ in range(_count(reader, is_flexible)):
        topic = reader.string() if is_flexible else plain_string(reader, where)
        named |= {(topic, reader.i32()) for _ in range(_count(reader, is_flexible))}
        if is_flexible:
            reader.tags()
    updated_ms, started_ms = reader.i64(), reader.i64()
    tags = reader.tags() if is_flexible else {}
    name = _STATUSES[status] if 0 <= status < len(_STATUSES) else str(status)
    bumped = _CLIENT_VERSION in tags and tags[_CLIENT_VERSION].i16() >= _EPOCH_BUMPED_FROM
    former_id = tags[_PREVIOUS_ID].i64() if _PREVIOUS_ID in tags else -1
    is_decided, has_new_id = name not in ("empty", "ongoing"), name.startswith("complete-") and former_id not in (-1, producer_id)
    marker_epoch = -1 if has_new_id else producer_epoch + (bumped and not is_decided)
    return TransactionState(
        producer_id=producer_id,
        unfinished=status in _UNFINISHED,
        partitions=frozenset(named),
        producer_epoch=producer_epoch,
        status=name,
        marked_id=former_id if has_new_id else producer_id,
        data_epoch=-1 if has_new_id else marker_epoch - bumped,
        marker_epoch=marker_epoch,
        is_two_phase=timeout_ms == _TWO_PHASE_TIMEOUT_MS,
        started_ms=started_ms,
        updated_ms=updated_ms,
    )


def _count(reader: flexible.Reader, is_flexible: bool) -> int:
    """Of an array; null is 0. A count that is too high ends the reading with the first item that is not there."""
    return max(0, reader.uvarint() - 1 if is_flexible else reader.i32())


def plain_string(reader: flexible.Reader, where: str) -> str:
    """As messages had them before the flexible encoding. Raises CorruptData."""
    size = reader.i16()
    if size < 0:
        raise CorruptData(where, 0, "null where a string must be")
    try:
        return str(reader.take(size), "utf-8")
    except UnicodeDecodeError as error:
        raise CorruptData(where, 0, "not UTF-8") from error
