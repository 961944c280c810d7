"""The archive changes hands: the recovered cluster archives on, and the old one cannot, whatever is interrupted and whoever comes late."""

from collections.abc import Callable
from dataclasses import replace as with_fields
from pathlib import Path
from threading import Lock

import msgspec
import pytest
from msgspec.structs import replace

import recovery
from archival.cluster_archiver import ClusterArchiver
from headwater_core.clock import SystemClock
from headwater_core.epochs import EpochHistory
from headwater_core.errors import ForeignOwner, NeedsUpgrade, TransientError, UsageError
from headwater_core.objectstore.digest import digest_of
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
from recovery.bucket_survey import survey
from recovery.plan_document import decode_plan, encode_plan
from recovery.recovery_plan import RecoveryPlan
from recovery.runs import segment_name
from tests.fixtures import unpack
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.recovery.archived import archive, archive_in_memory, batches
from tests.recovery.test_cluster_state import Kitchen

TAKE_OVER = recovery.Options(take_over=True)


class Interrupted(MemoryStore):
    """The same bucket, in which each document with an owner is written only so often before an error; `lost`: what failed was written."""

    def __init__(self, other: MemoryStore, left: int, *, lost: bool) -> None:
        self.__dict__ = dict(other.__dict__)
        self.left, self.lost = left, lost

    def replace(self, key: str, content: bytes, *, expected_tag: str) -> str:
        self.left -= not key.startswith(keys.RECOVERIES)
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


@pytest.mark.parametrize(
    "options",
    [TAKE_OVER, replace(TAKE_OVER, mode="partial", keep_bytes=1), replace(TAKE_OVER, mode="instant")],
    ids=lambda options: options.mode,
)
def test_the_recovered_cluster_archives_on_and_the_old_one_is_refused(options: recovery.Options, tmp_path: Path) -> None:
    store, repository = archive_in_memory(unpack("pantry"))
    before = heads(repository)
    plan = taken(store, tmp_path / "log", options)
    parts = [each for topic in plan.topics for each in topic.partitions if each.left is not None]
    assert bool(parts) == (options.mode != "full")
    assert any(each.entries for each in parts) == (options.mode == "partial")
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
    if options.mode == "full":
        assert list(batches(tmp_path / "again")) == list(batches(tmp_path / "log", with_tails=True))
    assert {*batches(tmp_path / "again")} >= {*batches(unpack("pantry"))}  # and what stayed in the archive is there all the same


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
            begun = recovery.begun_plan(tmp_path / "log", plan.request)
            assert begun is not None
            assert begun.recovery_id == plan.recovery_id
    assert failures >= (2 if lost else 5)  # heads, and then the rest: side by side, so that many are written before the first error counts
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
    repository = ManifestRepository(store)  # which remembers no page
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


# What may not be taken over, and what comes in between


class Meanwhile(MemoryStore):
    """The same bucket, in which something is done once, just before `key` is written, by the first of several threads."""

    def __init__(self, other: MemoryStore, key: str, do: Callable[[], object]) -> None:
        self.__dict__ = other.__dict__
        self._key, self._do, self._once = key, do, Lock()

    def replace(self, key: str, content: bytes, *, expected_tag: str) -> str:
        if key.endswith(self._key) and self._once.acquire(blocking=False):
            self._do()
        return super().replace(key, content, expected_tag=expected_tag)


def of_menu(store: MemoryStore) -> tuple[ManifestRepository, RecoveryPlan]:
    """An archive with no other topic yet, and the plan that takes it over."""
    repository = archive(unpack("kitchen"), store, topics={"menu"})
    return repository, recovery.plan(repository, None, TAKE_OVER)


def test_a_topic_that_is_archived_first_since_the_plan_is_not_taken_over(tmp_path: Path) -> None:
    store = MemoryStore(SystemClock())
    repository, plan = of_menu(store)
    archive(unpack("kitchen"), store)
    with pytest.raises(UsageError, match=r"more was archived .* nothing was taken over"):
        recovery.apply(plan, tmp_path / "log", store)
    assert plan.cluster_id not in owners(repository)
    taken(store, tmp_path / "again")


def test_a_partition_whose_head_was_not_there_when_it_was_planned_is_not_taken_over(tmp_path: Path) -> None:
    store, repository = archive_in_memory(unpack("kitchen"))
    [key] = [key for key, head in heads(repository).items() if (head.topic, head.partition) == ("specials", 2)]
    raw, _ = store.get(key)
    store.delete(key)
    plan = recovery.plan(repository, None, TAKE_OVER)
    store.create(key, raw)
    with pytest.raises(UsageError, match=r"specials:2 up to 3, .* nothing was taken over"):
        recovery.apply(plan, tmp_path / "log", store)


def test_heads_that_are_made_before_the_owner_is_settled_are_given_too_and_no_broker_starts(tmp_path: Path) -> None:
    store = MemoryStore(SystemClock())
    repository, plan = of_menu(store)
    with pytest.raises(UsageError, match="nothing of it is lost"):
        recovery.apply(plan, tmp_path / "log", Meanwhile(store, keys.OWNER, lambda: archive(unpack("kitchen"), store)))
    assert owners(repository) == {plan.cluster_id}
    assert not (tmp_path / "log" / "meta.properties").exists()


def test_an_agent_that_makes_a_first_head_when_the_archive_has_changed_hands_lists_nothing_in_it(tmp_path: Path) -> None:
    store, repository = archive_in_memory(unpack("kitchen"))
    [key] = [key for key, head in heads(repository).items() if (head.topic, head.partition) == ("specials", 2)]
    store.delete(key)
    for info in [*store.list(keys.data_prefix(repository.resolve("specials").partition_id(2)))]:
        store.delete(info.key)
    plan = recovery.plan(repository, None, TAKE_OVER)

    class Late(MemoryStore):
        """Between the agent's look at the owner and its first commit."""

        def __init__(self) -> None:
            self.__dict__ = store.__dict__

        def create(self, key_: str, content: bytes) -> str:
            if key_ == key:
                recovery.apply(plan, tmp_path / "log", store)
            return super().create(key_, content)

    with pytest.raises(ForeignOwner, match="a recovered one has the archive now"):
        archive(unpack("kitchen"), Late(), topics={"specials"})
    assert repository.load_unchecked(key).next_offset == 0
    assert repository.load_unchecked(key).version == 1


def changed(store: MemoryStore, key: str, **changes: object) -> None:
    """The document with other fields, as sound as it was."""
    raw, tag = store.get(key)
    body = {**msgspec.json.decode(raw), **changes}
    body.pop("digest")
    body["digest"] = digest_of(msgspec.json.encode(body, order="sorted"))
    store.replace(key, msgspec.json.encode(body), expected_tag=tag)


def torn(store: MemoryStore, key: str) -> None:
    raw, tag = store.get(key)
    store.replace(key, raw[:-20], expected_tag=tag)


CLOSED: dict[str, tuple[str, dict[str, object]]] = {
    "a head of a newer format": ("manifest.json", {"format": [2, 99]}),
    "a head of a format that nobody knows": ("manifest.json", {"format": [9, 0]}),
    "a head of another topic": ("manifest.json", {"topic": "other"}),
    "a head of a third cluster": ("manifest.json", {"cluster_id": "A" * 21 + "Q"}),
    "a topic of a newer format": ("topic.json", {"format": [1, 99]}),
    "a topic of a third cluster": ("topic.json", {"cluster_id": "A" * 21 + "Q"}),
    "a name of a newer format": ("current.json", {"format": [1, 99]}),
}


@pytest.mark.parametrize("case", CLOSED)
def test_what_must_not_be_written_over_is_a_problem_of_the_plan_and_nothing_is_taken(case: str, tmp_path: Path) -> None:
    store, repository = archive_in_memory(unpack("kitchen"))
    name, changes = CLOSED[case]
    before = recovery.plan(repository, None, TAKE_OVER)
    key = max(info.key for info in store.list(keys.META) if info.key.endswith(name))
    changed(store, key, **changes)
    assert recovery.plan(repository, None, TAKE_OVER).problems
    source = repository.owner()
    with pytest.raises(UsageError, match="cannot be taken over as a whole, and nothing of it was"):
        recovery.apply(before, tmp_path / "log", store)
    assert repository.owner() == source


@pytest.mark.parametrize("name", ["manifest.json", "topic.json", "current.json", "cluster/latest.json"])
@pytest.mark.parametrize("when", ["before the plan", "after the owner"])
def test_a_damaged_document_stays_as_it_is_and_all_else_changes_hands(name: str, when: str, tmp_path: Path) -> None:
    kitchen = Kitchen()
    store, repository = kitchen.store, kitchen.repository
    key = max(info.key for info in store.list("") if info.key.endswith(name) and "menu" not in info.key)
    if when == "before the plan":
        torn(store, key)
    plan = recovery.plan(repository, None, TAKE_OVER)
    assert plan.problems == ()
    bucket = store if when == "before the plan" else Meanwhile(store, "manifest.json", lambda: torn(store, key))
    assert recovery.apply(plan, tmp_path / "log", bucket).taken_over
    found = survey(repository)
    assert (len(found.damaged), found.not_of({plan.cluster_id})) == (1, [])


def test_a_damaged_owner_is_a_problem_before_anything_is_fetched() -> None:
    store, repository = archive_in_memory(unpack("kitchen"))
    torn(store, keys.OWNER)
    assert "headwater.json" in recovery.plan(repository, None, TAKE_OVER).problems[0]


def test_an_owner_of_a_newer_format_is_not_written_over(tmp_path: Path) -> None:
    store, repository = archive_in_memory(unpack("kitchen"))
    plan = recovery.plan(repository, None, TAKE_OVER)
    changed(store, keys.OWNER, format=[1, 99])
    assert "needs upgrade" in recovery.plan(repository, None, TAKE_OVER).problems[0]
    with pytest.raises(NeedsUpgrade):
        recovery.apply(plan, tmp_path / "log", store)
    assert {head.cluster_id for head in heads(repository).values()} == {plan.source_cluster_id}


def test_an_earlier_take_over_that_was_paused_undoes_nothing_of_a_later_one(tmp_path: Path) -> None:
    kitchen = Kitchen()
    store, repository = kitchen.store, kitchen.repository
    first, later = recovery.plan(repository, None, TAKE_OVER), []
    bucket = Meanwhile(store, "topic.json", lambda: later.append(taken(store, tmp_path / "later")))
    with pytest.raises(ForeignOwner):
        recovery.apply(first, tmp_path / "first", bucket)
    assert survey(repository).not_of({later[0].cluster_id}) == []
    assert owners(repository) == {later[0].cluster_id}
    assert not (tmp_path / "first" / "meta.properties").exists()


def test_a_branch_that_was_archived_again_to_the_same_end_is_seen_though_a_snapshot_knew_its_epoch(tmp_path: Path) -> None:
    topics = dict(Kitchen().state.topics)
    specials = topics["specials"]
    topics["specials"] = with_fields(
        specials, partitions={number: with_fields(each, leader_epoch=7) for number, each in specials.partitions.items()}
    )
    kitchen = Kitchen(topics=topics)
    plan = kitchen.plan(recovery.Options(take_over=True, cluster="latest"))
    held = kitchen.repository.load(kitchen.repository.resolve("specials").partition_id(0))
    assert held is not None
    [dead] = held.head.entries
    again = Entry(base_offset=dead.base_offset, last_offset=dead.last_offset, gap=True)
    kitchen.repository.commit(held, replace(held.head, leader_epoch=7, entries=(again,), superseded=(dead,)))
    with pytest.raises(UsageError, match=r"specials:0 up to 6, leader epoch 7; .* nothing was taken over"):
        recovery.apply(plan, tmp_path / "log", kitchen.store)


def test_interrupted_before_the_snapshots_are_given_another_recovery_and_the_new_agents_go_on(tmp_path: Path) -> None:
    options = recovery.Options(take_over=True, cluster="latest")
    kitchen = Kitchen()
    first = kitchen.plan(options)
    with pytest.raises(TransientError):
        recovery.apply(first, tmp_path / "lost", Interrupted(kitchen.store, 1, lost=False))
    listed = kitchen.repository.load_snapshots()
    assert listed is not None
    assert listed.cluster_id == first.source_cluster_id
    agent = ClusterArchiver(with_fields(kitchen.archiver._equipment, cluster_id=lambda: first.cluster_id))
    assert agent.step() is None
    kitchen.store.delete(keys.CLUSTER_LIST)
    agent = ClusterArchiver(with_fields(kitchen.archiver._equipment, cluster_id=lambda: first.cluster_id))
    assert agent.step() is None
    with pytest.raises(ForeignOwner):
        ClusterArchiver(kitchen.archiver._equipment).step()
    second = kitchen.plan(options)
    assert second.problems == ()
    assert recovery.apply(second, tmp_path / "log", kitchen.store).taken_over
    assert owners(kitchen.repository) == {second.cluster_id}


def test_a_take_over_under_a_given_id_goes_on_when_its_directory_is_lost(tmp_path: Path) -> None:
    store, repository = archive_in_memory(unpack("kitchen"))
    given = "A" * 21 + "Q"
    options = recovery.Options(take_over=True, cluster_id=given)
    with pytest.raises(TransientError):
        recovery.apply(recovery.plan(repository, None, options), tmp_path / "lost", Interrupted(store, 4, lost=False))
    assert "a take-over was interrupted" in recovery.plan(repository, None, recovery.Options(cluster_id=given)).problems[0]
    assert taken(store, tmp_path / "log", options).source_cluster_id == given
    assert owners(repository) == {given}
    archive(tmp_path / "log", store)
    assert "has the archive already" in recovery.plan(repository, None, options).problems[0]
    assert recovery.plan(repository, None, recovery.Options(cluster_id=given)).problems == ()


def test_a_plan_in_a_file_that_was_made_of_a_half_given_archive_is_applied(tmp_path: Path) -> None:
    store, repository = archive_in_memory(unpack("kitchen"))
    with pytest.raises(TransientError):
        recovery.apply(recovery.plan(repository, None, TAKE_OVER), tmp_path / "lost", Interrupted(store, 4, lost=False))
    plan = recovery.plan(repository, None, TAKE_OVER)
    assert recovery.apply(decode_plan(encode_plan(plan)), tmp_path / "log", store, unchanged=True).taken_over


@pytest.mark.parametrize(
    "options",
    [
        recovery.Options(take_over=True, to_offsets={"specials:0": 3}),
        recovery.Options(take_over=True, to_time_ms=1),
        recovery.Options(take_over=True, open_transactions="cut"),
    ],
)
def test_a_log_that_ends_before_its_archive_does_not_continue_it(options: recovery.Options) -> None:
    _, repository = archive_in_memory(unpack("kitchen"))
    with pytest.raises(UsageError, match="without --take-over"):
        recovery.plan(repository, None, options)


def test_partitions_that_are_dropped_are_not_continued() -> None:
    _, repository = archive_in_memory(unpack("kitchen"))
    options = recovery.Options(take_over=True, partition_counts={"specials": 2}, drop_partitions=True)
    assert "specials:2 is archived and does not come back" in recovery.plan(repository, None, options).problems[0]


def test_without_an_owner_what_was_archived_since_is_not_taken_over_either(tmp_path: Path) -> None:
    store, repository = archive_in_memory(unpack("kitchen"))
    plan = recovery.plan(repository, None, TAKE_OVER)
    written_on(repository, plan)
    store.delete(keys.OWNER)
    with pytest.raises(UsageError, match="nothing was taken over"):
        recovery.apply(plan, tmp_path / "log", store)
    assert repository.owner() is None
