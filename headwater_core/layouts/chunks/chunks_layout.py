"""The layout `chunks`: writes a run as one chunk, or as chunks of one size, and reads it back from them or from what they became."""

import io
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import groupby
from typing import BinaryIO, NamedTuple, cast

from headwater_core.errors import CorruptData, SourceChanged, TruncatedData, UnknownOutcome, UnsupportedFormat, UsageError
from headwater_core.layouts.chunks.chunk_names import Variant
from headwater_core.layouts.chunks.chunk_segment import CHUNK_BYTES
from headwater_core.layouts.chunks.consolidation import VERSION
from headwater_core.layouts.offloader import NewRun, Offloaded, StoredRun
from headwater_core.layouts.run_source import RunSource
from headwater_core.layouts.segment import read_index_object
from headwater_core.objectstore.confirmed_put import put_all_confirmed
from headwater_core.objectstore.digest import Digest, digest_of
from headwater_core.objectstore.store import NewObject, ObjectForm, ObjectStore
from headwater_core.segments.runindex import RunIndex, encode_index

_WINDOW_BYTES = 1 << 20
_SENDERS = 4  # chunks of one run that go at the same time; each is held while it is sent
_FIRST = "/chunk-0"
_SIZE = re.compile(r"[1-9][0-9]{0,12}")
_CHUNKS_MAX = 1 << 20  # of a run; their keys are listed when it is deleted


class ChunksLayout:
    """Stateless; one instance serves everyone.

    variant      append: the run is one object, under the key that it gets; fixed: the key is that of its first chunk, of position 0
    chunk_bytes  of the fixed variant: of each chunk but the last
    """

    name = "chunks"
    preserves_batches = True

    def __init__(self, variant: Variant = Variant.APPEND, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._variant, self._chunk_bytes = variant, chunk_bytes

    def offload(self, store: ObjectStore, runs: Sequence[NewRun], extra_metadata: Mapping[str, str]) -> list[Offloaded]:
        if self._variant is Variant.FIXED:
            return [self._offload_cut(store, run, extra_metadata, is_first=at == 0) for at, run in enumerate(runs)]
        objects: list[NewObject] = []
        offloaded: list[Offloaded] = []
        for run in runs:
            index, scan = encode_index(run.scan.index), run.scan
            run.source.seek(scan.start_position)
            objects += (NewObject(run.key, run.source, scan.size_bytes, _form(run, extra_metadata)), _index_object(run, index))
            offloaded.append(_offloaded(run, index, {"version": VERSION}))
        put_all_confirmed(store, objects, [digest for each in offloaded for digest in (each.digest, each.index_digest)])
        return offloaded

    def _offload_cut(self, store: ObjectStore, run: NewRun, extra_metadata: Mapping[str, str], *, is_first: bool) -> Offloaded:
        """Chunks first, several at a time. What a failure leaves is found when it is tried again, and only the others are sent."""
        if not run.key.endswith(_FIRST):
            raise UsageError(f"{run.key} is no first chunk's key")
        source, form = RunSource(run.source), _form(run, extra_metadata)
        whole, chunks = Digest(), list[tuple[NewObject, str]]()
        for start in range(run.scan.start_position, run.scan.end_position, self._chunk_bytes):
            size_bytes = min(self._chunk_bytes, run.scan.end_position - start)
            digest = _digest_at(source, start, size_bytes, run.key)
            whole.append(digest.value, size_bytes)
            key = _chunk_key(run.key, start - run.scan.start_position)
            chunks.append((NewObject(key, _SourceWindow(source, start, size_bytes).as_file(), size_bytes, form), digest.text()))
        if whole.text() != run.scan.digest:
            raise SourceChanged(f"{run.key}: {run.scan.digest} was scanned, {whole.text()} is there")
        _send(store, chunks, is_first=is_first)
        index = encode_index(run.scan.index)
        _send(store, [(_index_object(run, index), digest_of(index))], is_first=False)
        return _offloaded(run, index, {"version": VERSION, "chunk_bytes": str(self._chunk_bytes)})

    def read_offloaded(self, store: ObjectStore, run: StoredRun) -> "_ChunksReader":
        return _ChunksReader(store, run)

    def delete_offloaded(self, store: ObjectStore, run: StoredRun) -> None:
        store.delete(run.index_key)
        for key, _ in _ChunksReader(store, run).objects():
            store.delete(key)


class _Piece(NamedTuple):
    """Part of a buffer that lies in one chunk. at: in the chunk; is_last: the buffer is full with it."""

    number: int
    at: int
    view: memoryview
    is_last: bool


class _ChunksReader:
    """Of a run that is one object, whether a chunk or a consolidated segment, or that is cut into chunks of one size."""

    def __init__(self, store: ObjectStore, run: StoredRun) -> None:
        self._store, self._run = store, run
        version = run.context.get("version", "")
        if version != VERSION:
            raise UnsupportedFormat(f"{run.key} is a chunk of version {version[:40]!r}; this version reads {VERSION}")
        self._is_cut = "chunk_bytes" in run.context
        cut = run.context.get("chunk_bytes", str(run.run_bytes))
        if not _SIZE.fullmatch(cut) or run.run_bytes // int(cut) > _CHUNKS_MAX or (self._is_cut and not run.key.endswith(_FIRST)):
            raise CorruptData(run.key, 0, f"its manifest entry has the context {str(dict(run.context))[:200]}")
        self._chunk_bytes = int(cut)

    def read_into(self, buffer: memoryview, start: int) -> None:
        with closing(self.stream_into((buffer,), start)) as filled:
            for _ in filled:
                pass

    def stream_into(self, buffers: Sequence[memoryview], start: int) -> Generator[None, None, None]:
        end = start + sum(map(len, buffers))
        if start < 0 or end > self._run.run_bytes:
            raise TruncatedData(self._run.key, self._run.run_bytes, f"bytes {start} to {end} of the run are wanted")
        for number, group in groupby(self._pieces(buffers, start), key=lambda piece: piece.number):
            pieces = list(group)
            views = [piece.view for piece in pieces]
            if not any(views):
                yield from (None for _ in pieces)
                continue
            with closing(self._store.stream_into(self._key(number), views, start=pieces[0].at)) as filled:
                for piece, _ in zip(pieces, filled, strict=True):
                    if piece.is_last:
                        yield

    def _pieces(self, buffers: Sequence[memoryview], start: int) -> Iterator[_Piece]:
        position = start
        for buffer in buffers:
            rest = buffer
            while True:
                number, at = divmod(position, self._chunk_bytes)
                view, rest = rest[: self._chunk_bytes - at], rest[self._chunk_bytes - at :]
                yield _Piece(number, at, view, not rest)
                position += len(view)
                if not rest:
                    break

    def _key(self, number: int) -> str:
        return _chunk_key(self._run.key, number * self._chunk_bytes) if self._is_cut else self._run.key

    def objects(self) -> list[tuple[str, int]]:
        """The keys of all data objects, with their lengths."""
        size_bytes = self._run.run_bytes
        starts = range(0, size_bytes, self._chunk_bytes)
        return [(self._key(number), min(self._chunk_bytes, size_bytes - start)) for number, start in enumerate(starts)]

    def read_index(self) -> RunIndex:
        return read_index_object(self._store, self._run)

    def check_rest(self) -> None:
        """Whether there is more of an object than is read."""
        for key, size_bytes in self.objects():
            there = self._store.stat(key).size_bytes
            if there != size_bytes:
                raise CorruptData(key, min(there, size_bytes), f"{there} bytes, {size_bytes} were written")


class _SourceWindow(io.RawIOBase):
    """Some of a run as a file, read by position: several at the same time."""

    def __init__(self, source: RunSource, start: int, size_bytes: int) -> None:
        super().__init__()
        self._source, self._start, self._end, self._position = source, start, start + size_bytes, start

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position - self._start

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        assert whence == io.SEEK_SET
        self._position = self._start + position
        return position

    def read(self, size: int = -1) -> bytes:
        left = self._end - self._position
        piece = bytearray(left if size < 0 else min(size, left))
        count = self._source.fill(memoryview(piece), self._position)
        self._position += count
        if count:
            self._source.pace(count)
        return bytes(piece[:count])

    def as_file(self) -> BinaryIO:
        return cast(BinaryIO, self)


def _send(store: ObjectStore, objects: Sequence[tuple[NewObject, str]], *, is_first: bool) -> None:
    """Create them, which have these digests, and confirm each. Where others of the offload are there, what got lost goes again."""
    with ThreadPoolExecutor(min(_SENDERS, len(objects)), thread_name_prefix="chunks-send") as pool:
        sent = [pool.submit(put_all_confirmed, store, [new], [digest]) for new, digest in objects]
    for (new, digest), future in zip(objects, sent, strict=True):
        try:
            future.result()
        except UnknownOutcome:
            if is_first:
                raise
            new.data.seek(0)
            put_all_confirmed(store, [new], [digest])


def _digest_at(source: RunSource, start: int, size_bytes: int, where: str) -> Digest:
    digest, window = Digest(), memoryview(bytearray(min(_WINDOW_BYTES, size_bytes)))
    while digest.size_bytes < size_bytes:
        piece = window[: size_bytes - digest.size_bytes]
        if source.fill(piece, start + digest.size_bytes) < len(piece):
            raise SourceChanged(f"{where}: the source ends before byte {start + size_bytes}")
        digest.update(piece)
    return digest


def _chunk_key(first_key: str, position: int) -> str:
    return f"{first_key[:-1]}{position}"


def _form(run: NewRun, extra_metadata: Mapping[str, str]) -> ObjectForm:
    own = {"headwater-chunks-version": VERSION, "headwater-partition": f"{run.partition.topic}:{run.partition.partition}"}
    return ObjectForm({**extra_metadata, **own})


def _index_object(run: NewRun, index: bytes) -> NewObject:
    return NewObject(run.index_key, io.BytesIO(index), len(index))


def _offloaded(run: NewRun, index: bytes, context: dict[str, str]) -> Offloaded:
    """What an entry says of a run whose bytes lie in the store as they are, in one object or several."""
    scan = run.scan
    return Offloaded(
        size_bytes=scan.size_bytes,
        digest=scan.digest,
        run_bytes=scan.size_bytes,
        run_digest=scan.digest,
        index_bytes=len(index),
        index_digest=digest_of(index),
        context=context,
    )
