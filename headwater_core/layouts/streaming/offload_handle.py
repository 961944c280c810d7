"""One streaming object while it is written: PIP-76's OffloadHandle."""

import threading
import weakref
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from headwater_core.errors import HeadwaterError, SourceChanged, TransientError, UsageError
from headwater_core.layouts.offloader import Offloaded
from headwater_core.layouts.streaming.offload_buffer import (
    EntryPosition,
    LedgerEntries,
    OfferResult,
    OffloadBudget,
    OffloadBuffer,
)
from headwater_core.layouts.streaming.part_cutter import PartCutter, StreamPart, part_content
from headwater_core.layouts.streaming.stream_format import LedgerInfo
from headwater_core.layouts.streaming.stream_objects import PART_BYTES, PARTS_MAX, LedgerPart, NewStream, StreamContent, put_index
from headwater_core.objectstore.confirmed_put import complete_confirmed
from headwater_core.objectstore.digest import Digest
from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.run_scan import GrowingScan, RunScan


class OffloadResult(NamedTuple):
    """What the object holds, both ends inclusive."""

    uuid: UUID
    begin_ledger: int
    begin_entry: int
    end_ledger: int
    end_entry: int


class OffloadHandle:
    """Takes entries in order until it is closed. One thread may offer while others send.

    `offer` never waits: it buffers. `send_part` sends one part that is full, and is to be called until it returns False, whenever something
    was offered; by several threads, if that is wanted. `close`, then `result`, sends the rest and makes the objects. Whatever raises
    TransientError may be called again, as long as `ended` is None. Else `abort` the handle, and begin another one under a new uuid.
    """

    def __init__(
        self,
        store: ObjectStore,
        new: NewStream,
        budget: OffloadBudget,
        *,
        part_bytes: int = PART_BYTES,
        pace: Callable[[int], object] = lambda size_bytes: None,
    ) -> None:
        """budget is shared by all; pace is called with a part's length before it goes. Asks for nothing."""
        self._store, self._new, self._budget, self._pace = store, new, budget, pace
        self._lock = threading.Lock()
        self._sending = threading.Lock()  # held while the end is made
        self._buffer = OffloadBuffer(budget)
        weakref.finalize(self, self._buffer.return_held).atexit = False  # who drops it need not have aborted it
        self._scan = GrowingScan(new.open_before, new.key)
        self._cutter = PartCutter(self._buffer, self._scan, max(part_bytes, store.part_bytes_min), new.key)
        self._growing = store.grow(new.key, metadata=new.data_metadata)
        self._begin: EntryPosition | None = None
        self._infos: dict[int, LedgerInfo] = {}
        self._ends: dict[int, int] = {}  # last entry of each ledger
        self._offered_bytes = 0
        self._is_closed = False
        self._last_offset: int | None = None
        self._offloaded_ms = 0
        self._unsent: dict[int, StreamPart] = {}  # cut, by number: in flight, or to be sent again
        self._failed: set[int] = set()
        self._rest: StreamPart | None = None
        self._digest = Digest()
        self._digests: dict[int, tuple[int, int]] = {}
        self._broken: HeadwaterError | None = None
        self._done: tuple[OffloadResult, Offloaded, RunScan] | None = None

    # PIP-76's surface

    def can_offer(self, size_bytes: int) -> bool:
        """Would an entry be taken of which so many bytes are held? An extent holds none to speak of."""
        return not self._is_closed and self._budget.has_room(size_bytes)

    def last_offered(self) -> EntryPosition | None:
        """The last entry that was taken."""
        with self._lock:
            return self._buffer.last

    def offer(self, entries: LedgerEntries) -> OfferResult:
        """Take what follows the last entry: in its ledger, or the next one. Raises UsageError for anything else."""
        with self._lock:
            if self._is_closed or self._broken is not None or self._is_full:
                return OfferResult.FAIL_SEGMENT_CLOSED
            if not self._buffer.put(entries):
                return OfferResult.FAIL_BUFFER_FULL
            last = self._buffer.last
            assert last is not None
            if self._begin is None:
                self._begin = EntryPosition(entries.ledger_id, entries.entry_id)
            self._ends[last.ledger_id] = last.entry_id
            self._offered_bytes += entries.size_bytes
            return OfferResult.SUCCESS

    def close(self, *, last_offset: int | None = None, offloaded_ms: int = 0) -> None:
        """Nothing more is taken. May be repeated, to no effect.

        last_offset   of the run, as the manifest will list it; None: that of the last batch
        offloaded_ms  for the metadata; 0: not said
        """
        with self._lock:
            if not self._is_closed:
                self._is_closed, self._last_offset, self._offloaded_ms = True, last_offset, offloaded_ms
                self._cutter.is_ended = True

    def result(self) -> OffloadResult:
        """Send what is left, make the objects, index last, and say what they hold. To be called after `close`; may be repeated.

        Raises UsageError when nothing was offered, or it is not closed; SourceChanged when the entries are not what they were, or other
        bytes lie under a key; UnknownOutcome when even the read-back gives no answer; NotFound when what was sent is gone.
        """
        return self._finish()[0]

    # Beside it

    @property
    def offered_bytes(self) -> int:
        """Of all entries that were taken."""
        return self._offered_bytes

    @property
    def run_bytes_max(self) -> int:
        """What fits in all parts at most, whatever frames and headers take: to be minded by who offers more than some parts at once."""
        return PARTS_MAX * self._cutter.part_bytes * 3 // 4

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def ended(self) -> HeadwaterError | None:
        """Why nothing can come of it any more; None while something can."""
        return self._broken

    @property
    def has_part(self) -> bool:
        """Has `send_part` something to do?"""
        with self._lock:
            return bool(self._failed) or self._cutter.has_part

    @property
    def unsent_from(self) -> EntryPosition | None:
        """The first entry that may be read again: descriptors of earlier ledgers may be closed. None when all has been sent."""
        with self._lock:
            cut = [self._unsent[number] for number in sorted(self._unsent)]
            if self._rest is not None and self._done is None:
                cut.append(self._rest)
            if cut:
                block = cut[0].blocks[0].block
                return EntryPosition(block.ledger_id, block.first_entry_id)
            first = self._buffer.first
            return None if first is None else EntryPosition(first.ledger_id, first.entry_id)

    def seal_ledger(self, ledger_id: int, *, entries: int, size_bytes: int, closed_ms: int) -> None:
        """A ledger has ended: how many entries it has, of how many bytes, and when. Without this it counts as open."""
        with self._lock:
            self._infos[ledger_id] = LedgerInfo(ledger_id, entries, size_bytes, closed_ms)

    def send_part(self) -> bool:
        """Send one part that is full, or one that failed before; False when there is none. Raises TransientError: call it again; what
        else it raises ends the handle."""
        with self._lock:
            part = self._next_part()
        if part is None:
            return False
        self._send(part)
        return True

    def offloaded(self) -> Offloaded:
        """What a manifest entry lists. Does what `result` does."""
        return self._finish()[1]

    def scan(self) -> RunScan:
        """What is known of the run; its positions are the run's. Does what `result` does."""
        return self._finish()[2]

    def abort(self) -> None:
        """Give up: drop what was sent, unless it has become an object, which garbage collection finds. Raises TransientError; may be
        repeated."""
        with self._lock:
            self._is_closed = True
            self._broken = self._broken or UsageError(f"{self._new.key} was aborted")
            self._buffer.return_held()
            self._buffer.clear()
            self._unsent.clear()
        self._growing.abort()

    # Parts

    @property
    def _is_full(self) -> bool:
        """Of what one object, or the index of its run, can have."""
        return self._cutter.parts >= PARTS_MAX or self._scan.is_full

    def _next_part(self) -> StreamPart | None:
        self._check()
        if self._failed:
            return self._unsent[self._failed.pop()]
        if not self._cutter.has_part:
            return None
        part = self._cut()
        self._unsent[part.number] = part
        return part

    def _cut(self, *, is_last: bool = False) -> StreamPart:
        try:
            return self._cutter.cut(is_last=is_last)
        except HeadwaterError as error:
            self._broken = error
            raise

    def _send(self, part: StreamPart) -> None:
        try:
            content = part_content(part, self._new.key)
            self._pace(len(content))
            checksum = self._growing.send(part.number, content, start=part.start)
        except TransientError as error:
            with self._lock:
                if isinstance(error, SourceChanged):
                    self._broken = error
                self._failed.add(part.number)
            raise
        except BaseException as error:
            with self._lock:
                if isinstance(error, HeadwaterError):
                    self._broken = error
                self._failed.add(part.number)
            raise
        with self._lock:
            self._sent(part, checksum)

    def _sent(self, part: StreamPart, checksum: int) -> None:
        self._digests[part.number] = checksum, part.size_bytes
        if self._unsent.pop(part.number, None) is not None:
            self._release(part)

    def _release(self, part: StreamPart) -> None:
        self._budget.give_back(part.held_bytes)
        self._buffer.held_bytes -= part.held_bytes

    def _check(self) -> None:
        if self._broken is not None:
            raise self._broken

    # The end

    def _finish(self) -> tuple[OffloadResult, Offloaded, RunScan]:
        with self._sending:
            if self._done is None:
                self._done = self._make_objects()
            return self._done

    def _make_objects(self) -> tuple[OffloadResult, Offloaded, RunScan]:
        if not self._is_closed or self._begin is None:
            raise UsageError(f"{self._new.key}: {'nothing was offered' if self._is_closed else 'not closed'}")
        while self.send_part():
            pass
        with self._lock:
            self._check()
            if self._unsent:
                raise TransientError(f"{self._new.key}: {len(self._unsent)} parts are in flight")
            if self._rest is None and self._buffer.first is not None:
                self._rest = self._cut(is_last=True)  # of less than a part, but for frames and headers
            scan = self._scan_result()
        rest = b"" if self._rest is None else part_content(self._rest, self._new.key)
        digest = Digest()
        for number in sorted(self._digests):
            digest.append(*self._digests[number])
        digest.update(rest)
        if rest:
            self._pace(len(rest))
        complete_confirmed(self._growing, self._store, rest, digest.size_bytes, digest.text())
        if self._rest is not None:
            with self._lock:
                self._release(self._rest)
                self._rest = self._rest._replace(held_bytes=0)
        return self._make_index(digest, scan)

    def _scan_result(self) -> RunScan:
        try:
            return self._scan.result()
        except HeadwaterError as error:
            self._broken = error
            raise

    def _make_index(self, digest: Digest, scan: RunScan) -> tuple[OffloadResult, Offloaded, RunScan]:
        cutter, begin, last = self._cutter, self._begin, self._buffer.last
        assert begin is not None
        assert last is not None
        ledgers = [
            LedgerPart(self._infos.get(ledger_id, LedgerInfo(ledger_id, end + 1)), end) for ledger_id, end in sorted(self._ends.items())
        ]
        last_offset = scan.last_offset if self._last_offset is None else self._last_offset
        content = StreamContent(digest, cutter.blocks, cutter.positions, cutter.entry_ids, ledgers, last_offset, self._offloaded_ms)
        return OffloadResult(self._new.uuid, *begin, *last), put_index(self._store, self._new, content, scan), scan
