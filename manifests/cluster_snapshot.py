"""A snapshot of the cluster's metadata as an object: Kafka's own snapshot format, compressed (docs/formats/cluster-snapshot.md)."""

import gzip
import hashlib
import zlib
from typing import NamedTuple

from headwater_core.errors import CorruptData, HeadwaterError, NotFound
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.metadata.cluster_metadata import ClusterMetadata
from headwater_core.segments.metadata.metadata_snapshot import read_snapshot, snapshot_records, write_snapshot
from manifests.cluster_list import SNAPSHOT_BYTES_MAX, ListedSnapshot

RAW_BYTES_MAX = 512 << 20  # of one when it is unpacked: some millions of partitions


class SnapshotContent(NamedTuple):
    """SHA-256 of all records of a state, and of those that are not secret."""

    content: str
    open_content: str


def content_of(state: ClusterMetadata) -> SnapshotContent:
    everything, open_to_all = hashlib.sha256(), hashlib.sha256()
    for record in snapshot_records(state):
        framed = len(record.raw).to_bytes(8, "big") + record.raw
        everything.update(framed)
        if not record.is_secret:
            open_to_all.update(framed)
    return SnapshotContent(everything.hexdigest(), open_to_all.hexdigest())


def pack_snapshot(state: ClusterMetadata, *, secrets: bool) -> bytes:
    """The object. Raises HeadwaterError when it would be larger than anybody reads."""
    raw = write_snapshot(state, secrets=secrets, timestamp_ms=state.appended_ms)
    packed = gzip.compress(raw, compresslevel=6, mtime=0)
    if len(raw) > RAW_BYTES_MAX or len(packed) > SNAPSHOT_BYTES_MAX:
        raise HeadwaterError(
            f"a snapshot of the cluster's metadata has {len(raw)} bytes, {len(packed)} compressed: more than can be read back"
        )
    return packed


def load_snapshot(store: ObjectStore, listed: ListedSnapshot) -> ClusterMetadata:
    """The state in a listed snapshot. Raises NotFound when its object is not there, CorruptData and TruncatedData for damage,
    UnsupportedFormat for what only a later version reads, and what the store raises."""
    try:
        packed, _ = store.get(listed.key, max_bytes=SNAPSHOT_BYTES_MAX)
    except NotFound as error:
        raise NotFound(f"the snapshot {listed.number} of the cluster's metadata is listed, and {listed.key} is not there") from error
    if len(packed) != listed.size_bytes or (listed.digest is not None and digest_of(packed) != listed.digest):
        raise CorruptData(listed.key, 0, f"{len(packed)} bytes, {digest_of(packed)}; {listed.size_bytes}, {listed.digest} are listed")
    return unpack_snapshot(packed, listed.key, end_offset=listed.end_offset, end_epoch=listed.end_epoch)


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
