"""One segment while it is written: what is offered gathers, and each flush adds it by one commit0 (docs/formats/chunks.md, "Streaming").

What gathers are places in the local log, so a queue that waits takes next to no memory; its bytes are read when they are sent. So are those
of the fixed variant's last chunk, which each commit writes whole until it is full.
"""

import io
import weakref
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from headwater_core.errors import HeadwaterError, SourceChanged, TransientError, UploadStopped, UsageError
from headwater_core.layouts.chunks.chunk_map import SegmentMap, SegmentState
from headwater_core.layouts.chunks.chunk_names import SegmentPlace, Variant
from headwater_core.layouts.chunks.chunk_segment import CHUNK_BYTES, ChunkSegment, in_threads
from headwater_core.layouts.chunks.chunks_layout import CUT_MAX
from headwater_core.layouts.chunks.consolidation import VERSION
from headwater_core.layouts.chunks.upload_pool import PoolShare
from headwater_core.layouts.offloader import Offloaded
from headwater_core.layouts.streaming.offload_buffer import (
    EXTENT_BYTES,
    WINDOW_BYTES,
    EntryPosition,
    FileExtent,
    LedgerEntries,
    OfferResult,
    OffloadBudget,
    OffloadBuffer,
    after,
    read_content,
    read_window,
)
from headwater_core.objectstore.confirmed_put import put_all_confirmed
from headwater_core.objectstore.digest import checksum, digest_of
from headwater_core.objectstore.store import PLAIN, NewObject, ObjectForm, ObjectStore
from headwater_core.segments.run_scan import GrowingScan, RunScan
from headwater_core.segments.runindex import encode_index
from headwater_core.segments.transactions import OpenTransaction

COMMIT_BYTES = 8 << 20  # of one commit0, and more by one batch: chunks of 5 MiB and more are consolidated without a download
CHUNKS_MAX = 1 << 10  # of a segment in the append variant: its end lists them all in one commit
_RUN_BYTES_MAX = 32 << 30  # as much as the index of one run has room for, and more


class CommittedRun(NamedTuple):
    """A run that the store has, index included: in the append variant a chunk, in the fixed one the segment.

    key  of its object, or of the first
    """

    key: str
    scan: RunScan
    offloaded: Offloaded


class CommitLimits(NamedTuple):
    """Of one segment.

    commit_bytes  of one commit0, and more by one batch
    chunk_bytes   of the fixed variant
    threads       so many chunks of one commit0 go at the same time, in the fixed variant
    """

    commit_bytes: int = COMMIT_BYTES
    chunk_bytes: int = CHUNK_BYTES
    threads: int = 2


_DEFAULTS = CommitLimits()


class _Source(NamedTuple):
    """Where the segment's bytes from `position` on come from, and the ledger they are of."""

    position: int
    ledger_id: int
    content: bytes | memoryview | FileExtent

    @property
    def size_bytes(self) -> int:
        return self.content.size_bytes if isinstance(self.content, FileExtent) else len(self.content)

    @property
    def held_bytes(self) -> int:
        return EXTENT_BYTES if isinstance(self.content, FileExtent) else len(self.content)

    @property
    def end(self) -> int:
        return self.position + self.size_bytes

    def cut(self, position: int, end: int) -> "_Source":
        """What of it lies in [position, end), where some of it does."""
        first, last = max(position, self.position), min(end, self.end)
        content, skipped = self.content, first - self.position
        if isinstance(content, FileExtent):
            return _Source(first, self.ledger_id, FileExtent(content.fd, content.position + skipped, last - first))
        return _Source(first, self.ledger_id, content[skipped : skipped + last - first])

    def followed_by(self, other: "_Source") -> "_Source | None":
        """Both as one, where they are places in one file that follow each other."""
        mine, its = self.content, other.content
        if not isinstance(mine, FileExtent) or not isinstance(its, FileExtent):
            return None
        if (mine.fd, mine.position + mine.size_bytes, self.ledger_id) != (its.fd, its.position, other.ledger_id):
            return None
        return self._replace(content=FileExtent(mine.fd, mine.position, mine.size_bytes + its.size_bytes))


class _Commit(NamedTuple):
    """What one commit0 adds, from `position` on: the same bytes whenever it is repeated. scan: in the append variant."""

    position: int
    size_bytes: int
    crc: int
    scan: RunScan | None


class ChunkHandle:
    """Takes entries in order until it is closed. One caller at a time, but for the properties.

    `offer` never waits: it gathers. `send_part` flushes when it is this queue's turn, `close`, then `finish`, what is left. Whatever raises
    TransientError may be called again, as long as it is not SourceChanged: what has failed is kept, as places in the log, and goes first.
    Else `abort` the handle, and begin another one in another place. What its place holds by then is garbage.

    committed_bytes  the commit position: so much of the segment has the store confirmed
    failed           why the last flush did not come through, for people; "" when it did
    """

    def __init__(
        self,
        store: ObjectStore,
        place: SegmentPlace,
        budget: OffloadBudget,
        share: PoolShare,
        *,
        limits: CommitLimits = _DEFAULTS,
        open_before: tuple[OpenTransaction, ...] = (),
        form: ObjectForm = PLAIN,
        pace: Callable[[int], object] = lambda size_bytes: None,
    ) -> None:
        """place: nothing is there yet; form: see ChunkSegment. Asks for nothing."""
        self._store, self.place, self._budget, self._share, self._limits, self._pace = store, place, budget, share, limits, pace
        self._segment = ChunkSegment(store, place, SegmentMap(SegmentState.NEW, ()), limits.chunk_bytes, form=form)
        self._apply = in_threads(limits.threads)
        self._is_cut = place.variant is Variant.FIXED
        self._buffer = OffloadBuffer(budget)
        weakref.finalize(self, _leave, self._buffer, share).atexit = False  # who drops it need not have aborted it
        self._scan = GrowingScan(open_before, place.prefix)
        self._sources: deque[_Source] = deque()  # of what may have to be sent again
        self._commit: _Commit | None = None  # that was begun
        self._cut_bytes = 0  # of all commits, that one included
        self._runs: list[CommittedRun] = []
        self._offered_bytes = 0
        self._is_closed = False
        self._broken: HeadwaterError | None = None
        self.failed = ""

    # What is offered

    @property
    def offered_bytes(self) -> int:
        """Of all entries that were taken."""
        return self._offered_bytes

    @property
    def committed_bytes(self) -> int:
        return self._segment.end

    @property
    def run_bytes_max(self) -> int:
        """What a segment may hold; one that is cut no more chunks than are read of a run."""
        return min(_RUN_BYTES_MAX, CUT_MAX * self._limits.chunk_bytes) if self._is_cut else _RUN_BYTES_MAX

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def unsent_from(self) -> EntryPosition | None:
        """The first entry that may be read again: descriptors of earlier ledgers may be closed. None when nothing may be."""
        if self._sources:
            return EntryPosition(self._sources[0].ledger_id, 0)
        first = self._buffer.first
        return None if first is None else EntryPosition(first.ledger_id, first.entry_id)

    def offer(self, entries: LedgerEntries) -> OfferResult:
        """Take what follows the last entry: in its ledger, or the next one. Raises UsageError for anything else."""
        if self._is_closed or self._broken is not None or self._is_full:
            return OfferResult.FAIL_SEGMENT_CLOSED
        if not self._buffer.put(entries):
            return OfferResult.FAIL_BUFFER_FULL
        self._offered_bytes += entries.size_bytes
        self._share.pool.set_gathered(self._share, self._waiting_bytes)
        return OfferResult.SUCCESS

    def seal_ledger(self, ledger_id: int, *, entries: int, size_bytes: int, closed_ms: int) -> None:
        """Nothing is said of ledgers in this layout."""

    @property
    def _is_full(self) -> bool:
        """Of what one commit of a manifest, or one run's index, can list."""
        return self._scan.is_full if self._is_cut else len(self._runs) >= CHUNKS_MAX

    @property
    def _waiting_bytes(self) -> int:
        """Taken, and not confirmed."""
        return self._offered_bytes - self.committed_bytes

    @property
    def _sent_bytes(self) -> int:
        """What the next commit0 sends, nearly: of the last chunk, too, what it has already."""
        again = self.committed_bytes % self._limits.chunk_bytes if self._is_cut else 0
        return min(self._waiting_bytes, self._limits.commit_bytes) + again

    # What is committed

    def send_part(self) -> bool:
        """Add what has gathered, or as much of it as one commit takes, when it is this queue's turn, or the budget has no room for more;
        whether there may be more to add. Raises what `flush` does."""
        is_due = self._share.is_due or (self._waiting_bytes > 0 and not self._budget.has_room(EXTENT_BYTES))
        return is_due and self.flush()

    def flush(self) -> bool:
        """One commit0 of what has gathered; False when nothing has.

        Raises TransientError when it may succeed later; SourceChanged where the log is not what it was, or other bytes are in the place;
        CorruptData, and what the store raises.
        """
        if self._broken is not None:
            raise self._broken
        try:
            with self._share.pool.sending(self._sent_bytes, lambda: self._pace(0)):
                content = self._begin()
                if content is None:
                    return False
                commit = self._commit
                assert commit is not None
                self._add(commit, content)
                del content
        except UploadStopped:
            raise  # nothing has failed
        except HeadwaterError as error:
            self.failed = str(error)
            if isinstance(error, TransientError) and not isinstance(error, SourceChanged):
                self._share.pool.set_failed(self._share, is_failed=True)
            else:
                self._broken = error
            raise
        self._commit, self.failed = None, ""
        self._keep()
        self._share.pool.committed(self._share, self._waiting_bytes)
        return True

    def close(self, *, last_offset: int | None = None, offloaded_ms: int = 0) -> None:
        """Nothing more is taken. May be repeated."""
        self._is_closed = True

    def finish(self) -> list[CommittedRun]:
        """Add what is left, and say what the segment holds: all of it is in the store. Raises what `flush` does; may be repeated."""
        if not self._is_closed or not self._offered_bytes:
            raise UsageError(f"{self.place.prefix}: {'nothing was offered' if self._is_closed else 'not closed'}")
        while self.flush():
            pass
        if self._is_cut and not self._runs:
            context = {"version": VERSION, "chunk_bytes": str(self._limits.chunk_bytes)}
            self._list(self.place.chunk_key(0), self._scan.result(), context)
        self._release()
        return self._runs

    def abort(self) -> None:
        """Give up. What the store has of it is an orphan."""
        self._is_closed = True
        self._broken = self._broken or UsageError(f"{self.place.prefix}: it was given up")
        self._buffer.clear()
        self._release()

    def _release(self) -> None:
        _leave(self._buffer, self._share)
        self._sources.clear()

    def _begin(self) -> memoryview | None:
        """The bytes of the commit that was begun, or of the next one, which is begun now; None when nothing has gathered."""
        commit = self._commit
        if commit is not None:
            content = self._read(commit.position, commit.position + commit.size_bytes)
            if (digest := checksum(content)) != commit.crc:
                raise SourceChanged(f"{self.place.prefix}: the bytes from {commit.position} on changed before they were sent ({digest:x})")
            return content
        if self._buffer.first is None:
            return None
        content = self._cut()
        scan = None
        if not self._is_cut:
            scan = self._scan.result()
            self._scan = GrowingScan(scan.open_transactions, self.place.prefix)
        self._commit = _Commit(self._cut_bytes - len(content), len(content), checksum(content), scan)
        return content

    def _cut(self) -> memoryview:
        """Whole batches out of the buffer, up to one commit's bytes, and a batch more; fewer where the log cannot be read for a while."""
        content = bytearray()
        while (first := self._buffer.first) is not None and len(content) < self._limits.commit_bytes:
            if content and not self._is_cut and self._scan.is_full:
                break
            try:
                window = read_window(first, min(WINDOW_BYTES, self._limits.commit_bytes - len(content)), self.place.prefix)
            except TransientError:
                if not content:
                    raise
                break
            self._scan.add(window.content)
            self._buffer.replace_first(after(first, window))
            taken = first._replace(content=_beginning(first.content, len(window.content)), entry_count=len(window.lengths))
            self._remember(_Source(self._cut_bytes, taken.ledger_id, taken.content))
            content += window.content
            self._cut_bytes += len(window.content)
        return memoryview(content)

    def _remember(self, source: _Source) -> None:
        joined = self._sources[-1].followed_by(source) if self._sources else None
        if joined is None:
            self._sources.append(source)
        else:
            self._sources[-1] = joined

    def _add(self, commit: _Commit, content: memoryview) -> None:
        reached = self.committed_bytes  # some of it may be there since an attempt that failed
        rewritten = max(reached, commit.position) % self._limits.chunk_bytes if self._is_cut else 0
        self._pace(commit.position + commit.size_bytes - reached + rewritten)
        missing = content[max(reached - commit.position, 0) :]
        before = self._read if self._is_cut else None
        end = self._segment.commit0(max(reached, commit.position), missing, before=before, apply=self._apply)
        if self._segment.end != end:  # of a run that was archived as a whole in this place, and never listed
            raise SourceChanged(f"{self.place.prefix}: {self._segment.end} bytes are there already, {end} were to be")
        if commit.scan is None:
            return
        key = self.place.chunk_key(commit.position)
        if self._segment.tile_at(commit.position) != (commit.position, commit.size_bytes, key, 0):
            raise SourceChanged(f"{key} is of another length than what was to be written")
        self._list(key, commit.scan, {"version": VERSION})

    def _list(self, key: str, scan: RunScan, context: dict[str, str]) -> None:
        """The run is there; put its index beside it."""
        index = encode_index(scan.index)
        put_all_confirmed(self._store, [NewObject(f"{key}.index", io.BytesIO(index), len(index))], [digest_of(index)])
        done = Offloaded(
            size_bytes=scan.size_bytes,
            digest=scan.digest,
            run_bytes=scan.size_bytes,
            run_digest=scan.digest,
            index_bytes=len(index),
            index_digest=digest_of(index),
            context=context,
        )
        self._runs.append(CommittedRun(key, scan, done))

    def _keep(self) -> None:
        """Forget where that came from which will not be sent again, and give its memory back."""
        end = self.committed_bytes
        needed_from = end - end % self._limits.chunk_bytes if self._is_cut else end
        while self._sources and self._sources[0].end <= needed_from:
            self._sources.popleft()
        if self._sources:
            self._sources[0] = self._sources[0].cut(needed_from, self._sources[0].end)
        unsent = self._buffer.queued_bytes
        held_bytes = min(self._buffer.held_bytes, unsent + sum(each.held_bytes for each in self._sources))
        self._budget.give_back(self._buffer.held_bytes - held_bytes)
        self._buffer.held_bytes = held_bytes

    def _read(self, position: int, end: int) -> memoryview:
        """Bytes of the segment that were cut and may have to be sent again. Raises SourceChanged."""
        content = bytearray()
        for source in self._sources:
            if source.position < end and source.end > position:
                part = source.cut(position, end)
                content += read_content(part.content, part.size_bytes, self.place.prefix)
        if len(content) != end - position:
            raise SourceChanged(f"{self.place.prefix}: bytes {position} to {end} are not at hand")
        return memoryview(content)


def _leave(buffer: OffloadBuffer, share: PoolShare) -> None:
    buffer.return_held()
    share.pool.leave(share)


def _beginning(content: bytes | memoryview | FileExtent, size_bytes: int) -> bytes | memoryview | FileExtent:
    return content._replace(size_bytes=size_bytes) if isinstance(content, FileExtent) else content[:size_bytes]
