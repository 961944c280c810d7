"""The layout `streaming`: reads streaming objects, and writes whole runs as such."""

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future, wait
from contextlib import closing
from itertools import pairwise

from headwater_core.errors import CorruptData, HeadwaterError, UnsupportedFormat, UsageError
from headwater_core.layouts.frame_stream import FrameForm
from headwater_core.layouts.framed_reader import FramedReader
from headwater_core.layouts.offloader import NewRun, Offloaded, StoredRun
from headwater_core.layouts.run_maps import Block, RunMap, RunMaps
from headwater_core.layouts.run_source import RunSource
from headwater_core.layouts.segment_metadata import decode_segment_metadata
from headwater_core.layouts.streaming.run_parts import RunPart, RunParts
from headwater_core.layouts.streaming.stream_format import (
    HEADER_BYTES,
    VERSION,
    LedgerInfo,
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
from headwater_core.layouts.streaming.stream_objects import PART_BYTES, PARTS_MAX, LedgerPart, NewStream, StreamContent, put_index
from headwater_core.objectstore.confirmed_put import complete_confirmed
from headwater_core.objectstore.digest import Digest, digest_of
from headwater_core.objectstore.store import DOCUMENT_BYTES_MAX, GrowingObject, ObjectStore
from headwater_core.segments.batch_frames import ID_FRAME
from headwater_core.threads import ContextThreads

_SENDERS = 2  # parts of one run in flight, each held in memory
_PART_FACTOR = 3  # how many times a store's least part a part of a whole run has: a request costs as much CPU as sending some MiB
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
        source, scan = RunSource(run.source), run.scan
        new = NewStream(
            partition=run.partition,
            key=run.key,
            uuid=uuid_of(run.key),
            fence=fence_of(run.key),
            base_offset=run.base_offset,
            extra_metadata=extra_metadata,
        )
        part_bytes = max(self._part_bytes, _PART_FACTOR * store.part_bytes_min)
        parts = RunParts(source, scan, run.base_offset, part_bytes, run.key)
        growing = store.grow(run.key, metadata=new.data_metadata)
        try:
            with closing(_Senders(growing, source.pace, _SENDERS if store.part_bytes_min else 0)) as senders:
                while parts.has_full_part:
                    if len(parts.blocks) == PARTS_MAX:
                        raise UsageError(f"{run.key}: {scan.size_bytes} bytes are more than one object holds")
                    senders.send(parts.cut(senders.space() or parts.new_space()))
                last = parts.cut(senders.space() or parts.new_space()) if parts.left_bytes else None
                digest = senders.digest()
            positions, rest = parts.positions(), b"" if last is None else last.content
            digest.update(rest)
            _wait(source.pace, len(rest))
            complete_confirmed(growing, store, rest, digest.size_bytes, digest.text())
            ledger = LedgerPart(LedgerInfo(run.base_offset, scan.batches), scan.batches - 1)
            content = StreamContent(digest, parts.blocks, positions, scan.batches_before, [ledger], run.last_offset)
            return put_index(store, new, content, scan)
        except BaseException:
            with contextlib.suppress(HeadwaterError):
                growing.abort()
            raise

    def read_offloaded(self, store: ObjectStore, run: StoredRun) -> "_StreamReader":
        return _StreamReader(store, run, self._maps)

    def data_objects(self, run: StoredRun) -> Sequence[tuple[str, int]]:
        return [(run.key, run.size_bytes)]

    def delete_offloaded(self, store: ObjectStore, run: StoredRun) -> None:
        for key in (index_key(run.key), meta_key(run.key), run.key):
            store.delete(key)


def _wait(pace: Callable[[int], object], size_bytes: int) -> None:
    """For leave to send so much, a little at a time."""
    for start in range(0, size_bytes, _PIECE_BYTES):
        pace(min(_PIECE_BYTES, size_bytes - start))


class _Senders:
    """Sends parts while others are made, by threads where a store has latency: with 0 of them the caller waits for each."""

    def __init__(self, growing: GrowingObject, pace: Callable[[int], object], threads: int) -> None:
        self._growing, self._pace, self._threads = growing, pace, threads
        self._pool = ContextThreads(threads, thread_name_prefix="stream-send") if threads else None
        self._sending: set[Future[None]] = set()
        self._spaces: list[memoryview] = []  # of parts that were sent: memory that is new costs as much as copying does
        self._sent: dict[int, tuple[int, int]] = {}

    def space(self) -> memoryview | None:
        """One of a part that was sent."""
        return self._spaces.pop() if self._spaces else None

    def send(self, part: RunPart) -> None:
        """Waits where as many parts are in flight as there are threads. Raises what came of any."""
        if self._pool is None:
            self._send(part)
            return
        if len(self._sending) == self._threads:
            self._collect(FIRST_COMPLETED)
        self._sending.add(self._pool.submit(self._send, part))

    def digest(self) -> Digest:
        """Of all parts, when all were sent. Raises what came of any."""
        self._collect(ALL_COMPLETED)
        digest = Digest()
        for number in sorted(self._sent):
            digest.append(*self._sent[number])
        return digest

    def close(self) -> None:
        """Wait for those in flight."""
        if self._pool is not None:
            self._pool.shutdown()

    def _collect(self, when: str) -> None:
        done, self._sending = wait(self._sending, return_when=when)
        for each in done:
            each.result()

    def _send(self, part: RunPart) -> None:
        _wait(self._pace, part.size_bytes)
        self._sent[part.number] = self._growing.send(part.number, part.content, start=part.start), part.size_bytes
        self._spaces.append(part.space)


class _StreamReader(FramedReader):
    """Reads the object's index, and what is said of the segment."""

    def __init__(self, store: ObjectStore, run: StoredRun, maps: RunMaps) -> None:
        _check_version(run.key, run.context.get("version", ""))
        try:
            context = run.context
            self._index_bytes, index_digest = int(context["index_bytes"]), context["index_digest"]
            self._segment_bytes, self._segment_digest = int(context["segment_bytes"]), context["segment_digest"]
            self._has_meta = context.get("segment_in", "") == "meta"
        except (KeyError, ValueError) as error:
            raise CorruptData(run.key, 0, f"its manifest entry has the context {str(dict(run.context))[:200]}") from error
        super().__init__(store, run, maps, FORM, index_digest)

    def check_rest(self) -> None:
        """Nothing is left: `read_index` has read all that is not read with the run."""

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
