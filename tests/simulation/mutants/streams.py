"""Mistakes about objects that are written while they fill."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import archival.collection.collector
import archival.plan.step_plan
import headwater_core.layouts.streaming.offload_handle
import headwater_core.layouts.streaming.stream_objects
from archival.partition.archiver import PartitionArchiver
from archival.partition.streams import PartitionStreams
from archival.plan.steps import Follow, Step
from archival.plan.stream_plan import assigned_to
from headwater_core.errors import AlreadyExists, TransientError, UnknownOutcome
from headwater_core.layouts.chunks import consolidation
from headwater_core.layouts.chunks.chunk_map import Tile
from headwater_core.layouts.chunks.chunk_segment import ChunkPiece, ChunkSegment, WrittenChunk
from headwater_core.layouts.streaming import LedgerEntries, OfferResult, OffloadHandle
from headwater_core.layouts.streaming.offload_buffer import OffloadBuffer
from headwater_core.objectstore.store import GrowingObject, NewObject, ObjectStore
from headwater_core.segments.local_log import LocalLog
from manifests.head import Head
from manifests.namesakes import listed_uids, packed
from tests.simulation.mutants.mutant import mutant, patch_in


@mutant("after a crash a stream continues under the name that was assigned before", theme="streams", noted=54)
def stream_same_name(stack: ExitStack) -> None:
    patch_in(stack, PartitionStreams, "may_write", lambda self, head: assigned_to(head) is not None)


@mutant("a stream is listed though its name is not pending any more", theme="streamed branches", noted=3)
def stream_not_pending(stack: ExitStack) -> None:
    patch_in(stack, PartitionStreams, "check", lambda self, head: None)
    patch_in(stack, PartitionStreams, "may_write", lambda self, head: True)


@mutant("a segment of chunks counts what was sent as stored", theme="streamed chunks in trouble", noted=74)
def chunks_unconfirmed(stack: ExitStack) -> None:
    real = ChunkSegment._write_chunk, ChunkSegment._append_chunk

    def write(self: ChunkSegment, piece: ChunkPiece) -> WrittenChunk:
        try:
            return real[0](self, piece)
        except TransientError:
            return WrittenChunk(piece.held + bytes(piece.data), "", len(piece.data))

    def append(self: ChunkSegment, data: memoryview) -> int:
        at = self.end
        try:
            return real[1](self, data)
        except TransientError:
            self._tiles.append(Tile(at, len(data), self.place.chunk_key(at)))
            return len(data)

    patch_in(stack, ChunkSegment, "_write_chunk", write)
    patch_in(stack, ChunkSegment, "_append_chunk", append)


@mutant("an object that was made of chunks is not looked at", theme="scattered chunks", noted=4)
def joined_unconfirmed(stack: ExitStack) -> None:
    patch_in(stack, consolidation, "_check", lambda *_: None)


@mutant("a stream takes what is not committed yet", theme="streams", noted=62)
def stream_above_hw(stack: ExitStack) -> None:
    real = archival.plan.step_plan._uploads

    def uploads(log: LocalLog, head: Head, high_watermark: int, *rest: Any) -> Iterator[Step]:
        for step in real(log, head, high_watermark, *rest):
            yield Follow(step.first, 2**62) if isinstance(step, Follow) else step

    patch_in(stack, archival.plan.step_plan, "_uploads", uploads)


@mutant("a process that ends leaves what it holds open", in_race=True)
def stream_outlives_its_process(stack: ExitStack) -> None:
    patch_in(stack, PartitionArchiver, "end", lambda self: True)


@mutant("what is given up keeps its part of the offload buffer", theme="streams", noted=26)
def stream_keeps_buffer(stack: ExitStack) -> None:
    patch_in(stack, OffloadBuffer, "return_held", lambda self: None)


@mutant("the index of a stream that got no answer is taken for there", theme="streams", noted=7)
def stream_index_unconfirmed(stack: ExitStack) -> None:
    def put_all(store: ObjectStore, objects: Sequence[NewObject], digests: Sequence[str]) -> None:
        for each in objects:
            with suppress(AlreadyExists, UnknownOutcome):
                store.put_all([each])

    patch_in(stack, headwater_core.layouts.streaming.stream_objects, "put_all_confirmed", put_all)


@mutant("the data of a stream that got no answer is taken for there", theme="streams", noted=6)
def stream_data_unconfirmed(stack: ExitStack) -> None:
    def complete(growing: GrowingObject, store: ObjectStore, rest: bytes, size_bytes: int, digest: str) -> None:
        with suppress(AlreadyExists, UnknownOutcome):
            growing.complete(rest)

    patch_in(stack, headwater_core.layouts.streaming.offload_handle, "complete_confirmed", complete)


@mutant("what has no room in the offload buffer is passed over", theme="streams", noted=5)
def stream_passes_over(stack: ExitStack) -> None:
    real = OffloadHandle.offer

    def offer(self: OffloadHandle, entries: LedgerEntries) -> OfferResult:
        done = real(self, entries)
        return OfferResult.SUCCESS if done is OfferResult.FAIL_BUFFER_FULL else done

    patch_in(stack, OffloadHandle, "offer", offer)


@mutant("an object goes when the first of its ledgers is over", theme="streamed branches", noted=26)
def stream_goes_with_its_first_ledger(stack: ExitStack) -> None:
    def listed(head: Head) -> set[bytes]:
        found = listed_uids(head)
        first = next(iter(head.entries), None)
        if first is not None and first.layout == "streaming" and first.base_offset < head.start_offset:
            found.discard(packed(first.uid))
        return found

    patch_in(stack, archival.collection.collector, "listed_uids", listed)
