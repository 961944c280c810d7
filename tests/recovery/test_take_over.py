"""The archive changes hands: the recovered cluster archives on, and the old one cannot, whatever is interrupted and whoever comes late."""

from pathlib import Path

import pytest
from msgspec.structs import replace

import recovery
from headwater_core.epochs import EpochHistory
from headwater_core.errors import ForeignOwner, TransientError, UsageError
from headwater_core.partition import PartitionId
from headwater_core.segments import checkpoints
from headwater_core.segments.encoder import encode_batch
from headwater_core.segments.log_dirs import LogDirs
from manifests import keys
from manifests.entry import Entry
from manifests.head import Head
from manifests.page import page_key
from manifests.page_limits import PageLimits, Room
from manifests.pending_list import PendingObject
from manifests.repository import ManifestRepository
from manifests.topic import Current
from recovery.recovery_plan import RecoveryPlan
from recovery.runs import segment_name
from tests.fixtures import unpack
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.recovery.archived import archive, archive_in_memory, batches

TAKE_OVER = recovery.Options(take_over=True)


class Interrupted(MemoryStore):
    """The same bucket, in which each document is written only so many times before an error; `lost`: what failed was written."""

    def __init__(self, other: MemoryStore, left: int, *, lost: bool) -> None:
        self.__dict__ = dict(other.__dict__)
        self.left, self.lost = left, lost

    def replace(self, key: str, content: bytes, *, expected_tag: str) -> str:
        self.left -= 1
        if self.left >= 0:
            return super().replace(key, content, expected_tag=expected_tag)
        if self.lost:
            super().replace(key, content, expected_tag=expected_tag)
        raise TransientError("the network is gone")


def heads(repository: ManifestRepository) -> dict[str, Head]:
    found = (info.key for info in repository.store.list(keys.META) if info.key.endswith("/manifest.json"))
    return {key: repository.load_unchecked(key) for key in found}


def owners(repository: ManifestRepository) -> set[str]:
    """Whoever any document of the bucket names as the one that it is of."""
    owner = repository.owner()
    assert owner is not None
    found = {owner.cluster_id, *(head.cluster_id for head in heads(repository).values())}
    for topic, topic_id in repository.incarnations():
        current = repository.current(topic)
        assert isinstance(current, Current)
        found |= {repository.incarnation(topic, topic_id).cluster_id, current.cluster_id}
    return found


def taken(store: MemoryStore, into: Path, options: recovery.Options = TAKE_OVER) -> RecoveryPlan:
    plan = recovery.plan(ManifestRepository(store), None, options)
    assert recovery.apply(plan, into, store).taken_over
    return plan


def produced(log_dir: Path, partition: PartitionId, end: int, epoch: int) -> None:
    """What a broker would have written there: a record in its first leader epoch."""
    directory = log_dir / f"{partition.topic}-{partition.partition}"
    (directory / segment_name(end)).write_bytes(encode_batch(end, [(None, b"new")], leader_epoch=epoch, timestamp_ms=1))
    [log] = [each for each in LogDirs([log_dir]).partitions() if each.partition == partition]
    history = EpochHistory.of([*log.epochs.starts, (epoch, end)])
    (directory / checkpoints.LEADER_EPOCHS).write_bytes(checkpoints.encode_epochs(history))
    file = log_dir / checkpoints.HIGH_WATERMARKS
    marks = checkpoints.decode_offsets(file.read_bytes(), where=str(file)) | {partition.topic_partition: end + 1}
    file.write_bytes(checkpoints.encode_offsets(marks))


@pytest.mark.parametrize("mode", ["full", "instant"])
def test_the_recovered_cluster_archives_on_and_the_old_one_is_refused(mode: str, tmp_path: Path) -> None:
    store, repository = archive_in_memory(unpack("pantry"))
    before = heads(repository)
    plan = taken(store, tmp_path / "log", recovery.Options(take_over=True, mode=mode))  # type: ignore[arg-type]
    assert owners(repository) == {plan.cluster_id}
    after = heads(repository)
    assert {key: (head.version, head.fence, head.next_offset) for key, head in after.items()} == {
        key: (head.version + 1, head.fence + 1, head.next_offset) for key, head in before.items()
    }
    with pytest.raises(ForeignOwner, match="a recovered cluster has taken the archive over"):
        archive(unpack("pantry"), store)
    topic = next(each for each in plan.topics if each.topic == "table-4")
    place = topic.archived_id(plan.cluster_id, 0)
    end = topic.partitions[0].log_end
    produced(tmp_path / "log", place, end, topic.partitions[0].first_epoch + 1)
    archive(tmp_path / "log", store)
    held = repository.load(place)
    assert held is not None
    assert (held.head.next_offset, held.head.fence) == (end + 1, after[keys.head(place)].fence + 1)
    again = recovery.plan(repository, None)
    assert again.source_cluster_id == plan.cluster_id
    recovery.apply(again, tmp_path / "again", store)
    if mode == "full":
        assert list(batches(tmp_path / "again")) == list(batches(tmp_path / "log"))


def test_an_agent_that_still_runs_commits_nothing(tmp_path: Path) -> None:
    store, repository = archive_in_memory(unpack("kitchen"))
    [partition, *_] = [log.partition for log in LogDirs([unpack("kitchen")]).partitions()]
    held = repository.load(partition)
    assert held is not None
    pending = PendingObject(uid="5" * 32, fence=held.head.fence, layout="streaming", base_offset=held.head.next_offset)
    held = repository.commit(held, replace(held.head, pending=(pending,)))
    plan = taken(store, tmp_path / "log")
    for late in (replace(held.head, start_offset=held.head.next_offset), replace(held.head, fence=held.head.fence + 5, writer="late")):
        with pytest.raises(ForeignOwner):
            repository.commit(held, late)
    with pytest.raises(ForeignOwner):
        repository.load(partition)
    now = repository.load_of_any_owner(partition)
    assert now is not None
    assert (now.head.cluster_id, [each.is_assigned for each in now.head.pending]) == (plan.cluster_id, [False])


@pytest.mark.parametrize("lost", [False, True])
def test_interrupted_at_any_write_it_goes_on_and_what_was_given_stays_given_once(lost: bool, tmp_path: Path) -> None:
    store, repository = archive_in_memory(unpack("kitchen"))
    before = heads(repository)
    plan = recovery.plan(repository, None, TAKE_OVER)
    failures = 0
    while True:
        try:
            recovery.apply(plan, tmp_path / "log", Interrupted(store, 3, lost=lost))
            break
        except TransientError:
            failures += 1
            assert not (tmp_path / "log" / "meta.properties").exists()
            begun = recovery.begun_take_over(tmp_path / "log", plan.request)
            assert begun is not None
            assert begun.recovery_id == plan.recovery_id
    assert failures > 3
    assert owners(repository) == {plan.cluster_id}
    assert [head.version for head in heads(repository).values()] == [head.version + 1 for head in before.values()]
    assert recovery.apply(plan, tmp_path / "log", store).again


def test_when_the_directory_of_an_interrupted_one_is_lost_another_one_takes_the_rest(tmp_path: Path) -> None:
    store, repository = archive_in_memory(unpack("kitchen"))
    first = recovery.plan(repository, None, TAKE_OVER)
    with pytest.raises(TransientError):
        recovery.apply(first, tmp_path / "lost", Interrupted(store, 4, lost=False))
    assert len(owners(repository)) == 2
    second = taken(store, tmp_path / "log")
    assert second.left_out == ()
    assert second.source_cluster_id == first.cluster_id
    assert owners(repository) == {second.cluster_id}
    assert list(batches(tmp_path / "log")) == list(batches(unpack("kitchen")))
    with pytest.raises(ForeignOwner):
        recovery.apply(first, tmp_path / "lost", store)


def written_on(repository: ManifestRepository, plan: RecoveryPlan, *, epoch: int = 0) -> None:
    """The old cluster archives on: one more offset, or a leader epoch that it has followed."""
    topic = next(each for each in plan.topics if each.topic == "menu")
    held = repository.load(topic.archived_id(plan.source_cluster_id, 0))
    assert held is not None
    head = replace(held.head, leader_epoch=held.head.leader_epoch + 100) if epoch else held.head
    if not epoch:
        more = Entry(base_offset=head.next_offset, last_offset=head.next_offset, gap=True)
        head = replace(head, last_offset=head.next_offset, entries=(*head.entries, more))
    repository.commit(held, head)


@pytest.mark.parametrize("epoch", [0, 1])
def test_what_was_archived_since_the_plan_is_not_taken_over(epoch: int, tmp_path: Path) -> None:
    store, repository = archive_in_memory(unpack("kitchen"))
    plan = recovery.plan(repository, None, TAKE_OVER)
    written_on(repository, plan, epoch=epoch)
    before = {info.key: store.get(info.key)[0] for info in store.list("") if not info.key.startswith("cluster/")}
    with pytest.raises(UsageError, match=r"more was archived than the plan brings back: menu:0 .* nothing was taken over"):
        recovery.apply(plan, tmp_path / "log", store)
    assert before == {info.key: store.get(info.key)[0] for info in store.list("") if not info.key.startswith("cluster/")}
    assert not (tmp_path / "log" / "meta.properties").exists()


def test_what_is_archived_while_it_is_taken_over_is_not_lost(tmp_path: Path) -> None:
    store, repository = archive_in_memory(unpack("kitchen"))
    plan = recovery.plan(repository, None, TAKE_OVER)

    class Overtaken(MemoryStore):
        def __init__(self) -> None:
            self.__dict__ = store.__dict__

        def replace(self, key: str, content: bytes, *, expected_tag: str) -> str:
            if key == keys.OWNER:
                written_on(repository, plan, epoch=1)
            return super().replace(key, content, expected_tag=expected_tag)

    for bucket in (Overtaken(), store):
        with pytest.raises(UsageError, match="nothing of it is lost, and the archive is cluster"):
            recovery.apply(plan, tmp_path / "log", bucket)
        assert not (tmp_path / "log" / "meta.properties").exists()
    assert owners(repository) == {plan.cluster_id}
    taken(store, tmp_path / "again")


def test_a_third_cluster_keeps_what_it_has_taken(tmp_path: Path) -> None:
    store, repository = archive_in_memory(unpack("kitchen"))
    late = recovery.plan(repository, None, TAKE_OVER)
    taken(store, tmp_path / "first")
    before = heads(repository)
    with pytest.raises(ForeignOwner, match="is the archive of cluster"):
        recovery.apply(late, tmp_path / "late", store)
    assert heads(repository) == before


def test_topics_that_do_not_come_back_are_given_too_and_other_requests_are_refused() -> None:
    _, repository = archive_in_memory(unpack("kitchen"))
    source = recovery.plan(repository, None).source_cluster_id
    assert "all topics" in recovery.plan(repository, ["menu"], TAKE_OVER).problems[0]
    assert "has the archive already" in recovery.plan(repository, None, recovery.Options(take_over=True, cluster_id=source)).problems[0]
    with pytest.raises(UsageError, match="no archive to take over"):
        recovery.plan(repository, None, recovery.Options(take_over=True, renames={"menu": "card"}))


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_head_with_pages_changes_hands_and_they_stay_whether_they_can_be_read_or_not(is_lost: bool, tmp_path: Path) -> None:
    store, repository = archive_in_memory(unpack("pantry"))
    small = ManifestRepository(store, limits=PageLimits(entries=Room(1, 34_000)))
    [partition] = [log.partition for log in LogDirs([unpack("pantry")]).partitions() if str(log.partition) == "thermo-samples:1"]
    held = small.load(partition)
    assert held is not None
    before, paged = list(held.head.entries), small.commit(held, held.head)
    [page] = paged.head.entries.references
    if is_lost:
        store.delete(page_key(partition, page))
    plan = recovery.plan(repository, None, TAKE_OVER)
    assert bool(plan.holes) is is_lost
    recovery.apply(plan, tmp_path / "log", store, skip_damaged=is_lost)
    now = repository.load(replace_owner(partition, plan))
    assert now is not None
    assert now.head.entries.references == (page,)
    if not is_lost:
        assert list(now.head.entries) == before


def replace_owner(partition: PartitionId, plan: RecoveryPlan) -> PartitionId:
    return PartitionId(plan.cluster_id, partition.topic_id, partition.partition, partition.topic)
