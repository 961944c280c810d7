"""A snapshot of the cluster's metadata as an object: Kafka's own snapshot format, compressed (docs/formats/cluster-snapshot.md).

The comment in gzip's header says what the object is, so that one alone, or in another one's place, is known for what it is.
"""

import hashlib
import zlib
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from headwater_core.errors import CorruptData, HeadwaterError, NotFound
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.metadata.cluster_metadata import ClusterMetadata
from headwater_core.segments.metadata.metadata_snapshot import read_snapshot, snapshot_records, write_snapshot
from manifests.cluster_list import SNAPSHOT_BYTES_MAX, ListedSnapshot

RAW_BYTES_MAX = 512 << 20  # of one when it is unpacked: some millions of partitions
COMMENT_BYTES_MAX = 4096
_MAGIC = b"\x1f\x8b\x08"  # gzip, deflated
_HEADER_BYTES = 10
_HEADER_CRC, _COMMENT = 0x02, 0x10  # its flags
_UNIX = b"\x00\x03"  # no hint of the compression, and where it was made


class SnapshotFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What an object says of itself.

    unknown  how many records its writer did not know
    """

    cluster_id: str
    number: int
    end_offset: int
    end_epoch: int
    uid: str
    has_secrets: bool
    unknown: int = 0


class SnapshotContent(NamedTuple):
    """SHA-256 of all records of a state, and of those that are not secret."""

    content: str
    open_content: str


def content_of(state: ClusterMetadata) -> SnapshotContent:
    everything, open_to_all = hashlib.sha256(), hashlib.sha256()
    for record in snapshot_records(state):
        everything.update(len(record.raw).to_bytes(8, "big") + record.raw)
        if record.open_raw is not None:
            open_to_all.update(len(record.open_raw).to_bytes(8, "big") + record.open_raw)
    return SnapshotContent(everything.hexdigest(), open_to_all.hexdigest())


class OpenedSnapshot(NamedTuple):
    """listed: as it was, with the object's digest, and what it says of secrets. cluster_id: None where the object does not say it"""

    state: ClusterMetadata
    listed: ListedSnapshot
    cluster_id: str | None


def pack_snapshot(state: ClusterMetadata, facts: SnapshotFacts) -> bytes:
    """The object. Raises HeadwaterError when it would be larger than anybody reads."""
    raw = write_snapshot(state, secrets=facts.has_secrets, timestamp_ms=state.appended_ms)
    packing = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    trailer = zlib.crc32(raw).to_bytes(4, "little") + (len(raw) & 0xFFFFFFFF).to_bytes(4, "little")
    packed = b"".join((_header(facts), packing.compress(raw), packing.flush(), trailer))
    if len(raw) > RAW_BYTES_MAX or len(packed) > SNAPSHOT_BYTES_MAX:
        raise HeadwaterError(
            f"a snapshot of the cluster's metadata has {len(raw)} bytes, {len(packed)} compressed: more than can be read back"
        )
    return packed


def _header(facts: SnapshotFacts) -> bytes:
    """gzip's, which its readers check and skip."""
    comment = msgspec.json.encode(facts)
    header = _MAGIC + bytes((_HEADER_CRC | _COMMENT,)) + bytes(4) + _UNIX + comment + b"\x00"
    return header + (zlib.crc32(header) & 0xFFFF).to_bytes(2, "little")


def facts_of(packed: bytes, where: str) -> SnapshotFacts | None:
    """What an object says of itself; None when it says nothing, as those of before do. Raises CorruptData for what nobody wrote."""
    if packed[:3] != _MAGIC or len(packed) <= _HEADER_BYTES or packed[3] != _HEADER_CRC | _COMMENT:
        return None
    end = packed.find(b"\x00", _HEADER_BYTES, _HEADER_BYTES + COMMENT_BYTES_MAX)
    if end < 0 or packed[end + 1 : end + 3] != (zlib.crc32(packed[: end + 1]) & 0xFFFF).to_bytes(2, "little"):
        raise CorruptData(where, _HEADER_BYTES, "its header is damaged")
    try:
        return msgspec.json.decode(packed[_HEADER_BYTES:end], type=SnapshotFacts)
    except msgspec.MsgspecError as error:
        raise CorruptData(where, _HEADER_BYTES, f"it does not say what it is: {error}") from error


def load_snapshot(store: ObjectStore, listed: ListedSnapshot) -> ClusterMetadata:
    """The state in a listed snapshot. Raises as open_snapshot."""
    return open_snapshot(store, listed).state


def open_snapshot(store: ObjectStore, listed: ListedSnapshot) -> OpenedSnapshot:
    """A listed snapshot. Raises NotFound when its object is not there, CorruptData and TruncatedData for damage, and for another one in
    its place, UnsupportedFormat for what only a later version reads, and what the store raises."""
    try:
        packed, _ = store.get(listed.key, max_bytes=SNAPSHOT_BYTES_MAX)
    except NotFound as error:
        raise NotFound(f"the snapshot {listed.number} of the cluster's metadata is listed, and {listed.key} is not there") from error
    facts = facts_of(packed, listed.key)
    if facts is not None and (facts.number, facts.end_offset, facts.end_epoch, facts.uid) != listed.name:
        raise CorruptData(listed.key, 0, f"it is snapshot {facts.number} of cluster {facts.cluster_id[:100]}, up to {facts.end_offset}")
    if len(packed) != listed.size_bytes or (listed.digest is not None and digest_of(packed) != listed.digest):
        raise CorruptData(listed.key, 0, f"{len(packed)} bytes, {digest_of(packed)}; {listed.size_bytes}, {listed.digest} are listed")
    state = unpack_snapshot(packed, listed.key, end_offset=listed.end_offset, end_epoch=listed.end_epoch)
    listed = replace(listed, digest=digest_of(packed))
    if facts is not None:
        listed = replace(listed, has_secrets=facts.has_secrets, unknown=facts.unknown)
    return OpenedSnapshot(state, listed, facts.cluster_id if facts else None)


def unpack_snapshot(packed: bytes, where: str, *, end_offset: int = 0, end_epoch: int = 0) -> ClusterMetadata:
    """The state in an object's bytes. Raises CorruptData, TruncatedData, UnsupportedFormat."""
    return read_snapshot(_unpacked(packed, where), where, end_offset=end_offset, end_epoch=end_epoch)


def _unpacked(packed: bytes, where: str) -> bytes:
    unpacking = zlib.decompressobj(wbits=31)
    try:
        raw = unpacking.decompress(packed, RAW_BYTES_MAX)
    except zlib.error as error:
        raise CorruptData(where, 0, f"it cannot be unpacked: {error}") from error
    if not unpacking.eof or unpacking.unused_data:
        raise CorruptData(where, len(raw), "it does not end where it must")
    return raw
