"""What is committed is taken from the log as places in files, and sent as parts fill."""

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from archival.obstacle import Obstacle
from archival.partition import stream_writers
from archival.partition.source import open_segment
from archival.partition_status import status_of
from archival.plan.policy import StreamLimits
from headwater_core.errors import CorruptData, HeadwaterError, SuspectedGap, TransientError, UnsupportedFormat
from headwater_core.layouts import open_layout
from headwater_core.layouts.streaming import offload_handle
from headwater_core.layouts.streaming.stream_format import decode_stream_index
from headwater_core.segments import runindex
from headwater_core.segments.local_log import LocalSegment
from headwater_core.segments.run_scan import GrowingScan
from tests.archival.builders import PARTITION, Agent, Directory, fill, ranges
from tests.archival.stream_objects import AGE_MS, FLUSH, STREAM, live_bytes
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.segments.builders import a_batch, a_commit, a_segment, an_abort


def test_one_object_holds_several_segments_and_one_segment_lies_in_several(directory: Directory, agent: Agent) -> None:
    written = fill(directory, 0, 10, 20, end=25)
    assert agent.run(FLUSH) == ["claimed", "archived", "caught up"]
    assert ranges(agent.head.entries) == [(0, 24)]
    directory.append(20, a_segment(25, 5))
    directory.high_watermark(30)
    agent.run(FLUSH)
    assert ranges(agent.head.entries) == [(0, 24), (25, 29)]
    assert live_bytes(agent.store, agent.head) == written + a_segment(25, 5)


def test_a_segment_that_is_sealed_after_all_of_it_was_taken_is_a_ledger_that_has_ended(directory: Directory, agent: Agent) -> None:
    fill(directory, 0, end=5)
    agent.run(STREAM)
    directory.segment(5, a_segment(5, 3))
    directory.high_watermark(8)
    agent.run(FLUSH)
    (entry,) = agent.head.entries
    key = entry.key + "-index"
    found = decode_stream_index(agent.store.get(key)[0], key).ledgers
    assert [(each.ledger_id, each.entries, each.size_bytes) for each in found] == [(0, 5, len(a_segment(0, 5))), (5, 3, None)]
    assert found[0].closed_ms is not None
    assert found[1].closed_ms is None, "it is active"


def test_history_is_cut_into_objects_of_the_size_that_was_set(directory: Directory, agent: Agent) -> None:
    written = fill(directory, 0, 10, 20, end=30)
    limit = len(a_segment(10, 12))
    small = replace(STREAM, stream=StreamLimits(limit, AGE_MS))
    assert agent.run(small)[:-1] == ["claimed", "archived", "archived"]
    assert ranges(agent.head.entries) == [(0, 11), (12, 23)]
    assert max(each.run_bytes for each in agent.head.entries) <= limit
    agent.run(replace(FLUSH, stream=StreamLimits(limit, AGE_MS, completes=True)))
    assert live_bytes(agent.store, agent.head) == written


def test_a_batch_larger_than_an_object_may_be_is_an_object(directory: Directory, agent: Agent) -> None:
    fill(directory, 0, end=3)
    agent.run(replace(STREAM, stream=StreamLimits(1, AGE_MS)))
    assert ranges(agent.head.entries) == [(0, 0), (1, 1), (2, 2)]


def test_a_log_that_is_cut_in_place_is_read_again(directory: Directory, agent: Agent) -> None:
    fill(directory, 0, end=10)
    agent.run(STREAM)
    path = directory.path / f"{0:020}.log"
    path.write_bytes(a_segment(0, 10, epoch=0)[: path.stat().st_size - 1] + b"x")
    with pytest.raises(Exception, match=r"crc|CRC|changed"):
        agent.step(FLUSH)
    path.write_bytes(a_segment(0, 10))
    agent.run(FLUSH)
    assert live_bytes(agent.store, agent.head) == a_segment(0, 10)


def test_a_hole_in_the_log_stops_it(directory: Directory, agent: Agent) -> None:
    directory.segment(0, a_segment(0, 5), a_segment(7, 3))
    directory.high_watermark(10)
    with pytest.raises(SuspectedGap, match=r"0\.log goes from offset 4 to 7"):
        agent.run(FLUSH)
    assert ranges(agent.head.entries) == [(0, 4)]
    assert stays_in_the_way(agent, SuspectedGap)


def stays_in_the_way(agent: Agent, kind: type[HeadwaterError]) -> bool:
    """Is what one look finds what the next one would, and is the name of the next object still good?"""
    log, version = agent.logs.look(PARTITION.topic_partition), agent.head.version
    with pytest.raises(kind) as raised:
        agent.step(FLUSH)
    found = Obstacle.of(raised.value, log, agent.head.next_offset)
    return found is not None and found.remains(log) and agent.head.version == version


def test_what_precedes_offsets_that_a_segments_end_lacks_is_archived(directory: Directory, agent: Agent) -> None:
    for base, end in ((0, 8), (10, 20), (20, 25)):
        directory.segment(base, a_segment(base, end - base))
    directory.high_watermark(25)
    with pytest.raises(SuspectedGap, match=r"0\.log goes from offset 7 to 10"):
        agent.run(STREAM)
    assert ranges(agent.head.entries) == [(0, 7)], "though it is young"
    assert stays_in_the_way(agent, SuspectedGap)


def test_what_precedes_the_torn_end_of_a_sealed_segment_is_archived(directory: Directory, agent: Agent) -> None:
    fill(directory, 0, 10, end=15)
    path = directory.path / f"{0:020}.log"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CorruptData, match=r"0\.log, byte \d+: batch of \d+ bytes"):
        agent.run(STREAM)
    assert ranges(agent.head.entries) == [(0, 8)]
    assert stays_in_the_way(agent, CorruptData)


def test_a_batch_that_reaches_into_the_next_segment_is_damage(directory: Directory, agent: Agent) -> None:
    directory.segment(0, a_segment(0, 8), a_batch(8, 4))
    directory.segment(10, a_segment(10, 5))
    directory.high_watermark(15)
    with pytest.raises(CorruptData, match="the next segment begins with 10"):
        agent.run(FLUSH)
    assert ranges(agent.head.entries) == [(0, 7)]


def test_what_follows_the_last_batch_of_a_sealed_segment_is_not_read(directory: Directory, agent: Agent) -> None:
    written = fill(directory, 0, 10, end=15)
    directory.append(0, bytes(4096))
    directory.append(10, b"torn")
    agent.run(FLUSH)
    assert live_bytes(agent.store, agent.head) == written


@pytest.mark.parametrize("base", [10, 20])
def test_what_precedes_a_damaged_batch_is_archived_and_the_rest_once_it_is_repaired(directory: Directory, agent: Agent, base: int) -> None:
    written = fill(directory, 0, 10, 20, end=25)
    path = directory.path / f"{base:020}.log"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 0xFF]))
    last = {10: 19, 20: 24}[base]
    agent.run(STREAM)
    with pytest.raises(TransientError, match=f"CRC mismatch in the batch at offset {last}"):
        agent.step(FLUSH)
    with pytest.raises(CorruptData, match=rf"{base}\.log, byte {len(whole) // (last - base + 1) * (last - base)}: CRC"):
        agent.run(FLUSH)
    assert ranges(agent.head.entries) == [(0, last - 1)]
    assert stays_in_the_way(agent, CorruptData)
    path.write_bytes(whole)
    agent.run(FLUSH)
    assert live_bytes(agent.store, agent.head) == written


def test_what_no_object_can_hold_goes_run_by_run(directory: Directory, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a scan alone refuses, taking never finds."""
    fill(directory, 0, 10, end=15)
    monkeypatch.setattr(GrowingScan, "result", lambda scan: (_ for _ in ()).throw(UnsupportedFormat("too much")))
    for _ in range(2):
        with pytest.raises(TransientError, match="too much"):
            agent.run(FLUSH)
    agent.run(replace(FLUSH, tail_after_ms=0))
    assert [(each.last_offset, each.layout) for each in agent.head.entries] == [(9, "segment"), (14, "segment")]
    monkeypatch.undo()
    directory.append(10, a_segment(15, 5))
    directory.high_watermark(20)
    agent.run(FLUSH)
    assert agent.head.entries[-1].layout == "streaming"


def test_a_log_that_begins_within_a_batch_begins_with_a_run(directory: Directory, agent: Agent) -> None:
    fill(directory, 0, end=0)
    directory.segment(0, a_batch(0, 5), a_batch(5, 5))
    directory.high_watermark(10)
    directory.log_start(3)
    agent.run(replace(FLUSH, tail_after_ms=0))
    assert [each.layout for each in agent.head.entries][:1] == ["segment"]
    assert agent.head.next_offset == 10


def test_what_has_no_room_in_the_buffer_is_read_later(directory: Directory, agent: Agent) -> None:
    written = fill(directory, 0, end=5)
    agent.run(STREAM)
    agent.budget.bytes_max = 0
    directory.segment(5, a_segment(5, 5))
    directory.high_watermark(10)
    assert "the offload buffer is full" in agent.step(STREAM).reason
    agent.clock.advance(AGE_MS)
    assert agent.run(STREAM)[-1].startswith("the offload buffer is full")
    assert ranges(agent.head.entries) == [(0, 4)], "what was taken before is closed as ever"
    agent.budget.bytes_max = 1 << 20
    agent.run(FLUSH)
    assert live_bytes(agent.store, agent.head) == written + a_segment(5, 5)


def test_the_status_says_that_the_buffer_is_full(directory: Directory, agent: Agent) -> None:
    fill(directory, 0, end=5)
    agent.run(STREAM)

    def trouble() -> str:
        log = agent.logs.look(PARTITION.topic_partition)
        stream = agent.archiver.open_stream
        return status_of(PARTITION, log, agent.head, policy=STREAM, tail_age_ms=0, now_ms=0, stream=stream).stream_trouble

    assert trouble() == ""
    directory.segment(5, a_segment(5, 3))
    directory.high_watermark(8)
    agent.budget.bytes_max = 0
    agent.run(STREAM)
    assert "archival.offload_buffer_bytes" in trouble()
    agent.run(FLUSH)
    assert ranges(agent.head.entries) == [(0, 4)]
    assert "archival.offload_buffer_bytes" in trouble(), "nothing at all is taken now"
    agent.budget.bytes_max = 1 << 20
    agent.run(STREAM)
    assert trouble() == ""


def test_parts_go_while_it_fills_and_their_files_are_closed(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    grow = MemoryStore.grow

    def counted(store: MemoryStore, key: str, **form: Any) -> Any:
        growing = grow(store, key, **form)
        send = growing.send

        def count(number: int, *rest: Any, **named: Any) -> int:
            sent.append(number)
            return send(number, *rest, **named)

        monkeypatch.setattr(growing, "send", count)
        return growing

    monkeypatch.setattr(MemoryStore, "grow", counted)
    agent, large = Agent(directory.root), replace(STREAM, stream=StreamLimits(64 << 20, AGE_MS))
    runs = [a_segment(at, 10, value_bytes=300 << 10) for at in (0, 10, 20)]
    for at, run in zip((0, 10, 20), runs, strict=True):
        directory.segment(at, run)
    directory.high_watermark(30)
    agent.run(large)
    assert sent == [1], "of nine MiB, and a part has five"
    directory.path.joinpath(f"{0:020}.log").unlink()
    directory.log_start(10)
    agent.clock.advance(AGE_MS)
    agent.run(large)
    assert ranges(agent.head.entries) == [(0, 29)], "what the broker has deleted meanwhile was open"
    assert live_bytes(agent.store, agent.head) == b"".join(runs)


@pytest.mark.parametrize("marker", [an_abort, a_commit])
def test_an_object_ends_before_its_index_is_fuller_than_a_reader_takes(
    directory: Directory, agent: Agent, monkeypatch: pytest.MonkeyPatch, marker: Any
) -> None:
    """An object without bounds takes all of a log at one look, before its index is known."""
    monkeypatch.setattr(runindex, "ABORTED_MAX", 4_200)
    end, one = 12_000, (a_batch(0, 1, producer=7, transactional=True), bytes(marker(1, 7)))
    batches = [offset.to_bytes(8, "big") + one[offset % 2][8:] for offset in range(end)]  # no checksum covers a base offset
    directory.segment(0, *batches)
    directory.high_watermark(end)
    agent.run(replace(FLUSH, stream=StreamLimits(1 << 30, AGE_MS, completes=True)))
    entries = list(agent.head.entries)
    aborted = [len(open_layout("streaming").read_offloaded(agent.store, each).read_index().aborted) for each in entries]
    assert aborted == ([4_200, 1_800] if marker is an_abort else [0])
    assert live_bytes(agent.store, agent.head) == b"".join(batches)


def test_an_object_has_no_more_parts_than_a_store_takes(directory: Directory, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload_handle, "PARTS_MAX", 3)
    monkeypatch.setattr(stream_writers, "PART_BYTES", 2_000)
    written = fill(directory, 0, 50, 100, 150, end=200)
    agent.run(replace(FLUSH, stream=StreamLimits(1 << 30, AGE_MS, completes=True)))
    assert max(each.size_bytes for each in agent.head.entries) <= 3 * 2_000
    assert len(agent.head.entries) == 4
    assert live_bytes(agent.store, agent.head) == written


def open_files(directory: Directory) -> int:
    found = (os.path.realpath(each) for each in Path("/proc/self/fd").iterdir())
    return sum(each.startswith(f"{directory.path.resolve()}/") for each in found)


@pytest.mark.parametrize("part_bytes", [100, 5 << 20])
def test_a_history_of_small_segments_opens_few_files(
    directory: Directory, agent: Agent, monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
    monkeypatch.setattr(stream_writers, "PART_BYTES", part_bytes)
    written = fill(directory, *range(0, 400, 2), end=400)
    agent.step(STREAM)
    most = 0
    while agent.step(STREAM).progressed:
        most = max(most, open_files(directory))
    assert 0 < max(most, open_files(directory)) <= 65, "with one that is being opened"
    agent.run(FLUSH)
    assert ranges(agent.head.entries) == ([(0, 127), (128, 255), (256, 383), (384, 399)] if part_bytes > 100 else [(0, 399)])
    assert open_files(directory) == 0
    assert live_bytes(agent.store, agent.head) == written


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_without_descriptors_what_was_taken_is_closed_and_gives_back_its_own(directory: Directory, agent: Agent, code: int) -> None:
    written, left = fill(directory, *range(0, 60, 10), end=60), [3]

    def scarce(segment: LocalSegment) -> BinaryIO:
        if open_files(directory) >= left[0]:
            raise TransientError("no descriptor") from OSError(code, os.strerror(code))
        return open_segment(segment)

    other = Agent(agent.root, store=agent.store, clock=agent.clock, open_segment=scarce)
    other.run(FLUSH)
    assert ranges(other.head.entries) == [(0, 29), (30, 59)]
    assert live_bytes(other.store, other.head) == written
    directory.segment(60, a_segment(60, 10))
    directory.high_watermark(70)
    left[0] = 0
    with pytest.raises(TransientError, match="no descriptor"):
        other.step(FLUSH)
    left[0] = 1
    other.run(FLUSH)
    assert ranges(other.head.entries) == [(0, 29), (30, 59), (60, 69)]


def test_what_fails_for_want_of_descriptors_gives_back_its_own(directory: Directory, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    written = fill(directory, 0, end=10)
    agent.run(STREAM)
    assert open_files(directory) == 1

    def refuse(*_: object, **__: object) -> str:
        raise TransientError("no socket") from OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(MemoryStore, "put", refuse)
    with pytest.raises(TransientError):
        agent.step(FLUSH)
    assert (open_files(directory), agent.budget.used_bytes) == (0, 0)
    monkeypatch.undo()
    agent.run(FLUSH)
    assert live_bytes(agent.store, agent.head) == written
