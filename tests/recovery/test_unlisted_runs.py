"""What lies beyond the end of what a head lists is noted: it may be an older version of the head."""

from collections.abc import Iterator

from msgspec.structs import replace

from headwater_core.layouts.chunks import SegmentPlace, Variant
from headwater_core.objectstore.store import DOCUMENT_BYTES_MAX, ObjectInfo
from headwater_core.partition import PartitionId
from manifests import chunk_keys, keys
from manifests.entry import Entry
from manifests.entry_tree import EntryTree
from manifests.head import encode_head
from manifests.repository import ManifestRepository
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.recovery.written_archive import Archive, plain


def beyond(archive: Archive) -> list[str]:
    return [note for note in archive.plan().notes if "does not list" in note]


def test_an_older_head_that_was_put_back_is_noted() -> None:
    archive = Archive()
    entries = archive.topic("orders", [plain(0, 5)], [plain(5, 5)])
    repository = ManifestRepository(archive.store)
    [partition] = repository.partitions("orders", archive.ids["orders"])
    archive.store.create(keys.data(partition, 5, 9, 1, "a" * 32), b"an upload that was not finished")
    assert beyond(archive) == []  # below the end there may be anything: what was replaced, and is not collected yet
    held = repository.load(partition)
    assert held is not None
    older = replace(held.head, entries=EntryTree(entries[:1]), last_offset=4)
    archive.store.delete(keys.head(partition))
    archive.store.create(keys.head(partition), encode_head(older))
    [note] = beyond(archive)
    assert note.startswith("orders:0 ends at offset 5, and its manifest does not list 2 objects of offsets 5 to 9:")


def test_chunks_beyond_the_end_of_a_head_that_was_put_back_are_noted() -> None:
    archive = Archive()
    first, second = archive.topic("orders", [plain(0, 5)], [plain(5, 5)])
    [partition] = (repository := ManifestRepository(archive.store)).partitions("orders", archive.ids["orders"])
    begun = SegmentPlace(chunk_keys.queue(partition.cluster_id, "w", 1, partition.topic_partition), "commitLog", 0, Variant.APPEND)
    following = SegmentPlace(begun.queue, "commitLog", 10, Variant.FIXED)
    entries = [_as_chunk(archive, each, begun.chunk_key(at)) for each, at in ((first, 0), (second, first.size_bytes))]
    held = repository.load(partition)
    assert held is not None
    repository.commit(held, replace(held.head, entries=EntryTree(entries)))
    assert beyond(archive) == []
    archive.store.create(following.chunk_key(0), b"being written")
    archive.store.create(following.chunk_key(0) + chunk_keys.INDEX, b"index")
    [note] = beyond(archive)
    assert note.startswith("orders:0 ends at offset 10, and its manifest does not list 1 chunk of segments from offset 10 to 10 on:")
    held = repository.load(partition)
    assert held is not None
    archive.store.delete(keys.head(partition))
    archive.store.create(keys.head(partition), encode_head(replace(held.head, entries=EntryTree(entries[:1]), last_offset=4)))
    [note] = beyond(archive)
    assert "2 chunks of segments from offset 0 to 10 on:" in note
    other = PartitionId(partition.cluster_id, "AAAAAAAAAAAAAAAAAAAAAQ", 0, "orders")
    repository.commit(None, replace(held.head, topic_id=other.topic_id, start_offset=0, last_offset=-1, entries=EntryTree(), version=1))
    assert beyond(archive) == [], "all of it may be another topic's of that name"


def _as_chunk(archive: Archive, entry: Entry, key: str) -> Entry:
    for before, after in ((entry.key, key), (entry.index_key, keys.index(key))):
        archive.store.create(after, archive.store.get(before)[0])
        archive.store.delete(before)
    made = replace(entry, key=key, index_key=keys.index(key), uid=chunk_keys.named(key).uid, layout="chunks", context={"version": "1"})
    return replace(made, held=(entry.base_offset, entry.last_offset))


def test_what_a_plan_lists_and_reads_does_not_grow_with_the_archive() -> None:
    """Of an instant recovery, which reads heads alone, and of a deep tree the path to its end."""
    costs = []
    for runs in (3, 30):
        archive = Archive(store := Counting())
        archive.topic("orders", *([plain(at)] for at in range(runs)))
        before = store.listed, store.calls
        archive.plan(mode="instant")
        costs.append((store.listed - before[0], store.calls - before[1]))
    assert costs[0][0] == costs[1][0] <= 5, "one of them looks for chunks, of all partitions"
    assert costs[1][1] <= costs[0][1] + 3 <= 17, "two of them look for a snapshot of the cluster"


class Counting(MemoryStore):
    """Requests, and what listings show but manifests."""

    listed = calls = 0

    def get(self, key: str, *, max_bytes: int = DOCUMENT_BYTES_MAX) -> tuple[bytes, str]:
        self.calls += 1
        return super().get(key, max_bytes=max_bytes)

    def stat(self, key: str) -> ObjectInfo:
        self.calls += 1
        return super().stat(key)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        self.calls += 1
        for info in super().list(prefix, start_after=start_after):
            self.listed += not info.key.startswith(keys.META)
            yield info
