"""The partitions that have data, found without reading every object's name."""

import io
from collections.abc import Iterator

import pytest

from headwater_core.objectstore.store import ObjectInfo, ObjectStore
from headwater_core.partition import PartitionId
from manifests import keys, prefixes
from manifests.prefixes import data_prefixes
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.objectstore.meter import MeteredStore
from tests.manifests.builders import TOPIC_ID


def put_data(store: ObjectStore, topic: str, number: int, objects: int) -> str:
    """The prefix of what was put."""
    partition = PartitionId("cluster-1", TOPIC_ID, number, topic)
    for base in range(objects):
        store.put(keys.data(partition, base, base, 1, f"{base:032x}"), io.BytesIO(b"x"), size_bytes=1)
    return keys.data_prefix(partition)


class Pages(MeteredStore):
    """Counts the names that listings gave."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.names = 0

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        for info in super().list(prefix, start_after=start_after):
            self.names += 1
            yield info


@pytest.mark.parametrize("limit", [1, 4, 5, 6, 100, 1000])
def test_each_partition_is_found_once_and_a_long_one_jumped_over(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "NAMES_MAX", limit)
    store = Pages(MemoryStore())
    put = [put_data(store, "long", 0, 300), *(put_data(store, "a", number, 5) for number in range(3))]
    assert list(data_prefixes(store)) == sorted(put)
    assert [keys.parse_data_prefix(prefix) for prefix in put] == [("long", TOPIC_ID, 0), *(("a", TOPIC_ID, number) for number in range(3))]
    assert store.names <= min(limit, 300) + 3 * 5


def test_a_bucket_without_data_has_none() -> None:
    assert list(data_prefixes(MemoryStore())) == []


def test_names_that_we_would_not_write_are_no_partitions_and_hide_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "NAMES_MAX", 1)
    store = MemoryStore()
    put = [put_data(store, "a", number, 3) for number in range(5)]
    name = keys.data(PartitionId("cluster-1", TOPIC_ID, 0, "b"), 0, 0, 1, "0" * 32).rpartition("/")[2]
    hostile = [
        "data/",
        "data/h/b/",
        "data/h/b/not-an-id/0/",
        f"data/h/b/{TOPIC_ID}/00/",
        f"data/h/b/{TOPIC_ID}/9999999999/",
        f"data/h/b/{TOPIC_ID}/0/deeper/",
        f"data/h/{'n' * 250}/{TOPIC_ID}/0/",
    ]
    for prefix in hostile:
        store.create(prefix + name, b"x")
        assert keys.parse_data_prefix(prefix) is None
    store.create(f"data/h/b/{TOPIC_ID}/0/readme.txt", b"x")
    assert list(data_prefixes(store)) == sorted(put)
