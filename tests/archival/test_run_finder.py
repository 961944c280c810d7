from dataclasses import replace
from typing import Any, BinaryIO

import pytest

from archival.partition.run_finder import Run, RunEnd, find_run
from archival.partition.source import FoundBatch, find_batch
from archival.plan.lineage import CutAt
from archival.plan.steps import Upload
from headwater_core.errors import CorruptData, SuspectedGap, UnrelatedLog
from headwater_core.segments.local_log import LocalLog, LocalSegment
from manifests.entry import Entry
from manifests.entry_tree import EntryTree
from tests.archival.builders import EVERYTHING, PARTITION, SEALED, Agent, Directory, fill, ranges
from tests.headwater_core.segments.builders import a_batch, a_segment
from tests.manifests.builders import an_entry


def test_a_gap_between_segments_stops_everything(directory: Directory, agent: Agent) -> None:
    directory.segment(0, a_segment(0, 5))
    directory.segment(10, a_segment(10, 5))
    directory.segment(15)
    directory.high_watermark(15)
    with pytest.raises(SuspectedGap, match="offset 5"):
        agent.run()
    assert agent.head.last_offset == 4


def test_a_gap_inside_a_segment_stops_everything(directory: Directory, agent: Agent) -> None:
    directory.segment(0, a_batch(0), a_batch(3))
    directory.segment(4)
    directory.high_watermark(4)
    with pytest.raises(SuspectedGap, match="lacks offset 1"):
        agent.run()
    assert agent.head.entries == ()


def test_gaps_of_a_compacted_log_belong_to_an_entry(directory: Directory, agent: Agent) -> None:
    directory.segment(0, a_batch(2), a_batch(5))
    directory.segment(10, a_batch(12))
    directory.segment(20, a_batch(20))
    directory.high_watermark(21)
    directory.cleaned(20)
    agent.run()
    assert ranges(agent.head.entries) == [(0, 9), (10, 19), (20, 20)]


def test_an_entry_reaches_no_further_than_its_leader_epoch(directory: Directory, agent: Agent) -> None:
    directory.segment(0, a_batch(2, epoch=0))
    directory.segment(10, a_batch(12, epoch=3))
    directory.segment(20)
    directory.epochs((0, 0), (3, 7))
    directory.high_watermark(20)
    directory.cleaned(20)
    agent.run(SEALED)
    assert ranges(agent.head.entries) == [(0, 6), (7, 19)]


def test_a_log_compacted_after_archiving_continues_after_it(directory: Directory, agent: Agent) -> None:
    fill(directory, 0, 10, 20, end=30)
    directory.cleaned(20)
    agent.run(SEALED)
    (directory.path / f"{10:020}.log").unlink()
    directory.segment(0, a_batch(8), a_batch(18))  # cleaned into one
    assert agent.run()[:-1] == ["archived"]
    assert ranges(agent.head.entries) == [(0, 9), (10, 19), (20, 29)]


def test_a_batch_across_the_archived_end_in_the_same_epoch_is_damage(directory: Directory, agent: Agent) -> None:
    directory.segment(0, a_batch(0, 5))
    directory.high_watermark(5)
    agent.run()
    (directory.path / f"{0:020}.log").unlink()
    directory.segment(0, a_batch(0, 3), a_batch(3, 5))
    directory.high_watermark(8)
    with pytest.raises(CorruptData, match="across the end"):
        agent.run()


def test_a_dead_branch_below_a_silent_history_shows_in_a_batch_that_reaches_across(directory: Directory, agent: Agent) -> None:
    fill(directory, 0, end=20)
    agent.run()
    directory.segment(0)
    (directory.path / f"{0:020}.log").unlink()
    directory.segment(18, a_batch(18, 4, epoch=3), a_batch(22, 2, epoch=3))
    directory.epochs((3, 21))
    directory.log_start(21)
    directory.high_watermark(24)
    with pytest.raises(UnrelatedLog, match="archived from 18 on"):
        agent.run()
    assert agent.run(replace(EVERYTHING, begin_anew_epoch=3)) == ["cut", "archived", "caught up"]
    assert ranges(agent.head.entries) == [(0, 17), (18, 23)]


def test_a_dead_branch_below_a_silent_history_shows_in_an_older_epoch_after_it(directory: Directory, agent: Agent) -> None:
    """The log start's checkpoint is older than its epoch history, so the batch below it is taken for one of the log."""
    directory.segment(0, a_batch(0, 5, epoch=2), a_batch(5, 5, epoch=5))
    directory.segment(10)
    directory.epochs((2, 0), (5, 5))
    directory.high_watermark(10)
    agent.run()
    (directory.path / f"{0:020}.log").unlink()
    directory.segment(0, a_batch(0, 5, epoch=2), a_batch(5, 5, epoch=3), a_batch(10, 2, epoch=4), a_batch(12, 3, epoch=6))
    (directory.path / f"{10:020}.log").unlink()
    directory.epochs((6, 13))
    directory.log_start(0)
    directory.high_watermark(15)
    with pytest.raises(UnrelatedLog, match="archived from 5 on"):
        agent.run()
    assert agent.run(replace(EVERYTHING, begin_anew_epoch=6)) == ["cut", "archived", "caught up"]
    assert [each.epoch for entry in agent.head.entries for each in entry.epochs] == [2, 3, 4, 6]


def test_the_first_object_begins_at_the_batch_that_holds_the_log_start(directory: Directory, agent: Agent) -> None:
    directory.segment(0, a_batch(0, 5), a_batch(5, 5), a_batch(10, 5))
    directory.high_watermark(15)
    directory.log_start(7)
    agent.run()
    assert (agent.head.start_offset, ranges(agent.head.entries)) == (7, [(5, 14)])


def test_a_batch_across_the_high_watermark_waits_whole(directory: Directory, agent: Agent) -> None:
    directory.segment(0, a_batch(0, 3), a_batch(3, 4))
    directory.high_watermark(5)
    agent.run()
    assert ranges(agent.head.entries) == [(0, 2)]


def test_a_torn_tail_is_not_touched(directory: Directory, agent: Agent) -> None:
    directory.segment(0, a_segment(0, 5), a_batch(5)[:40])
    directory.high_watermark(5)
    agent.run()
    assert agent.head.last_offset == 4


# One file


def a_step(directory: Directory, first: int, end: int, **fields: Any) -> tuple[Upload, LocalLog]:
    """An upload from the last segment of the directory."""
    log = Agent(directory.root).logs.look(PARTITION.topic_partition)
    return Upload(segment=log.segments[-1], **{"first": first, "read_from": first, "end": end, **fields}), log


def found(step: Upload, log: LocalLog, *entries: Entry, last_run: RunEnd | None = None) -> Run | CutAt | None:
    with step.segment.path.open("rb") as file:
        return find_run(step, file, log, EntryTree(entries), lambda _: (), last_run)


def test_a_run_ends_below_the_end_of_its_step(directory: Directory) -> None:
    directory.segment(0, a_segment(0, 10))
    run = found(*a_step(directory, 3, 7))
    assert isinstance(run, Run)
    assert (run.base_offset, run.last_offset, run.scan.records) == (3, 6, 4)


def test_a_file_without_a_whole_batch_for_it_has_no_run(directory: Directory) -> None:
    directory.segment(0, a_batch(0, 5), a_batch(5, 5))
    assert found(*a_step(directory, 5, 9)) is None
    assert found(*a_step(directory, 10, 12)) is None


@pytest.mark.parametrize(("cover_end", "last_offset"), [(None, 4), (6, 5), (9, 8), (12, 9)])
def test_a_gap_after_a_run_is_its_own_as_far_as_the_step_allows(directory: Directory, cover_end: int | None, last_offset: int) -> None:
    directory.segment(0, a_segment(0, 5))
    directory.epochs((0, 0), (3, 10))
    directory.cleaned(0)
    run = found(*a_step(directory, 0, 5, cover_end=cover_end))
    assert isinstance(run, Run)
    assert run.last_offset == last_offset


def test_the_end_of_the_last_run_is_where_the_search_begins(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    searched = []

    def recorded(segment: LocalSegment, file: BinaryIO, offset: int, start: int, size_bytes: int) -> FoundBatch | None:
        searched.append(start)
        return find_batch(segment, file, offset, start, size_bytes)

    monkeypatch.setattr("archival.partition.run_finder.find_batch", recorded)
    directory.segment(0, a_segment(0, 10))
    step, log = a_step(directory, 5, 10)
    position = len(a_segment(0, 5))
    right = RunEnd(step.segment.path, step.segment.generation.inode, 5, position)
    others = (replace(right, inode=right.inode + 1), replace(right, next_offset=4), replace(right, position=position + 1))
    expected = found(step, log)
    assert [found(step, log, last_run=each) for each in (right, *others)] == [expected] * 4
    assert searched == [0, position, 0, 0, position + 1, 0]


def test_a_batch_across_the_end_of_the_archive_is_of_another_branch_or_damage(directory: Directory) -> None:
    directory.segment(0, a_batch(3, 5, epoch=2))
    step, log = a_step(directory, 5, 8)
    assert found(step, log, an_entry(0, 4)) == CutAt(3)
    with pytest.raises(CorruptData, match="across the end of the archive, in the same leader epoch"):
        found(step, log, an_entry(0, 4, epochs=((2, 0),)))
    assert isinstance(found(step, log), Run)


@pytest.mark.parametrize(("last", "base_offset"), [(19, 16), (16, 16), (15, None)])
def test_what_a_log_has_from_the_middle_of_a_gap_on_is_found(directory: Directory, last: int, base_offset: int | None) -> None:
    directory.segment(16, a_segment(16, 10))
    gap = Entry(base_offset=10, last_offset=last, gap=True)
    run = found(*a_step(directory, 10, last + 1, refills=gap), an_entry(0, 9), gap)
    assert (run.base_offset if isinstance(run, Run) else run) == base_offset
