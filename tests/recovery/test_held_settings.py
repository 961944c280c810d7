"""Retention that a recovery held back, and putting it back once the broker's logs are as they were recovered."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import recovery
from headwater_core.errors import ForeignOwner, HeadwaterError, NotFound, TransientError, UsageError, VerificationFailed
from manifests.repository import ManifestRepository
from manifests.topic import TopicManifest
from recovery.held_settings import LogBounds, TopicValues, finish, held_of
from recovery.plan_notes import HELD_BACK
from recovery.recovered_groups import CommittedPlace
from recovery.recovery_plan import Place, RecoveryPlan
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.recovery.plans import CLUSTER
from tests.recovery.written_archive import Archive, plain


@dataclass
class Cluster:
    """A recovered cluster as its brokers would answer."""

    plan: RecoveryPlan
    moved: dict[Place, LogBounds] = field(default_factory=dict)
    lost_answers: int = 0
    silent: set[Place] = field(default_factory=set)
    changes: list[TopicValues] = field(default_factory=list)
    offsets: dict[CommittedPlace, int] = field(default_factory=dict)
    starts: dict[CommittedPlace, int] = field(default_factory=dict)
    retention_ms: int = 7 * 86_400_000

    def __post_init__(self) -> None:
        self.name = self.plan.cluster_id
        self.ids = {topic.topic: topic.topic_id for topic in self.plan.topics}
        self.settings: dict[str, dict[str, str | None]] = {topic.topic: dict(topic.configs) for topic in self.plan.topics}

    def cluster_id(self) -> str:
        return self.name

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        return {topic: self.ids[topic] for topic in topics if topic in self.ids}

    def log_bounds(self, places: Collection[Place]) -> Mapping[Place, LogBounds]:
        found = {(t.topic, p.partition): LogBounds(p.start_offset, p.log_end) for t in self.plan.topics for p in t.partitions}
        return {place: bounds for place, bounds in (found | self.moved).items() if place in places and place not in self.silent}

    def committed(self, groups: Collection[str]) -> Mapping[CommittedPlace, int]:
        return {key: offset for key, offset in self.offsets.items() if key.group in groups}

    def shared(self, groups: Collection[str]) -> Mapping[CommittedPlace, int]:
        return {key: offset for key, offset in self.starts.items() if key.group in groups}

    def offsets_retention_ms(self) -> int:
        return self.retention_ms

    def values(self, topics: Mapping[str, Collection[str]]) -> TopicValues:
        return {
            topic: {name: self.settings[topic][name] for name in names if name in self.settings[topic]} for topic, names in topics.items()
        }

    def change(self, wanted: TopicValues) -> None:
        self.changes.append(wanted)
        for topic, values in wanted.items():
            for name, value in values.items():
                if value is None:
                    self.settings[topic].pop(name, None)
                else:
                    self.settings[topic][name] = value
        if self.lost_answers:
            self.lost_answers -= 1
            raise TransientError("timed out")


@pytest.fixture
def recovered(tmp_path: Path) -> tuple[Path, Cluster]:
    archive = Archive()
    archive.topic("orders", [plain(0, 4)], **{"retention.ms": "600"})
    archive.topic("menu", [plain(0, 2)], **{"retention.bytes": "77", "remote.storage.enable": "true"})
    archive.topic("stock", [plain(0)], **{"cleanup.policy": "compact"})
    into, plan = tmp_path / "log", archive.plan()
    recovery.apply(plan, into, archive.store)
    return into, Cluster(plan)


def test_retention_is_put_back_as_the_archive_has_it(recovered: tuple[Path, Cluster]) -> None:
    into, cluster = recovered
    assert {(each.topic, each.name, each.value) for each in held_of(into)} == {
        ("orders", "retention.ms", "600"),
        ("orders", "retention.bytes", None),
        ("menu", "retention.ms", None),
        ("menu", "retention.bytes", "77"),
        ("menu", "remote.storage.enable", "true"),
    }
    done = finish(into, cluster, ManualClock())
    assert cluster.settings["orders"] == {"cleanup.policy": "delete", "retention.ms": "600"}
    assert cluster.settings["menu"] == {"cleanup.policy": "delete", "retention.bytes": "77"}
    assert (len(done.put_back), done.changed, [each.name for each in done.left]) == (4, [], ["remote.storage.enable"])
    assert [each.name for each in held_of(into)] == ["remote.storage.enable"]
    assert recovery.apply(cluster.plan, into, Archive().store).again


def test_a_retention_that_was_given_stays(tmp_path: Path) -> None:
    """The topic's own would let the broker delete what came back: the one that was given is what the user wants instead."""
    archive = Archive()
    archive.topic("orders", [plain(0, 4)], **{"retention.ms": "600", "retention.bytes": "77"})
    into, plan = tmp_path / "log", archive.plan(retention_ms=1 << 60)
    recovery.apply(plan, into, archive.store)
    assert [(each.name, each.value) for each in held_of(into)] == [("retention.bytes", "77")]
    cluster = Cluster(plan)
    finish(into, cluster, ManualClock())
    assert cluster.settings["orders"] == {"cleanup.policy": "delete", "retention.ms": str(1 << 60), "retention.bytes": "77"}


def test_it_is_put_back_once_and_what_is_changed_later_stays(recovered: tuple[Path, Cluster]) -> None:
    into, cluster = recovered
    finish(into, cluster, ManualClock())
    cluster.settings["orders"]["retention.ms"] = "5"
    again = finish(into, cluster, ManualClock())
    assert (again.again, cluster.settings["orders"]["retention.ms"], len(cluster.changes)) == (True, "5", 1)


class Behind(Cluster):
    """Its brokers answer what held before the last change, so many times."""

    answers_behind = 0

    def values(self, topics: Mapping[str, Collection[str]]) -> TopicValues:
        if not self.changes or not self.answers_behind:
            return super().values(topics)
        self.answers_behind -= 1
        return {topic: dict.fromkeys(names, "-1") for topic, names in topics.items()}


def test_a_broker_that_is_behind_what_the_controller_was_told_is_asked_again(recovered: tuple[Path, Cluster]) -> None:
    into, cluster = recovered
    behind, pauses = Behind(cluster.plan), list[float]()
    behind.answers_behind = 3
    done = finish(into, behind, ManualClock(), pause=pauses.append)
    assert (len(done.put_back), len(behind.changes), len(pauses)) == (4, 1, 3)


def test_a_setting_that_is_never_set_is_not_said_to_be_put_back(recovered: tuple[Path, Cluster]) -> None:
    into, cluster = recovered
    behind, pauses = Behind(cluster.plan), list[float]()
    behind.answers_behind = 1_000
    with pytest.raises(TransientError, match="not yet as set: "):
        finish(into, behind, ManualClock(), pause=pauses.append)
    assert 5 <= sum(pauses) <= 30
    assert len(held_of(into)) == 5


def test_a_value_that_was_set_in_between_is_not_overwritten(recovered: tuple[Path, Cluster]) -> None:
    into, cluster = recovered
    cluster.settings["orders"]["retention.ms"] = "9000"
    done = finish(into, cluster, ManualClock())
    assert cluster.settings["orders"] == {"cleanup.policy": "delete", "retention.ms": "9000"}
    assert [(each.topic, each.name) for each in done.changed] == [("orders", "retention.ms")]


def test_a_lost_answer_is_made_good_by_a_second_run(recovered: tuple[Path, Cluster]) -> None:
    into, cluster = recovered
    cluster.lost_answers = 1
    with pytest.raises(TransientError):
        finish(into, cluster, ManualClock())
    assert held_of(into)
    done = finish(into, cluster, ManualClock())
    assert (len(done.put_back), done.changed, cluster.settings["orders"]["retention.ms"]) == (4, [], "600")


@pytest.mark.parametrize("bounds", [LogBounds(1, 4), LogBounds(0, 3)])
def test_a_log_that_has_lost_records_keeps_retention_away(recovered: tuple[Path, Cluster], bounds: LogBounds) -> None:
    into, cluster = recovered
    cluster.moved["orders", 0] = bounds
    done = finish(into, cluster, ManualClock())
    assert done.unlike == {"orders": f"orders:0 has offsets {bounds.start_offset} to {bounds.next_offset - 1}, 0 to 3 came back"}
    assert {each.topic for each in done.put_back} == {"menu"}
    assert (cluster.settings["orders"]["retention.ms"], "retention.bytes" in cluster.settings["menu"]) == ("-1", True)
    assert {each.topic for each in held_of(into) if each.name in HELD_BACK} == {"orders"}
    with pytest.raises(VerificationFailed, match="orders:0 has offsets"):  # nothing else is left to do
        finish(into, cluster, ManualClock())
    assert len(cluster.changes) == 1
    assert {each.topic for each in finish(into, cluster, ManualClock(), checked=False).put_back} == {"orders"}
    assert finish(into, cluster, ManualClock()).again


def test_what_is_put_back_in_one_run_is_not_looked_at_in_the_next(recovered: tuple[Path, Cluster]) -> None:
    into, cluster = recovered
    cluster.moved["orders", 0] = LogBounds(1, 4)
    finish(into, cluster, ManualClock())
    cluster.settings["menu"]["retention.bytes"] = "-1"  # somebody wants it so: it is what the recovery had set, too
    finish(into, cluster, ManualClock(), checked=False)
    assert cluster.settings["menu"]["retention.bytes"] == "-1"


@pytest.mark.parametrize("topic_id", [None, "another"])
def test_a_topic_that_was_deleted_since_does_not_keep_the_others_back(recovered: tuple[Path, Cluster], topic_id: str | None) -> None:
    into, cluster = recovered
    cluster.ids.pop("menu")
    cluster.ids |= {} if topic_id is None else {"menu": topic_id}
    done = finish(into, cluster, ManualClock())
    assert ({each.topic for each in done.put_back}, list(done.unlike)) == ({"orders"}, ["menu"])
    assert "menu" not in cluster.changes[0]
    done = finish(into, cluster, ManualClock(), checked=False)
    assert (done.put_back, list(done.unlike), len(cluster.changes)) == ([], ["menu"], 1)
    assert finish(into, cluster, ManualClock()).again  # it was said so: nothing is left to do


def test_what_kafka_trims_itself_and_what_has_nothing_held_back_is_not_asked_for(tmp_path: Path) -> None:
    archive, into = Archive(), tmp_path / "log"
    archive.topic("orders", [plain(0, 4)], **{"retention.ms": "600"})
    archive.topic("stock", [plain(0, 4)], **{"cleanup.policy": "compact"})
    archive.topic("__share_group_state", [plain(0, 5)], [plain(5, 5)], **{"cleanup.policy": "delete", "retention.ms": "-1"})
    recovery.apply(plan := archive.plan(), into, archive.store)
    cluster = Cluster(plan, moved={("__share_group_state", 0): LogBounds(7, 12), ("stock", 0): LogBounds(2, 4)})
    done = finish(into, cluster, ManualClock())
    assert (done.unlike, {each.topic for each in done.put_back}) == ({}, {"orders", "__share_group_state"})


def test_a_partition_whose_leader_does_not_answer_is_asked_again_later(recovered: tuple[Path, Cluster]) -> None:
    """A broker that has just started leads nothing yet."""
    into, cluster = recovered
    cluster.silent = {("orders", 0)}
    with pytest.raises(TransientError, match="orders:0"):
        finish(into, cluster, ManualClock())
    cluster.silent = set()
    assert finish(into, cluster, ManualClock()).put_back


def test_a_log_that_has_grown_is_as_it_was_recovered(recovered: tuple[Path, Cluster]) -> None:
    into, cluster = recovered
    cluster.moved["orders", 0] = LogBounds(0, 400)
    assert finish(into, cluster, ManualClock()).put_back


def test_another_cluster_or_topic_is_left_alone(recovered: tuple[Path, Cluster]) -> None:
    into, cluster = recovered

    def refused(error: type[HeadwaterError]) -> None:
        with pytest.raises(error):
            finish(into, cluster, ManualClock())
        assert cluster.changes == []

    cluster.name = "another"
    refused(ForeignOwner)
    cluster.name, cluster.ids["orders"], cluster.ids["menu"] = cluster.plan.cluster_id, "another", "another"
    refused(VerificationFailed)
    del cluster.ids["orders"]
    refused(VerificationFailed)


def test_only_a_finished_recovery_is_finished(tmp_path: Path, recovered: tuple[Path, Cluster]) -> None:
    into, cluster = recovered
    with pytest.raises(NotFound):
        finish(tmp_path / "nothing", cluster, ManualClock())
    (into / "meta.properties").unlink()
    with pytest.raises(UsageError):
        finish(into, cluster, ManualClock())


def as_archived_since(archive: Archive, cluster: Cluster) -> None:
    """An agent of the recovered cluster has told the bucket what the topics' settings are now."""
    for topic in cluster.plan.topics:
        configs = {name: value for name, value in cluster.settings[topic.topic].items() if value is not None}
        manifest = TopicManifest(cluster_id=CLUSTER, topic=topic.topic, topic_id=topic.topic_id, partitions=1, configs=configs)
        ManifestRepository(archive.store).ensure_topic(manifest)


def held(plan: RecoveryPlan) -> dict[tuple[str, str], str | None]:
    return {(each.topic, each.name): each.value for each in plan.held}


def recovered_in_its_bucket(into: Path) -> tuple[Archive, Cluster]:
    archive = Archive()
    archive.topic("orders", [plain(0, 4)], **{"retention.ms": "600"})
    archive.topic("menu", [plain(0, 2)], **{"remote.storage.enable": "true"})
    plan = archive.plan(cluster_id=CLUSTER)
    recovery.apply(plan, into, archive.store)
    as_archived_since(archive, cluster := Cluster(plan))
    return archive, cluster


def test_a_cluster_that_is_lost_again_before_it_was_put_back_loses_no_setting(tmp_path: Path) -> None:
    archive, first = recovered_in_its_bucket(tmp_path / "first")
    again = archive.plan(cluster_id=CLUSTER)
    assert held(again) == held(first.plan)
    assert sum("never put back" in note for note in again.notes) == 5
    recovery.apply(again, tmp_path / "second", archive.store)
    as_archived_since(archive, cluster := Cluster(again))
    assert held(archive.plan(cluster_id=CLUSTER)) == held(first.plan)  # and again
    finish(tmp_path / "second", cluster, ManualClock(), store=archive.store)
    assert cluster.settings["orders"] == {"cleanup.policy": "delete", "retention.ms": "600"}
    as_archived_since(archive, cluster)
    assert held(archive.plan(cluster_id=CLUSTER)) == {key: value for key, value in held(first.plan).items() if key[1] in HELD_BACK}


def test_what_somebody_has_set_since_is_not_what_it_was_before(tmp_path: Path) -> None:
    archive, cluster = recovered_in_its_bucket(tmp_path / "log")
    cluster.settings["orders"]["retention.ms"] = "9000"
    as_archived_since(archive, cluster)
    assert held(archive.plan(cluster_id=CLUSTER))["orders", "retention.ms"] == "9000"


def test_retention_that_is_unlimited_since_it_was_put_back_stays_so(tmp_path: Path) -> None:
    archive, cluster = recovered_in_its_bucket(tmp_path / "log")
    finish(tmp_path / "log", cluster, ManualClock(), store=archive.store)
    cluster.settings["orders"]["retention.ms"] = "-1"
    as_archived_since(archive, cluster)
    assert ("orders", "retention.ms") not in held(archive.plan(cluster_id=CLUSTER))


def test_a_bucket_that_cannot_be_told_keeps_nothing_back_and_is_told_by_the_next_run(tmp_path: Path) -> None:
    archive, cluster = recovered_in_its_bucket(tmp_path / "log")
    store = MemoryStore(ManualClock())
    store.create(key := f"cluster/recoveries/{cluster.plan.recovery_id}.json", b"rubbish")
    done = finish(tmp_path / "log", cluster, ManualClock(), store=store)
    assert (key in done.unreported, cluster.settings["orders"]["retention.ms"]) == (True, "600")
    assert finish(tmp_path / "log", cluster, ManualClock(), store=archive.store).unreported == ""
    assert b'"put_back_ms": null' not in archive.store.get(key)[0]


def test_a_record_that_cannot_be_read_is_noted(tmp_path: Path) -> None:
    archive, _ = recovered_in_its_bucket(tmp_path / "log")
    archive.store.create("cluster/recoveries/x.json", b"rubbish")
    assert [note for note in archive.plan().notes if "cluster/recoveries/x.json" in note and "not known" in note]
