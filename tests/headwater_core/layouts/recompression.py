"""An offloader that transforms: it compresses the batches that are not, and stores the result in another layout."""

import gzip
import io
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace

from awscrt.checksums import crc32c

from headwater_core.errors import SourceChanged
from headwater_core.layouts import NewRun, Offloaded, Offloader, RunReader, StoredRun
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.batch_walk import headers
from headwater_core.segments.batches import CONTROL
from headwater_core.segments.runindex import Points

_ATTRIBUTES, _CODEC, _GZIP = 21, 7, 1  # where they are in a batch, and what of them says how it is compressed
_RECORDS = 61


class Recompression:
    """Has the name of the layout that it stores in, so that keys follow from it."""

    preserves_batches = False

    def __init__(self, inner: Offloader) -> None:
        self._inner = inner

    @property
    def name(self) -> str:
        return self._inner.name

    def offload(self, store: ObjectStore, runs: Sequence[NewRun], extra_metadata: Mapping[str, str]) -> list[Offloaded]:
        return self._inner.offload(store, [_compressed(run) for run in runs], extra_metadata)

    def read_offloaded(self, store: ObjectStore, run: StoredRun) -> RunReader:
        return self._inner.read_offloaded(store, run)

    def data_objects(self, run: StoredRun) -> Sequence[tuple[str, int]]:
        return self._inner.data_objects(run)

    def delete_offloaded(self, store: ObjectStore, run: StoredRun) -> None:
        self._inner.delete_offloaded(store, run)


def _compressed(run: NewRun) -> NewRun:
    """The same run in other bytes, of which the index says where they are."""
    run.source.seek(run.scan.start_position)
    content = b"".join(iter(lambda: bytes(run.source.read(min(run.scan.size_bytes, 1 << 20))), b""))[: run.scan.size_bytes]
    if digest_of(content) != run.scan.digest:
        raise SourceChanged(f"{run.key}: it was another run when it was scanned")
    made, moved = bytearray(), {}
    for position, header in headers(io.BytesIO(content), 0, len(content), where=run.key):
        moved[position] = len(made)
        made += _batch(content[position : position + header.size_bytes])
    points = run.scan.index.points
    index = replace(
        run.scan.index,
        size_bytes=len(made),
        points=Points(points.offsets, type(points.positions)("q", [moved[each] for each in points.positions]), points.max_timestamps_ms),
    )
    scan = replace(run.scan, start_position=0, end_position=len(made), digest=digest_of(made), index=index)
    return run._replace(source=io.BytesIO(made), scan=scan)


def _batch(batch: bytes) -> bytes:
    (attributes,) = struct.unpack_from(">H", batch, _ATTRIBUTES)
    if attributes & (_CODEC | CONTROL):
        return batch
    covered = struct.pack(">H", attributes | _GZIP) + batch[_ATTRIBUTES + 2 : _RECORDS] + gzip.compress(batch[_RECORDS:], mtime=0)
    length = _ATTRIBUTES + len(covered) - 12
    return batch[:8] + struct.pack(">i", length) + batch[12:17] + struct.pack(">I", crc32c(covered)) + covered
