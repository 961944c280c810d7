"""The native layout: one object per run, byte for byte as Kafka wrote it, and one for its index (docs/formats/run-index.md)."""

import io
from collections.abc import Generator, Sequence

from headwater_core.errors import CorruptData
from headwater_core.layouts.offloader import NewRun, Offloaded
from headwater_core.objectstore.confirmed_put import put_all_confirmed
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.store import DOCUMENT_BYTES_MAX, NewObject, ObjectStore
from headwater_core.segments.runindex import RunIndex, decode_index, encode_index


class SegmentLayout:
    """Stateless; one instance serves everyone."""

    name = "segment"

    def offload(self, store: ObjectStore, runs: Sequence[NewRun]) -> list[Offloaded]:
        objects: list[NewObject] = []
        offloaded: list[Offloaded] = []
        for key, index_key, source, scan in runs:
            index = encode_index(scan.index)
            source.seek(scan.start_position)
            objects += (NewObject(key, source, scan.size_bytes), NewObject(index_key, io.BytesIO(index), len(index)))
            offloaded.append(
                Offloaded(size_bytes=scan.size_bytes, digest=scan.digest, index_bytes=len(index), index_digest=digest_of(index))
            )
        put_all_confirmed(store, objects, [digest for each in offloaded for digest in (each.digest, each.index_digest)])
        return offloaded

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
