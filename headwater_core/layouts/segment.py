"""The native layout: one object per run, byte for byte as Kafka wrote it, and one for its index (docs/formats/run-index.md)."""

import io
from collections.abc import Generator, Mapping, Sequence

from headwater_core.errors import CorruptData
from headwater_core.layouts.offloader import NewRun, Offloaded, StoredRun
from headwater_core.objectstore.confirmed_put import put_all_confirmed
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.store import DOCUMENT_BYTES_MAX, NewObject, ObjectForm, ObjectStore
from headwater_core.segments.runindex import RunIndex, decode_index, encode_index


class SegmentLayout:
    """Stateless; one instance serves everyone."""

    name = "segment"
    preserves_batches = True

    def offload(self, store: ObjectStore, runs: Sequence[NewRun], extra_metadata: Mapping[str, str]) -> list[Offloaded]:
        objects: list[NewObject] = []
        offloaded: list[Offloaded] = []
        form = ObjectForm(metadata=extra_metadata)
        for run in runs:
            scan, index = run.scan, encode_index(run.scan.index)
            run.source.seek(scan.start_position)
            objects += (NewObject(run.key, run.source, scan.size_bytes, form), NewObject(run.index_key, io.BytesIO(index), len(index)))
            offloaded.append(
                Offloaded(
                    size_bytes=scan.size_bytes,
                    digest=scan.digest,
                    run_bytes=scan.size_bytes,
                    run_digest=scan.digest,
                    index_bytes=len(index),
                    index_digest=digest_of(index),
                )
            )
        put_all_confirmed(store, objects, [digest for each in offloaded for digest in (each.digest, each.index_digest)])
        return offloaded

    def read_offloaded(self, store: ObjectStore, run: StoredRun) -> "_SegmentReader":
        return _SegmentReader(store, run)

    def data_objects(self, run: StoredRun) -> Sequence[tuple[str, int]]:
        return [(run.key, run.size_bytes)]

    def delete_offloaded(self, store: ObjectStore, run: StoredRun) -> None:
        store.delete(run.index_key)
        store.delete(run.key)


class _SegmentReader:
    """Positions in the run are positions in the object."""

    def __init__(self, store: ObjectStore, run: StoredRun) -> None:
        self._store, self._run = store, run

    def read_into(self, buffer: memoryview, start: int) -> None:
        self._store.read_into(self._run.key, buffer, start=start)

    def stream_into(self, buffers: Sequence[memoryview], start: int) -> Generator[None, None, None]:
        return self._store.stream_into(self._run.key, buffers, start=start)

    def read_index(self) -> RunIndex:
        return read_index_object(self._store, self._run)

    def check_rest(self) -> None:
        """Nothing is left."""


def read_index_object(store: ObjectStore, run: StoredRun) -> RunIndex:
    """The index of a run that has it in an object of its own. Raises NotFound, and CorruptData when it is not the one that was written."""
    key, index_bytes, index_digest = run.index_key, run.index_bytes, run.index_digest
    if not 0 < index_bytes <= DOCUMENT_BYTES_MAX:
        raise CorruptData(key, 0, f"an index of {index_bytes} bytes, limit {DOCUMENT_BYTES_MAX}")
    raw = bytearray(index_bytes)
    store.read_into(key, memoryview(raw), start=0)
    if digest_of(raw) != index_digest:
        raise CorruptData(key, 0, f"digest {digest_of(raw)}, the manifest says {index_digest}")
    return decode_index(raw, where=key)
