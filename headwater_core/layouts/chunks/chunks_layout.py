"""The layout `chunks`: writes a run as one chunk, or as chunks of one size, and reads it back from them or from what they became."""

import io
import re
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from itertools import groupby
from typing import BinaryIO, NamedTuple, cast

from headwater_core.errors import CorruptData, HeadwaterError, SourceChanged, TruncatedData, UnknownOutcome, UnsupportedFormat, UsageError
from headwater_core.layouts.chunks.chunk_halves import ChunkHalves, HalfChunk
from headwater_core.layouts.chunks.chunk_names import Variant
from headwater_core.layouts.chunks.chunk_segment import CHUNK_BYTES
from headwater_core.layouts.chunks.consolidation import VERSION
from headwater_core.layouts.offloader import NewRun, Offloaded, StoredRun
from headwater_core.layouts.run_source import RunSource
from headwater_core.layouts.segment import read_index_object
from headwater_core.objectstore.confirmed_put import put_all_confirmed
from headwater_core.objectstore.digest import Digest, digest_of
from headwater_core.objectstore.store import NewObject, ObjectForm, ObjectStore
from headwater_core.partition import PartitionId
from headwater_core.segments.runindex import RunIndex, encode_index
from headwater_core.threads import ContextThreads

SENDERS = 4  # chunks of one run that go at the same time
SEGMENT_BYTES = 1 << 30  # as the proposal has it
_FIRST = "/chunk-0"
CUT_NAME = "chunk_bytes"  # of an entry's context, where its run is cut
_SIZE = re.compile(r"[1-9][0-9]{0,12}")
CUT_MAX = 1 << 20  # chunks of a run; their keys are listed when it is deleted


class ChunksLayout:
    """One instance serves everyone; all that it remembers is what a read has got too much of.

    variant        append: the run is one object, under the key that it gets; fixed: the key is that of its first chunk, of position 0
    chunk_bytes    of the fixed variant: of each chunk but the last
    segment_bytes  of the append variant, for who names the chunks: no chunk is added that makes a segment larger
    senders        of the fixed variant: so many chunks go at the same time
    """

    name = "chunks"
    preserves_batches = True

    def __init__(
        self,
        variant: Variant = Variant.APPEND,
        chunk_bytes: int = CHUNK_BYTES,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        senders: int = SENDERS,
    ) -> None:
        self.variant, self.segment_bytes = variant, segment_bytes
        self._chunk_bytes, self._senders = chunk_bytes, senders
        self._halves = ChunkHalves()

    def offload(self, store: ObjectStore, runs: Sequence[NewRun], extra_metadata: Mapping[str, str]) -> list[Offloaded]:
        if self.variant is Variant.FIXED:
            return [self._offload_cut(store, run, extra_metadata, is_first=at == 0) for at, run in enumerate(runs)]
        objects: list[NewObject] = []
        offloaded: list[Offloaded] = []
        for run in runs:
            index, scan = encode_index(run.scan.index), run.scan
            run.source.seek(scan.start_position)
            objects += (
                NewObject(run.key, run.source, scan.size_bytes, chunk_form(run.partition, extra_metadata)),
                _index_object(run, index),
            )
            offloaded.append(_offloaded(run, index, {"version": VERSION}))
        put_all_confirmed(store, objects, [digest for each in offloaded for digest in (each.digest, each.index_digest)])
        return offloaded

    def _offload_cut(self, store: ObjectStore, run: NewRun, extra_metadata: Mapping[str, str], *, is_first: bool) -> Offloaded:
        """Chunks first, several at a time. What a failure leaves is found when it is tried again, and only the others are sent."""
        if not run.key.endswith(_FIRST):
            raise UsageError(f"{run.key} is no first chunk's key")
        if run.scan.size_bytes > CUT_MAX * self._chunk_bytes:
            raise UsageError(
                f"{run.key}: {run.scan.size_bytes} bytes are more than {CUT_MAX} chunks of {self._chunk_bytes}; make them longer"
            )
        source, form = RunSource(run.source), chunk_form(run.partition, extra_metadata)
        whole, chunks = Digest(), list[tuple[NewObject, str]]()
        for start in range(run.scan.start_position, run.scan.end_position, self._chunk_bytes):
            size_bytes = min(self._chunk_bytes, run.scan.end_position - start)
            digest = _digest_at(source, start, size_bytes, run.key)
            whole.append(digest.value, size_bytes)
            key = _chunk_key(run.key, start - run.scan.start_position)
            chunks.append((NewObject(key, _SourceWindow(source, start, size_bytes).as_file(), size_bytes, form), digest.text()))
        if whole.text() != run.scan.digest:
            raise SourceChanged(f"{run.key}: {run.scan.digest} was scanned, {whole.text()} is there")
        _send(store, chunks, self._senders, is_first=is_first)
        index = encode_index(run.scan.index)
        _send(store, [(_index_object(run, index), digest_of(index))], 1, is_first=False)
        return _offloaded(run, index, {"version": VERSION, CUT_NAME: str(self._chunk_bytes)})

    def read_offloaded(self, store: ObjectStore, run: StoredRun) -> "_ChunksReader":
        return _ChunksReader(store, run, self._halves)

    def data_objects(self, run: StoredRun) -> Sequence[tuple[str, int]]:
        return _Cut(run).objects()

    def delete_offloaded(self, store: ObjectStore, run: StoredRun) -> None:
        store.delete(run.index_key)
        for key, _ in _Cut(run).objects():
            store.delete(key)


class _Piece(NamedTuple):
    """Part of a buffer that lies in one chunk. at: in the chunk; is_last: the buffer is full with it."""

    number: int
    at: int
    view: memoryview
    is_last: bool


class _Cut:
    """Which objects hold a run that is one, whether a chunk or a consolidated segment, or that is cut into chunks of one size."""

    def __init__(self, run: StoredRun) -> None:
        self._run = run
        version = run.context.get("version", "")
        if version != VERSION:
            raise UnsupportedFormat(f"{run.key} is a chunk of version {version[:40]!r}; this version reads {VERSION}")
        self.is_cut = CUT_NAME in run.context
        cut = run.context.get(CUT_NAME, str(run.run_bytes))
        if not _SIZE.fullmatch(cut) or run.run_bytes // int(cut) > CUT_MAX or (self.is_cut and not run.key.endswith(_FIRST)):
            raise CorruptData(run.key, 0, f"its manifest entry has the context {str(dict(run.context))[:200]}")
        self.chunk_bytes = int(cut)

    def key(self, number: int) -> str:
        return _chunk_key(self._run.key, number * self.chunk_bytes) if self.is_cut else self._run.key

    def objects(self) -> list[tuple[str, int]]:
        """The keys of all data objects, with their lengths."""
        size_bytes = self._run.run_bytes
        starts = range(0, size_bytes, self.chunk_bytes)
        return [(self.key(number), min(self.chunk_bytes, size_bytes - start)) for number, start in enumerate(starts)]


class _ChunksReader:
    def __init__(self, store: ObjectStore, run: StoredRun, halves: ChunkHalves) -> None:
        self._store, self._run, self._cut, self._halves = store, run, _Cut(run), halves

    def read_into(self, buffer: memoryview, start: int) -> None:
        with closing(self.stream_into((buffer,), start)) as filled:
            for _ in filled:
                pass

    def stream_into(self, buffers: Sequence[memoryview], start: int) -> Generator[None, None, None]:
        end = start + sum(map(len, buffers))
        if start < 0 or end > self._run.run_bytes:
            raise TruncatedData(self._run.key, self._run.run_bytes, f"bytes {start} to {end} of the run are wanted")
        with ExitStack() as stack:
            last, at = divmod(end, self._cut.chunk_bytes)
            if at and end < self._run.run_bytes and last > start // self._cut.chunk_bytes:
                stack.enter_context(self._halves.expected(self._half(last), at))
            for number, group in groupby(self._pieces(buffers, start), key=lambda piece: piece.number):
                pieces = list(group)
                views = [piece.view for piece in pieces]
                if not any(views):
                    yield from (None for _ in pieces)
                    continue
                with closing(self._fill(number, views, pieces[0].at)) as filled:
                    for piece, _ in zip(pieces, filled, strict=True):
                        if piece.is_last:
                            yield

    def _half(self, number: int) -> HalfChunk:
        return HalfChunk(self._run.key, self._run.index_digest, number)

    def _fill(self, number: int, views: Sequence[memoryview], at: int) -> Generator[None, None, None]:
        """Fill `views` from byte `at` of a chunk on, yielding as each is full: from what another read has kept of it, else by one GET."""
        size_bytes = min(self._cut.chunk_bytes, self._run.run_bytes - number * self._cut.chunk_bytes)
        needed = at, at + sum(map(len, views))
        if not self._cut.is_cut or needed == (0, size_bytes):
            yield from self._store.stream_into(self._cut.key(number), views, start=at)
            return
        half = self._half(number)
        content = self._halves.take(half, *needed)
        if content is not None:
            for view in views:
                view[:], content = content[: len(view)], content[len(view) :]
                yield
            return
        fetched = self._halves.begin(half, *needed, size_bytes)
        before, rest = memoryview(bytearray(needed[0] - fetched[0])), memoryview(bytearray(fetched[1] - needed[1]))
        is_whole = False
        try:
            around = [*([before] if before else []), *views, *([rest] if rest else [])]
            with closing(self._store.stream_into(self._cut.key(number), around, start=fetched[0])) as filled:
                if before:
                    next(filled)
                for _ in views[:-1]:
                    next(filled)
                    yield
                next(filled)
                is_whole = not rest
                if rest:
                    with suppress(HeadwaterError):  # nobody needs it yet
                        is_whole = next(filled, filled) is None
        finally:
            if is_whole:
                self._halves.done(half, needed, fetched, before, rest)
            else:
                self._halves.failed(half, needed, fetched)
        yield

    def _pieces(self, buffers: Sequence[memoryview], start: int) -> Iterator[_Piece]:
        position = start
        for buffer in buffers:
            rest = buffer
            while True:
                number, at = divmod(position, self._cut.chunk_bytes)
                view, rest = rest[: self._cut.chunk_bytes - at], rest[self._cut.chunk_bytes - at :]
                yield _Piece(number, at, view, not rest)
                position += len(view)
                if not rest:
                    break

    def read_index(self) -> RunIndex:
        return read_index_object(self._store, self._run)

    def check_rest(self) -> None:
        """Whether there is more of an object than is read."""
        for key, size_bytes in self._cut.objects():
            there = self._store.stat(key).size_bytes
            if there != size_bytes:
                raise CorruptData(key, min(there, size_bytes), f"{there} bytes, {size_bytes} were written")


class _SourceWindow(io.RawIOBase):
    """Some of a run as a file, read by position: several at the same time."""

    def __init__(self, source: RunSource, start: int, size_bytes: int) -> None:
        super().__init__()
        self._source, self._start, self._end = source, start, start + size_bytes
        self.seek(0)

    def part_pieces(self, start: int) -> Iterator[memoryview]:
        """As PartSource's."""
        return self._source.pieces(self._start + start, self._end)

    @property
    def pace(self) -> Callable[[int], object]:
        return self._source.pace

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        assert whence == io.SEEK_SET
        self._position, self._following, self._rest = position, self.part_pieces(position), memoryview(b"")
        return position

    def read(self, size: int = -1) -> bytes:
        """What comes next, without a copy, and so valid until the next call: fewer bytes than `size` before the end, too."""
        if not self._rest:
            self._rest = next(self._following, self._rest)
        piece = self._rest[: len(self._rest) if size < 0 else size]
        self._rest = self._rest[len(piece) :]
        self._position += len(piece)
        if piece:
            self._source.pace(len(piece))
        return cast(bytes, piece)

    def as_file(self) -> BinaryIO:
        return cast(BinaryIO, self)


def _send(store: ObjectStore, objects: Sequence[tuple[NewObject, str]], senders: int, *, is_first: bool) -> None:
    """Create them, which have these digests, and confirm each. Where others of the offload are there, what got lost goes again. After a
    failure nothing more is begun."""
    if min(senders, len(objects)) == 1:
        for new, digest in objects:
            _send_one(store, new, digest, is_first=is_first)
        return
    has_failed = threading.Event()

    def send(new: NewObject, digest: str) -> None:
        if has_failed.is_set():
            return
        try:
            _send_one(store, new, digest, is_first=is_first)
        except BaseException:
            has_failed.set()
            raise

    with ContextThreads(min(senders, len(objects)), thread_name_prefix="chunks-send") as pool:
        sent = [pool.submit(send, new, digest) for new, digest in objects]
    for future in sent:
        future.result()


def _send_one(store: ObjectStore, new: NewObject, digest: str, *, is_first: bool) -> None:
    try:
        put_all_confirmed(store, [new], [digest])
    except UnknownOutcome:
        if is_first:
            raise
        new.data.seek(0)
        put_all_confirmed(store, [new], [digest])


def _digest_at(source: RunSource, start: int, size_bytes: int, where: str) -> Digest:
    digest = Digest()
    for piece in source.pieces(start, start + size_bytes):
        digest.update(piece)
    if digest.size_bytes < size_bytes:
        raise SourceChanged(f"{where}: the source ends before byte {start + size_bytes}")
    return digest


def _chunk_key(first_key: str, position: int) -> str:
    return f"{first_key[:-1]}{position}"


def chunk_form(partition: PartitionId, extra_metadata: Mapping[str, str]) -> ObjectForm:
    own = {"headwater-chunks-version": VERSION, "headwater-partition": f"{partition.topic}:{partition.partition}"}
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
