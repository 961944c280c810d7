"""Which brokers of a running cluster get what comes back, and what forbids it."""

import re
from pathlib import Path
from typing import Any

import pytest

import recovery
from headwater_core.errors import UsageError, VerificationFailed
from headwater_core.segments.metadata.record_schemas import ACL, QUOTA
from manifests.repository import ManifestRepository
from recovery.held_settings import LogBounds
from recovery.plan_document import decode_plan, encode_plan
from recovery.recovery_plan import RecoveryPlan, RunningPlan, TargetBroker
from recovery.replica_placement import numbered_brokers
from recovery.running_cluster import RunningTopic
from recovery.topic_creation import with_created_topics
from tests.recovery.plans import CLUSTER
from tests.recovery.running import CLUSTER_ID, Running
from tests.recovery.test_cluster_state import Kitchen, replicated
from tests.recovery.written_archive import Archive, commit, data, plain, shares, snapshot


@pytest.fixture
def archive() -> Archive:
    archive = Archive()
    archive.topic("orders", [plain(0, 4)], [data(4, 7)], **{"retention.ms": "600"})
    archive.topic("bills", [plain(0, 9)])
    archive.topic(
        "__consumer_offsets",
        [commit(0, ("cooks", "orders", 0, 3), ("cooks", "bills", 0, 99), ("cooks", "gone", 0, 1), ("hosts", "bills", 0, 2))],
    )
    return archive


def planned(archive: Archive, cluster: Running, *topics: str, thorough: bool = False, **options: Any) -> RecoveryPlan:
    requested = recovery.Options(running=True, **options)
    made = recovery.plan(ManifestRepository(archive.store), topics or None, requested, running=cluster, thorough=thorough)
    assert decode_plan(encode_plan(made)) == made
    return made


def running_of(plan: RecoveryPlan) -> RunningPlan:
    assert plan.running is not None
    return plan.running


def test_topics_come_back_with_one_replica_on_its_brokers_and_without_what_is_its_own(archive: Archive) -> None:
    plan = planned(archive, Running(nodes={5: "a", 7: None}))
    assert (plan.cluster_id, plan.problems) == (CLUSTER_ID, ())
    assert plan.brokers == (
        TargetBroker(node_id=5, directory="node-5", rack="a"),
        TargetBroker(node_id=7, directory="node-7"),
    )
    assert {topic.topic for topic in plan.topics} == {"orders", "bills"}
    assert sorted(each.replicas for topic in plan.topics for each in topic.partitions) == [(5,), (7,)]
    assert all(topic.topic_id == "" and topic.archived_name.topic_id == archive.ids[topic.topic] for topic in plan.topics)
    assert any("__consumer_offsets: these topics are the running cluster's own" in note for note in plan.notes)
    [orders] = [topic.partitions[0] for topic in plan.topics if topic.topic == "orders"]
    assert [len(each.aborts) for each in orders.written] == [1]  # there is no coordinator that knows the open transaction


def test_what_groups_had_committed_of_these_topics_comes_along_and_what_lies_beyond_is_named(archive: Archive) -> None:
    plan = planned(archive, Running())
    commits = [(each.group, each.topic, each.offset, each.metadata) for each in running_of(plan).commits]
    assert commits == [("cooks", "bills", 99, "m\0"), ("cooks", "orders", 3, "m\0"), ("hosts", "bills", 2, "m\0")]
    assert [(each.group, each.offset, each.log_end) for each in plan.offsets_ahead] == [("cooks", 99, 9)]
    renamed = planned(archive, Running(), "orders", renames={"orders": "again"})
    assert running_of(renamed).commits == ()  # the groups of before know it by its old name


def test_what_stays_in_the_archive_is_looked_at_or_it_is_said_that_nobody_did(archive: Archive) -> None:
    key = next(info.key for info in archive.store.list("data/") if "/orders/" in info.key and info.key.endswith(".log"))
    archive.store.delete(key)
    quick = planned(archive, Running(), "orders", "bills", mode="instant")
    assert quick.left_out == ()
    assert any("not looked at: 3 runs in what stays in the archive" in note for note in quick.notes)
    thorough = planned(archive, Running(), "orders", "bills", mode="instant", thorough=True)
    [left_out] = thorough.left_out
    assert "offsets 0-3, which stay in the archive: " in left_out
    assert key in left_out
    assert any("looked at by listing: " in note for note in thorough.notes)


def test_only_the_requested_brokers_get_records_and_they_must_be_there(archive: Archive) -> None:
    cluster = Running(nodes={1: None, 2: None, 3: None})
    plan = planned(archive, cluster, brokers=numbered_brokers(2, 2))
    assert {each.replicas for topic in plan.topics for each in topic.partitions} == {(2,), (3,)}
    [problem] = planned(archive, cluster, brokers=numbered_brokers(2, 3)).problems
    assert "has no broker 4 at present: it has 1, 2, 3" in problem
    [problem] = planned(archive, Running(nodes={})).problems
    assert "has no brokers at present" in problem


def test_an_empty_topic_is_used_where_it_is(archive: Archive) -> None:
    cluster = Running(nodes={1: None, 2: None})
    cluster.add("orders", (2,))
    plan = planned(archive, cluster)
    assert plan.problems == ()
    [orders] = [topic for topic in plan.topics if topic.topic == "orders"]
    assert (orders.topic_id, orders.partitions[0].replicas) == (cluster.topics["orders"].topic_id, (2,))
    assert running_of(plan).present == ("orders",)


def test_the_archives_own_topic_that_is_still_there_is_not_lost(archive: Archive) -> None:
    cluster = Running()
    cluster.topics["bills"] = RunningTopic(archive.ids["bills"], {0: (1,)})
    cluster.bounds["bills", 0] = LogBounds(0, 9)
    plan = planned(archive, cluster)
    assert (plan.problems, [topic.topic for topic in plan.topics]) == ((), ["orders"])
    assert any("bills is in the running cluster, with the id that the archive has" in note for note in plan.notes)
    [problem] = planned(archive, cluster, "bills").problems  # one that is named
    assert "holds or held records" in problem
    cluster.topics["orders"] = RunningTopic(archive.ids["orders"], {0: (1,)})
    [problem] = planned(archive, cluster).problems
    assert "nothing is left to recover" in problem


@pytest.mark.parametrize(
    ("replicas", "bounds", "text"),
    [
        ([(1,)], LogBounds(0, 3), r"orders:0 .* holds or held records \(offsets 0 to 2\): .*--as orders=NAME"),
        ([(1,)], LogBounds(3, 3), "holds or held records"),
        ([(1,)], None, "no leader says whether it is empty"),
        ([(1,), (1,)], LogBounds(0, 0), "with 2 partitions, planned: 1"),
        ([(1, 2)], LogBounds(0, 0), "with 2 replicas"),
        ([(3,)], LogBounds(0, 0), "on broker 3, which is none of the plan's brokers"),
    ],
)
def test_a_topic_that_cannot_get_the_records_is_a_problem_that_says_what_to_do(
    archive: Archive, replicas: list[tuple[int, ...]], bounds: LogBounds | None, text: str
) -> None:
    cluster = Running(nodes={1: None, 2: None})
    cluster.add("orders", *replicas)
    if bounds is None:
        cluster.silent.add(("orders", 0))
    else:
        cluster.bounds["orders", 0] = bounds
    plan = planned(archive, cluster, "orders")
    [problem] = plan.problems
    assert re.search(text, problem), problem


@pytest.mark.parametrize(
    "options",
    [
        {"take_over": True},
        {"cluster_id": "mine"},
        {"kafka_release": "4.2"},
        {"node_id": 3},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_has_no_meaning_there_is_refused(archive: Archive, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        planned(archive, Running(), **options)


def test_a_part_comes_back_and_a_gateway_over_the_old_archive_has_the_rest(archive: Archive) -> None:
    for options, starts in (({"mode": "instant"}, (5, 9)), ({"mode": "partial", "keep_bytes": 1}, (4, 0))):
        plan = planned(archive, Running(), **options)
        found = {topic.topic: topic.partitions[0].start_offset for topic in plan.topics}
        assert (found["orders"], found["bills"]) == starts
        assert [each for each in plan.notes if "keep a gateway over this bucket beside them" in each]
        assert not [each for each in plan.notes if "--take-over" in each]
        below = [each for each in plan.endings if "below the recovered logs, in what stays in the archive: " in each]
        assert "cooks" in below[0]
        assert plan.problems == ()


def test_a_topic_of_the_same_cluster_comes_back_in_full_alone(archive: Archive) -> None:
    """In its own archive the name means the new incarnation: no gateway would serve the rest."""
    [problem] = planned(archive, Running(name=CLUSTER), mode="instant").problems
    assert "a topic's name means its new incarnation alone" in problem
    assert planned(archive, Running(name=CLUSTER)).problems == ()


def test_topics_that_brokers_make_for_themselves_do_not_come_back_by_name_either(archive: Archive) -> None:
    with pytest.raises(VerificationFailed, match="nothing can be recovered"):
        planned(archive, Running(), "__consumer_offsets")


def test_the_plan_says_what_share_groups_are_given_and_what_they_get_again(archive: Archive) -> None:
    archive.topic("__share_group_state", [shares(0, ("waiters", snapshot(3, (5, 6, 2, 1))), ("fresh", snapshot(-1)))])
    plan = planned(archive, Running())
    assert plan.running is not None
    [only] = [each for each in plan.running.commits if each.shared]
    assert (only.group, only.offset) == ("waiters", 3)
    assert plan.left_out == ()
    assert [each for each in plan.notes if "gives 1 start offset of 1 share group" in each]
    assert [each for each in plan.notes if "is delivered to it again" in each]


def test_a_plan_in_a_file_holds_while_nothing_has_changed_though_topics_are_left_as_they_are(archive: Archive, tmp_path: Path) -> None:
    cluster = Running()
    cluster.topics["bills"] = RunningTopic(archive.ids["bills"], {0: (1,)})
    cluster.bounds["bills", 0] = LogBounds(0, 9)
    plan = planned(archive, cluster)
    assert running_of(plan).kept == ("bills",)

    def apply(into: Path) -> None:
        recovery.apply(plan, into, archive.store, unchanged=True, create=lambda made: with_created_topics(made, cluster))

    apply(tmp_path / "one")
    archive.topic("new", [plain(0)])
    with pytest.raises(UsageError, match="new is in the archive, and is not planned"):
        apply(tmp_path / "two")


def test_without_a_cluster_nothing_is_planned(archive: Archive) -> None:
    with pytest.raises(UsageError, match="--bootstrap-servers"):
        recovery.plan(ManifestRepository(archive.store), None, recovery.Options(running=True))


def test_of_a_whole_cluster_users_and_other_machines_settings_are_left_out_by_name() -> None:
    kitchen = Kitchen()
    plan = recovery.plan(
        kitchen.repository, None, recovery.Options(cluster="latest", running=True), running=Running(nodes={1: None, 2: None})
    )
    assert len(plan.left_out) == 2
    assert plan.left_out[0].startswith("SCRAM users baker, chef, waiter: the archive has their stored keys")
    assert plan.left_out[1].startswith("settings of brokers 1:")
    assert plan.cluster is not None
    assert (plan.cluster.acls, plan.cluster.quotas) == (len(kitchen.state.others[ACL]), len(kitchen.state.others[QUOTA]))


def test_the_archived_number_of_replicas_is_remembered_with_the_one_that_has_the_records_first() -> None:
    kitchen = Kitchen()
    wider = Kitchen(topics=replicated(kitchen.state, 3))
    cluster = Running(nodes={1: None, 2: None, 3: None})
    cluster.add("menu", (2,))
    plan = recovery.plan(wider.repository, None, recovery.Options(cluster="latest", running=True), running=cluster)
    grown = running_of(plan).grown
    for topic in plan.topics:
        for partition, nodes in zip(topic.partitions, grown[topic.topic], strict=True):
            assert (nodes[0],) == partition.replicas
            assert sorted(nodes) == [1, 2, 3]
    assert grown["menu"][0][0] == 2
