"""What one listing of the bucket says of topics, and what is reported as lost."""

import pytest

from headwater_core.errors import ForeignOwner, NotFound, TransientError
from headwater_core.partition import PartitionId, topic_id_text
from manifests import keys
from manifests.repository import ManifestRepository
from manifests.topic_survey import survey_topics
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.manifests.builders import TOPIC_ID, a_head, a_topic

OLD = topic_id_text(bytes(16))


def three_topics() -> MemoryStore:
    """a, b, c; b was another incarnation before."""
    store = MemoryStore()
    archive = ManifestRepository(store)
    archive.ensure_topic(a_topic("b", OLD))
    for name in "abc":
        archive.ensure_topic(a_topic(name))
        archive.commit(None, a_head(partition=PartitionId("cluster-1", TOPIC_ID, 0, name)))
    return store


def put(store: MemoryStore, key: str, document: bytes | None) -> None:
    """`document` instead of what is there; None: nothing."""
    store.delete(key)
    if document is not None:
        store.create(key, document)


DAMAGE = [b"", b"{", b"[]", b"null", b'{"format":[1,0]}', b"[" * 100_000, b"\xff\xfe", bytes(1 << 16)]


@pytest.mark.parametrize("document", [*DAMAGE, None, b'{"format":[2,0]}'])
@pytest.mark.parametrize("key", [keys.current("b"), keys.topic_manifest("b", TOPIC_ID)])
def test_a_lost_document_hides_its_own_topic_only(key: str, document: bytes | None) -> None:
    store = three_topics()
    put(store, key, document)
    for earlier in (False, True):
        manifests, lost = survey_topics(store, earlier=earlier)
        assert [each.topic for each in manifests] == ["a", "c"]
        assert [(each.topic, each.key) for each in lost] == [("b", key)]
        assert isinstance(lost[0].error, NotFound) == (document is None)
    for name, topics, gone in (("a", ["a"], []), ("b", [], [key]), ("absent", [], [])):
        manifests, lost = survey_topics(store, name)
        assert ([each.topic for each in manifests], [each.key for each in lost]) == (topics, gone)
    with pytest.raises(type(lost_error := survey_topics(store, "b").unreadable[0].error)) as raised:
        ManifestRepository(store).resolve("b")
    assert str(raised.value) == str(lost_error)


def test_a_topic_whose_creation_was_cut_short_is_none_yet() -> None:
    store = three_topics()
    ManifestRepository(store).ensure_topic(a_topic("d"))
    store.delete(keys.current("d"))  # as if it had not been written: heads come after it
    manifests, lost = survey_topics(store)
    assert ([each.topic for each in manifests], lost) == (["a", "b", "c"], [])


def test_two_lost_topics_are_both_reported() -> None:
    store = three_topics()
    put(store, keys.current("a"), None)
    put(store, keys.topic_manifest("c", TOPIC_ID), b"{}")
    manifests, lost = survey_topics(store)
    assert [each.topic for each in manifests] == ["b"]
    assert [each.key for each in lost] == [keys.current("a"), keys.topic_manifest("c", TOPIC_ID)]


def test_documents_of_another_topic_in_its_place_are_reported() -> None:
    store = three_topics()
    put(store, keys.current("b"), store.get(keys.current("a"))[0])
    put(store, keys.topic_manifest("c", TOPIC_ID), store.get(keys.topic_manifest("a", TOPIC_ID))[0])
    manifests, lost = survey_topics(store)
    assert [each.topic for each in manifests] == ["a"]
    assert [(each.topic, type(each.error)) for each in lost] == [("b", ForeignOwner), ("c", ForeignOwner)]


@pytest.mark.parametrize("document", [b"{}", None])
def test_an_earlier_incarnation_is_looked_at_on_request_only(document: bytes | None) -> None:
    store = three_topics()
    ManifestRepository(store).commit(None, a_head(partition=PartitionId("cluster-1", OLD, 0, "b")))
    put(store, keys.topic_manifest("b", OLD), document)
    assert survey_topics(store).unreadable == []
    manifests, lost = survey_topics(store, earlier=True)
    assert [(each.topic, each.topic_id) for each in manifests] == [(name, TOPIC_ID) for name in "abc"]
    assert [each.key for each in lost] == [keys.topic_manifest("b", OLD)]


def test_what_only_a_listing_or_only_current_json_names_is_looked_for() -> None:
    store = three_topics()
    for info in list(store.list(f"meta/a/{TOPIC_ID}/")):
        store.delete(info.key)
    for key in (keys.current("c"), keys.topic_manifest("c", TOPIC_ID)):
        store.delete(key)
    manifests, lost = survey_topics(store, earlier=True)
    assert [each.topic for each in manifests] == ["b"]
    assert [each.key for each in lost] == [keys.topic_manifest("a", TOPIC_ID), keys.current("c"), keys.topic_manifest("c", TOPIC_ID)]


def test_hostile_names_are_no_topics() -> None:
    store = three_topics()
    for key in ("meta/x/current.jso", "meta/" + "n" * 250 + "/current.json", "meta/y=/current.json", "meta/z/not-an-id/topic.json"):
        store.create(key, b"{}")
    manifests, lost = survey_topics(store, earlier=True)
    assert ([each.topic for each in manifests], lost) == (["a", "b", "c"], [])


def test_a_store_that_does_not_answer_is_no_loss() -> None:
    class Silent(MemoryStore):
        def get(self, key: str, *, max_bytes: int = 1 << 20) -> tuple[bytes, str]:
            raise TransientError("no answer")

    store = Silent()
    store.create(keys.current("orders"), b"{}")
    with pytest.raises(TransientError):
        survey_topics(store)
