"""The layout `blocks`: writes runs as block objects and reads them back."""

from collections.abc import Mapping, Sequence
from typing import overload

from headwater_core import VERSION as SOFTWARE_VERSION
from headwater_core.errors import CorruptData, UnsupportedFormat
from headwater_core.layouts.blocks.block_format import (
    BLOCK_BYTES,
    BLOCK_HEADER,
    VERSION,
    decode_block_index,
    encode_block_index,
    entries_of,
    pad,
)
from headwater_core.layouts.blocks.block_plan import plan_blocks
from headwater_core.layouts.blocks.block_source import BlockSource
from headwater_core.layouts.frame_stream import FrameForm, check_last_count
from headwater_core.layouts.framed_reader import FramedReader
from headwater_core.layouts.offloader import NewRun, Offloaded, StoredRun
from headwater_core.layouts.run_maps import RunMap, RunMaps
from headwater_core.layouts.run_source import RunSource
from headwater_core.layouts.segment_metadata import RunFacts
from headwater_core.objectstore.confirmed_put import put_all_confirmed
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.store import DOCUMENT_BYTES_MAX, NewObject, ObjectForm, ObjectStore
from headwater_core.segments.run_scan import RunScan
from headwater_core.segments.runindex import encode_index

_PIECE_BYTES = 1 << 20
_VERSION_NAME = "headwater-blocks-version"
FORM = FrameForm(BLOCK_HEADER.size, has_ids=False, pad=pad, entries_of=entries_of)


class BlocksLayout:
    """Remembers the indexes of objects that were read; one instance serves everyone.

    block_bytes  of each block but the last, and one that a larger batch needs for itself
    """

    name = "blocks"
    preserves_batches = True

    def __init__(self, block_bytes: int = BLOCK_BYTES) -> None:
        self._block_bytes = block_bytes
        self._maps = RunMaps()

    def offload(self, store: ObjectStore, runs: Sequence[NewRun], extra_metadata: Mapping[str, str]) -> list[Offloaded]:
        prepared = [self._prepare(store, run, extra_metadata) for run in runs]
        put_all_confirmed(store, [new for new, _, _ in prepared], _DigestsOf([content for _, content, _ in prepared]))
        return [_offloaded(run.scan, content, context) for run, (_, content, context) in zip(runs, prepared, strict=True)]

    def _prepare(self, store: ObjectStore, run: NewRun, extra_metadata: Mapping[str, str]) -> tuple[NewObject, BlockSource, dict[str, str]]:
        """The object to create for `run`, its content, and what its manifest entry will say of its index."""
        source = RunSource(run.source)
        plan = plan_blocks(source, run.scan, self._block_bytes, run.key)
        index, index_bytes = encode_block_index(
            RunFacts(run.partition, run.base_offset, run.last_offset, run.scan.index),
            [each.block for each in plan.blocks],
            run.scan.batches_before,
            plan.frames,
            store.part_bytes_min,
        )
        content = BlockSource(index, plan, source, run.scan.digest, run.key)
        metadata = {
            **extra_metadata,
            _VERSION_NAME: VERSION,
            "headwater-index-bytes": str(index_bytes),
            "headwater-partition": f"{run.partition.topic}:{run.partition.partition}",
            "headwater-software": f"headwater {SOFTWARE_VERSION}",
        }
        context = {"version": VERSION, "index_bytes": str(index_bytes), "index_digest": digest_of(index[:index_bytes])}
        return NewObject(run.key, content.as_file(), content.size_bytes, ObjectForm(metadata, content.parts)), content, context

    def read_offloaded(self, store: ObjectStore, run: StoredRun) -> "_BlocksReader":
        return _BlocksReader(store, run, self._maps)

    def data_objects(self, run: StoredRun) -> Sequence[tuple[str, int]]:
        return [(run.key, run.size_bytes)]

    def delete_offloaded(self, store: ObjectStore, run: StoredRun) -> None:
        store.delete(run.key)


class _DigestsOf(Sequence[str]):
    """The digests of objects, each known only when it has been read: when it is sent, or here."""

    def __init__(self, contents: Sequence[BlockSource]) -> None:
        self._contents = contents

    def __len__(self) -> int:
        return len(self._contents)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        return self._contents[at].digest() if isinstance(at, int) else [each.digest() for each in self._contents[at]]


def _offloaded(scan: RunScan, content: BlockSource, context: dict[str, str]) -> Offloaded:
    run_index = encode_index(scan.index)
    return Offloaded(
        size_bytes=content.size_bytes,
        digest=content.digest(),
        run_bytes=scan.size_bytes,
        run_digest=scan.digest,
        index_bytes=len(run_index),
        index_digest=digest_of(run_index),
        context=context,
    )


class _BlocksReader(FramedReader):
    """Reads the object's index."""

    def __init__(self, store: ObjectStore, run: StoredRun, maps: RunMaps) -> None:
        version = run.context.get("version", "")
        if version != VERSION:
            raise UnsupportedFormat(f"{run.key} is a block object of version {version[:40]!r}; this version reads {VERSION}")
        try:
            self._index_bytes, index_digest = int(run.context["index_bytes"]), run.context["index_digest"]
        except (KeyError, ValueError) as error:
            raise CorruptData(run.key, 0, f"its manifest entry has the context {str(dict(run.context))[:200]}") from error
        super().__init__(store, run, maps, FORM, index_digest)

    def _read_map(self) -> RunMap:
        """By one request, without the padding."""
        key, run = self._run.key, self._run
        if not 0 < self._index_bytes <= DOCUMENT_BYTES_MAX:
            raise CorruptData(key, 0, f"an index of {self._index_bytes} bytes, limit {DOCUMENT_BYTES_MAX}")
        raw = memoryview(bytearray(self._index_bytes))
        metadata = self._store.read_into(key, raw, start=0)
        version = metadata.get(_VERSION_NAME, VERSION)  # a store may keep none, and a copy may have lost it: the magic words decide
        if version != VERSION:
            raise UnsupportedFormat(f"{key} is a block object of version {version[:40]!r}; this version reads {VERSION}")
        if digest_of(raw) != self._index_digest:
            raise CorruptData(key, 0, f"its index has digest {digest_of(raw)}, the manifest says {self._index_digest}")
        found = decode_block_index(raw, run.size_bytes, key)
        if found.run_index.size_bytes != run.run_bytes:
            raise CorruptData(key, 0, f"a run of {found.run_index.size_bytes} bytes, the manifest says {run.run_bytes}")
        self._maps.keep(key, self._index_digest, found)
        return found

    def check_rest(self) -> None:
        """The padding of the object's index, and the count of entries in the last block."""
        found = self._read_map()
        piece = memoryview(bytearray(min(_PIECE_BYTES, found.index_bytes - self._index_bytes)))
        for start in range(self._index_bytes, found.index_bytes, _PIECE_BYTES):
            some = piece[: found.index_bytes - start]
            self._store.read_into(self._run.key, some, start=start)
            if some != pad(len(some)):
                raise CorruptData(self._run.key, start, "no padding after the index")
        check_last_count(FORM, found, self._run.size_bytes, self._fetch, self._run.key)
