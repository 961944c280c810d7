"""What coordinators write: committed offsets in __consumer_offsets, transactions in __transaction_state.

Sources: Kafka 4.3's schemas OffsetCommitKey, OffsetCommitValue, TransactionLogKey, TransactionLogValue.
"""

from dataclasses import dataclass
from typing import NamedTuple

from headwater_core.errors import CorruptData
from headwater_core.segments import flexible

_COMMITS = (0, 1)  # record types; 0 is the older one
_GROUPS_MAX = 23  # up to here everything else is about groups and their members: consumer, share and streams groups
_COMMIT_VERSION_MAX = 4
_STATE_VERSION_MAX = 1
_UNFINISHED = (1, 2, 3, 7)  # Ongoing, PrepareCommit, PrepareAbort, PrepareEpochFence: a coordinator continues these
_STATUSES = ("empty", "ongoing", "prepare-commit", "prepare-abort", "complete-commit", "complete-abort", "dead", "prepare-epoch-fence")
_EPOCH_FROM, _FLEXIBLE_COMMIT_FROM = 3, 4  # versions of the commit value


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
    def metadata(self) -> str:
        """The text that the group gave with it, trailing NUL bytes of some clients included; "" where it cannot be read."""
        reader = flexible.Reader(self.raw, "committed offset")
        try:
            version = reader.i16()
            reader.take(12 if version >= _EPOCH_FROM else 8)
            return reader.string() if version >= _FLEXIBLE_COMMIT_FROM else plain_string(reader, reader.where)
        except CorruptData:
            return ""

    def moved_to(self, offset: int) -> bytes:
        """The same commit at another offset and without a leader epoch: a consumer waits for a leader of the epoch it is given."""
        version = int.from_bytes(self.raw[:2], "big", signed=True)
        rest = self.raw[14:] if version >= _EPOCH_FROM else self.raw[10:]
        return self.raw[:2] + flexible.i64(offset) + (flexible.i32(-1) if version >= _EPOCH_FROM else b"") + rest


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
    offset = reader.i64()
    if version >= _EPOCH_FROM:
        reader.i32()
    return CommitValue(offset, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionState:
    """unfinished: its coordinator will write markers to `partitions`, (topic, partition) each. status: of the transaction, as Kafka calls
    it"""

    producer_id: int
    unfinished: bool
    partitions: frozenset[tuple[str, int]]
    producer_epoch: int = -1
    status: str = ""


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
    producer_id = reader.i64()
    producer_epoch = reader.i16()
    reader.i32()
    status = reader.i8()
    named: set[tuple[str, int]] = set()
    for _ in range(_count(reader, is_flexible)):
        topic = reader.string() if is_flexible else plain_string(reader, where)
        named |= {(topic, reader.i32()) for _ in range(_count(reader, is_flexible))}
        if is_flexible:
            reader.tags()
    return TransactionState(
        producer_id=producer_id,
        unfinished=status in _UNFINISHED,
        partitions=frozenset(named),
        producer_epoch=producer_epoch,
        status=_STATUSES[status] if 0 <= status < len(_STATUSES) else str(status),
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
