"""What can be recovered of an archive with damage in it: everything else, and the damage is reported."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Barrier

import pytest

import recovery
from headwater_core.clock import SystemClock
from headwater_core.errors import CorruptData, ForeignOwner, HeadwaterError, NotFound, NothingExamined, TransientError, VerificationFailed
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.objectstore.store import DOCUMENT_BYTES_MAX, ObjectInfo, ObjectStore
from manifests import keys
from manifests.repository import ManifestRepository
from manifests.topic import TopicManifest
from recovery.discovery import discover
from tests.fixtures import unpack
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.recovery.archived import archive, batches
from tests.recovery.plans import CLUSTER, TOPIC_ID, a_head, an_entry

TOPIC = "specials"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("archive")
    archive(unpack("kitchen"), DirectoryStore(root))
    return root


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> DirectoryStore:
    shutil.copytree(whole, tmp_path / "bucket")
    return DirectoryStore(tmp_path / "bucket")


def put(store: ObjectStore, key: str, document: bytes | None) -> None:
    store.delete(key)
    if document is not None:
        store.create(key, document)


def documents(store: ObjectStore, topic: str) -> dict[str, str]:
    manifest = ManifestRepository(store).resolve(topic)
    return {
        "current": keys.current(topic),
        "topic": keys.topic_manifest(topic, manifest.topic_id),
        "head": keys.head(manifest.partition_id(0)),
    }


@pytest.mark.parametrize("document", [None, b"", b'{"format": [2, 0]}'])
def test_one_damaged_topic_is_left_out_of_all_and_the_others_come_back(
    store: DirectoryStore, tmp_path: Path, document: bytes | None
) -> None:
    repository = ManifestRepository(store)
    topics = {each.manifest.topic for each in discover(repository, None).topics}
    put(store, documents(store, TOPIC)["topic"], document)
    plan = recovery.plan(repository, None)
    assert {each.topic for each in plan.topics} == topics - {TOPIC}
    assert [each.partition(":")[0] for each in plan.left_out] == [TOPIC]
    assert plan.problems == ()
    report = recovery.apply(plan, tmp_path / "log", store)
    assert report.left_out == plan.left_out
    assert list(batches(tmp_path / "log")) == [each for each in batches(unpack("kitchen")) if each[0] != TOPIC]
    again = recovery.apply(recovery.plan(repository, None), tmp_path / "log", store)
    assert (again.again, again.left_out) == (True, plan.left_out)
    named = recovery.plan(repository, topics - {TOPIC})
    assert named.left_out == ()
    with pytest.raises(HeadwaterError) as reason:
        recovery.plan(repository, [TOPIC, "menu"])
    assert isinstance(reason.value, NotFound) == (document is None)


@pytest.mark.parametrize("document", [None, b"{}"])
def test_a_partition_without_a_sound_head_comes_back_empty_and_the_others_whole(
    store: DirectoryStore, tmp_path: Path, document: bytes | None
) -> None:
    repository = ManifestRepository(store)
    count = repository.resolve(TOPIC).partitions
    assert count > 1
    put(store, documents(store, TOPIC)["head"], document)
    for topics in (None, [TOPIC]):
        plan = recovery.plan(repository, topics)
        assert plan.problems == ()
        [reason] = plan.left_out
        assert reason.startswith(f"{TOPIC}:")
        assert "empty" in reason
        [planned] = [topic for topic in plan.topics if topic.topic == TOPIC]
        assert [partition.manifest_version > 0 for partition in planned.partitions] == [False] + [True] * (count - 1)
    recovery.apply(recovery.plan(repository, None), tmp_path / "log", store)
    assert list(batches(tmp_path / "log")) == [each for each in batches(unpack("kitchen")) if each[:2] != (TOPIC, 0)]
    assert (tmp_path / "log" / f"{TOPIC}-0" / "partition.metadata").exists()


def test_everything_damaged_is_no_recovery(store: DirectoryStore) -> None:
    repository = ManifestRepository(store)
    for each in discover(repository, None).topics:
        put(store, documents(store, each.manifest.topic)["topic"], b"{}")
    with pytest.raises(VerificationFailed, match=TOPIC):
        recovery.plan(repository, None)


def test_nothing_at_all_is_another_bucket() -> None:
    with pytest.raises(NothingExamined):
        recovery.plan(ManifestRepository(MemoryStore()), None)


def test_an_earlier_incarnation_that_is_damaged_does_not_matter(store: DirectoryStore) -> None:
    store.create(f"meta/{TOPIC}/{'A' * 22}/topic.json", b"{}")
    plan = recovery.plan(ManifestRepository(store), None)
    assert (plan.left_out, plan.problems) == ((), ())


def test_a_damaged_owner_is_a_note(store: DirectoryStore) -> None:
    before = recovery.plan(ManifestRepository(store), None)
    put(store, keys.OWNER, b"{}")
    plan = recovery.plan(ManifestRepository(store), None)
    assert plan.topics == before.topics
    assert plan.source_cluster_id == before.source_cluster_id
    assert [note for note in plan.notes if "headwater.json" in note]
    assert not [note for note in before.notes if "headwater.json" in note]


def test_a_document_of_another_topic_is_damage(store: DirectoryStore) -> None:
    put(store, documents(store, TOPIC)["topic"], store.get(documents(store, "menu")["topic"])[0])
    assert [each.partition(":")[0] for each in recovery.plan(ManifestRepository(store), None).left_out] == [TOPIC]
    with pytest.raises(ForeignOwner):
        recovery.plan(ManifestRepository(store), [TOPIC])


def test_two_damaged_topics_are_both_reported(store: DirectoryStore) -> None:
    put(store, documents(store, "menu")["head"], b"{}")
    put(store, documents(store, TOPIC)["topic"], b"{}")
    left_out = recovery.plan(ManifestRepository(store), None).left_out
    assert sorted(each.partition(":")[0] for each in left_out) == ["menu", TOPIC]
    with pytest.raises(CorruptData):
        recovery.plan(ManifestRepository(store), ["menu"])


class Silent(DirectoryStore):
    """Does not answer for heads."""

    def get(self, key: str, *, max_bytes: int = DOCUMENT_BYTES_MAX) -> tuple[bytes, str]:
        if key.endswith("/manifest.json"):
            raise TransientError("no answer")
        return super().get(key, max_bytes=max_bytes)


def test_a_store_that_does_not_answer_leaves_nothing_out(store: DirectoryStore, tmp_path: Path) -> None:
    with pytest.raises(TransientError):
        recovery.plan(ManifestRepository(Silent(tmp_path / "bucket")), None)


class Forgetful(DirectoryStore):
    """Its listings show no heads yet."""

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        return (info for info in super().list(prefix, start_after=start_after) if not info.key.endswith("/manifest.json"))


def test_a_partition_that_no_listing_shows_is_requested_all_the_same(store: DirectoryStore, tmp_path: Path) -> None:
    made = [recovery.plan(ManifestRepository(each), [TOPIC]) for each in (store, Forgetful(tmp_path / "bucket"))]
    assert made[0].topics == made[1].topics
    assert made[1].left_out == ()


class Together(MemoryStore):
    """Answers for heads once so many of them are wanted at a time."""

    def __init__(self, other: MemoryStore, at_once: int) -> None:
        self.__dict__ = dict(other.__dict__)
        self.barrier = Barrier(at_once, timeout=30)

    def get(self, key: str, *, max_bytes: int = DOCUMENT_BYTES_MAX) -> tuple[bytes, str]:
        if key.endswith("/manifest.json"):
            self.barrier.wait()
        return super().get(key, max_bytes=max_bytes)


def test_the_heads_of_one_topic_are_read_at_the_same_time() -> None:
    """A round trip each, one after the other, would make a topic of a thousand partitions wait for a minute."""
    store = MemoryStore(SystemClock())
    repository = ManifestRepository(store)
    repository.ensure_topic(TopicManifest(cluster_id=CLUSTER, topic="orders", topic_id=TOPIC_ID, partitions=8))
    for number in range(8):
        repository.commit(None, a_head(an_entry(0, 9, partition=number), partition=number))
    [found] = discover(ManifestRepository(Together(store, 8)), ["orders"]).topics
    assert sorted(found.heads) == list(range(8))
