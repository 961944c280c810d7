from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pytest
import structlog

import headwater_core.milestones
from archival.partition_status import status_of
from archival.plan.policy import Policy
from headwater_core.errors import (
    CorruptData,
    Fenced,
    NoEpochHistory,
    Partial,
    SourceChanged,
    TransientError,
    UnfinishedSwap,
    UnknownOutcome,
    UnrelatedLog,
)
from headwater_core.objectstore.store import PLAIN, ObjectForm
from headwater_core.partition import PartitionId, topic_id_text
from headwater_core.segments.log_dirs import LogDirs
from manifests import keys
from tests.archival.builders import EVERYTHING, PARTITION, SEALED, Agent, Directory, fill, live_bytes, load, ranges
from tests.archival.stream_objects import FLUSH
from tests.headwater_core.control.local_control import LocalControl
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.segments.builders import a_segment
from tests.manifests.builders import a_gap

# One step after another


def test_sealed_segments_are_archived_byte_for_byte(directory: Directory, agent: Agent) -> None:
    written = fill(directory, 0, 10, 20, end=25)
    assert agent.run(SEALED) == ["claimed", "archived", "archived", "the rest is in a segment that is not sealed and committed"]
    assert ranges(agent.head.entries) == [(0, 9), (10, 19)]
    assert live_bytes(agent.store, agent.head) == written[: len(live_bytes(agent.store, agent.head))]
    assert agent.head.last_offset == 19


def test_the_tail_goes_up_to_the_high_watermark_and_on_in_mid_segment(directory: Directory, agent: Agent) -> None:
    written = fill(directory, 0, end=10)
    directory.high_watermark(4)
    assert agent.run()[:-1] == ["claimed", "archived"]
    directory.high_watermark(10)
    agent.run()
    assert ranges(agent.head.entries) == [(0, 3), (4, 9)]
    assert live_bytes(agent.store, agent.head) == written


def test_a_tail_waits_since_it_was_first_seen_or_last_committed(directory: Directory, agent: Agent) -> None:
    fill(directory, 0, end=5)
    policy = Policy(tail_after_ms=1000)
    assert agent.run(policy) == ["claimed", "the tail has waited 0 s of 1 s"]
    agent.clock.advance(1000)
    assert agent.run(policy) == ["archived", "caught up"]
    directory.append(0, a_segment(5, 5))
    directory.high_watermark(10)
    assert "has waited" in agent.run(policy)[-1]
    agent.clock.advance(1000)
    assert agent.run(policy) == ["archived", "caught up"]


def test_an_empty_topic_gets_a_head(directory: Directory, agent: Agent) -> None:
    directory.segment(0)
    directory.high_watermark(0)
    agent.run()
    assert (agent.head.start_offset, agent.head.last_offset, len(agent.head.entries)) == (0, -1, 0)


def test_an_emptied_log_starts_where_it_ends(directory: Directory, agent: Agent) -> None:
    fill(directory, 0, end=54)
    directory.log_start(54)
    directory.epochs((8, 54))
    agent.run()
    assert (agent.head.start_offset, agent.head.last_offset, len(agent.head.entries)) == (54, 53, 0)


def test_what_was_archived_elsewhere_continues_with_other_segment_boundaries(tmp_path: Path) -> None:
    here, there = Directory(tmp_path / "1"), Directory(tmp_path / "2")
    fill(here, 0, 10, 20, end=30)
    written = fill(there, 0, 14, 28, end=40)
    one = Agent(here.root)
    one.run(SEALED)
    other = Agent(there.root, store=one.store, writer="agent-b")
    other.run(SEALED)
    assert ranges(other.head.entries) == [(0, 9), (10, 19), (20, 27)]
    assert live_bytes(one.store, other.head) == written[: len(live_bytes(one.store, other.head))]


# Another log


def test_an_older_log_archives_nothing_over_a_newer_one(directory: Directory, agent: Agent, tmp_path: Path) -> None:
    directory.epochs((0, 0), (4, 5))
    directory.segment(0, a_segment(0, 5), a_segment(5, 5, epoch=4))
    directory.high_watermark(10)
    agent.run()
    old = Directory(tmp_path / "old")
    old.epochs((0, 0), (2, 5))
    old.segment(0, a_segment(0, 5), a_segment(5, 9, epoch=2))
    old.high_watermark(14)
    before = agent.head
    assert "behind" in Agent(old.root, store=agent.store, writer="agent-b").run()[-1]
    assert agent.head == before


def test_swap_files_in_an_owned_directory_stop_the_partition_until_they_are_gone(directory: Directory, agent: Agent) -> None:
    fill(directory, 0, 10, end=20)
    left = directory.path / f"{0:020}.log.swap"
    left.write_bytes(b"")
    with pytest.raises(UnfinishedSwap, match=f"{left.name}.*Start Kafka"):
        agent.run()
    left.rename(left.with_suffix(".cleaned"))
    assert agent.run() == ["claimed", "archived", "archived", "caught up"]
    left.write_bytes(b"")
    with pytest.raises(UnfinishedSwap):
        agent.run()
    with pytest.raises(SourceChanged):
        agent.releaser.release(agent.archiver)
    assert len(list(directory.path.glob("*.log"))) == 2


def test_a_cleaner_that_is_still_writing_stops_nothing(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither when its files are there, nor when they come between two looks; its renames do."""
    fill(directory, 0, 10, 20, end=30)
    agent = Agent(directory.root, owned=False)
    cleaned = directory.path / f"{0:020}.log.cleaned"
    cleaned.write_bytes(b"")
    assert [agent.step().action for _ in range(2)] == ["claimed", "archived"]
    cleaned.unlink()
    monkeypatch.setattr(headwater_core.milestones, "reached", lambda step: cleaned.write_bytes(b"") if step == "archive.planned" else None)
    assert agent.step().action == "archived"
    swap = cleaned.with_suffix(".swap")
    monkeypatch.setattr(headwater_core.milestones, "reached", lambda step: cleaned.rename(swap) if step == "archive.planned" else None)
    with pytest.raises(SourceChanged):
        agent.step()
    assert agent.step().reason == "a compaction is in the middle of its renames"
    swap.unlink()
    monkeypatch.undo()
    assert agent.step().action == "archived"


# A log that begins anew


def replace_disk(directory: Directory, *, epoch: int, end: int) -> None:
    """The partition as a broker makes it again on an empty disk, in the next leader epoch."""
    for path in directory.path.glob("*.log"):
        path.unlink()
    directory.epochs((epoch, 0))
    fill(directory, 0, end=end, epoch=epoch)


@pytest.mark.parametrize("end", [0, 3, 10, 30])
def test_a_replaced_disk_supersedes_nothing_without_consent(end: int, directory: Directory, agent: Agent) -> None:
    fill(directory, 0, 10, end=20)
    agent.run()
    before = agent.head
    replace_disk(directory, epoch=4, end=end)
    for archiver in (agent, Agent(directory.root, agent.store, writer="agent-b")):
        with pytest.raises(UnrelatedLog, match=f"0 to 19.*ends at {end} and begins in epoch 4.*recover.*begin_anew_epoch = 4") as stopped:
            archiver.run()
        assert stopped.value.begins_in == 4
    assert agent.head == before
    assert not agent.releaser.release(agent.archiver).segments


def test_with_consent_the_archive_begins_again_at_the_log_start(directory: Directory, agent: Agent) -> None:
    """It began at 10 before; the new log offers all it has."""
    fill(directory, 0, 10, end=20)
    directory.log_start(10)
    agent.run()
    directory.log_start(0)
    replace_disk(directory, epoch=4, end=5)
    with pytest.raises(UnrelatedLog):
        agent.run(replace(EVERYTHING, begin_anew_epoch=3))
    assert agent.run(replace(EVERYTHING, begin_anew_epoch=4))[:-1] == ["cut", "archived"]
    assert ranges(agent.head.entries) == [(0, 4)]
    assert ranges(agent.head.superseded) == [(10, 19)]
    assert agent.head.start_offset == 0


def test_consent_is_for_one_disk(directory: Directory, agent: Agent) -> None:
    consent = replace(EVERYTHING, begin_anew_epoch=4)
    fill(directory, 0, end=20)
    agent.run()
    replace_disk(directory, epoch=4, end=5)
    agent.run(consent)
    replace_disk(directory, epoch=7, end=5)
    with pytest.raises(UnrelatedLog, match="epoch 7"):
        agent.run(consent)


def test_a_log_emptied_by_retention_continues_under_a_new_epoch(directory: Directory, agent: Agent) -> None:
    fill(directory, 0, end=20)
    agent.run()
    (directory.path / f"{0:020}.log").unlink()
    directory.segment(20, a_segment(20, 4, epoch=3))
    directory.epochs((3, 20))
    directory.high_watermark(24)
    assert agent.run()[:-1] == ["claimed", "archived"]
    assert ranges(agent.head.entries) == [(0, 19), (20, 23)]


def test_a_refusal_from_an_outdated_head_is_thought_over(directory: Directory, agent: Agent, tmp_path: Path) -> None:
    """No commit follows that would fail: the head is read again."""
    fill(directory, 0, end=20)
    agent.run()
    replace_disk(directory, epoch=4, end=5)
    other = Agent(directory.root, agent.store, writer="agent-b")
    other.run(replace(EVERYTHING, begin_anew_epoch=4))
    assert agent.run() == ["outrun", "claimed", "caught up"]


# Gaps


def test_a_gap_is_recorded_and_refilled(directory: Directory, agent: Agent, tmp_path: Path) -> None:
    written = fill(directory, 0, end=10)
    agent.run()
    directory.segment(20, a_segment(20, 5))
    (directory.path / f"{0:020}.log").unlink()
    directory.high_watermark(25)
    assert agent.run() == ["gap", "archived", "caught up"]
    assert agent.head.entries[1] == a_gap(10, 19)
    other = Directory(tmp_path / "other")
    rest = a_segment(10, 15)
    other.segment(0, written)
    other.segment(10, rest)
    other.high_watermark(25)
    follower = Agent(other.root, store=agent.store, writer="agent-b")
    assert follower.run() == ["claimed", "refilled", "caught up"]
    assert ranges(follower.head.entries) == [(0, 9), (10, 19), (20, 24)]
    assert live_bytes(agent.store, follower.head) == written + rest


@pytest.mark.parametrize("missing", [range(10, 20), range(10, 16), range(14, 20), range(10, 19)])
def test_a_log_with_the_very_gap_of_its_archive_is_archived_on(missing: range, directory: Directory, agent: Agent, tmp_path: Path) -> None:
    """As recovery leaves it, whose log begins where the archive does; or a log that has a part of what is missing."""
    fill(directory, 0, end=10)
    agent.run()
    directory.segment(20, a_segment(20, 5))
    (directory.path / f"{0:020}.log").unlink()
    directory.high_watermark(25)
    agent.run()
    again = Directory(tmp_path / "again")
    for base, end in ((0, 10), (10, missing.start), (missing.stop, 20), (20, 25), (25, 30)):
        if base < end:
            again.segment(base, a_segment(base, end - base))
    again.high_watermark(30)
    follower = Agent(again.root, store=agent.store, writer="agent-b")
    refilled = len(missing) < 10
    assert follower.run() == ["claimed", *(["refilled"] if refilled else []), "archived", "caught up"]
    listed = [(entry.base_offset, entry.last_offset, entry.gap) for entry in follower.head.entries]
    parts = sorted([(missing.start, missing[-1], True), *([(10, missing.start - 1, False)] if missing.start > 10 else [])])
    parts += [(missing.stop, 19, False)] if missing.stop < 20 else []
    assert listed == [(0, 9, False), *parts, (20, 24, False), (25, 29, False)]
    log = LogDirs([again.root]).look(PARTITION.topic_partition)
    assert status_of(PARTITION, log, follower.head, policy=EVERYTHING, tail_age_ms=0, now_ms=0).state == "archived"


# Bad input and bad luck


def test_a_stale_writer_is_fenced_and_leaves_everything_as_it_is(directory: Directory, agent: Agent) -> None:
    fill(directory, 0, 10, end=15)
    agent.step(SEALED)
    other = Agent(directory.root, store=agent.store, writer="agent-b")
    other.run(SEALED)
    before = other.head
    with pytest.raises(Fenced):
        agent.step(EVERYTHING)
    assert load(agent.store, PARTITION) == before


class LosesReplies(MemoryStore):
    """Does what it is told and never says so, when `deaf`."""

    deaf = False

    def put(self, key: str, data: BinaryIO, *, size_bytes: int, form: ObjectForm = PLAIN) -> str:
        digest = super().put(key, data, size_bytes=size_bytes, form=form)
        if self.deaf:
            raise UnknownOutcome("no answer")
        return digest

    def replace(self, key: str, document: bytes, *, expected_tag: str) -> str:
        tag = super().replace(key, document, expected_tag=expected_tag)
        if self.deaf:
            raise UnknownOutcome("no answer")
        return tag


def test_lost_replies_are_read_back(directory: Directory) -> None:
    written = fill(directory, 0, 10, end=15)
    store = LosesReplies()
    agent = Agent(directory.root, store=store)
    agent.step()
    store.deaf = True
    assert agent.run() == ["archived", "archived", "caught up"]
    assert live_bytes(store, agent.head) == written


class DownOnce(MemoryStore):
    down = True

    def put(self, key: str, data: BinaryIO, *, size_bytes: int, form: ObjectForm = PLAIN) -> str:
        if self.down:
            self.down = False
            raise TransientError("slow down")
        return super().put(key, data, size_bytes=size_bytes, form=form)


def test_a_step_that_failed_may_be_repeated(directory: Directory) -> None:
    fill(directory, 0, end=10)
    agent = Agent(directory.root, store=DownOnce())
    agent.step()
    with pytest.raises(TransientError):
        agent.step()
    assert agent.run() == ["archived", "caught up"]


def test_a_store_that_is_gone_says_so_before_anything_is_claimed(directory: Directory) -> None:
    class Gone(MemoryStore):
        def get(self, key: str, *, max_bytes: int = 0) -> tuple[bytes, str]:
            raise TransientError("timed out")

    fill(directory, 0, end=10)
    with pytest.raises(TransientError):
        Agent(directory.root, store=Gone()).step()


def test_the_topics_new_incarnation_is_another_partition(directory: Directory, agent: Agent) -> None:
    fill(directory, 0, end=10)
    agent.run()
    again = PartitionId(PARTITION.cluster_id, topic_id_text(bytes(16)), 0, PARTITION.topic)
    directory.incarnate(again)
    directory.segment(0, a_segment(0, 3))
    directory.high_watermark(3)
    with pytest.raises(SourceChanged, match="another incarnation"):
        agent.step()
    other = Agent(directory.root, store=agent.store, partition=again)
    other.run()
    assert load(agent.store, again).last_offset == 2
    assert load(agent.store, PARTITION).last_offset == 9
    current = agent.repository.current(PARTITION.topic)
    assert current
    assert current.topic_id == again.topic_id


def test_agents_learn_of_every_commit_from_the_control_log(directory: Directory, agent: Agent) -> None:
    fill(directory, 0, 10, end=15)
    agent.run()
    known = agent.control.state().partition(PARTITION)
    assert known
    assert (known.manifest_version, known.last_offset, known.owner) == (agent.head.version, 14, "agent-a")


def test_an_announcement_that_was_lost_is_made_by_the_next_step(directory: Directory, agent: Agent) -> None:
    fill(directory, 0, end=10)
    agent.run()
    restarted = Agent(directory.root, store=agent.store)
    assert restarted.control.state().partition(PARTITION) is None
    restarted.step()
    known = restarted.control.state().partition(PARTITION)
    assert known
    assert known.last_offset == 9


def test_a_head_that_another_agent_made_meanwhile_is_no_loss(directory: Directory, agent: Agent) -> None:
    """We looked and found none; then the control log told of one."""
    fill(directory, 0, 10, end=15)
    directory.epochs((0, 0))
    idle = Agent(directory.root, store=agent.store, writer="agent-b", control=agent.control)
    (directory.root / "replication-offset-checkpoint").unlink()
    assert "high watermark" in idle.run()[-1]
    directory.high_watermark(15)
    agent.run()
    assert idle.run()[:2] == ["outrun", "claimed"]
    assert idle.head.last_offset == 14


def test_a_head_that_is_gone_is_not_made_again(directory: Directory, agent: Agent) -> None:
    fill(directory, 0, 10, end=15)
    agent.run()
    emptied = Agent(directory.root, store=MemoryStore(), control=agent.control)
    with pytest.raises(CorruptData, match="no longer"):
        emptied.run()


@pytest.mark.parametrize("policy", [EVERYTHING, FLUSH], ids=["segments", "streams"])
def test_a_lost_manifest_is_not_begun_again_whatever_the_control_log_knows(directory: Directory, agent: Agent, policy: Policy) -> None:
    fill(directory, 0, 10, end=20)
    agent.run(policy)
    agent.store.delete(keys.head(agent.partition))

    class Uninformed(LocalControl):
        """It was lost and is not rebuilt yet, or has no leader."""

        informed = False

    forgetful = Agent(directory.root, store=agent.store, control=Uninformed())
    with pytest.raises(CorruptData, match=r"it listed the objects below data/.* and stream/.* and is no longer in"):
        forgetful.run(policy)
    for info in [*agent.store.list("data/"), *agent.store.list("stream/")]:
        agent.store.delete(info.key)
    assert "archived" in forgetful.run(policy)


def test_a_claim_that_is_taken_from_a_node_of_the_same_name_is_reported(directory: Directory) -> None:
    fill(directory, 0, 10, end=15)
    store = MemoryStore()
    reported = []
    for writer in ("broker-1-aaaa", "broker-2-cccc", "broker-1-bbbb", "broker-1-aaaa"):
        with structlog.testing.capture_logs() as logs:
            Agent(directory.root, store=store, writer=writer).run(SEALED)
        reported.append([each["other"] for each in logs if each["event"] == "claim_taken_from_a_namesake"])
    assert reported == [[], [], [], ["broker-1-bbbb"]]


def test_a_claim_that_is_taken_from_another_agent_beside_the_same_broker_is_reported(directory: Directory) -> None:
    """Not the claim that comes with a new leadership, which another broker's agent held before."""
    fill(directory, 0, 10, end=15)
    store, reported = MemoryStore(), list[list[str]]()

    def claim(writer: str) -> None:
        with structlog.testing.capture_logs() as logs:
            Agent(directory.root, store=store, writer=writer, delete_retention_ms=1).run(SEALED)
        reported.append([each["other"] for each in logs if each["event"] == "claim_taken_from_another_agent"])

    claim("node-a-1111")
    claim("node-b-2222")
    directory.epochs((0, 0), (1, 12))
    claim("node-a-1111")
    claim("node-b-2222")
    assert reported == [[], ["node-a-1111"], [], ["node-a-1111"]]


def test_a_log_without_an_epoch_history_is_refused_by_name(directory: Directory) -> None:
    """Nobody archives it, so that it must not look like a follower's."""
    fill(directory, 0, 10, end=20)
    directory.epochs()
    agent = Agent(directory.root)
    with pytest.raises(NoEpochHistory, match="no leader epoch history") as raised:
        agent.step()
    assert raised.value.exit_code == Partial.exit_code
    assert list(agent.store.list("")) == []
