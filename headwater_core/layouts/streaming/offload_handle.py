"""One streaming object while it is written: PIP-76's OffloadHandle."""

import io
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from headwater_core import VERSION as SOFTWARE_VERSION
from headwater_core.errors import HeadwaterError, SourceChanged, TransientError, UsageError
from headwater_core.layouts.offloader import Offloaded
from headwater_core.layouts.segment_metadata import Point, RunFacts, encode_segment_metadata, shown_points
from headwater_core.layouts.streaming.offload_buffer import (
    EntryPosition,
    LedgerEntries,
    OfferResult,
    OffloadBudget,
    OffloadBuffer,
)
from headwater_core.layouts.streaming.part_cutter import PartCutter, Scan, StreamPart, part_content
from headwater_core.layouts.streaming.stream_format import (
    PULSAR_VERSION,
    PULSAR_VERSION_NAME,
    VERSION,
    LedgerInfo,
    SegmentContext,
    encode_stream_index,
)
from headwater_core.layouts.streaming.stream_names import (
    FENCE_NAME,
    SEGMENT_NAME,
    VERSION_NAME,
    encode_segment_name,
    index_key,
    meta_key,
)
from headwater_core.objectstore.confirmed_put import complete_confirmed, put_all_confirmed
from headwater_core.objectstore.digest import Digest, digest_of
from headwater_core.objectstore.store import METADATA_BYTES_MAX, NewObject, ObjectForm, ObjectStore
from headwater_core.partition import PartitionId
from headwater_core.segments.run_scan import GrowingScan, RunScan
from headwater_core.segments.runindex import encode_index
from headwater_core.segments.transactions import OpenTransaction

PART_BYTES = 5 << 20  # of each part but the last, and more by one batch: what S3 wants at least
_PARTS_MAX = 9_900  # a multipart upload has at most 10,000


class OffloadResult(NamedTuple):
    """What the object holds, both ends inclusive."""

    uuid: UUID
    begin_ledger: int
    begin_entry: int
    end_ledger: int
    end_entry: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewStream:
    """What is to be written.

    key              of the data object; its last component is `uuid`
    base_offset      of the run, as the manifest will list it; None: that of the first batch
    open_before      transactions open before the first batch
    assigned_ms      when the segment was assigned; 0: not said
    driver_metadata  for people and Pulsar, in the index object
    extra_metadata   for people who inspect the store: user metadata of the data object
    """

    partition: PartitionId
    key: str
    uuid: UUID
    fence: int | None
    base_offset: int | None = None
    open_before: tuple[OpenTransaction, ...] = ()
    assigned_ms: int = 0
    driver_metadata: Mapping[str, str] = field(default_factory=dict)
    extra_metadata: Mapping[str, str] = field(default_factory=dict)


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
        scan: Scan | None = None,
    ) -> None:
        """budget is everybody's; pace is called with a part's length before it goes. Asks for nothing."""
        self._store, self._new, self._budget, self._pace = store, new, budget, pace
        self._lock = threading.Lock()
        self._sending = threading.Lock()  # held while the end is made
        self._buffer = OffloadBuffer(budget)
        self._scan: Scan = GrowingScan(new.open_before, new.key) if scan is None else scan
        self._cutter = PartCutter(self._buffer, self._scan, max(part_bytes, store.part_bytes_min), new.key)
        self._growing = store.grow(new.key, metadata={**new.extra_metadata, **self._own_metadata()})
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
        return _PARTS_MAX * self._cutter.part_bytes * 3 // 4

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
            self._budget.give_back(self._buffer.held_bytes)
            self._buffer.held_bytes = 0
            self._buffer.clear()
            self._unsent.clear()
        self._growing.abort()

    # Parts

    @property
    def _is_full(self) -> bool:
        """Of what one object, or the index of its run, can have."""
        return self._cutter.parts >= _PARTS_MAX or self._scan.is_full

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
        new, cutter = self._new, self._cutter
        begin, last = self._begin, self._buffer.last
        assert begin is not None
        assert last is not None
        base_offset = scan.base_offset if new.base_offset is None else new.base_offset
        last_offset = scan.last_offset if self._last_offset is None else self._last_offset
        offsets, positions = scan.index.points.offsets, cutter.positions
        points = [Point(offsets[at], cutter.entry_ids[at], positions[at]) for at in shown_points(positions, cutter.size_bytes)]
        facts = RunFacts(new.partition, base_offset, last_offset, scan.index)
        segment = encode_segment_metadata(facts, points, positions, cutter.entry_ids)
        infos = [self._infos.get(ledger_id, LedgerInfo(ledger_id, end + 1)) for ledger_id, end in sorted(self._ends.items())]
        contexts = [
            SegmentContext(new.uuid, end, new.assigned_ms, self._offloaded_ms, "headwater", new.driver_metadata)
            for _, end in sorted(self._ends.items())
        ]
        index = encode_stream_index(infos, contexts, cutter.blocks, digest.size_bytes)
        metadata = {**self._own_metadata(), SEGMENT_NAME: encode_segment_name(segment)}
        objects: list[NewObject] = []
        context = {"version": VERSION, "index_bytes": str(len(index)), "index_digest": digest_of(index)}
        context["segment_bytes"], context["segment_digest"] = str(len(segment)), digest_of(segment)
        fits = sum(len(name) + len(value) for name, value in metadata.items()) <= METADATA_BYTES_MAX
        if not fits:
            del metadata[SEGMENT_NAME]
        if not fits or not self._store.keeps_metadata:
            objects.append(NewObject(meta_key(new.key), io.BytesIO(segment), len(segment), ObjectForm(self._own_metadata())))
            context["segment_in"] = "meta"
        objects.append(NewObject(index_key(new.key), io.BytesIO(index), len(index), ObjectForm(metadata)))
        digests = [context["segment_digest"], context["index_digest"]][-len(objects) :]
        put_all_confirmed(self._store, objects, digests)
        run_index = encode_index(scan.index)
        done = Offloaded(
            size_bytes=digest.size_bytes,
            digest=digest.text(),
            run_bytes=scan.size_bytes,
            run_digest=scan.digest,
            index_bytes=len(run_index),
            index_digest=digest_of(run_index),
            context=context,
        )
        return OffloadResult(new.uuid, *begin, *last), done, scan

    def _own_metadata(self) -> dict[str, str]:
        new = self._new
        metadata = {
            VERSION_NAME: VERSION,
            "headwater-partition": f"{new.partition.topic}:{new.partition.partition}",
            "headwater-software": f"headwater {SOFTWARE_VERSION}",
            PULSAR_VERSION_NAME: PULSAR_VERSION,
        }
        return metadata if new.fence is None else {**metadata, FENCE_NAME: str(new.fence)}
