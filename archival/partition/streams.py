"""What is written of one partition while it fills, objects or segments of chunks, one after the other: begun, followed, closed, or given
up."""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import structlog

from archival.partition.entry_reader import ArchivedEntries
from archival.partition.segment_stream import BatchPlace, SegmentStream, lacks_descriptors
from archival.partition.source import OpenSegment
from archival.partition.stream_writers import ChunkWriter, ClosedRun, ObjectWriter, StreamWriter, chunk_place
from archival.partition.tails import Tails
from archival.partition.uploads import Uploads
from archival.plan.lineage import branches_at, newest_epoch
from archival.plan.policy import Policy, StreamLimits
from archival.plan.steps import Follow
from archival.plan.stream_plan import LAYOUT, NO_ROOM, OpenStream, assigned_to, reason_to_close, with_assignment
from headwater_core import milestones
from headwater_core.errors import CorruptData, HeadwaterError, NotFound, SourceChanged, SuspectedGap, TransientError, UnsupportedFormat
from headwater_core.layouts.chunks.chunks_layout import chunk_form
from headwater_core.layouts.chunks.upload_pool import UploadPool
from headwater_core.layouts.streaming import OffloadBudget
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId
from headwater_core.segments.local_log import LocalLog
from headwater_core.segments.run_scan import RunScan
from manifests import chunk_keys
from manifests.entry import Entry
from manifests.entry_tree import EntryTree
from manifests.head import Head
from manifests.pending_list import PendingObject

MILESTONES = ("stream.begun", "stream.sent", "stream.uploaded", "stream.closed")
"""The points that an object passes, in order; the second after each look at the log."""

PAUSED_MS_MAX = (
    600_000  # so long a pause keeps what is open, with the files that the broker deletes meanwhile; a longer one has it begun again
)


class StreamEquipment(Protocol):
    """What it takes of an archiver's."""

    @property
    def store(self) -> ObjectStore: ...
    @property
    def tails(self) -> Tails: ...
    @property
    def writer(self) -> str: ...
    @property
    def new_uid(self) -> Callable[[], str]: ...
    @property
    def open_segment(self) -> OpenSegment: ...
    @property
    def budget(self) -> OffloadBudget: ...
    @property
    def pool(self) -> UploadPool: ...


class PartitionStreams:
    """Lost with the process: what was begun is begun again then, under another name, from the log."""

    def __init__(self, partition: PartitionId, equipment: StreamEquipment, archived: ArchivedEntries) -> None:
        self._partition, self._equipment, self._archived = partition, equipment, archived
        self._stream: SegmentStream | None = None
        self._own_uid = ""  # the name that this very process has assigned
        self._limits: StreamLimits | None = None  # as they were when it was last followed
        self._streams: bool | None = None  # is something written while it fills? None: not known yet
        self._place: BatchPlace | None = None
        self._suspected_to = self._runs_to = 0  # before these offsets is damage: what is taken is verified, nothing is streamed
        self._paused_ms: int | None = None  # since then nothing may be archived
        self._log = structlog.get_logger().bind(partition=str(partition), topic_id=partition.topic_id, writer=equipment.writer)

    @property
    def size_bytes(self) -> int:
        """Of what was taken and is not listed yet."""
        return self._stream.size_bytes if self._stream is not None else 0

    @property
    def held_to(self) -> int:
        """The offset after what was taken and is not listed yet; 0 where there is nothing."""
        return self._stream.next_offset if self._stream is not None and self._stream.size_bytes else 0

    @property
    def open_stream(self) -> OpenStream | None:
        """What was taken and is not listed yet; None where nothing was, unless for want of room. For any thread: it may be a step old."""
        stream = self._stream
        if stream is None or not (stream.size_bytes or stream.lacks_room):
            return None
        base_offset, stored_bytes = stream.pending.base_offset, stream.stored_bytes
        return OpenStream(base_offset, stream.next_offset, stream.size_bytes, stream.lacks_room, stored_bytes, stream.failed)

    def follow(self, head: Head | None, log: LocalLog, policy: Policy) -> Policy:
        """What `policy` comes to: where streaming was switched off, or set otherwise, what is open is completed first. What holds what
        `log` has lost is given up: it is never completed over a dead branch."""
        self.check(head)
        self._paused_ms = None
        stream = self._stream
        if stream is not None and stream.size_bytes and branches_at(log.epochs, EntryTree((_as_entry(stream),))) is not None:
            self.give_up("the log was cut below what it holds")
        limits, is_open = self._limits if policy.stream is None else policy.stream, self.size_bytes > 0
        if is_open and limits is not None and (policy.stream is None or _layout_of(limits) != self._layout):
            self._streams = None  # nothing follows
            return replace(policy, stream=limits._replace(completes=True))
        self._streams, self._limits = policy.stream is not None, policy.stream
        if limits is not None and is_open and head is not None and head.next_offset < log.start_offset:
            return replace(policy, stream=limits._replace(completes=True))  # the broker deletes what is open
        return policy

    def stop(self, reason: str, *, is_paused: bool) -> None:
        """Nothing may be archived any more, for `reason`: what is open is given up, during a pause only when that lasts."""
        now_ms = self._equipment.tails.now_ms()
        if self._paused_ms is None:
            self._paused_ms = now_ms
        if not is_paused or now_ms - self._paused_ms >= PAUSED_MS_MAX:
            self.give_up(reason)

    @property
    def _layout(self) -> str:
        """Of what is open, or else of what is written next."""
        if self._stream is not None:
            return self._stream.pending.layout
        return LAYOUT if self._limits is None else _layout_of(self._limits)

    def may_write(self, head: Head) -> bool:
        """Is there a name for what is to be written that no other process can have used, and that has not failed?"""
        pending = assigned_to(head)
        return pending is not None and pending.uid == self._own_uid and pending.layout == self._layout

    def abandoned(self, head: Head) -> str | None:
        """What `head` has assigned, and another process did, or this one has given up; None when there is no such thing."""
        pending = assigned_to(head)
        return None if pending is None or pending.uid == self._own_uid else pending.uid

    def advance(
        self, step: Follow, head: Head, log: LocalLog, policy: Policy, age_ms: int, uploads: Uploads
    ) -> tuple[ClosedRun, ...] | str | None:
        """Take what is committed and send what is full. What is to be listed when it is closed; else why it is open, for people; None
        where no object can begin. Raises what the log and the store do; what was written may be given up then."""
        limits = policy.stream_limits
        assert limits is not None
        if self._stream is None and step.first < self._runs_to:
            return None
        if self._stream is None:
            self._stream = self._begin(head, limits, uploads)
            milestones.reached("stream.begun")
        stream = self._stream
        try:
            if not stream.is_closed:
                stream.take(log, step.end, limits.segment_bytes)
                if stream.cannot_begin:
                    self._drop(stream)
                    return None
                stream.send()
                milestones.reached("stream.sent")
            if not stream.size_bytes:
                return NO_ROOM if stream.lacks_room else "nothing of it is a whole batch"
            if not stream.is_closed:
                reason = reason_to_close(limits, size_bytes=stream.size_bytes, age_ms=age_ms, is_full=stream.is_full)
                if not reason:
                    rest = f"; {NO_ROOM}" if stream.lacks_room else ""
                    return f"a stream is open: {stream.size_bytes} bytes of {limits.segment_bytes}, {age_ms // 1000} s old{rest}"
            if (log.high_watermark or 0) < stream.next_offset:
                return f"the high watermark fell below {stream.next_offset}, where a stream ends"
            closed = stream.close(self._equipment.tails.now_ms())
        except TransientError as error:
            if isinstance(error, SourceChanged) or (stream.size_bytes and lacks_descriptors(error)):  # others get its own
                self.give_up(str(error))
            raise
        except NotFound as error:
            self.give_up(str(error))
            raise TransientError(f"{self._partition}: what was sent of a stream is gone: {error}") from error
        except (CorruptData, SuspectedGap, UnsupportedFormat) as error:
            if not stream.size_bytes:
                self._drop(stream)
                raise
            self._suspect(stream)
            self.give_up(str(error))
            raise TransientError(f"{self._partition}: what was taken is damaged, what precedes that is next: {error}") from error
        except HeadwaterError as error:
            self.give_up(str(error))
            raise
        if not stream.is_before_damage and closed[-1].entry.next_offset >= self._suspected_to:
            self._suspected_to = self._runs_to = 0
        milestones.reached("stream.uploaded")
        return closed

    def _suspect(self, stream: SegmentStream) -> None:
        """Something up to its end is damaged: the next one verifies before it takes. If that one has not found it, runs do, one by one."""
        if stream.pending.base_offset < self._suspected_to:
            self._runs_to = max(self._suspected_to, stream.next_offset)
        self._suspected_to = max(self._suspected_to, stream.next_offset)

    def _drop(self, stream: SegmentStream) -> None:
        """It has taken nothing, and its name stays."""
        self._stream = None
        stream.release()

    def _begin(self, head: Head, limits: StreamLimits, uploads: Uploads) -> SegmentStream:
        pending = assigned_to(head)
        assert pending is not None
        return SegmentStream(
            self._writer(pending, head, limits, uploads),
            newest_epoch=newest_epoch(head.entries),
            open_segment=self._equipment.open_segment,
            place=self._place,
            verifies=pending.base_offset < self._suspected_to,
        )

    def _writer(self, pending: PendingObject, head: Head, limits: StreamLimits, uploads: Uploads) -> StreamWriter:
        equipment, open_before = self._equipment, self._archived.open_after(head.entries)

        def pace(size_bytes: int) -> None:
            if uploads.pace is not None:
                uploads.pace(size_bytes)

        metadata, budget = uploads.metadata, equipment.budget
        if limits.chunks is None:
            return ObjectWriter(
                self._partition, equipment.store, pending, budget=budget, open_before=open_before, metadata=metadata, pace=pace
            )
        return ChunkWriter(
            chunk_place(self._partition, equipment.writer, pending.fence, pending.base_offset, limits.chunks),
            equipment.store,
            pending,
            limits.chunks,
            budget=budget,
            pool=equipment.pool,
            now_ms=equipment.tails.now_ms,
            open_before=open_before,
            form=chunk_form(self._partition, metadata),
            pace=pace,
        )

    def assigned(self, before: Head | None, after: Head, *, fails: bool, next_fence: Callable[[Head], int]) -> Head:
        """See with_assignment. Raises what `next_fence` does."""
        return with_assignment(
            before,
            after,
            streams=self._streams,
            fails=fails,
            new_uid=self._new_uid,
            next_fence=next_fence,
            now_ms=self._equipment.tails.now_ms(),
            layout=LAYOUT if self._limits is None else _layout_of(self._limits),
        )

    def _new_uid(self, head: Head) -> str:
        """Of what begins where `head` ends: of a segment of chunks it follows from its place."""
        chunks = self._limits.chunks if self._limits is not None else None
        if chunks is None:
            return self._equipment.new_uid()
        return chunk_keys.segment_uid(chunk_place(self._partition, self._equipment.writer, head.fence, head.next_offset, chunks))

    def committed(self, before: Head | None, head: Head) -> None:
        """`head` follows `before`, by a commit of this process."""
        pending, was = assigned_to(head), assigned_to(before) if before is not None else None
        if pending is not None and (was is None or pending.uid != was.uid):
            self._own_uid = pending.uid
        self.check(head)

    def check(self, head: Head | None) -> None:
        """What `head` does not name as pending is listed no more."""
        stream = self._stream
        if stream is None:
            return
        pending = assigned_to(head) if head is not None else None
        if pending is not None and pending.uid == stream.pending.uid:
            return
        self._place = stream.place
        if head is not None and head.entries and head.entries[-1].uid in stream.uids:
            self._stream = None
            stream.release()
        else:
            self.give_up("another commit came first")

    def remember(self, entry: Entry, scan: RunScan) -> None:
        """It is listed now."""
        self._archived.remember_open(entry, scan.open_transactions)

    def give_up(self, reason: str) -> None:
        """What was begun is begun again, under another name."""
        stream = self._stream
        if stream is not None and stream.size_bytes:
            self._log.info("stream_given_up", uid=stream.pending.uid, size_bytes=stream.size_bytes, reason=reason)
        self.end()

    def end(self) -> bool:
        """Drop what is open: at the end of the process, say, after which another one begins it again. False where the store keeps what was
        sent."""
        stream, self._stream = self._stream, None
        if stream is None:
            return True
        self._own_uid = ""
        return stream.give_up()


def _layout_of(limits: StreamLimits) -> str:
    return LAYOUT if limits.chunks is None else chunk_keys.LAYOUT


def _as_entry(stream: SegmentStream) -> Entry:
    """As far as its lineage goes."""
    return Entry(
        base_offset=stream.pending.base_offset,
        last_offset=stream.next_offset - 1,
        epochs=stream.epochs,
        layout=stream.pending.layout,
        size_bytes=stream.size_bytes,
        live_bytes=stream.size_bytes,
    )
