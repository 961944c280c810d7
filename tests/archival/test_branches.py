from pathlib import Path
from typing import Any

import msgspec

from archival.partition.branches import Branches
from archival.plan.steps import CutEntries
from manifests.entry_tree import EntryTree
from manifests.head import Head
from tests.archival.builders import PARTITION, Agent, Directory, fill, live_bytes, ranges
from tests.headwater_core.segments.builders import a_batch, a_commit, a_segment, an_abort
from tests.manifests.builders import a_head, an_entry


def test_an_unclean_election_supersedes_the_dead_branch(directory: Directory, agent: Agent) -> None:
    directory.epochs((0, 0), (2, 4))
    directory.segment(0, a_segment(0, 4), a_segment(4, 6, epoch=2))
    directory.high_watermark(10)
    agent.run()
    directory.epochs((0, 0), (4, 7))
    directory.segment(0, a_segment(0, 4), a_segment(4, 3), a_segment(7, 5, epoch=4))
    directory.epochs((0, 0), (4, 7))
    directory.high_watermark(12)
    assert agent.run() == ["cut", "archived", "caught up"]
    assert ranges(agent.head.entries) == [(0, 3), (4, 11)]
    assert ranges(agent.head.superseded) == [(4, 9)]
    assert agent.head.entries[0].is_cut
    assert (agent.head.entries[0].records, agent.head.leader_epoch) == (4, 4)


def test_a_branch_that_won_in_the_end_is_live_again_without_an_upload(directory: Directory, agent: Agent) -> None:
    directory.epochs((0, 0), (2, 4))
    first = a_segment(0, 4) + a_segment(4, 6, epoch=2)
    directory.segment(0, first)
    directory.high_watermark(10)
    agent.run()
    directory.segment(0, a_segment(0, 4), a_segment(4, 2, epoch=4))
    directory.epochs((0, 0), (4, 4))
    directory.high_watermark(6)
    agent.run()
    directory.segment(0, first, a_segment(10, 2, epoch=5))
    directory.epochs((0, 0), (2, 4), (5, 10))
    directory.high_watermark(12)
    assert agent.run() == ["cut", "revived", "archived", "caught up"]
    assert ranges(agent.head.entries) == [(0, 9), (10, 11)]
    assert not agent.head.entries[0].is_cut
    assert ranges(agent.head.superseded) == [(4, 5)]


def test_what_lives_again_is_not_cleaned_any_more(directory: Directory, agent: Agent) -> None:
    """It lay below the cleaner's checkpoint beside what was live then. What is live beside it now may have the same keys."""
    directory.epochs((0, 0), (2, 4))
    directory.segment(0, a_segment(0, 4))
    directory.segment(4, a_segment(4, 6, epoch=2))
    directory.high_watermark(10)
    agent.run()

    def cleaned(head: Head) -> Head:
        entries = [msgspec.structs.replace(entry, cleaned=True) for entry in head.entries]
        return msgspec.structs.replace(head, version=head.version + 1, entries=EntryTree(entries), clean_to=10)

    agent.archiver.amend(cleaned)
    directory.segment(4, a_segment(4, 2, epoch=4))
    directory.epochs((0, 0), (4, 4))
    directory.high_watermark(6)
    agent.run()
    assert [entry.cleaned for entry in agent.head.superseded] == [True]
    directory.segment(4, a_segment(4, 6, epoch=2), a_segment(10, 2, epoch=5))
    directory.epochs((0, 0), (2, 4), (5, 10))
    directory.high_watermark(12)
    assert agent.run() == ["cut", "revived", "archived", "caught up"]
    assert ranges(agent.head.entries) == [(0, 3), (4, 9), (10, 11)]
    assert [entry.cleaned for entry in agent.head.entries] == [True, False, False]


def test_a_cut_lowers_what_is_clean() -> None:
    nothing: Any = None  # the cut lies between two entries: no object is read
    head = a_head(an_entry(0, 9), an_entry(10, 19), clean_to=20)
    branches = Branches(nothing, nothing)
    assert branches.cut(head, CutEntries(at=10, leader_epoch=1), 0).head.clean_to == 10
    assert branches.cut(head, CutEntries(at=20, leader_epoch=1), 0).head.clean_to == 20


def test_a_dead_run_under_live_ones_is_replaced_alone(directory: Directory, agent: Agent, tmp_path: Path) -> None:
    """Broker 2's log won by an unclean election, and had dropped all up to the end of the dead branch before an agent saw it. What
    follows was released since. Broker 1 still has all of it."""
    fill(directory, 0, end=8)
    agent.run()
    second = Directory(tmp_path / "second")
    won = a_segment(0, 8, epoch=4), a_segment(8, 4, epoch=6)
    second.segment(8, won[1])
    second.epochs((6, 8))
    second.high_watermark(12)
    assert Agent(second.root, agent.store, writer="agent-b").run() == ["claimed", "archived", "caught up"]
    first = Directory(tmp_path / "first")
    first.segment(0, won[0])
    first.segment(8, won[1])
    first.epochs((4, 0), (6, 8))
    first.high_watermark(12)
    third = Agent(first.root, agent.store, writer="agent-c")
    assert third.run() == ["claimed", "cut", "refilled", "caught up"]
    assert ranges(third.head.entries) == [(0, 7), (8, 11)]
    assert ranges(third.head.superseded) == [(0, 7)]
    assert live_bytes(agent.store, third.head) == b"".join(won)


def test_a_log_with_an_older_branch_in_common_cuts_all_that_is_archived(directory: Directory, agent: Agent) -> None:
    """The archive was begun after the fork: nothing of it survives, and yet the two were one log."""
    fill(directory, 0, 10, end=20)
    directory.log_start(10)
    agent.run()
    directory.log_start(0)
    (directory.path / f"{10:020}.log").unlink()
    directory.segment(0, a_segment(0, 5), a_segment(5, 3, epoch=2))
    directory.epochs((0, 0), (2, 5))
    directory.high_watermark(8)
    assert agent.run()[0] == "cut"
    assert ranges(agent.head.entries) == [(0, 7)]


def test_what_follows_a_filled_gap_learns_of_its_transactions(directory: Directory, agent: Agent, tmp_path: Path) -> None:
    before = [a_batch(0), a_batch(1, producer=7, transactional=True)]
    behind = [a_batch(2), an_abort(3, 7), a_batch(4)]
    directory.segment(2, *behind)
    directory.high_watermark(5)
    head = a_head_at(agent, start=0)
    assert agent.run()[:-1] == ["claimed", "gap", "archived"]
    assert agent.head.entries[-1].aborted == 0
    whole = Directory(tmp_path / "whole")
    whole.segment(0, *before, *behind)
    whole.high_watermark(5)
    other = Agent(whole.root, store=agent.store, writer="agent-b")
    assert other.run() == ["claimed", "refilled", "caught up"]
    assert [(entry.open_from, entry.aborted) for entry in other.head.entries] == [(1, 0), (None, 1)]
    assert ranges(other.head.superseded) == [(2, 4)]
    assert head.version < other.head.version
    assert live_bytes(agent.store, other.head) == b"".join(before + behind)


def a_head_at(agent: Agent, *, start: int) -> Head:
    """Someone archived this partition before, and got no further than its start."""
    return agent.repository.commit(
        None,
        Head(
            cluster_id=PARTITION.cluster_id,
            topic=PARTITION.topic,
            topic_id=PARTITION.topic_id,
            partition=0,
            version=1,
            commit_id="x",
            fence=1,
            writer="someone",
            leader_epoch=0,
            start_offset=start,
            last_offset=start - 1,
        ),
    ).head


def test_open_transactions_after_a_cut_come_from_the_bytes_that_are_left(directory: Directory, agent: Agent) -> None:
    opened = a_batch(0, producer=7, transactional=True)
    directory.segment(0, opened, a_batch(1), a_commit(2, 7))
    directory.high_watermark(3)
    agent.run()
    directory.epochs((0, 0), (1, 2))
    directory.segment(0, opened, a_batch(1), an_abort(2, 7, epoch=1))
    agent = Agent(directory.root, store=agent.store)
    agent.uids = 100
    assert agent.run() == ["cut", "archived", "caught up"]
    assert [(entry.open_from, entry.aborted) for entry in agent.head.entries] == [(0, 0), (None, 1)]
