"""The native layout: one object per run, byte for byte as Kafka wrote it, and one for its index (docs/formats/run-index.md)."""

import io
from collections.abc import Generator, Sequence
from typing import BinaryIO

from headwater_core import milestones
from headwater_core.errors import CorruptData
from headwater_core.layouts.offloader import Offloaded
from headwater_core.objectstore.confirmed_put import put_confirmed
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.store import DOCUMENT_BYTES_MAX, ObjectStore
from headwater_core.segments.run_scan import RunScan
from headwater_core.segments.runindex import RunIndex, decode_index, encode_index


class SegmentLayout:
    """Stateless; one instance serves everyone."""

    name = "segment"

    def offload(self, store: ObjectStore, key: str, index_key: str, source: BinaryIO, scan: RunScan) -> Offloaded:
        source.seek(scan.start_position)
        put_confirmed(store, key, source, scan.size_bytes, scan.digest)
        milestones.reached("archive.data_put")
        index = encode_index(scan.index)
        index_digest = digest_of(index)
        put_confirmed(store, index_key, io.BytesIO(index), len(index), index_digest)
        milestones.reached("archive.index_put")
        return Offloaded(size_bytes=scan.size_bytes, digest=scan.digest, index_bytes=len(index), index_digest=index_digest)

    def read_offloaded(self, store: ObjectStore, key: str, context: dict[str, str], buffer: memoryview, start: int) -> None:
        store.read_into(key, buffer, start=start)

    def stream_offloaded(
        self, store: ObjectStore, key: str, context: dict[str, str], buffers: Sequence[memoryview], start: int
    ) -> Generator[None, None, None]:
        return store.stream_into(key, buffers, start=start)

    def read_index(self, store: ObjectStore, index_key: str, index_bytes: int, index_digest: str) -> RunIndex:
        if not 0 < index_bytes <= DOCUMENT_BYTES_MAX:
            raise CorruptData(index_key, 0, f"an index of {index_bytes} bytes, limit {DOCUMENT_BYTES_MAX}")
        raw = bytearray(index_bytes)
        store.read_into(index_key, memoryview(raw), start=0)
        if digest_of(raw) != index_digest:
            raise CorruptData(index_key, 0, f"digest {digest_of(raw)}, the manifest says {index_digest}")
        return decode_index(raw, where=index_key)

    def delete_offloaded(self, store: ObjectStore, key: str, index_key: str) -> None:
        store.delete(index_key)
        store.delete(key)
