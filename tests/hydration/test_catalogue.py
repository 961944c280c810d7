"""What is listed, whatever cannot be listed now: nothing that is damaged or away hides the rest."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater_core.errors import CorruptData, ForeignOwner, NotFound, UsageError
from headwater_core.partition import PartitionId, topic_id_text
from headwater_core.segments.log_dirs import LogDirs
from manifests import keys
from tests.headwater_core.segments.builders import a_segment
from tests.hydration.world import PARTITION, TOPIC, Archive, Broker, World, a_topic

AWorld = Callable[..., World]


def test_an_unmounted_disk_proves_no_absence_and_keeps_its_partitions_listed(a_world: AWorld, tmp_path: Path) -> None:
    world = a_world()
    world.broker.write(0, a_segment(0, 5))
    world.broker.set_high_watermark(5)
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(world.broker.root / "meta.properties", other)
    world.logs._catalogue._dirs = dirs = LogDirs([world.broker.root, other])
    world.logs.refresh()
    world.broker.root.rename(tmp_path / "away")
    world.broker.root.mkdir()
    with pytest.raises(UsageError):
        dirs.look(PARTITION.topic_partition)
    world.logs.refresh()
    assert TOPIC in world.logs.topics()


def test_a_topic_that_is_only_here_costs_one_request_however_many_partitions_it_has(a_world: AWorld) -> None:
    world = a_world()
    for number in range(1, 20):
        Broker(world.broker.root, PartitionId(PARTITION.cluster_id, PARTITION.topic_id, number, TOPIC))
    Archive(world.store).repository.ensure_topic(a_topic(PartitionId(PARTITION.cluster_id, topic_id_text(bytes(16)), 0, "other")))
    world.logs.refresh()
    before = world.store.calls["get"]
    world.logs.refresh()
    owner, other, own = 1, 2, 1
    assert world.store.calls["get"] - before == owner + other + own


def test_another_clusters_bucket_is_refused(a_world: AWorld) -> None:
    world = a_world()
    world.broker.write(0, a_segment(0, 5))
    properties = world.broker.root / "meta.properties"
    properties.write_text(properties.read_text().replace("test-cluster", "other-cluster"))
    with pytest.raises(ForeignOwner):
        _ = world.logs


@pytest.mark.parametrize("key", [keys.current("b"), keys.topic_manifest("b", PARTITION.topic_id)])
def test_one_damaged_topic_hides_no_other(a_world: AWorld, key: str) -> None:
    world = a_world(local=False)
    repository = Archive(world.store).repository
    for name in "abc":
        repository.ensure_topic(a_topic(type(PARTITION)(PARTITION.cluster_id, PARTITION.topic_id, 0, name)))
    world.store.replace(key, b"{", expected_tag=world.store.get(key)[1])
    assert sorted(world.logs.topics()) == ["a", "c"]
    assert isinstance(world.logs.lost["b"], CorruptData)
    with pytest.raises(NotFound):
        world.logs.partition("b", 0)


def test_the_topics_show_the_owner_when_its_document_is_damaged(a_world: AWorld) -> None:
    world = a_world()
    world.broker.write(0, a_segment(0, 5))
    repository = Archive(world.store).repository
    repository.ensure_topic(a_topic(type(PARTITION)(PARTITION.cluster_id, PARTITION.topic_id, 0, "a")))
    world.store.replace(keys.OWNER, b"{", expected_tag=world.store.get(keys.OWNER)[1])
    assert sorted(world.logs.topics()) == ["a", TOPIC]
    assert world.logs.cluster_id == PARTITION.cluster_id
    repository.ensure_topic(a_topic(type(PARTITION)("other-cluster", PARTITION.topic_id, 0, "b")))
    with pytest.raises(ForeignOwner):
        world.logs.refresh()


def test_a_damaged_owner_does_not_keep_the_archive_from_being_read(a_world: AWorld) -> None:
    world = a_world(local=False)
    Archive(world.store).repository.ensure_topic(a_topic(PARTITION))
    world.store.replace(keys.OWNER, b"{", expected_tag=world.store.get(keys.OWNER)[1])
    assert list(world.logs.topics()) == [TOPIC]
    assert world.logs.cluster_id == PARTITION.cluster_id
