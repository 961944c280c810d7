"""Where the replicas of a recovered cluster go, and what lies in which broker's directory."""

import shutil
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import recovery
from headwater_core.errors import CorruptData, TransientError, UsageError, VerificationFailed
from headwater_core.segments.log_dirs import LogDirs
from headwater_core.segments.metadata.metadata_log import DIRECTORY, MetadataLog
from headwater_core.segments.metadata.metadata_snapshot import read_snapshot
from recovery.plan_document import decode_plan, encode_plan
from recovery.recovery_plan import LostRun, PartitionPlan, Place, RecoveryPlan, TargetBroker, check_plan
from recovery.replica_placement import Need, brokers_from, numbered_brokers, place_replicas
from recovery.revision import settled
from tests.fixtures import unpack
from tests.recovery.archived import batches
from tests.recovery.interrupted import Failing
from tests.recovery.test_cluster_state import Kitchen, replicated

THREE = recovery.Options(cluster="latest", brokers=numbered_brokers(3, 1), keep_offsets=True)


def test_a_topics_leaders_are_spread_then_bytes_are_and_replicas_are_in_different_racks() -> None:
    brokers = [TargetBroker(node_id=node, directory=f"node-{node}", rack="ab"[node % 2]) for node in range(4)]
    needs = {("plain", number): Need(0, 2) for number in range(8)} | {("large", number): Need(100, 2) for number in range(2)}
    places = place_replicas(needs, brokers)
    assert Counter(places["plain", number][0].node_id for number in range(8)) == dict.fromkeys(range(4), 2)
    assert places["large", 0][0] != places["large", 1][0]
    assert all(first.rack != second.rack for first, second in places.values())


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.integers(0, 1000), st.integers(1, 5)), max_size=30),
    st.lists(st.sampled_from(["x", "y", "z", None]), min_size=1, max_size=6),
)
def test_replicas_are_on_different_brokers_in_as_many_racks_as_there_are(
    partitions: list[tuple[str, int, int, int]], racks: list[str | None]
) -> None:
    brokers = [TargetBroker(node_id=node, directory=f"node-{node}", rack=rack) for node, rack in enumerate(racks)]
    needs: dict[Place, Need] = {(topic, number): Need(size, replicas) for topic, number, size, replicas in partitions}
    places = place_replicas(needs, brokers)
    assert places == place_replicas(dict(reversed(needs.items())), brokers)
    for place, chosen in places.items():
        assert len(set(chosen)) == len(chosen) == min(needs[place].replicas, len(brokers))
        if None not in racks:
            assert len({each.rack for each in chosen}) == min(len(chosen), len(set(racks)))


def test_brokers_stand_in_a_file() -> None:
    text = '[[broker]]\nid = 4\nrack = "a"\n[[broker]]\nid = 7\ndirectory = "seven"\n'
    assert brokers_from(text, "f") == (
        TargetBroker(node_id=4, directory="node-4", rack="a"),
        TargetBroker(node_id=7, directory="seven"),
    )


@pytest.mark.parametrize(
    "text", ["", "[[broker]]", "broker = 3", "[[broker]]\nid = 1\nrak = 'a'", "[[broker]]\nid = 'x'", "[", "broker = [1]"]
)
def test_what_is_no_file_of_brokers_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        brokers_from(text, "brokers.toml")


@pytest.mark.parametrize(
    "brokers",
    [
        [TargetBroker(node_id=1, directory="a"), TargetBroker(node_id=1, directory="b")],
        [TargetBroker(node_id=1, directory="a"), TargetBroker(node_id=2, directory="a")],
        [TargetBroker(node_id=1, directory="../a")],
        [TargetBroker(node_id=1, directory=".headwater-recovery.json")],
        [TargetBroker(node_id=-1, directory="a")],
    ],
)
def test_impossible_brokers_are_refused(brokers: list[TargetBroker]) -> None:
    with pytest.raises(UsageError):
        Kitchen().plan(recovery.Options(cluster="latest", brokers=tuple(brokers)))


def a_kitchen(replicas: int = 3) -> Kitchen:
    return Kitchen(topics=replicated(MetadataLog(unpack("kitchen") / DIRECTORY).read(), replicas))


def test_each_broker_has_what_it_leads_and_all_have_the_same_metadata(tmp_path: Path) -> None:
    kitchen = a_kitchen()
    plan = kitchen.plan(THREE)
    recovery.apply(decode_plan(encode_plan(plan)), tmp_path / "all", kitchen.store)
    homes = [tmp_path / "all" / each.directory for each in plan.brokers]
    [metadata] = {(home / "bootstrap.checkpoint").read_bytes() for home in homes}
    topics = read_snapshot(metadata, "bootstrap").topics
    roots = [LogDirs([home]) for home in homes]
    assert [root.node_id for root in roots] == [1, 2, 3]
    assert len({(home / "meta.properties").read_text().partition("directory.id=")[2] for home in homes}) == 3
    for broker, root in zip(plan.brokers, roots, strict=True):
        logs = list(root.partitions())
        assert logs
        for log in logs:
            found = topics[log.partition.topic].partitions[log.partition.partition]
            assert (found.replicas[0], found.isr, found.last_known_elr) == (broker.node_id, (broker.node_id,), (broker.node_id,))
            assert sorted(found.replicas) == [1, 2, 3]
    assert sorted(each for home in homes for each in batches(home)) == sorted(batches(unpack("kitchen")))
    assert recovery.apply(plan, tmp_path / "all", kitchen.store).again
    (homes[1] / "meta.properties").write_text("cluster.id=other")
    with pytest.raises(VerificationFailed, match=r"node-2/meta.properties is not what"):
        recovery.apply(plan, tmp_path / "all", kitchen.store)


def test_an_interrupted_one_goes_on_with_the_same_places(tmp_path: Path) -> None:
    kitchen = a_kitchen()
    with pytest.raises(TransientError):
        recovery.apply(kitchen.plan(THREE), tmp_path / "all", Failing(kitchen.store, TransientError("throttled"), 9))
    recovery.apply(kitchen.plan(THREE), tmp_path / "all", kitchen.store)
    whole = sorted(each for number in (1, 2, 3) for each in batches(tmp_path / "all" / f"node-{number}"))
    assert whole == sorted(batches(unpack("kitchen")))
    status = recovery.status(tmp_path / "all")
    assert status is not None
    assert (status.files_placed, status.problem) == (status.files, "")
    shutil.rmtree(next((tmp_path / "all" / "node-3").glob("menu-*")))
    with pytest.raises(VerificationFailed, match="gone or changed: 1 file"):
        recovery.apply(kitchen.plan(THREE), tmp_path / "all", kitchen.store)


def test_the_plan_says_what_several_brokers_mean() -> None:
    plan = a_kitchen(replicas=5).plan(THREE)
    assert any("had more replicas than there are brokers" in note for note in plan.notes)
    assert any("there is one copy" in note for note in plan.notes)
    assert all(len(each.replicas) == 3 for topic in plan.topics for each in topic.partitions)
    one = Kitchen().plan(recovery.Options(cluster="latest", brokers=numbered_brokers(2, 8)))
    assert {len(each.replicas) for topic in one.topics for each in topic.partitions} == {1}
    assert any("settings of brokers 1: the recovered cluster has brokers 8, 9" in each for each in one.left_out)
    with pytest.raises(UsageError, match="several brokers are for a recovery of the whole cluster"):
        recovery.plan(Kitchen().repository, None, recovery.Options(brokers=numbered_brokers(2, 1)))


@pytest.mark.parametrize("change", [{"replicas": ()}, {"replicas": (1, 1)}, {"replicas": (9,)}, {"directory": "../else"}])
def test_a_plan_with_impossible_places_is_refused(change: dict[str, object]) -> None:
    plan = a_kitchen().plan(THREE)
    first = plan.topics[0]
    partitions = (replace(first.partitions[0], **change), *first.partitions[1:])
    with pytest.raises(CorruptData):
        check_plan(replace(plan, topics=(replace(first, partitions=partitions), *plan.topics[1:])))


def test_a_partition_that_is_planned_again_keeps_its_place() -> None:
    kitchen = a_kitchen()
    plan = kitchen.plan(THREE)
    topic = next(each for each in plan.topics if any(partition.files for partition in each.partitions) and not each.compacted)
    planned = next(each for each in topic.partitions if each.files)
    held = kitchen.repository.load(topic.archived_id(plan.source_cluster_id, planned.partition))
    assert held is not None
    kitchen.repository.commit(held, replace(held.head, entries=(), start_offset=held.head.next_offset))

    def of(plan: RecoveryPlan) -> PartitionPlan:
        return next(each for each in plan.topics if each.topic == topic.topic).partitions[planned.partition]

    def lost(plan: RecoveryPlan) -> list[LostRun]:
        return [
            LostRun(
                topic=topic.topic,
                partition=planned.partition,
                base_offset=each.base_offset,
                last_offset=each.last_offset,
                reason="gone",
            )
            for each in of(plan).files
        ]

    revised = of(settled(plan, kitchen.repository, lost, 0))
    assert (len(revised.files), revised.replicas, revised.directory) == (0, planned.replicas, planned.directory)
