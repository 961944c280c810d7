"""What recovery writes where logs end."""

from pathlib import Path

import recovery
from archival.plan.policy import Policy
from headwater_core.clock import SystemClock
from headwater_core.partition import PartitionId
from headwater_core.segments import checkpoints
from headwater_core.segments.markers import ABORT, read_marker
from tests.fixtures import unpack
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.recovery.archived import archive, archive_in_memory, batches
from tests.recovery.written_archive import Archive, batches_in, commit, data, marker, plain, state

ONGOING, COMPLETE_COMMIT = 1, 4


def test_what_is_skipped_decides_again_where_logs_end(tmp_path: Path) -> None:
    archive = Archive()
    entries = archive.topic("orders", [plain(0), data(1, 7)], [marker(2, 7), plain(3)])
    archive.topic("__consumer_offsets", [commit(0, ("reader", "orders", 0, 4))])
    plan = archive.plan()
    assert (plan.offsets_ahead, plan.topics[1].partitions[0].written) == ((), ())
    archive.store.delete(entries[1].key)
    report = recovery.apply(plan, tmp_path / "log", archive.store, skip_damaged=True)
    assert len(report.left_out) == 1
    [(header, raw)] = [each for each in batches_in(tmp_path / "log" / "orders-0") if each[0].base_offset >= 2]
    assert (header.base_offset, header.leader_epoch, read_marker(raw).type) == (2, 0, ABORT)
    assert (tmp_path / "log" / checkpoints.HIGH_WATERMARKS).read_text().splitlines()[3] == "orders 0 4"


def test_what_is_kept_open_is_known_to_the_coordinator_up_to_its_log_s_end() -> None:
    """The run that is cut says more: that one transaction was ended, and that another one had begun."""
    archive = Archive()
    archive.topic("orders", [data(0, 7), data(1, 8)])
    began, ended = (state(at, "seven", 7, status, ("orders", 0)) for at, status in enumerate((ONGOING, COMPLETE_COMMIT)))
    archive.topic("__transaction_state", [began, ended, state(2, "eight", 8, ONGOING, ("orders", 0))])
    plan = archive.plan(to_offsets={"__transaction_state:0": 1}, open_transactions="keep")
    assert plan.cut is not None
    assert [(each.producer_id, each.outcome) for each in plan.cut.transactions] == [(7, "ended by the coordinator"), (8, "left open")]
    assert [(each.transactional_id, each.status) for each in plan.cut.unfinished] == [("seven", "ongoing")]
    [written] = archive.plan().topics[1].partitions[0].written
    assert [abort.producer_id for abort in written.aborts] == [7, 8]  # none is left to a coordinator that may know an older one


def test_a_real_log_s_coordinator_and_groups(tmp_path: Path) -> None:
    """refunds of pantry ends in a transaction that __transaction_state knows; one group was set beyond its log's end."""
    store, repository = archive_in_memory(unpack("pantry"))
    plan = recovery.plan(repository, None)
    assert [(each.group, each.offset, each.log_end) for each in plan.offsets_ahead] == [("g-multi", 101, 64)]
    assert not [topic.topic for topic in plan.topics for partition in topic.partitions if partition.open_from is not None]
    alone = recovery.plan(repository, ["refunds"])
    assert [len(partition.written) for topic in alone.topics for partition in topic.partitions if partition.written] == [1]
    recovery.apply(alone, tmp_path / "log", store)
    added = [each for each in batches(tmp_path / "log") if each not in list(batches(unpack("pantry")))]
    assert [read_marker(raw).type for *_, raw in added] == [ABORT]


def test_what_recovery_wrote_is_archived_after_what_it_recovered(tmp_path: Path) -> None:
    """Under the old cluster's id the archive continues: in a leader epoch of recovery's own, so that nothing looks like a dead branch."""
    store = MemoryStore(SystemClock())
    repository = archive(unpack("pantry"), store, policy=Policy())
    archive(unpack("pantry"), store, ["__consumer_offsets"])
    owner = repository.owner()
    assert owner is not None
    plan = recovery.plan(repository, None, recovery.Options(cluster_id=owner.cluster_id))
    recovery.apply(plan, tmp_path / "log", store)
    archive(tmp_path / "log", store)
    written = [(topic, partition) for topic in plan.topics for partition in topic.partitions if partition.written]
    assert {topic.topic for topic, _ in written} == {"__consumer_offsets", "orders.placed"}
    for topic, partition in written:
        held = repository.load(PartitionId(owner.cluster_id, topic.topic_id, partition.partition, topic.topic))
        assert held is not None
        assert (held.head.next_offset, len(held.head.superseded)) == (partition.log_end, 0)
        assert held.head.entries[-1].epochs == ((partition.leader_epoch + 1, partition.next_offset),)
        assert held.head.entries[-1].open_from is None
