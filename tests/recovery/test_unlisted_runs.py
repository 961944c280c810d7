"""What lies beyond the end of what a head lists is noted: it may be an older version of the head."""

from msgspec.structs import replace

from manifests import keys
from manifests.entry_tree import EntryTree
from manifests.head import encode_head
from manifests.repository import ManifestRepository
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
