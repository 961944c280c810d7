"""Topics whose documents are damaged, older than they were, or contradict each other: what comes back of them, and what is said."""

from pathlib import Path

import pytest
from msgspec.structs import replace

import recovery
from headwater_core.errors import CorruptData, NotFound
from headwater_core.partition import PartitionId, topic_id_text
from manifests import keys
from manifests.head import Head
from manifests.repository import ManifestRepository
from manifests.topic import Owner, TopicManifest, decode_topic, encode_owner, encode_topic
from tests.recovery.plans import CLUSTER
from tests.recovery.written_archive import Archive, batches_in, plain

EARLIER = topic_id_text(b"\x63" * 16)


@pytest.fixture
def archive() -> Archive:
    """`menu` and `orders`; `menu` was created again."""
    archive = Archive()
    archive.topic("orders", [plain(0, 3)], [plain(3, 2)])
    archive.topic("menu", [plain(0, 4)])
    ManifestRepository(archive.store).ensure_owner(CLUSTER)
    return archive


def put(archive: Archive, key: str, raw: bytes | None) -> bytes:
    before = archive.store.get(key)[0]
    archive.store.delete(key)
    if raw is not None:
        archive.store.create(key, raw)
    return before


def create_again(archive: Archive, name: str) -> str:
    """Another incarnation, with a run of its own; returns the id of the first."""
    earlier = archive.ids[name]
    archive.topic(name, [plain(0, 1)])
    return earlier


def topic_key(archive: Archive, name: str) -> str:
    return keys.topic_manifest(name, archive.ids[name])


@pytest.mark.parametrize("document", [None, b"{}"])
def test_a_topic_of_one_incarnation_needs_no_document_that_says_which_it_means(
    archive: Archive, tmp_path: Path, document: bytes | None
) -> None:
    whole = archive.recovered(tmp_path / "whole", "orders")
    put(archive, keys.current("orders"), document)
    for topics in (None, ["orders"], ["ord*"]):
        plan = recovery.plan(ManifestRepository(archive.store), topics)
        assert (plan.left_out, plan.problems) == ((), ())
        assert [note for note in plan.notes if note.startswith("orders: ") and "only incarnation" in note]
    assert archive.recovered(tmp_path / "log", "orders") == whole


def test_of_several_incarnations_the_error_says_how_to_name_one(archive: Archive, tmp_path: Path) -> None:
    earlier = create_again(archive, "orders")
    put(archive, keys.current("orders"), b"{}")
    with pytest.raises(CorruptData, match="orders@TOPIC_ID recovers") as refused:
        recovery.plan(ManifestRepository(archive.store), ["orders"])
    assert earlier in str(refused.value)
    [left_out] = archive.plan().left_out
    assert left_out.startswith("orders: ")
    assert "orders@TOPIC_ID" in left_out
    plan = recovery.plan(ManifestRepository(archive.store), [f"orders@{earlier}"])
    recovery.apply(plan, tmp_path / "log", archive.store)
    assert len(batches_in(tmp_path / "log" / "orders-0")) == 2


@pytest.mark.parametrize("document", [None, b"{}"])
def test_a_topic_without_its_manifest_comes_back_when_its_partitions_are_counted(
    archive: Archive, tmp_path: Path, document: bytes | None
) -> None:
    whole = archive.recovered(tmp_path / "whole", "orders")
    put(archive, topic_key(archive, "orders"), document)
    [left_out] = archive.plan().left_out
    assert "--partitions orders=N" in left_out
    with pytest.raises((CorruptData, NotFound), match="--partitions orders=N"):
        recovery.plan(ManifestRepository(archive.store), ["orders"])
    plan = archive.plan(partition_counts={"orders": 1})
    assert [topic.topic for topic in plan.topics] == ["menu", "orders"]
    assert [note for note in plan.notes if "without its settings" in note]
    assert archive.recovered(tmp_path / "log", "orders", partition_counts={"orders": 1}) == whole


def test_a_plan_of_what_has_no_manifest_is_applied_as_it_was_made(archive: Archive, tmp_path: Path) -> None:
    put(archive, topic_key(archive, "orders"), b"{}")
    plan = archive.plan(partition_counts={"orders": 1})
    recovery.apply(plan, tmp_path / "log", archive.store, unchanged=True)
    assert len(batches_in(tmp_path / "log" / "orders-0")) == 2


def test_a_manifest_with_fewer_partitions_and_no_sound_head_among_them_says_what_to_count(archive: Archive) -> None:
    key = topic_key(archive, "orders")
    repository = ManifestRepository(archive.store)
    manifest = decode_topic(archive.store.get(key)[0], "orders", archive.ids["orders"])
    repository.ensure_topic(replace(manifest, partitions=2))
    put(archive, keys.head(manifest.partition_id(0)), b"{}")
    held = Head(
        cluster_id=CLUSTER,
        topic="orders",
        topic_id=manifest.topic_id,
        partition=1,
        version=1,
        commit_id="c",
        fence=1,
        writer="w",
        start_offset=0,
        last_offset=-1,
    )
    repository.commit(None, held)
    put(archive, key, encode_topic(replace(manifest, partitions=1)))
    [left_out] = archive.plan().left_out
    assert "--partitions orders=N" in left_out


def test_an_older_version_of_what_a_name_means_is_noted(archive: Archive, tmp_path: Path) -> None:
    before = archive.store.get(keys.current("orders"))[0]
    earlier = create_again(archive, "orders")
    assert not [note for note in archive.plan().notes if "knows nothing" in note]
    put(archive, keys.current("orders"), before)
    plan = archive.plan()
    [note] = [note for note in plan.notes if "knows nothing" in note]
    assert note.startswith(f"orders: {earlier} is recovered")
    assert archive.ids["orders"] in note
    put(archive, keys.topic_manifest("orders", earlier), b"{}")
    assert note in archive.plan(partition_counts={"orders": 1}).notes


def test_where_that_version_means_what_cannot_be_read_the_error_names_the_others(archive: Archive) -> None:
    before = archive.store.get(keys.current("orders"))[0]
    earlier = create_again(archive, "orders")
    put(archive, keys.current("orders"), before)
    put(archive, keys.head(PartitionId(CLUSTER, earlier, 0, "orders")), b"{}")
    advice = f"orders@TOPIC_ID recovers an incarnation that is in the archive: {archive.ids['orders']}"
    with pytest.raises(CorruptData, match=advice):
        recovery.plan(ManifestRepository(archive.store), ["orders"])
    plan = archive.plan()
    assert [each for each in plan.left_out if advice in each] == list(plan.left_out)
    assert not [note for note in plan.notes if "is recovered" in note and note.startswith("orders")]
    [orders] = recovery.plan(ManifestRepository(archive.store), [f"orders@{archive.ids['orders']}"]).topics
    assert orders.records == 1


def test_a_topic_that_is_named_by_its_incarnation_is_not_looked_up_by_its_name(archive: Archive) -> None:
    before = archive.store.get(keys.current("orders"))[0]
    earlier, later = create_again(archive, "orders"), archive.ids["orders"]
    for document in (before, b"{}"):
        put(archive, keys.current("orders"), document)
        for wanted in (earlier, later):
            plan = recovery.plan(ManifestRepository(archive.store), [f"orders@{wanted}", "*"])
            assert {topic.topic: topic.topic_id for topic in plan.topics} == {"menu": archive.ids["menu"], "orders": wanted}
            assert not [each for each in (*plan.left_out, *plan.notes) if each.startswith("orders: ") and earlier in each]


def test_two_topics_of_one_id_do_not_come_back_as_one(archive: Archive) -> None:
    orders = archive.ids["orders"]
    ManifestRepository(archive.store).ensure_topic(
        TopicManifest(cluster_id=CLUSTER, topic="twin", topic_id=orders, partitions=1, configs={})
    )
    plan = archive.plan()
    assert [topic.topic for topic in plan.topics] == ["menu", "orders"]
    [left_out] = plan.left_out
    assert left_out.startswith(f"twin: it has the topic id of orders, {orders}")
    named = recovery.plan(ManifestRepository(archive.store), ["twin", "orders"], recovery.Options(renames={"twin": "other"}))
    assert len({topic.topic_id for topic in named.topics}) == 2


@pytest.mark.parametrize("raw", [None, b"{}", encode_owner(Owner(cluster_id="of-before")), b'{"format": [9, 0]}'])
def test_whose_archive_it_is_agrees_with_its_topics_or_a_note_says_so(archive: Archive, raw: bytes | None) -> None:
    assert not [note for note in archive.plan().notes if keys.OWNER in note]
    put(archive, keys.OWNER, raw)
    plan = archive.plan()
    assert [note for note in plan.notes if keys.OWNER in note]
    assert (plan.left_out, plan.problems, plan.source_cluster_id) == ((), (), CLUSTER)


def test_what_has_a_name_that_no_part_of_an_archive_has_is_noted(archive: Archive) -> None:
    archive.store.create("meta/orders/evil", b"rubbish")
    [note] = [note for note in archive.plan().notes if "left alone" in note]
    assert "meta/orders/evil" in note
