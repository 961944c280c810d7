"""The small text files of a Kafka log directory: offset checkpoints, leader epochs, partition.metadata, meta.properties.

Brokers write each to NAME.tmp and rename it, so one read is one state; it must be opened by name every time.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from headwater_core.epochs import EpochHistory
from headwater_core.errors import CorruptData, UnsupportedFormat, UsageError
from headwater_core.partition import TopicPartition, check_topic_id

HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
CLEANED = "cleaner-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
META_PROPERTIES = "meta.properties"
FILE_BYTES_MAX = 64 << 20  # a line takes some 30 bytes; no broker holds two million partitions

_NUMBER = re.compile(r"-?\d{1,19}", re.ASCII)
_VERSION = "0"


class OffsetsDecoder:
    """Decodes one offset checkpoint again and again, as a broker rewrites it. A broker with ten thousand partitions does so every five
    seconds, and few of its lines change: only those are read."""

    def __init__(self) -> None:
        self._last: tuple[set[str], dict[TopicPartition, int]] = set(), {}  # one value: threads may decode at once

    def decode(self, raw: bytes, *, where: str) -> Mapping[TopicPartition, int]:
        """As `decode_offsets`. What is returned does not change any more."""
        listed = _counted_lines(raw, where)
        lines = set(listed)
        if len(lines) < len(listed):
            decode_offsets(raw, where=where)  # which says what is listed twice
        before, offsets = self._last[0], dict(self._last[1])
        for line in before - lines:
            del offsets[_parse_offset(line, where)[0]]
        offsets.update(_parse_offset(line, where) for line in lines - before)
        if len(offsets) < len(lines):
            return decode_offsets(raw, where=where)
        self._last = lines, offsets
        return MappingProxyType(offsets)


def decode_offsets(raw: bytes, *, where: str) -> dict[TopicPartition, int]:
    """An offset checkpoint: for each partition the offset it names. Raises CorruptData, UnsupportedFormat."""
    offsets: dict[TopicPartition, int] = {}
    for line in _counted_lines(raw, where):
        partition, offset = _parse_offset(line, where)
        if partition in offsets:
            raise CorruptData(where, 0, f"{partition} is listed twice")
        offsets[partition] = offset
    return offsets


def _parse_offset(line: str, where: str) -> tuple[TopicPartition, int]:
    parts = line.split(" ")
    if len(parts) != 3:
        raise CorruptData(where, 0, f"not a topic, a partition and an offset: {line[:300]!r}")
    try:
        return TopicPartition(parts[0], _number(parts[1], where)), _number(parts[2], where)
    except UsageError as error:
        raise CorruptData(where, 0, str(error)) from error


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    lines = [f"{key.topic} {key.partition} {offset}" for key, offset in sorted(offsets.items())]
    return _with_count(lines)


def decode_epochs(raw: bytes, *, where: str) -> EpochHistory:
    """A leader-epoch-checkpoint. Raises CorruptData, UnsupportedFormat."""
    starts = []
    for line in _counted_lines(raw, where):
        parts = line.split(" ")
        if len(parts) != 2:
            raise CorruptData(where, 0, f"not an epoch and an offset: {line[:300]!r}")
        starts.append((_number(parts[0], where), _number(parts[1], where)))
    try:
        return EpochHistory.of(starts)
    except ValueError as error:
        raise CorruptData(where, 0, str(error)) from error


def encode_epochs(history: EpochHistory) -> bytes:
    return _with_count([f"{epoch} {first}" for epoch, first in history.starts])


def decode_partition_metadata(raw: bytes, *, where: str) -> str:
    """The topic id in partition.metadata. Raises CorruptData, UnsupportedFormat."""
    fields = _fields(raw, ":", where)
    if fields.get("version") != _VERSION:
        raise UnsupportedFormat(f"{where} has version {fields.get('version')}; this version reads {_VERSION}")
    try:
        return check_topic_id(fields.get("topic_id", ""))
    except UsageError as error:
        raise CorruptData(where, 0, str(error)) from error


def encode_partition_metadata(topic_id: str) -> bytes:
    return f"version: {_VERSION}\ntopic_id: {topic_id}".encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaProperties:
    """Who a log directory belongs to.

    directory_id  None in directories from before Kafka 3.7
    """

    cluster_id: str
    node_id: int
    directory_id: str | None = None


def decode_meta_properties(raw: bytes, *, where: str) -> MetaProperties:
    """Raises CorruptData, UnsupportedFormat."""
    fields = _fields(raw, "=", where)
    if fields.get("version") != "1":
        raise UnsupportedFormat(f"{where} has version {fields.get('version')}; this version reads 1 (KRaft)")
    cluster_id = fields.get("cluster.id", "")
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", cluster_id):
        raise CorruptData(where, 0, f"not a cluster id: {cluster_id[:80]!r}")
    return MetaProperties(cluster_id=cluster_id, node_id=_number(fields.get("node.id", ""), where), directory_id=fields.get("directory.id"))


def encode_meta_properties(properties: MetaProperties) -> bytes:
    lines = [f"cluster.id={properties.cluster_id}", f"node.id={properties.node_id}", "version=1"]
    if properties.directory_id is not None:
        lines.append(f"directory.id={properties.directory_id}")
    return ("\n".join(lines) + "\n").encode()


def _counted_lines(raw: bytes, where: str) -> list[str]:
    """The lines after a version and a count."""
    lines = _text(raw, where).splitlines()
    if not lines:
        return []  # as a broker leaves it that never had anything to write
    if lines[0].strip() != _VERSION:
        if _NUMBER.fullmatch(lines[0].strip()):
            raise UnsupportedFormat(f"{where} has version {lines[0].strip()}; this version reads {_VERSION}")
        raise CorruptData(where, 0, f"not a version: {lines[0][:80]!r}")
    if len(lines) < 2:
        raise CorruptData(where, 0, "version and count are missing")
    found = [line for line in lines[2:] if line and not line.isspace()]
    if _number(lines[1].strip(), where) != len(found):
        raise CorruptData(where, 0, f"{lines[1].strip()} lines announced, {len(found)} found")
    return found


def _with_count(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in (_VERSION, str(len(lines)), *lines)).encode()


def _fields(raw: bytes, separator: str, where: str) -> dict[str, str]:
    fields = {}
    for line in _text(raw, where).splitlines():
        if line.strip() and not line.startswith("#"):
            name, found, value = line.partition(separator)
            if not found:
                raise CorruptData(where, 0, f"no {separator!r} in {line[:80]!r}")
            fields[name.strip()] = value.strip()
    return fields


def _number(text: str, where: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise CorruptData(where, 0, f"not a number: {text[:40]!r}")
    return int(text)


def _text(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptData(where, error.start, "not UTF-8") from error
