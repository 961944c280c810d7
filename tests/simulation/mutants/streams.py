"""Mistakes about objects that are written while they fill."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import archival.plan.step_plan
from archival.partition.archiver import PartitionArchiver
from archival.partition.streams import PartitionStreams
from archival.plan.steps import Follow, Step
from archival.plan.stream_plan import assigned_to
from headwater_core.errors import TransientError
from headwater_core.layouts.chunks.chunk_map import Tile
from headwater_core.layouts.chunks.chunk_segment import ChunkPiece, ChunkSegment, WrittenChunk
from headwater_core.layouts.streaming.offload_buffer import OffloadBuffer
from headwater_core.segments.local_log import LocalLog
from manifests.head import Head
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
