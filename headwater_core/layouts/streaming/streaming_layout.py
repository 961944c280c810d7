"""The layout `streaming`: reads streaming objects, and writes whole runs as such."""

import contextlib
from array import array
from bisect import bisect_right
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from itertools import pairwise

from headwater_core.errors import CorruptData, HeadwaterError, SourceChanged, UnsupportedFormat, UsageError
from headwater_core.layouts.frame_stream import FrameForm, stream_run
from headwater_core.layouts.offloader import NewRun, Offloaded, StoredRun
from headwater_core.layouts.run_maps import Block, RunMap, RunMaps
from headwater_core.layouts.run_source import RunSource
from headwater_core.layouts.segment_metadata import decode_segment_metadata
from headwater_core.layouts.streaming.offload_buffer import (
    WINDOW_BYTES,
    FileExtent,
    LedgerEntries,
    OfferResult,
    OffloadBudget,
    read_window,
)
from headwater_core.layouts.streaming.offload_handle import PART_BYTES, NewStream, OffloadHandle
from headwater_core.layouts.streaming.stream_format import (
    HEADER_BYTES,
    VERSION,
    StreamBlock,
    StreamIndex,
    block_header,
    decode_stream_index,
)
from headwater_core.layouts.streaming.stream_names import (
    SEGMENT_NAME,
    VERSION_NAME,
    decode_segment_name,
    fence_of,
    index_key,
    meta_key,
    uuid_of,
)
from headwater_core.objectstore.digest import Digest, digest_of
from headwater_core.objectstore.store import DOCUMENT_BYTES_MAX, ObjectStore
from headwater_core.segments.batch_frames import ID_FRAME
from headwater_core.segments.run_scan import RunScan
from headwater_core.segments.runindex import RunIndex

_SENDERS = 4  # parts of one run in flight
_PIECE_BYTES = 256 << 10  # for which a part waits for leave to go


def _entries_of(header: memoryview, block: Block) -> int | None:
    """A header does not say how many entries follow."""
    return -1 if header == block_header(StreamBlock(block.ledger_id, block.first_entry_id, block.position), block.size_bytes) else None


def _no_padding(size_bytes: int, phase: int) -> bytes:
    return b""


FORM = FrameForm(HEADER_BYTES, has_ids=True, pad=_no_padding, entries_of=_entries_of)


class StreamingLayout:
    """Remembers the indexes of objects that were read; one instance serves everyone.

    A whole run becomes an object of one ledger: its base offset, with entries from 0. What is offloaded while it is written is
    StreamingOffloader's.
    """

    name = "streaming"
    preserves_batches = True

    def __init__(self, part_bytes: int = PART_BYTES) -> None:
        self._part_bytes = part_bytes
        self._maps = RunMaps()

    def offload(self, store: ObjectStore, runs: Sequence[NewRun], extra_metadata: Mapping[str, str]) -> list[Offloaded]:
        return [self._offload(store, run, extra_metadata) for run in runs]

    def _offload(self, store: ObjectStore, run: NewRun, extra_metadata: Mapping[str, str]) -> Offloaded:
        source = RunSource(run.source)
        new = NewStream(
            partition=run.partition,
            key=run.key,
            uuid=uuid_of(run.key),
            fence=fence_of(run.key),
            base_offset=run.base_offset,
            extra_metadata=extra_metadata,
        )

        def pace(size_bytes: int) -> None:
            for start in range(0, size_bytes, _PIECE_BYTES):
                source.pace(min(_PIECE_BYTES, size_bytes - start))

        part_bytes = max(self._part_bytes, store.part_bytes_min)
        budget = OffloadBudget(1 << 40)  # what is held is bounded by the parts in flight
        handle = OffloadHandle(store, new, budget, part_bytes=part_bytes, pace=pace, scan=_KnownScan(run.scan, run.key))
        try:
            with closing(_Senders(handle, _SENDERS if store.part_bytes_min else 0)) as senders:
                for entries in _entries(source, run):
                    if handle.offer(entries) is not OfferResult.SUCCESS:
                        raise UsageError(f"{run.key}: {run.scan.size_bytes} bytes are more than one object holds")
                    senders.send()
            handle.close(last_offset=run.last_offset)
            return handle.offloaded()
        except BaseException:
            with contextlib.suppress(HeadwaterError):
                handle.abort()
            raise

    def read_offloaded(self, store: ObjectStore, run: StoredRun) -> "_StreamReader":
        return _StreamReader(store, run, self._maps)

    def delete_offloaded(self, store: ObjectStore, run: StoredRun) -> None:
        for key in (index_key(run.key), meta_key(run.key), run.key):
            store.delete(key)


def _entries(source: RunSource, run: NewRun) -> Iterator[LedgerEntries]:
    """The run's batches, some at a time, in memory."""
    position, end, entry_id = run.scan.start_position, run.scan.end_position, 0
    while position < end:
        rest = LedgerEntries(run.base_offset, entry_id, FileExtent(source, position, end - position))
        content, lengths = read_window(rest, WINDOW_BYTES, run.key)
        yield LedgerEntries(run.base_offset, entry_id, content, len(lengths))
        position, entry_id = position + len(content), entry_id + len(lengths)


class _Senders:
    """Sends parts while more is offered, by threads where a store has latency: with 0 of them the caller waits."""

    def __init__(self, handle: OffloadHandle, threads: int) -> None:
        self._handle, self._threads = handle, threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="stream-send") if threads else None
        self._sending: set[Future[bool]] = set()

    def send(self) -> None:
        """Send what is full. Waits where as many parts are in flight as there are threads, and raises what came of one."""
        while self._handle.has_part:
            if self._pool is None:
                self._handle.send_part()
                continue
            if len(self._sending) == self._threads:
                done, self._sending = wait(self._sending, return_when=FIRST_COMPLETED)
                for each in done:
                    each.result()
            self._sending.add(self._pool.submit(self._handle.send_part))

    def close(self) -> None:
        """Wait for those in flight. What failed is tried again at the end."""
        if self._pool is not None:
            self._pool.shutdown()


class _KnownScan:
    """In the place of a GrowingScan where the run was scanned before: it must be the same bytes still."""

    is_full = False

    def __init__(self, scan: RunScan, where: str) -> None:
        self._scan, self._where, self._digest = scan, where, Digest()

    def add(self, piece: memoryview) -> None:
        self._digest.update(piece)

    @property
    def points(self) -> "array[int]":
        return self._scan.index.points.positions

    def result(self) -> RunScan:
        """Raises SourceChanged."""
        if self._digest.text() != self._scan.digest:
            raise SourceChanged(f"{self._where}: {self._scan.digest} was scanned, {self._digest.text()} is there")
        return self._scan


class _StreamReader:
    """Asks for the object's index, and for what is said of the segment, only when they are not remembered."""

    def __init__(self, store: ObjectStore, run: StoredRun, maps: RunMaps) -> None:
        self._store, self._run, self._maps = store, run, maps
        _check_version(run.key, run.context.get("version", ""))
        try:
            context = run.context
            self._index_bytes, self._index_digest = int(context["index_bytes"]), context["index_digest"]
            self._segment_bytes, self._segment_digest = int(context["segment_bytes"]), context["segment_digest"]
            self._has_meta = context.get("segment_in", "") == "meta"
        except (KeyError, ValueError) as error:
            raise CorruptData(run.key, 0, f"its manifest entry has the context {str(dict(run.context))[:200]}") from error

    def read_into(self, buffer: memoryview, start: int) -> None:
        with closing(self.stream_into((buffer,), start)) as filled:
            for _ in filled:
                pass

    def stream_into(self, buffers: Sequence[memoryview], start: int) -> Generator[None, None, None]:
        found = self._maps.get(self._run.key, self._index_digest) or self._read_map()
        return stream_run(FORM, found, self._run.size_bytes, self._fetch, buffers, start, self._run.key)

    def _fetch(self, pieces: Sequence[memoryview], start: int) -> Generator[None, None, None]:
        return self._store.stream_into(self._run.key, pieces, start=start)

    def read_index(self) -> RunIndex:
        return self._read_map().run_index

    def check_rest(self) -> None:
        """Index and metadata: all else is read with the run."""
        self._read_map()

    def _read_map(self) -> RunMap:
        """By one request, or two where the metadata has an object of its own."""
        run = self._run
        key = index_key(run.key)
        raw, named = self._document(key, self._index_bytes, self._index_digest)
        if self._has_meta:
            segment, _ = self._document(meta_key(run.key), self._segment_bytes, self._segment_digest)
        else:
            if SEGMENT_NAME not in named:
                raise CorruptData(key, 0, f"its user metadata has lost {SEGMENT_NAME}")
            segment = memoryview(decode_segment_name(named[SEGMENT_NAME], key))
            if digest_of(segment) != self._segment_digest:
                raise CorruptData(key, 0, f"{SEGMENT_NAME} has digest {digest_of(segment)}, the manifest says {self._segment_digest}")
        found = _map_of(decode_stream_index(raw, key), segment, run.size_bytes, key)
        if found.run_index.size_bytes != run.run_bytes:
            raise CorruptData(key, 0, f"a run of {found.run_index.size_bytes} bytes, the manifest says {run.run_bytes}")
        self._maps.keep(run.key, self._index_digest, found)
        return found

    def _document(self, key: str, size_bytes: int, digest: str) -> tuple[memoryview, Mapping[str, str]]:
        if not 0 < size_bytes <= DOCUMENT_BYTES_MAX:
            raise CorruptData(key, 0, f"{size_bytes} bytes, limit {DOCUMENT_BYTES_MAX}")
        raw = memoryview(bytearray(size_bytes))
        named = self._store.read_into(key, raw, start=0)
        if not self._has_meta or VERSION_NAME in named:  # a store may keep none, and a copy may have lost it: the magic words decide
            _check_version(key, named.get(VERSION_NAME, VERSION))
        if digest_of(raw) != digest:
            raise CorruptData(key, 0, f"digest {digest_of(raw)}, the manifest says {digest}")
        return raw, named


def _check_version(key: str, version: str) -> None:
    if version != VERSION:
        raise UnsupportedFormat(f"{key} is of version {version[:40]!r} of the streaming layout; this version reads {VERSION}")


def _map_of(index: StreamIndex, segment: memoryview, size_bytes: int, where: str) -> RunMap:
    """What the two say of an object of `size_bytes` bytes, each value held against the others. Raises CorruptData."""
    said, blocks = decode_segment_metadata(segment, where), index.blocks
    if index.data_bytes != size_bytes or index.header_bytes != HEADER_BYTES or not blocks or blocks[0].position:
        raise CorruptData(where, 0, f"an index of {index.data_bytes} bytes of data with {len(blocks)} blocks, of an object of {size_bytes}")
    ends = [*(each.position for each in blocks[1:]), size_bytes]
    mapped = tuple(
        Block(each.first_entry_id, each.position, end - each.position, each.ledger_id) for each, end in zip(blocks, ends, strict=True)
    )
    if any(each.size_bytes <= HEADER_BYTES + ID_FRAME.size for each in mapped):
        raise CorruptData(where, 0, "blocks out of order")
    frames, entry_ids = said.positions, said.entry_ids
    if len(entry_ids) != len(frames) or frames[0] != HEADER_BYTES or frames[-1] >= size_bytes or any(b <= a for a, b in pairwise(frames)):
        raise CorruptData(where, 0, "positions out of order")
    for position, entry_id in zip(frames, entry_ids, strict=True):
        block = mapped[bisect_right(mapped, position, key=lambda each: each.position) - 1]
        is_first = position == block.position + HEADER_BYTES
        if (entry_id != block.first_entry_id) if is_first else entry_id <= block.first_entry_id:
            raise CorruptData(where, 0, f"entry {entry_id} at byte {position}, in a block from {block.first_entry_id} on")
    return RunMap(said.run_index, frames, mapped, 0, entry_ids)
