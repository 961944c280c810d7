"""Control records: what agents share through the control log (design §8).

A command is one CRC-32 (zlib's, 4 bytes, big-endian) over what follows: a MessagePack array of records, each a map with
its `kind`. Records are facts or compare-and-set, never increments, so a command may arrive twice, late or not at all.
Format: docs/formats/control-records.md.
"""

import zlib
from collections.abc import Sequence
from typing import get_args

import msgspec

from headwater_core.errors import CorruptData, UsageError
from headwater_core.partition import PartitionId

COMMAND_BYTES_MAX = 1 << 20
RECORDS_MAX = 10_000
_TEXT_CHARS_MAX = 1_000
_SETTINGS_MAX = 100
_INT_MAX = 2**63 - 1


def _check(record: msgspec.Struct, numbers: tuple[int, ...], texts: tuple[str, ...] = ()) -> None:
    """What is never deleted has a bound (I22). Raises ValueError for impossible numbers, UsageError for texts that are too long."""
    if not all(0 <= number <= _INT_MAX for number in numbers):
        raise ValueError(f"impossible number in {record.__class__.__name__}: {numbers}")
    if any(len(text) > _TEXT_CHARS_MAX for text in texts):
        raise UsageError(f"text of over {_TEXT_CHARS_MAX} characters in {record.__class__.__name__}")


class _OfPartition(msgspec.Struct, frozen=True, kw_only=True):
    """What a committed head says. `version` is the manifest's, and decides which of two records is newer. Of two commits of one version,
    which differ in `commit_id`, the later record is: a head was restored in between. "": an agent of before says none."""

    cluster_id: str
    topic_id: str
    partition: int
    topic: str
    version: int
    fence: int
    writer: str
    start_offset: int
    last_offset: int
    commit_id: str = ""

    def __post_init__(self) -> None:
        self.partition_id  # noqa: B018  checks all four
        _check(self, (self.version, self.fence, self.start_offset, self.last_offset + 1), (self.writer, self.commit_id))
        if self.start_offset > self.last_offset + 1:
            raise ValueError(f"start {self.start_offset} beyond the end {self.last_offset}")

    @property
    def partition_id(self) -> PartitionId:
        return PartitionId(self.cluster_id, self.topic_id, self.partition, self.topic)


class Claim(_OfPartition, frozen=True, kw_only=True, tag_field="kind", tag="claim"):
    """`writer` has taken the partition with `fence`; the head stands where the offsets say."""


class Advanced(_OfPartition, frozen=True, kw_only=True, tag_field="kind", tag="advanced"):
    """The head has a new version: archive, trim, merge, cut. `last_offset` may have moved back."""


class Retired(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="retired"):
    """A partition is gone from the log of the agent that held it when `version` was its newest manifest. The archive keeps it."""

    cluster_id: str
    topic_id: str
    partition: int
    topic: str
    version: int
    commit_id: str = ""

    def __post_init__(self) -> None:
        self.partition_id  # noqa: B018  checks all four
        _check(self, (self.version,), (self.commit_id,))

    @property
    def partition_id(self) -> PartitionId:
        return PartitionId(self.cluster_id, self.topic_id, self.partition, self.topic)


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="topic_settings"):
    """All settings of one incarnation. Applies only as the successor of revision `revision - 1`: compare-and-set."""

    cluster_id: str
    topic_id: str
    topic: str
    revision: int
    settings: dict[str, str]

    def __post_init__(self) -> None:
        PartitionId(self.cluster_id, self.topic_id, 0, self.topic)
        if len(self.settings) > _SETTINGS_MAX:
            raise UsageError(f"{len(self.settings)} settings, limit {_SETTINGS_MAX}")
        _check(self, (self.revision,), (*self.settings, *self.settings.values()))


class RecoveryStarted(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="recovery_started"):
    """A recovery by this id begins; a second start under the same id changes nothing."""

    recovery_id: str
    at_ms: int
    summary: str

    def __post_init__(self) -> None:
        _check(self, (self.at_ms,), (self.recovery_id, self.summary))


class RecoveryFinished(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="recovery_finished"):
    recovery_id: str
    at_ms: int
    outcome: str

    def __post_init__(self) -> None:
        _check(self, (self.at_ms,), (self.recovery_id, self.outcome))


class Node(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="node"):
    """An agent presents itself; the newest `started_ms` of a node id counts."""

    node_id: str
    started_ms: int
    version: str
    gateway: str = ""

    def __post_init__(self) -> None:
        _check(self, (self.started_ms,), (self.node_id, self.version, self.gateway))


class PausesChanged(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="pauses_changed"):
    """What is paused has changed: the bucket's list has this version."""

    version: int

    def __post_init__(self) -> None:
        _check(self, (self.version,))


class SettingsChanged(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="settings_changed"):
    """Settings of topics were set by command: the bucket's list has this version."""

    version: int

    def __post_init__(self) -> None:
        _check(self, (self.version,))


class StateDigest(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="state_digest"):
    """What the leader's partitions came to when it had applied the entry `index`: those of every other node must come to the same."""

    index: int
    digest: int

    def __post_init__(self) -> None:
        _check(self, (self.index, self.digest))


Record = (
    Claim | Advanced | Retired | TopicSettings | RecoveryStarted | RecoveryFinished | Node | PausesChanged | SettingsChanged | StateDigest
)


class _Kind(msgspec.Struct, frozen=True):
    kind: str


_KINDS = {each.__struct_config__.tag for each in get_args(Record)}
_records = msgspec.msgpack.Decoder(list[msgspec.Raw])
_kind = msgspec.msgpack.Decoder(_Kind)
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)
_encoder = msgspec.msgpack.Encoder()


def encode(records: Sequence[Record]) -> bytes:
    """One command. Raises UsageError when it is larger than a command may be."""
    if not 0 < len(records) <= RECORDS_MAX:
        raise UsageError(f"a command of {len(records)} control records, limit {RECORDS_MAX}")
    body = _encoder.encode(records)
    if len(body) + 4 > COMMAND_BYTES_MAX:
        raise UsageError(f"a control command of {len(body)} bytes, limit {COMMAND_BYTES_MAX}")
    return zlib.crc32(body).to_bytes(4, "big") + body


def decode(command: bytes) -> list[Record]:
    """Raises CorruptData for anything that no `encode` would have written. Records of a kind that a later version has brought are
    left out: the agents of one log are upgraded one by one.
    """
    if not 4 < len(command) <= COMMAND_BYTES_MAX:
        raise CorruptData("control command", 0, f"{len(command)} bytes")
    body = memoryview(command)[4:]
    if zlib.crc32(body) != int.from_bytes(command[:4], "big"):
        raise CorruptData("control command", 0, "checksum differs")
    try:
        raw = _records.decode(body)
        records = [_decoder.decode(each) for each in raw if _kind.decode(each).kind in _KINDS]
    except (msgspec.MsgspecError, UsageError, ValueError, RecursionError) as error:
        raise CorruptData("control command", 4, str(error)[:200]) from error
    if not 0 < len(raw) <= RECORDS_MAX:
        raise CorruptData("control command", 4, f"{len(raw)} records")
    return records
