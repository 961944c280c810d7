"""A recovered cluster has the topics of the snapshot, whatever their manifests say meanwhile."""

import json
from dataclasses import replace

import msgspec
import pytest

import recovery
from headwater_core.errors import NotFound, VerificationFailed
from headwater_core.segments.metadata.cluster_metadata import TopicMetadata
from headwater_core.segments.metadata.metadata_log import DIRECTORY, MetadataLog
from headwater_core.segments.metadata.metadata_records import RESOURCE_BROKER
from manifests import keys
from manifests.cluster_list import decode_cluster_list, encode_cluster_list
from manifests.topic import TopicManifest, encode_topic
from recovery.recovery_plan import RecoveryPlan, TopicPlan
from tests.fixtures import unpack
from tests.recovery.hostile_documents import resealed
from tests.recovery.test_cluster_state import CLUSTER, Kitchen


def as_changed(**changed: TopicMetadata | None) -> Kitchen:
    """The archived kitchen, with these topics otherwise, or not at all, in the snapshot."""
    topics = {**MetadataLog(unpack("kitchen") / DIRECTORY).read().topics, **changed}
    return Kitchen(topics={name: topic for name, topic in topics.items() if topic is not None})


def menu() -> TopicMetadata:
    return MetadataLog(unpack("kitchen") / DIRECTORY).read().topics["menu"]


def of(plan: RecoveryPlan, name: str) -> TopicPlan:
    [topic] = [each for each in plan.topics if each.topic == name]
    return topic


def test_settings_partitions_and_epochs_are_those_of_the_snapshot() -> None:
    [first] = menu().partitions.values()
    partitions = {0: replace(first, leader_epoch=40), 1: replace(first, leader_epoch=7)}
    kitchen = as_changed(menu=replace(menu(), configs={"cleanup.policy": "delete", "retention.ms": "5000"}, partitions=partitions))
    plan = kitchen.plan()
    planned = of(plan, "menu")
    assert (planned.configs["cleanup.policy"], planned.held["retention.ms"]) == ("delete", "5000")
    assert [(each.partition, each.first_epoch) for each in planned.partitions] == [(0, 40), (1, 7)]
    assert "menu: 2 partitions as in the snapshot; its manifest has 1" in plan.notes
    assert "menu: settings as in the snapshot; its manifest has others for cleanup.policy, retention.ms" in plan.notes
    assert kitchen.plan(recovery.Options()).topics != plan.topics


@pytest.mark.parametrize(("default", "whole"), [({"log.cleanup.policy": "compact"}, True), ({}, False)])
def test_a_topic_that_is_compacted_by_the_brokers_default_comes_back_whole(default: dict[str, str], whole: bool) -> None:
    state = MetadataLog(unpack("kitchen") / DIRECTORY).read()
    everywhere = (RESOURCE_BROKER, "")
    configs = {**state.configs, everywhere: {**state.configs.get(everywhere, {}), **default}}
    kitchen = Kitchen(topics={**state.topics, "specials": replace(state.topics["specials"], configs={})}, configs=configs)
    plan = kitchen.plan(recovery.Options(cluster="latest", mode="instant"))
    planned = of(plan, "specials")
    assert (planned.compacted, bool(planned.records), planned.partitions[0].left is None) == (whole, whole, whole)
    assert ("cleanup.policy" in planned.configs, "retention.ms" in planned.held) == (False, not whole)
    assert bool([note for note in plan.notes if "no cleanup.policy of its own" in note]) != whole  # brokers' files may say it, too


def test_partitions_that_were_added_after_the_snapshot_keep_their_data() -> None:
    orders = MetadataLog(unpack("kitchen") / DIRECTORY).read().topics["orders.in"]
    plan = as_changed(**{"orders.in": replace(orders, partitions={0: orders.partitions[0]})}).plan()
    assert len(of(plan, "orders.in").partitions) == 4


def test_where_no_broker_gave_the_settings_the_snapshot_does() -> None:
    kitchen = Kitchen()
    manifest = kitchen.repository.resolve("menu")
    silent = msgspec.structs.replace(manifest, configs=None, version=manifest.version + 1)
    put(kitchen, silent)
    assert any("--partitions menu=1" in each for each in kitchen.plan(recovery.Options()).problems)
    plan = kitchen.plan()
    assert (plan.problems, of(plan, "menu").compacted) == ((), True)


def test_another_incarnation_is_recovered_when_the_snapshot_has_it() -> None:
    old = "AAAAAAAAAAAAAAAAAAAAAQ"
    kitchen = as_changed(menu=replace(menu(), topic_id=old))
    assert any(each.startswith(f"menu: the snapshot has incarnation {old}") for each in kitchen.plan().left_out)
    put(kitchen, msgspec.structs.replace(kitchen.repository.resolve("menu"), topic_id=old))
    plan = kitchen.plan()
    assert of(plan, "menu").topic_id == old
    assert any(each.startswith(f"menu: as incarnation {old}") for each in plan.notes)


def test_a_deleted_topic_stays_deleted_unless_it_is_requested() -> None:
    kitchen = as_changed(menu=None)
    plan = kitchen.plan()
    assert "menu" not in {topic.topic for topic in plan.topics}
    assert [each.partition(":")[0] for each in plan.left_out] == ["menu"]
    asked = kitchen.plan(recovery.Options(cluster="latest", unlisted_topics=True))
    assert of(asked, "menu").partitions[0].manifest_version > 0
    assert asked.left_out == ()
    assert any(each.startswith("menu: the snapshot does not have it") for each in asked.notes)


def test_a_cluster_without_any_of_the_topics_is_not_recovered() -> None:
    with pytest.raises(VerificationFailed, match=r"nothing can be recovered: .*menu: the snapshot does not have it"):
        Kitchen(topics={}).plan(CLUSTER)


def put(kitchen: Kitchen, manifest: TopicManifest) -> None:
    """In place of what is there."""
    raw, key = encode_topic(manifest), keys.topic_manifest(manifest.topic, manifest.topic_id)
    try:
        tag = kitchen.store.get(key)[1]
    except NotFound:
        kitchen.store.create(key, raw)
    else:
        kitchen.store.replace(key, raw, expected_tag=tag)


def test_a_snapshot_with_a_leader_epoch_that_nobody_reaches_is_damaged() -> None:
    [first] = menu().partitions.values()
    kitchen = as_changed(menu=replace(menu(), partitions={0: replace(first, leader_epoch=2**31 - 3)}))
    with pytest.raises(VerificationFailed, match=r"cluster/.*leader epoch 2147483645 of menu:0"):
        kitchen.plan()
    assert of(kitchen.plan(recovery.Options()), "menu").partitions[0].manifest_version


def test_snapshots_of_another_cluster_are_refused_and_the_topics_come_back_alone() -> None:
    kitchen = Kitchen()
    listed = decode_cluster_list(kitchen.store.get(keys.CLUSTER_LIST)[0])
    kitchen.store.delete(keys.CLUSTER_LIST)
    kitchen.store.create(keys.CLUSTER_LIST, encode_cluster_list(msgspec.structs.replace(listed, cluster_id="another")))
    [problem] = kitchen.plan().problems
    assert keys.CLUSTER_LIST in problem
    assert "--all" in problem
    assert kitchen.plan(recovery.Options()).problems == ()


@pytest.mark.parametrize("document", [None, b"{}"])
@pytest.mark.parametrize("kind", ["current", "topic"])
def test_a_topic_whose_document_cannot_be_read_comes_back_as_the_snapshot_has_it(kind: str, document: bytes | None) -> None:
    kitchen = Kitchen()
    whole = of(kitchen.plan(), "menu")
    key = keys.current("menu") if kind == "current" else keys.topic_manifest("menu", whole.topic_id)
    kitchen.store.delete(key)
    if document is not None:
        kitchen.store.create(key, document)
    plan = kitchen.plan()
    again = of(plan, "menu")
    assert (again.partitions, again.configs, again.held) == (whole.partitions, whole.configs, whole.held)
    assert not [each for each in plan.left_out if each.startswith("menu")]
    assert [note for note in plan.notes if note.startswith("menu: ")]


def test_where_the_snapshot_says_which_incarnation_a_name_means_nobody_says_otherwise() -> None:
    kitchen = Kitchen()
    manifest, raw = kitchen.repository.resolve("menu"), kitchen.store.get(keys.current("menu"))[0]
    other = msgspec.structs.replace(manifest, topic_id="AAAAAAAAAAAAAAAAAAAAAQ")
    kitchen.store.delete(keys.current("menu"))
    kitchen.store.create(keys.current("menu"), resealed(json.loads(raw) | {"topic_id": other.topic_id, "previous": []}))
    put(kitchen, other)
    plan = kitchen.plan()
    assert of(plan, "menu").topic_id == manifest.topic_id
    [note] = [note for note in plan.notes if note.startswith("menu: ") and "incarnation" in note]
    assert "which the snapshot has" in note
    assert not [note for note in plan.notes if "is recovered;" in note and note.startswith("menu: ")]
    [note] = [note for note in kitchen.plan(recovery.Options()).notes if "is recovered;" in note and note.startswith("menu: ")]
    assert note.startswith(f"menu: {other.topic_id} is recovered; the archive has {manifest.topic_id} too")


def test_a_name_that_means_another_incarnation_of_which_no_head_can_be_read_comes_back_as_the_snapshot_has_it() -> None:
    kitchen = Kitchen()
    whole = of(kitchen.plan(), "menu")
    manifest, raw = kitchen.repository.resolve("menu"), kitchen.store.get(keys.current("menu"))[0]
    other = msgspec.structs.replace(manifest, topic_id="AAAAAAAAAAAAAAAAAAAAAQ")
    kitchen.store.delete(keys.current("menu"))
    kitchen.store.create(keys.current("menu"), resealed(json.loads(raw) | {"topic_id": other.topic_id, "previous": []}))
    put(kitchen, other)
    kitchen.store.create(keys.head(other.partition_id(0)), b"{}")
    plan = kitchen.plan()
    again = of(plan, "menu")
    assert (again.topic_id, again.partitions, again.configs) == (whole.topic_id, whole.partitions, whole.configs)
    assert not [each for each in plan.left_out if each.startswith("menu")]
    assert [note for note in plan.notes if note.startswith("menu: ") and "as the snapshot has it" in note]
