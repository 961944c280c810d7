"""Small neighbours become one object, and what is served stays what it was."""

from dataclasses import replace as dataclass_replace

import pytest
from msgspec import structs

from archival.partition.archiver import MergeOutcome
from archival.plan.policy import Policy
from headwater_core.errors import Fenced, TransientError, UploadStopped
from headwater_core.layouts import open_layout
from headwater_core.segments.runindex import RunIndex
from manifests import keys
from manifests.entry import Entry
from manifests.entry_tree import EntryTree
from tests.archival import stream_objects
from tests.archival.builders import PARTITION, Agent, Directory, live_bytes, ranges
from tests.archival.stream_objects import FLUSH
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.segments.builders import BASE_TIME, a_batch, a_segment, an_abort

MERGES = Policy(merge_bytes=1_000, tail_after_ms=0)


def tails(agent: Agent, directory: Directory, *ends: int) -> None:
    """One open segment, archived up to each of these offsets in turn."""
    written = 0
    directory.segment(0)
    for end in ends:
        directory.append(0, a_segment(written, end - written))
        directory.high_watermark(end)
        agent.run()
        written = end


def index_of(agent: Agent, entry: Entry) -> RunIndex:
    return open_layout(entry.layout).read_offloaded(agent.store, entry).read_index()


def merge(agent: Agent, policy: Policy = MERGES) -> MergeOutcome:
    return agent.archiver.merge(policy)


def without_local(agent: Agent, directory: Directory) -> None:
    """What is archived is gone from the log."""
    end = agent.head.next_offset
    for path in directory.path.glob("*.log"):
        path.unlink()
    directory.segment(end)
    directory.log_start(end)


def test_tails_become_one_object_that_serves_the_same_bytes(agent: Agent, directory: Directory) -> None:
    tails(agent, directory, 3, 5, 6, 10)
    before = agent.head
    served = live_bytes(agent.store, before)
    outcome = merge(agent)
    head = agent.head
    assert ranges(head.entries) == [(0, 9)]
    assert outcome.merged == head.entries[0]
    assert outcome.group == tuple(before.entries)
    assert outcome.local_bytes == head.entries[0].size_bytes
    assert live_bytes(agent.store, head) == served
    assert (head.version, head.last_offset, len(head.superseded)) == (before.version + 1, 9, 0)
    name = keys.parse_data(head.entries[0].key)
    assert name is not None
    assert name.fence == head.fence
    for entry in before.entries:
        assert agent.store.stat(entry.key), "a reader may still be in them: collection deletes them later"
    assert merge(agent).merged is None
    assert agent.run() == ["caught up"]


def test_what_the_log_no_longer_has_is_read_from_the_store(agent: Agent, directory: Directory) -> None:
    tails(agent, directory, 3, 5, 6, 10)
    served = live_bytes(agent.store, agent.head)
    without_local(agent, directory)
    outcome = merge(agent)
    assert (ranges(agent.head.entries), outcome.local_bytes) == ([(0, 9)], 0)
    assert live_bytes(agent.store, agent.head) == served


def streamed(agent: Agent, directory: Directory, *ends: int) -> None:
    """As `tails`, but each is an object of streaming offload."""
    written = 0
    directory.segment(0)
    for end in ends:
        directory.append(0, a_segment(written, end - written))
        directory.high_watermark(end)
        agent.run(FLUSH)
        written = end
    assert [entry.layout for entry in agent.head.entries] == ["streaming"] * len(ends)


@pytest.mark.parametrize("has_local", [True, False])
@pytest.mark.parametrize("policy", [MERGES, dataclass_replace(FLUSH, merge_bytes=1_000)])
def test_what_was_streamed_becomes_one_native_object(agent: Agent, directory: Directory, policy: Policy, has_local: bool) -> None:
    """While streaming goes on as well as after it was left; from the log, and from the store alone."""
    streamed(agent, directory, 3, 5, 6, 10)
    before = agent.head
    served = stream_objects.live_bytes(agent.store, before)
    assert served == a_segment(0, 3) + a_segment(3, 2) + a_segment(5, 1) + a_segment(6, 4)
    if not has_local:
        without_local(agent, directory)
    agent.run(policy)
    outcome = merge(agent, policy)
    assert (ranges(agent.head.entries), outcome.group) == ([(0, 9)], tuple(before.entries))
    (entry,) = agent.head.entries
    assert (entry.layout, outcome.local_bytes) == ("segment", entry.size_bytes if has_local else 0)
    assert live_bytes(agent.store, agent.head) == served
    assert index_of(agent, entry).last_offset == 9


def test_a_merge_joins_what_was_streamed_to_what_was_not(agent: Agent, directory: Directory) -> None:
    streamed(agent, directory, 3, 5)
    for written, end in ((5, 6), (6, 10)):
        directory.append(0, a_segment(written, end - written))
        directory.high_watermark(end)
        agent.run()
    before = agent.head
    assert [entry.layout for entry in before.entries] == ["streaming", "streaming", "segment", "segment"]
    served = stream_objects.live_bytes(agent.store, before)
    without_local(agent, directory)
    agent.run()
    assert merge(agent).group == tuple(before.entries)
    assert live_bytes(agent.store, agent.head) == served
    assert agent.run() == ["caught up"]


def test_what_was_streamed_and_is_lost_is_reported_by_a_merge_and_passed(agent: Agent, directory: Directory) -> None:
    streamed(agent, directory, 3, 5, 6, 10)
    without_local(agent, directory)
    agent.run()
    assert isinstance(agent.store, MemoryStore)
    agent.store.delete(agent.head.entries[1].key)
    outcome = merge(agent)
    assert (outcome.merged, outcome.passed) == (None, 10)
    assert "does not have it" in outcome.reason
    assert [entry.layout for entry in agent.head.entries] == ["streaming"] * 4, "none was given up"


def test_local_bytes_that_are_others_are_not_taken(agent: Agent, directory: Directory) -> None:
    tails(agent, directory, 3, 5, 6, 10)
    served = live_bytes(agent.store, agent.head)
    segment = directory.path / f"{0:020}.log"
    segment.write_bytes(a_segment(0, 10, value_bytes=9))
    outcome = merge(agent)
    assert outcome.local_bytes == 0
    assert live_bytes(agent.store, agent.head) == served


def test_a_merged_entry_knows_the_transactions_of_its_parts(agent: Agent, directory: Directory) -> None:
    directory.segment(0)
    parts = (
        a_batch(0, 2, producer=7, transactional=True),
        an_abort(2, 7),
        a_batch(3, 1, producer=8, transactional=True),
        a_batch(4, 1),
    )
    for end, part in zip((2, 3, 4, 5), parts, strict=True):
        directory.append(0, part)
        directory.high_watermark(end)
        agent.run()
    merge(agent, Policy(merge_bytes=600, tail_after_ms=0))
    entry = agent.head.entries[0]
    assert (len(agent.head.entries), entry.aborted, entry.aborted_from, entry.open_from) == (1, 1, 0, 3)
    index = index_of(agent, entry)
    assert [(each.producer_id, each.first_offset, each.last_offset) for each in index.aborted] == [(7, 0, 2)]
    assert [(each.producer_id, each.first_offset) for each in index.open_transactions] == [(8, 3)]
    directory.append(0, an_abort(5, 8))
    directory.high_watermark(6)
    agent.run()
    assert [each.first_offset for each in index_of(agent, agent.head.entries[1]).aborted] == [3], "what is open is still known"


def test_dead_bytes_of_a_cut_entry_are_left_behind(agent: Agent, directory: Directory) -> None:
    tails(agent, directory, 6)
    directory.epochs((0, 0), (1, 4))
    (directory.path / f"{0:020}.log").write_bytes(b"")
    directory.append(0, a_segment(0, 4), a_segment(4, 1, epoch=1))
    directory.high_watermark(5)
    agent.run()
    held = agent.repository.load(PARTITION)
    assert held is not None
    agent.repository.commit(held, structs.replace(held.head, superseded=()))  # as retention leaves it
    agent.archiver = agent.archiver_of(PARTITION)
    cut = agent.head.entries[0]
    assert cut.is_cut
    for end in (6, 7, 8):
        directory.append(0, a_segment(end - 1, 1, epoch=1))
        directory.high_watermark(end)
        agent.run()
    served = live_bytes(agent.store, agent.head)
    merged = merge(agent).merged
    assert merged is not None
    assert (merged.base_offset, merged.last_offset, merged.is_cut) == (0, 7, False)
    assert live_bytes(agent.store, agent.head) == served
    assert merged.epochs == ((0, 0), (1, 4))


def test_damage_in_the_store_is_reported_and_passed(agent: Agent, directory: Directory) -> None:
    tails(agent, directory, 3, 5, 6, 10)
    without_local(agent, directory)
    entry = agent.head.entries[1]
    assert isinstance(agent.store, MemoryStore)
    agent.store.delete(entry.key)
    outcome = merge(agent)
    assert (outcome.merged, outcome.passed) == (None, 10)
    assert "does not have it" in outcome.reason
    assert agent.archiver.merge(MERGES, passed=outcome.passed) == MergeOutcome(passed=10)


@pytest.mark.parametrize("wrong", [{"open_from": 4}, {"aborted": 1}, {"records": 3}, {"last_timestamp_ms": BASE_TIME + 90}])
def test_what_is_merged_is_what_the_manifest_says_of_its_parts(agent: Agent, directory: Directory, wrong: dict[str, int]) -> None:
    """Else the merge would hide who has gone wrong: the bytes have the digests that the entries say."""
    tails(agent, directory, 3, 5, 6, 10)
    held = agent.repository.load(PARTITION)
    assert held is not None
    *others, last = held.head.entries
    entries = EntryTree((*others, structs.replace(last, **wrong)))
    agent.repository.commit(held, structs.replace(held.head, entries=entries))
    outcome = merge(Agent(directory.root, agent.store))
    assert (outcome.merged, ranges(agent.head.entries)) == (None, [(0, 2), (3, 4), (5, 5), (6, 9)])
    assert "not what the manifest says" in outcome.reason


def test_what_is_to_be_archived_comes_first(agent: Agent, directory: Directory) -> None:
    tails(agent, directory, 3, 5, 6, 10)
    directory.append(0, a_segment(10, 1))
    directory.high_watermark(11)
    assert merge(agent) == MergeOutcome(comes_first=True)


@pytest.mark.parametrize("policy", [Policy(), dataclass_replace(MERGES, off="archive = off")])
def test_nothing_is_merged_where_that_is_off(agent: Agent, directory: Directory, policy: Policy) -> None:
    tails(agent, directory, 3, 5, 6, 10)
    assert merge(agent, policy).merged is None
    assert len(agent.head.entries) == 4


def test_a_merge_that_has_to_end_leaves_nothing(agent: Agent, directory: Directory) -> None:
    tails(agent, directory, 3, 5, 6, 10)
    objects = len(list(agent.store.list("data/")))

    def stop() -> None:
        raise UploadStopped("something is to be archived")

    with pytest.raises(UploadStopped):
        agent.archiver.merge(MERGES, check=stop)
    assert len(list(agent.store.list("data/"))) == objects
    assert merge(agent).merged


class HeadlessStore(MemoryStore):
    """Refuses heads while `refuses`."""

    refuses = False

    def replace(self, key: str, document: bytes, *, expected_tag: str) -> str:
        if self.refuses:
            raise TransientError("no heads today")
        return super().replace(key, document, expected_tag=expected_tag)


def test_an_object_whose_commit_failed_is_not_uploaded_again(directory: Directory) -> None:
    store = HeadlessStore()
    agent = Agent(directory.root, store)
    tails(agent, directory, 3, 5, 6, 10)
    store.refuses = True
    with pytest.raises(TransientError):
        merge(agent)
    objects = data_of(store)
    store.refuses = False
    assert merge(agent).merged
    assert data_of(store) == objects


def test_a_merged_object_that_nobody_wants_any_more_does_not_wait(directory: Directory) -> None:
    store = HeadlessStore()
    agent = Agent(directory.root, store)
    tails(agent, directory, 3, 5, 6, 10)
    for nothing_is_wanted in (
        lambda: merge(agent, dataclass_replace(MERGES, merge_bytes=1)),
        lambda: agent.archiver.amend(lambda head: structs.replace(head, fence=head.fence + 1), discards=True),
    ):
        store.refuses = True
        with pytest.raises(TransientError):
            merge(agent)
        assert agent.archiver.is_waiting
        store.refuses = False
        nothing_is_wanted()
        assert not agent.archiver.is_waiting


def test_a_log_that_is_behind_merges_nothing_of_another_agents_partition(agent: Agent, directory: Directory) -> None:
    tails(agent, directory, 3, 5, 6, 10)
    held = agent.repository.load(PARTITION)
    assert held
    agent.repository.commit(held, structs.replace(held.head, fence=held.head.fence + 1, writer="agent-b", leader_epoch=7))
    before = agent.head
    for writer in ("agent-c", "agent-b"):  # also its own, whose log has not got as far yet
        late = Agent(directory.root, store=agent.store, writer=writer)
        assert late.step().reason.startswith("behind: ")
        outcome = late.archiver.merge(MERGES)
        assert (outcome.merged, agent.head) == (None, before)


def test_another_agents_claim_ends_a_merge(agent: Agent, directory: Directory) -> None:
    tails(agent, directory, 3, 5, 6, 10)
    other = Agent(directory.root, agent.store, writer="agent-b")
    other.step()
    with pytest.raises(Fenced):
        merge(agent)
    assert len(agent.head.entries) == 4


def data_of(store: MemoryStore) -> list[str]:
    return [info.key for info in store.list("data/")]


def test_a_merged_run_was_published_when_the_last_of_its_parts_was(agent: Agent, directory: Directory) -> None:
    tails(agent, directory, 3, 5, 6, 10)
    times = [entry.published_ms for entry in agent.head.entries]
    assert None not in times
    agent.clock.advance(100)
    merge(agent)
    assert [(entry.last_offset, entry.published_ms) for entry in agent.head.entries] == [(9, times[-1])]
