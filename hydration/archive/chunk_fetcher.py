"""Chunks from the store into the cache: received in memory where there is a block for them, checked before they are kept."""

import contextlib
from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import BinaryIO

import structlog

from headwater_core.errors import CorruptData, TransientError
from headwater_core.layouts import open_layout
from headwater_core.objectstore.store import ObjectStore
from headwater_core.page_cache import write_all, write_direct
from headwater_core.partition import PartitionId
from headwater_core.segments.batch_walk import BatchWalk, check_batches
from hydration.archive.chunks import Chunk
from hydration.archive.damage import KnownDamage, damage_of
from hydration.cache.blocks import Blocks
from hydration.cache.cache_directory import chunk_name, index_name
from hydration.cache.chunk_cache import ChunkCache
from hydration.counters import ReadCounters
from hydration.runfile import RunFile
from manifests.entry import Entry
from manifests.keys import partition_of

PIECE_BYTES = 8 << 20  # one GET of a chunk that is larger than a block, because it holds a larger batch
BLOCKS_BYTES_MAX = 64 << 20  # memory that chunks arrive in

log = structlog.get_logger()


class ChunkFetcher:
    """For worker threads: everything here may block. Every file comes with one hold, the caller's."""

    def __init__(self, store: ObjectStore, cache: ChunkCache, chunk_bytes: int, counters: ReadCounters, damage: KnownDamage) -> None:
        self._store, self._cache, self._counters, self._damage = store, cache, counters, damage
        self._blocks = Blocks(chunk_bytes, BLOCKS_BYTES_MAX)

    @property
    def block_bytes(self) -> int:
        """A chunk up to this size is received in memory."""
        return self._blocks.block_bytes

    def fetch(self, partition: PartitionId, entry: Entry, chunk: Chunk) -> RunFile:
        """The chunk's file, from an earlier process's cache or the store. Raises CorruptData when its bytes did not verify, twice or not
        long ago, and what the store and the cache raise."""
        name = chunk_name(partition, entry.uid, chunk.position, chunk.size_bytes)
        found = self._cache.adopt(name, chunk.size_bytes, lambda file: check_chunk(file, entry, chunk))
        if found is not None:
            self._damage.forget(name)  # damage that is known was not in the cache: this is newer
            return found
        self._damage.check(name)
        block = self._blocks.take() if chunk.size_bytes <= self._blocks.block_bytes else None
        fetch = self._through_file if block is None else partial(self._through_block, block)
        try:
            try:
                file = fetch(name, entry, chunk)
            except CorruptData as error:  # retried once: it may have happened on the way
                self._report_damage(error, entry, chunk)
                file = fetch(name, entry, chunk)
        except BaseException as error:
            if block is not None:
                self._blocks.give_back(block)
            if isinstance(error, CorruptData):
                self._damage.note(damage_of(partition, entry, error, offset=chunk.first_offset, chunk=chunk))
            raise
        self._forget_damage(partition, entry, name)
        if block is not None:
            self._blocks.lend(block, file, chunk.size_bytes)
        return file

    def fetch_each(
        self, partition: PartitionId, entry: Entry, run: Sequence[tuple[str, Chunk]], names: Sequence[Hashable]
    ) -> Iterator[RunFile | Exception]:
        """Those of `run`, named and neighbours, that are in `names`: each stretch of them by one GET."""
        wanted = set(names)
        for is_wanted, stretch in groupby(run, lambda each: each[0] in wanted):
            if is_wanted:
                yield from self._fetch_run(partition, entry, list(stretch))

    def _fetch_run(self, partition: PartitionId, entry: Entry, run: Sequence[tuple[str, Chunk]]) -> Iterator[RunFile | Exception]:
        """Neighbouring chunks by one GET; for each its file, or what went wrong with it."""
        answered = 0
        with contextlib.suppress(CorruptData):  # the object ends too early: each chunk is requested alone
            for outcome in self._stream_run(partition, entry, run):
                answered += 1
                yield outcome
        for _, chunk in run[answered:]:
            yield self._fetched(partition, entry, chunk)

    def _stream_run(self, partition: PartitionId, entry: Entry, run: Sequence[tuple[str, Chunk]]) -> Iterator[RunFile | Exception]:
        """As far as there are blocks. A chunk that is damaged is fetched again alone. Raises what the store does."""
        blocks = self._blocks.take_some(len(run))
        try:
            contents = [block[: chunk.size_bytes] for block, (_, chunk) in zip(blocks, run, strict=False)]
            if not contents:
                return
            self._counters.downloads += 1
            reader = open_layout(entry.layout).read_offloaded(self._store, entry)
            with contextlib.closing(reader.stream_into(contents, run[0][1].position)) as arriving:
                for (name, chunk), content, _ in zip(run, contents, arriving, strict=False):
                    self._counters.downloaded_bytes += len(content)
                    block = blocks.pop(0)
                    try:
                        file = self._keep_block(block, name, entry, chunk)
                    except CorruptData as error:
                        self._blocks.give_back(block)
                        self._report_damage(error, entry, chunk)
                        yield self._fetched(partition, entry, chunk)
                    except Exception as error:
                        self._blocks.give_back(block)
                        yield error
                    else:
                        self._forget_damage(partition, entry, name)
                        self._blocks.lend(block, file, chunk.size_bytes)
                        yield file
        finally:
            for block in blocks:
                self._blocks.give_back(block)

    def _fetched(self, partition: PartitionId, entry: Entry, chunk: Chunk) -> RunFile | Exception:
        try:
            return self.fetch(partition, entry, chunk)
        except Exception as error:
            return error

    def _through_block(self, block: memoryview, name: str, entry: Entry, chunk: Chunk) -> RunFile:
        """Verified in memory, then written."""
        self._download(block[: chunk.size_bytes], entry, chunk.position)
        return self._keep_block(block, name, entry, chunk)

    def _keep_block(self, block: memoryview, name: str, entry: Entry, chunk: Chunk) -> RunFile:
        check_chunk(block[: chunk.size_bytes], entry, chunk)
        content = block[: chunk.size_bytes]
        return self._cache.put(name, chunk.size_bytes, lambda file: write_direct(file, block[: chunk.size_bytes]), content)

    def _through_file(self, name: str, entry: Entry, chunk: Chunk) -> RunFile:
        """Piece by piece, then read back and verified: a chunk for which there is no block."""

        def fill(file: BinaryIO) -> None:
            piece = memoryview(bytearray(min(chunk.size_bytes, PIECE_BYTES)))
            for start in range(0, chunk.size_bytes, PIECE_BYTES):
                some = piece[: chunk.size_bytes - start]
                self._download(some, entry, chunk.position + start)
                write_all(file, some)
            check_chunk(file, entry, chunk)

        return self._cache.put(name, chunk.size_bytes, fill)

    def _download(self, into: memoryview, entry: Entry, position: int) -> None:
        self._counters.downloads += 1
        open_layout(entry.layout).read_offloaded(self._store, entry).read_into(into, position)
        self._counters.downloaded_bytes += len(into)

    def _forget_damage(self, partition: PartitionId, entry: Entry, name: str) -> None:
        """Forget that the chunk was damaged and its object missing: the store has both."""
        self._damage.forget(name)
        self._damage.forget(index_name(partition, entry.uid))

    def _report_damage(self, error: CorruptData, entry: Entry, chunk: Chunk) -> None:
        self._counters.damaged += 1
        log.warning("chunk_damaged", partition=partition_of(entry.key), key=entry.key, position=chunk.position, reason=str(error))


def check_chunk(source: BinaryIO | memoryview, entry: Entry, chunk: Chunk) -> None:
    """Raises CorruptData unless `source` holds what the plan says: whole batches, every CRC right, the offsets it should have."""
    where = f"{entry.key} from byte {chunk.position} on"
    first = last = -1
    try:
        if isinstance(source, memoryview):
            first, last = check_batches(source, where=where)
        else:
            for _, fields in BatchWalk(source, 0, chunk.size_bytes, where=where):
                if first < 0:
                    first = fields[0]
                last = fields[0] + fields[6]
    except TransientError as error:  # what would be a file in change is a file cut short here
        raise CorruptData(where, 0, str(error)) from error
    if first != chunk.first_offset or last > entry.last_offset:
        expected = f"from {chunk.first_offset} on by the index, up to {entry.last_offset} by the manifest"
        raise CorruptData(where, 0, f"offsets {first} to {last}, expected {expected}")
