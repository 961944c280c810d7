"""What lies beyond the end of what a head lists is noted: it may be an older version of the head."""

from collections.abc import Iterator

from msgspec.structs import replace

from headwater_core.objectstore.store import DOCUMENT_BYTES_MAX, ObjectInfo
from manifests import keys
from manifests.entry_tree import EntryTree
from manifests.head import encode_head
from manifests.repository import ManifestRepository
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.recovery.written_archive import Archive, plain


def beyond(archive: Archive) -> list[str]:
    return [note for note in archive.plan().notes if "not listed" in note]


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
    assert note.startswith("orders:0 ends at offset 5, and 2 objects of offsets 5 to 9 are not listed")


def test_what_a_plan_lists_and_reads_does_not_grow_with_the_archive() -> None:
    """Of an instant recovery, which reads heads alone."""
    costs = []
    for runs in (3, 30):
        archive = Archive(store := Counting())
        archive.topic("orders", *([plain(at)] for at in range(runs)))
        before = store.listed, store.calls
        archive.plan(mode="instant")
        costs.append((store.listed - before[0], store.calls - before[1]))
    assert costs[0] == costs[1]
    assert costs[0] <= (5, 9)


class Counting(MemoryStore):
    """Requests, and what listings show."""

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
            self.listed += 1
            yield info
