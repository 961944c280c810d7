"""What is committed goes into objects that are written while they fill, one after the other, and each is listed once."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace as with_fields

from archival.explanation import Turn, explain
from archival.partition import stream_writers
from archival.partition.streams import PAUSED_MS_MAX
from archival.partition_status import status_of
from archival.plan.offload_trigger import bounded
from archival.plan.policy import ChunkCommits, Policy, StreamLimits, Triggers
from archival.plan.stream_plan import OpenStream
from headwater_core import milestones
from headwater_core.errors import Fenced, TransientError, UnknownOutcome, UploadStopped
from headwater_core.layouts.chunks import Variant
from headwater_core.layouts.chunks.chunk_handle import CommitLimits
from headwater_core.objectstore.store import ObjectStore
from headwater_core.segments.local_log import LocalLog
from manifests import keys
from manifests.pending_list import FAILED, PendingObject
from tests.archival.builders import PARTITION, SEALED, Agent, Directory, fill, ranges
from tests.archival.stream_objects import AGE_MS, FLUSH, STREAM, live_bytes
from tests.headwater_core.layouts.streaming.page_reader import read_objects
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.segments.builders import a_segment
from tests.manifests.builders import a_gap

CHUNKS = tuple(ChunkCommits(each, CommitLimits(60, 100, 1), 0) for each in Variant)


def assigned(agent: Agent) -> PendingObject:
    (found,) = (each for each in agent.head.pending if each.is_assigned)
    return found


def streams(store: ObjectStore) -> set[str]:
    return {info.key for info in store.list(keys.STREAM)}


def test_what_is_committed_is_listed_once_it_is_old_enough(directory: Directory, agent: Agent) -> None:
    written = fill(directory, 0, end=5)
    assert agent.run(STREAM)[:-1] == ["claimed"]
    assert "a stream is open" in agent.run(STREAM)[-1]
    first = assigned(agent)
    assert (first.base_offset, first.fence, first.layout) == (0, 1, "streaming")
    agent.clock.advance(AGE_MS - 1)
    directory.append(0, a_segment(5, 5))
    directory.high_watermark(8)
    agent.run(STREAM)
    assert (len(agent.head.entries), streams(agent.store)) == (0, set())
    agent.clock.advance(1)
    assert agent.run(STREAM) == ["archived", "caught up"]
    (entry,) = agent.head.entries
    assert ranges(agent.head.entries) == [(0, 7)]
    assert (entry.uid, entry.layout, entry.held_offsets) == (first.uid, "streaming", (0, 7))
    assert streams(agent.store) >= {entry.key, entry.key + "-index"}
    assert live_bytes(agent.store, agent.head)[: len(written)] == written
    assert assigned(agent).base_offset == 8, "by the commit that has listed the one before"
    assert agent.head.version == 2


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://archive/here/too", {"bucket": "archive", "prefix": "here/too"}),
        ("s3://archive", {"bucket": "archive"}),
        ("file:///mnt/archive", {}),
    ],
)
def test_the_index_says_for_people_where_it_was_written_and_when(directory: Directory, url: str, said: dict[str, str]) -> None:
    store = MemoryStore()
    store.url = url
    agent = Agent(directory.root, store=store)
    fill(directory, 0, end=5)
    agent.run(STREAM)
    name, begun_ms = assigned(agent), agent.clock.now_ms()
    agent.clock.advance(AGE_MS)
    agent.run(STREAM)
    (entry,) = agent.head.entries
    metadata = store.read_into(f"{entry.key}-index", memoryview(bytearray(1)), start=0)
    seen = read_objects(store.get(entry.key)[0], store.get(f"{entry.key}-index")[0], metadata, None)
    (group,) = seen.groups.values()
    assert group.driver == said
    assert (name.assigned_ms, group.assigned_ms, group.offloaded_ms) == (begun_ms, begun_ms, begun_ms + AGE_MS)
    assert entry.uid not in {each.uid for each in agent.head.pending}, "that it is listed says that it was offloaded"


def test_a_stream_is_not_listed_above_a_high_watermark_that_fell(directory: Directory, agent: Agent) -> None:
    fill(directory, 0, end=5)
    agent.run(STREAM)
    agent.clock.advance(AGE_MS)
    directory.high_watermark(3)
    assert agent.run(STREAM) == ["the high watermark fell below 5, where a stream ends"]
    assert len(agent.head.entries) == 0
    directory.high_watermark(5)
    agent.run(STREAM)
    assert ranges(agent.head.entries) == [(0, 4)]


def test_nothing_is_taken_from_the_end_of_a_pass_on(directory: Directory, agent: Agent) -> None:
    fill(directory, 0, end=12)
    assert agent.run(replace(FLUSH, end=3)) == ["claimed", "archived", "what is below 3 is archived"]
    agent.run(STREAM)  # opens the next one
    assert agent.run(replace(FLUSH, end=3))[-1] == "what is below 3 is archived"
    assert ranges(agent.head.entries) == [(0, 2)]
    agent.run(FLUSH)
    assert ranges(agent.head.entries) == [(0, 2), (3, 11)]


def test_what_is_taken_is_explained_and_what_follows_waits_for_its_turn(directory: Directory, agent: Agent) -> None:
    written = fill(directory, 0, end=5)
    agent.run(STREAM)
    agent.clock.advance(2_000)
    directory.append(0, a_segment(5, 5))
    directory.high_watermark(8)
    head, stream, now_ms = agent.head, agent.archiver.open_stream, agent.clock.now_ms()
    assert stream == OpenStream(0, 5, len(written))

    def look() -> LocalLog:
        return agent.logs.look(PARTITION.topic_partition)

    def why(age_ms: int) -> list[tuple[int, int, str]]:
        asked = partial(explain, look(), head, policy=STREAM, tail_age_ms=age_ms, now_ms=now_ms, turn=Turn())
        return [(each.base_offset, each.next_offset, each.why.kind) for each in asked(stream=stream)]

    assert why(2_000)[:2] == [(0, 5, "open-stream"), (5, 8, "due")]
    assert why(AGE_MS)[0] == (0, 8, "due"), "it is closed now"
    first = explain(look(), head, policy=STREAM, tail_age_ms=2_000, now_ms=now_ms, turn=Turn(), stream=stream)[0]
    assert (first.size_bytes, first.why.since_ms, first.why.until_ms) == (len(written), now_ms - 2_000, now_ms - 2_000 + AGE_MS)
    assert first.why.reason.startswith(f"in an open stream of {len(written)} bytes, which is closed when it has 1048576,")
    judged = partial(status_of, PARTITION, head=head, policy=STREAM, now_ms=now_ms)
    assert judged(look(), stream=stream, tail_age_ms=2_000).reason == "newly committed records are streamed next", "there is more to take"
    agent.run(STREAM)
    status = judged(look(), stream=agent.archiver.open_stream, tail_age_ms=2_000)
    assert (status.state, status.reason[:20]) == ("waiting", "in an open stream of")
    assert judged(look(), stream=agent.archiver.open_stream, tail_age_ms=AGE_MS).state == "due"
    agent.run(FLUSH)
    assert agent.archiver.open_stream is None


def test_what_a_process_left_is_begun_again_under_another_name(directory: Directory, agent: Agent) -> None:
    written = fill(directory, 0, end=5)
    agent.run(STREAM)
    before = assigned(agent)
    other = Agent(agent.root, store=agent.store, clock=agent.clock)
    other.uids = 100
    assert other.run(STREAM)[:-1] == ["assigned"]
    failed, again = other.head.pending
    assert (failed.uid, failed.status, again.base_offset) == (before.uid, FAILED, 0)
    assert again.uid != before.uid
    other.run(FLUSH)
    assert [each.status for each in other.head.pending] == ["assigned"], "what has failed is finished"
    assert live_bytes(other.store, other.head) == written


def test_a_claim_fails_what_the_agent_before_was_writing(directory: Directory, agent: Agent, tmp_path: Path) -> None:
    fill(directory, 0, end=5)
    agent.run(STREAM)
    there = Directory(tmp_path / "2")
    there.epochs((0, 0), (1, 5))
    there.segment(0, a_segment(0, 5), a_segment(5, 3, epoch=1))
    there.high_watermark(8)
    other = Agent(there.root, store=agent.store, writer="agent-b", clock=agent.clock)
    assert other.run(FLUSH)[:-1] == ["claimed", "archived"]
    assert ranges(other.head.entries) == [(0, 7)]
    assert other.head.entries[0].fence == 2
    agent.clock.advance(AGE_MS)
    with pytest.raises(Fenced):
        agent.run(STREAM)
    assert ranges(other.head.entries) == [(0, 7)]


def test_a_commit_without_an_answer_lists_the_very_same_object(directory: Directory, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(directory, 0, end=5)
    agent.run(STREAM)

    def fail(name: str) -> None:
        if name == "stream.closed":
            raise UnknownOutcome("no answer")

    monkeypatch.setattr(milestones, "reached", fail)
    with pytest.raises(UnknownOutcome):
        agent.step(FLUSH)
    monkeypatch.undo()
    uid, stored = assigned(agent).uid, streams(agent.store)
    directory.append(0, a_segment(5, 5))
    directory.high_watermark(10)
    agent.run(STREAM)
    assert [(each.uid, each.last_offset) for each in agent.head.entries] == [(uid, 4)], "what was closed does not grow"
    assert streams(agent.store) == stored


def test_a_collection_keeps_what_is_being_written(directory: Directory, agent: Agent) -> None:
    """Its own commit raises the fence, and the object is listed under the one it was assigned under."""
    fill(directory, 0, end=5)
    agent.run(STREAM)
    uid = assigned(agent).uid
    raised = agent.archiver.amend(lambda head: with_fields(head, fence=head.fence + 1))
    assert (raised.fence, assigned(agent).uid) == (2, uid)
    agent.run(FLUSH)
    (entry,) = agent.head.entries
    assert (entry.uid, entry.fence, agent.head.fence) == (uid, 1, 2)


@pytest.mark.parametrize("how", ["another process", "given up"])
def test_a_collection_fails_what_nobody_will_list(directory: Directory, agent: Agent, how: str) -> None:
    written = fill(directory, 0, end=5)
    agent.run(STREAM)
    uid, of = assigned(agent).uid, agent
    if how == "given up":
        agent.archiver.give_up("it is paused")
    else:
        of = Agent(agent.root, store=agent.store, clock=agent.clock)
        of.uids = 100
    raised = of.archiver.amend(lambda head: with_fields(head, fence=head.fence + 1))
    assert uid not in {each.uid for each in raised.pending if each.is_assigned}
    of.run(FLUSH)
    (entry,) = of.head.entries
    assert (entry.uid != uid, entry.fence) == (True, 2)
    assert live_bytes(of.store, of.head) == written


@pytest.mark.parametrize("off", ["archive = off", "paused by hand"])
def test_what_may_not_be_archived_is_not_kept_open(directory: Directory, agent: Agent, off: str) -> None:
    written = fill(directory, 0, end=5)
    agent.run(STREAM)
    uid = assigned(agent).uid
    stopped = replace(STREAM, off=off)
    agent.run(stopped)
    assert agent.archiver.is_streaming == stopped.is_paused, "a pause may be short"
    agent.clock.advance(PAUSED_MS_MAX - 1)
    agent.run(stopped)
    agent.clock.advance(1)
    agent.run(stopped)
    assert (agent.archiver.is_streaming, agent.budget.used_bytes) == (False, 0)
    agent.run(FLUSH)
    (entry,) = agent.head.entries
    assert entry.uid != uid
    assert live_bytes(agent.store, agent.head) == written


def test_a_short_pause_goes_on_with_what_is_open(directory: Directory, agent: Agent) -> None:
    fill(directory, 0, end=5)
    agent.run(STREAM)
    uid = assigned(agent).uid
    for _ in range(3):
        agent.run(replace(STREAM, off="paused by hand"))
        agent.clock.advance(PAUSED_MS_MAX - 1)
        agent.run(replace(STREAM, stream=StreamLimits(1 << 20, 1 << 40)))
    agent.run(FLUSH)
    assert [each.uid for each in agent.head.entries] == [uid]


@pytest.mark.parametrize("chunks", [None, *CHUNKS], ids=str)
@pytest.mark.parametrize("stops_at", [0, 1, "end"])
def test_a_pause_while_bytes_are_sent_goes_on_with_what_is_open(
    directory: Directory, agent: Agent, monkeypatch: pytest.MonkeyPatch, chunks: ChunkCommits | None, stops_at: int | str
) -> None:
    monkeypatch.setattr(stream_writers, "PART_BYTES", 1)
    written, sent = fill(directory, 0, end=5), list[int]()

    def pace(size_bytes: int) -> None:
        if len(sent) == stops_at:
            raise UploadStopped("paused by hand")
        sent.append(size_bytes)

    opened, ends = (replace(each, stream=each.stream and each.stream._replace(chunks=chunks)) for each in (STREAM, FLUSH))
    stopped = opened if isinstance(stops_at, int) else ends
    agent.step(opened)  # claims
    if stops_at == "end":
        agent.step(opened)
        directory.append(0, a_segment(5, 1))
        directory.high_watermark(6)
        written, stops_at = written + a_segment(5, 1), 0
    uid = assigned(agent).uid
    with pytest.raises(UploadStopped):
        agent.archiver.step(stopped, pace=pace)
    assert (agent.archiver.is_streaming, assigned(agent).uid, agent.pool.failed) == (True, uid, 0)
    agent.run(replace(opened, off="paused by hand"))
    agent.clock.advance(PAUSED_MS_MAX - 1)
    agent.run(ends)
    assert assigned(agent).uid != uid
    assert agent.head.pending == (assigned(agent),), "nothing was given up"
    assert live_bytes(agent.store, agent.head) == written
    assert agent.budget.used_bytes == 0


def test_what_the_log_has_lost_is_never_completed(directory: Directory, agent: Agent) -> None:
    fill(directory, 0, end=10)
    agent.run(STREAM)
    before = assigned(agent).uid
    directory.epochs((0, 0), (2, 6))
    directory.segment(0, a_segment(0, 6), a_segment(6, 2, epoch=2))
    directory.high_watermark(8)
    agent.run(FLUSH)
    assert [(each.base_offset, each.last_offset) for each in agent.head.entries] == [(0, 7)]
    assert agent.head.entries[0].uid != before
    assert live_bytes(agent.store, agent.head) == a_segment(0, 6) + a_segment(6, 2, epoch=2)


def test_what_was_sent_before_the_log_lost_it_is_never_listed(directory: Directory, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sent bytes are not read again: only the log's history shows that they are of a dead branch, however far it has grown since."""
    monkeypatch.setattr(stream_writers, "PART_BYTES", 1)
    directory.segment(0, *(a_segment(offset, 1) for offset in range(10)))
    directory.high_watermark(10)
    agent.run(STREAM)
    before = assigned(agent).uid
    directory.epochs((0, 0), (2, 6))
    live = a_segment(0, 6) + a_segment(6, 9, epoch=2)
    directory.segment(0, live)
    directory.high_watermark(15)
    outcomes = agent.run(FLUSH)
    assert before not in {each.uid for each in (*agent.head.entries, *agent.head.superseded)}, outcomes
    assert live_bytes(agent.store, agent.head) == live


def test_switched_off_the_open_object_is_completed_first(directory: Directory, agent: Agent) -> None:
    written = fill(directory, 0, 10, end=15)
    agent.run(STREAM)
    assert agent.run(SEALED)[0] == "archived"
    assert ranges(agent.head.entries) == [(0, 14)]
    assert agent.head.pending == ()
    directory.segment(20, a_segment(20, 1))
    directory.append(10, a_segment(15, 5))
    directory.high_watermark(21)
    agent.run(SEALED)
    assert [(each.last_offset, each.layout) for each in agent.head.entries] == [(14, "streaming"), (19, "segment")]
    agent.run(FLUSH)
    assert [each.layout for each in agent.head.entries] == ["streaming", "segment", "streaming"]
    assert live_bytes(agent.store, agent.head) == written + a_segment(15, 6)


def triggered(agent: Agent, log_bytes: int, *, tail_after_ms: int | None = None) -> Policy:
    """What streaming comes to where a segment goes once more than this lies in the log from its begin on."""
    policy = replace(STREAM, triggers=Triggers(None, log_bytes), tail_after_ms=tail_after_ms)
    return bounded(policy, agent.logs.look(PARTITION.topic_partition), agent.clock.now_ms())


def test_by_triggers_sealed_segments_go_as_one_object_that_is_closed_at_once(directory: Directory, agent: Agent) -> None:
    written = fill(directory, 0, 5, 10, end=15)
    waits = "exceeds"
    assert waits in agent.run(triggered(agent, len(written)))[-1]
    assert (len(agent.head.entries), agent.archiver.open_stream, agent.budget.used_bytes) == (0, None, 0)
    assert agent.run(triggered(agent, len(a_segment(10, 5))))[:-1] == ["archived"]
    assert [(each.base_offset, each.last_offset, each.layout) for each in agent.head.entries] == [(0, 9, "streaming")]
    assert agent.run(triggered(agent, 0)) == ["the rest is in a segment that is not sealed and committed"]
    directory.segment(15, a_segment(15, 2))
    directory.high_watermark(17)
    agent.run(triggered(agent, 0))
    assert ranges(agent.head.entries) == [(0, 9), (10, 14)]
    assert live_bytes(agent.store, agent.head) == written


def test_a_sealed_segment_that_is_due_goes_once_all_of_it_is_committed(directory: Directory, agent: Agent) -> None:
    written = fill(directory, 0, 5, 10, end=15)
    for high_watermark, listed in ((3, []), (7, [(0, 4)]), (9, [(0, 4)]), (10, [(0, 4), (5, 9)]), (14, [(0, 4), (5, 9)])):
        directory.high_watermark(high_watermark)
        agent.run(triggered(agent, 0))
        assert ranges(agent.head.entries) == listed
    assert live_bytes(agent.store, agent.head) == written[: len(a_segment(0, 10))]


def test_a_request_does_not_wait_for_the_trigger(directory: Directory, agent: Agent) -> None:
    fill(directory, 0, 5, 10, end=15)
    agent.run(triggered(agent, 1 << 30))
    agent.run(replace(FLUSH, end=5))
    assert ranges(agent.head.entries) == [(0, 4)]
    agent.run(triggered(agent, 1 << 30))
    assert ranges(agent.head.entries) == [(0, 4)]
    agent.run(FLUSH)
    assert ranges(agent.head.entries) == [(0, 4), (5, 14)]


def test_what_is_open_when_triggers_are_set_is_completed_first_and_gets_no_more(directory: Directory, agent: Agent) -> None:
    fill(directory, 0, end=5)
    agent.run(STREAM)
    assert agent.archiver.open_stream is not None
    directory.append(0, a_segment(5, 5))
    directory.high_watermark(10)
    assert agent.run(triggered(agent, 1 << 30))[:-1] == ["archived"]
    assert ranges(agent.head.entries) == [(0, 4)]


def test_the_unfinished_end_counts_as_sealed_after_the_seal_timeout(directory: Directory, agent: Agent) -> None:
    """Then it waits for the trigger's time, as where segments go one by one."""
    fill(directory, 0, 5, end=8)
    log = agent.logs.look(PARTITION.topic_partition)

    def policy() -> Policy:
        waits = replace(STREAM, triggers=Triggers(2_000, None), tail_after_ms=1_000)
        return bounded(waits, log, log.segments[0].generation.modified_ns // 10**6 + 2_000)

    agent.run(policy())
    assert ranges(agent.head.entries) == [(0, 4)]
    agent.clock.advance(2_999)
    agent.run(policy())
    assert ranges(agent.head.entries) == [(0, 4)]
    agent.clock.advance(1)
    agent.run(policy())
    assert ranges(agent.head.entries) == [(0, 4), (5, 7)]


def test_what_triggers_hold_back_is_explained(directory: Directory, agent: Agent) -> None:
    fill(directory, 0, 5, end=8)
    waits = replace(STREAM, triggers=Triggers(None, 1 << 30))
    agent.run(triggered(agent, 1 << 30))
    log, stream = agent.logs.look(PARTITION.topic_partition), agent.archiver.open_stream
    found = explain(log, agent.head, policy=waits, tail_age_ms=0, now_ms=agent.clock.now_ms(), turn=Turn(), stream=stream)
    assert [(each.base_offset, each.next_offset, each.why.kind) for each in found] == [(0, 5, "trigger"), (5, 8, "active")]
    status = status_of(PARTITION, log, agent.head, policy=waits, tail_age_ms=0, now_ms=agent.clock.now_ms(), stream=stream)
    assert (status.state, "exceeds" in status.reason) == ("waiting", True)
    agent.run(STREAM)
    log, stream = agent.logs.look(PARTITION.topic_partition), agent.archiver.open_stream
    found = explain(log, agent.head, policy=waits, tail_age_ms=0, now_ms=agent.clock.now_ms(), turn=Turn(), stream=stream)
    assert [each.why.kind for each in found] == ["due"], "what was open before is closed next"
    assert status_of(PARTITION, log, agent.head, policy=waits, tail_age_ms=0, now_ms=0, stream=stream).state == "due"


def test_a_compacted_log_goes_run_by_run(directory: Directory, agent: Agent) -> None:
    fill(directory, 0, 10, end=15)
    directory.cleaned(0)
    agent.run(STREAM)
    assert [(each.last_offset, each.layout) for each in agent.head.entries] == [(9, "segment")]


def test_nothing_is_listed_while_the_store_fails(directory: Directory, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    written = fill(directory, 0, end=5)
    agent.run(STREAM)

    def refuse(*_: object, **__: object) -> str:
        raise TransientError("the network is down")

    monkeypatch.setattr(MemoryStore, "put", refuse)
    with pytest.raises(TransientError):
        agent.step(FLUSH)
    monkeypatch.undo()
    uid = assigned(agent).uid
    agent.run(FLUSH)
    assert [each.uid for each in agent.head.entries] == [uid], "the same object is finished"
    assert live_bytes(agent.store, agent.head) == written


def test_a_gap_comes_first_and_moves_what_is_pending(directory: Directory, agent: Agent) -> None:
    fill(directory, 0, end=5)
    agent.run(FLUSH)
    for each in directory.path.glob("*.log"):
        each.unlink()
    directory.segment(8, a_segment(8, 2))
    directory.log_start(8)
    directory.high_watermark(10)
    agent.run(FLUSH)
    assert list(agent.head.entries)[1] == a_gap(5, 7)
    assert ranges(agent.head.entries) == [(0, 4), (5, 7), (8, 9)]
    assert assigned(agent).base_offset == 10
    assert agent.head.partition_id == PARTITION
