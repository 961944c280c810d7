"""What is committed goes into segments of chunks that are written while they fill: confirmed chunk by chunk, listed all at once."""

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as with_fields

from archival.collection.orphans import stored_objects
from archival.plan.policy import ChunkCommits, Policy, StreamLimits
from headwater_core import milestones
from headwater_core.errors import Fenced, TransientError, UnknownOutcome
from headwater_core.layouts import open_layout
from headwater_core.layouts.chunks import Variant
from headwater_core.layouts.chunks.chunk_handle import CommitLimits
from headwater_core.layouts.chunks.chunks_layout import ChunksLayout
from headwater_core.layouts.streaming import OffloadBudget
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId
from manifests import chunk_keys
from manifests.namesakes import listed_uids, packed
from manifests.pending_list import FAILED, PendingObject
from manifests.repository import ManifestRepository
from tests.archival.builders import PARTITION, SEALED, Agent, Directory, fill, live_bytes, ranges
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.segments.builders import a_segment
from tests.manifests.builders import a_head

AGE_MS, COMMIT_AGE_MS, CHUNK_BYTES = 60_000, 5_000, 300
VARIANTS = pytest.mark.parametrize("variant", list(Variant), ids=[each.value for each in Variant])


def policy(variant: Variant, *, commit_bytes: int = 1 << 20, segment_bytes: int = 1 << 20, completes: bool = False) -> Policy:
    commits = ChunkCommits(variant, CommitLimits(commit_bytes, CHUNK_BYTES, 1), COMMIT_AGE_MS)
    return Policy(stream=StreamLimits(segment_bytes, AGE_MS, completes, commits))


def an_agent(directory: Directory, variant: Variant, *, store: ObjectStore | None = None, **options: object) -> Agent:
    offloader = ChunksLayout(variant, CHUNK_BYTES)
    return Agent(directory.root, store=MemoryStore() if store is None else store, offloader=offloader, **options)  # type: ignore[arg-type]


def again(agent: Agent) -> Agent:
    """The same agent after a restart."""
    return Agent(agent.root, store=agent.store, clock=agent.clock, offloader=agent.offloader)


def pending(agent: Agent) -> PendingObject:
    (found,) = (each for each in agent.head.pending if each.is_assigned)
    return found


def chunks(store: ObjectStore) -> list[str]:
    """Without the directory of their queue, and without indexes."""
    return [info.key.split("/", 5)[5] for info in store.list(chunk_keys.CHUNKS) if not info.key.endswith(".index")]


@VARIANTS
def test_a_buffer_is_committed_by_age_and_the_segment_listed_at_its_end(directory: Directory, variant: Variant) -> None:
    agent = an_agent(directory, variant)
    written, limits = fill(directory, 0, end=3), policy(variant)
    agent.run(limits)
    assert (chunks(agent.store), agent.pool.size_bytes) == ([], len(written))
    assert pending(agent).layout == "chunks"
    agent.clock.advance(COMMIT_AGE_MS)
    agent.run(limits)
    name = "commitLog/seg-0/chunk-0" if variant is Variant.APPEND else "commitLog-0/chunk-0"
    assert (chunks(agent.store), agent.pool.size_bytes, len(agent.head.entries)) == ([name], 0, 0)
    stream = agent.archiver.open_stream
    assert stream is not None
    assert (stream.stored_bytes, stream.size_bytes) == (len(written), len(written))
    assert limits.stream is not None
    assert f"bytes ({len(written)} stored), which is closed" in stream.waits_for(limits.stream, 0)
    written += a_segment(3, 2)
    directory.append(0, a_segment(3, 2))
    directory.high_watermark(5)
    agent.run(limits)
    agent.clock.advance(AGE_MS)
    assert agent.run(limits)[0] == "archived"
    assert ranges(agent.head.entries) == ([(0, 2), (3, 4)] if variant is Variant.APPEND else [(0, 4)])
    assert live_bytes(agent.store, agent.head) == written
    assert [each.context.get("chunk", "0") for each in agent.head.entries][:2] == ["0", "1"][: len(agent.head.entries)]
    assert pending(agent).base_offset == 5, "by the commit that has listed the one before"
    named = agent.store.read_into(agent.head.entries[0].key, memoryview(bytearray(1)), start=0)
    assert named.get("headwater-partition") == (f"{PARTITION.topic}:{PARTITION.partition}" if variant is Variant.APPEND else None)


@VARIANTS
def test_a_backlog_goes_in_commits_of_the_size_that_was_set(directory: Directory, variant: Variant) -> None:
    agent, written = an_agent(directory, variant), fill(directory, 0, 20, end=40)
    limits = policy(variant, commit_bytes=900)
    agent.run(limits)
    assert agent.pool.size_bytes < 900
    agent.run(replace(limits, stream=limits.stream and limits.stream._replace(completes=True)))
    assert live_bytes(agent.store, agent.head) == written
    sizes = [each.size_bytes for each in agent.head.entries]
    assert max(sizes) <= 900 + len(a_segment(0, 1)) if variant is Variant.APPEND else sizes == [len(written)]


@VARIANTS
def test_history_is_cut_into_segments_of_the_size_that_was_set(directory: Directory, variant: Variant) -> None:
    agent, written = an_agent(directory, variant), fill(directory, 0, 10, 20, end=30)
    limits = policy(variant, segment_bytes=len(a_segment(10, 12)), commit_bytes=500)
    agent.run(limits)
    agent.run(replace(limits, stream=limits.stream and limits.stream._replace(completes=True)))
    assert live_bytes(agent.store, agent.head) == written
    assert len({chunk_keys.named(each.key).place for each in agent.head.entries}) == 3


def test_a_segment_of_more_chunks_than_a_head_lists_goes_into_pages(directory: Directory) -> None:
    agent, written = an_agent(directory, Variant.APPEND), fill(directory, 0, end=300)
    assert agent.run(policy(Variant.APPEND, commit_bytes=1, completes=True))[:3] == ["claimed", "archived", "caught up"]
    assert len(list(agent.head.entries)) == 300
    assert agent.head.entries.references
    assert live_bytes(agent.store, agent.head) == written


class Late(MemoryStore):
    """The next request that replaces a chunk is under way while its process ends."""

    under_way: tuple[str, bytes, str] | None = None
    holds = False

    def replace(self, key: str, document: bytes, *, expected_tag: str) -> str:
        if self.holds and "/chunk-" in key:
            self.under_way, self.holds = (key, bytes(document), expected_tag), False
            raise UnknownOutcome(key)
        return super().replace(key, document, expected_tag=expected_tag)


@pytest.mark.parametrize("compacts", [False, True], ids=["switched off", "compacted"])
def test_a_late_request_reaches_nothing_that_is_listed_without_streaming(directory: Directory, compacts: bool) -> None:
    store = Late()
    agent, limits = an_agent(directory, Variant.FIXED, store=store), policy(Variant.FIXED, commit_bytes=1)
    written = fill(directory, 0, end=2)
    agent.run(limits)
    assert chunks(store) == ["commitLog-0/chunk-0"]
    store.holds = True
    written += fill(directory, 2, end=3)
    with pytest.raises(UnknownOutcome):
        agent.run(limits)
    agent = replace(agent, delete_retention_ms=1000 if compacts else None)
    outcomes = agent.run(replace(limits if compacts else Policy(), tail_after_ms=0))
    assert outcomes[:2] == ["assigned", "archived"]
    assert store.under_way is not None
    key, document, tag = store.under_way
    store.replace(key, document, expected_tag=tag)
    assert live_bytes(store, agent.head) == written
    for entry in agent.head.entries:
        open_layout(entry.layout).read_offloaded(store, entry).check_rest()


@VARIANTS
def test_what_a_process_left_is_begun_again_in_a_place_of_its_own(directory: Directory, variant: Variant) -> None:
    agent, written = an_agent(directory, variant), fill(directory, 0, end=5)
    agent.run(policy(variant, commit_bytes=200))
    before = pending(agent)
    assert chunks(agent.store)
    other = again(agent)
    assert other.run(policy(variant))[:-1] == ["assigned"]
    failed, following = other.head.pending
    assert (failed.uid, failed.status) == (before.uid, FAILED)
    assert following.fence == other.head.fence == before.fence + 1
    other.run(policy(variant, completes=True))
    assert live_bytes(other.store, other.head) == written
    assert {each.fence for each in other.head.entries} == {following.fence}
    orphans = {each.segment for each in stored_objects(other.store, other.head) if packed(each.uid) not in listed_uids(other.head)}
    assert orphans == {before.uid}, "what it left is an orphan"


@VARIANTS
def test_what_another_topic_id_has_written_under_the_next_fence_is_no_place_for_it(directory: Directory, variant: Variant) -> None:
    agent, written = an_agent(directory, variant), fill(directory, 0, end=5)
    agent.run(policy(variant, commit_bytes=200))
    theirs = PartitionId(PARTITION.cluster_id, "AAAAAAAAAAAAAAAAAAAAAQ", PARTITION.partition, PARTITION.topic)
    fence = pending(agent).fence + 1
    ManifestRepository(agent.store).commit(None, a_head(partition=theirs, fence=fence, writer="agent-b"))
    other = again(agent)
    assert other.run(policy(variant))[:-1] == ["assigned"]
    assert pending(other).fence == fence + 1
    other.run(policy(variant, completes=True))
    assert live_bytes(other.store, other.head) == written


@VARIANTS
def test_a_claim_fails_what_the_agent_before_was_writing(directory: Directory, variant: Variant, tmp_path: Path) -> None:
    agent = an_agent(directory, variant)
    fill(directory, 0, end=5)
    agent.run(policy(variant, commit_bytes=200))
    there = Directory(tmp_path / "2")
    there.epochs((0, 0), (1, 5))
    there.segment(0, a_segment(0, 5), a_segment(5, 3, epoch=1))
    there.high_watermark(8)
    other = an_agent(there, variant, store=agent.store, writer="agent-b", clock=agent.clock)
    assert other.run(policy(variant, completes=True))[:-1] == ["claimed", "archived"]
    agent.clock.advance(AGE_MS)
    with pytest.raises(Fenced):
        agent.run(policy(variant, commit_bytes=200))
    assert live_bytes(other.store, other.head) == a_segment(0, 5) + a_segment(5, 3, epoch=1)


@VARIANTS
def test_a_collection_keeps_what_is_being_written(directory: Directory, variant: Variant) -> None:
    agent, written = an_agent(directory, variant), fill(directory, 0, end=5)
    agent.run(policy(variant, commit_bytes=200))
    uid, listed = pending(agent).uid, listed_uids(agent.head)
    stored = [each for each in stored_objects(agent.store, agent.head) if each.is_shared]
    assert stored
    assert all(any(packed(name) in listed for name in each.names) for each in stored)
    raised = agent.archiver.amend(lambda head: with_fields(head, fence=head.fence + 1))
    assert (raised.fence, pending(agent).uid) == (pending(agent).fence + 1, uid)
    agent.run(policy(variant, completes=True))
    assert live_bytes(agent.store, agent.head) == written


@VARIANTS
def test_a_commit_without_an_answer_lists_the_very_same_chunks(
    directory: Directory, variant: Variant, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, written = an_agent(directory, variant), fill(directory, 0, end=5)
    agent.run(policy(variant, commit_bytes=200))

    def fail(name: str) -> None:
        if name == "stream.closed":
            raise UnknownOutcome("no answer")

    monkeypatch.setattr(milestones, "reached", fail)
    with pytest.raises(UnknownOutcome):
        agent.step(policy(variant, completes=True))
    monkeypatch.undo()
    stored = chunks(agent.store)
    directory.append(0, a_segment(5, 5))
    directory.high_watermark(10)
    agent.run(policy(variant))
    assert live_bytes(agent.store, agent.head) == written, "what was closed does not grow"
    assert chunks(agent.store) == stored


@VARIANTS
def test_what_could_not_be_sent_is_kept_and_goes_first(directory: Directory, variant: Variant, monkeypatch: pytest.MonkeyPatch) -> None:
    agent, written, limits = an_agent(directory, variant), fill(directory, 0, end=5), policy(variant)

    def refuse(*_: object, **__: object) -> str:
        raise TransientError("the network is down")

    agent.run(limits)
    with monkeypatch.context() as context:
        for name in ("put", "put_all", "create", "replace"):
            context.setattr(MemoryStore, name, refuse)
        for _ in range(2):
            with pytest.raises(TransientError, match="network is down"):
                agent.step(policy(variant, completes=True))
        assert agent.pool.failed == 1
        stream = agent.archiver.open_stream
        assert stream is not None
        assert (stream.stored_bytes, stream.failed) == (0, "the network is down")
        assert limits.stream is not None
        assert "is sent again: the network is down" in stream.waits_for(limits.stream, 0)
    agent.run(policy(variant, completes=True))
    assert (live_bytes(agent.store, agent.head), agent.pool.failed, agent.budget.used_bytes) == (written, 0, 0)


@VARIANTS
def test_without_memory_nothing_is_taken_and_what_is_there_goes(directory: Directory, variant: Variant) -> None:
    agent, written = an_agent(directory, variant), fill(directory, *range(0, 60, 2), end=60)
    agent.budget = OffloadBudget(3 * 256)
    agent.archiver = agent.archiver_of(PARTITION)
    for _ in range(40):
        agent.run(policy(variant))
        assert agent.budget.used_bytes <= agent.budget.bytes_max
    agent.run(policy(variant, completes=True))
    agent.run(policy(variant, completes=True))
    assert live_bytes(agent.store, agent.head) == written
    assert agent.budget.used_bytes == 0


@VARIANTS
def test_what_the_log_has_lost_is_never_listed(directory: Directory, variant: Variant) -> None:
    agent = an_agent(directory, variant)
    fill(directory, 0, end=10)
    agent.run(policy(variant, commit_bytes=200))
    before = pending(agent)
    directory.epochs((0, 0), (2, 6))
    directory.segment(0, a_segment(0, 6), a_segment(6, 2, epoch=2))
    directory.high_watermark(8)
    agent.run(policy(variant, completes=True))
    assert live_bytes(agent.store, agent.head) == a_segment(0, 6) + a_segment(6, 2, epoch=2)
    assert min(each.fence for each in agent.head.entries) > before.fence


@VARIANTS
def test_switched_to_another_layout_what_is_open_is_completed_first(directory: Directory, variant: Variant) -> None:
    agent, written = an_agent(directory, variant), fill(directory, 0, end=5)
    agent.run(policy(variant))
    uid = pending(agent).uid
    agent.run(Policy(stream=StreamLimits(1 << 20, AGE_MS)))
    assert {each.layout for each in agent.head.entries} == {"chunks"}
    assert live_bytes(agent.store, agent.head) == written
    directory.append(0, a_segment(5, 5))
    directory.high_watermark(10)
    agent.run(Policy(stream=StreamLimits(1 << 20, AGE_MS)))
    assert (pending(agent).layout, pending(agent).uid != uid) == ("streaming", True)
    agent.run(replace(SEALED, stream=StreamLimits(1 << 20, AGE_MS, completes=True)))
    assert [each.layout for each in agent.head.entries][-1] == "streaming"


@VARIANTS
def test_of_many_queues_the_largest_go_when_the_pool_is_full(tmp_path: Path, variant: Variant) -> None:
    """One agent's archivers share a pool: each takes what its log has, and only those go that make the pool too large."""
    small, large = Directory(tmp_path / "1"), Directory(tmp_path / "2")
    fill(small, 0, end=2)
    fill(large, 0, end=30)
    agents = [an_agent(each, variant) for each in (small, large)]
    agents[1].pool = agents[0].pool
    agents[0].pool.bytes_max = len(a_segment(0, 30))
    agents[1].archiver = agents[1].archiver_of(PARTITION)
    for agent in agents:
        agent.run(policy(variant))
    assert [bool(chunks(agent.store)) for agent in agents] == [False, True]
    assert agents[0].pool.queues == 1
