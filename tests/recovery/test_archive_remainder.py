"""What a part of a recovery leaves in the archive is looked at as well, and not held."""

import tracemalloc
from collections.abc import Callable, Iterator

import msgspec
import pytest

import recovery
from headwater_core.errors import NotFound
from headwater_core.objectstore.store import ObjectInfo
from headwater_core.partition import PartitionId
from manifests import keys
from manifests.entry import Entry
from manifests.entry_tree import EntryTree
from manifests.page import Item, PageRef
from manifests.repository import ManifestRepository
from recovery.archive_remainder import look
from recovery.recovery_plan import LeftInArchive, RecoveryPlan
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.recovery.plans import CLUSTER, a_head, an_entry
from tests.recovery.written_archive import Archive, plain

INSTANT = {"mode": "instant"}
NO_DIGEST = "crc64nvme:" + "0" * 16


def an_archive() -> tuple[Archive, list[Entry]]:
    archive = Archive()
    return archive, archive.topic("orders", *([plain(5 * at, 5)] for at in range(6)))


def thorough(archive: Archive, **options: object) -> RecoveryPlan:
    return recovery.plan(ManifestRepository(archive.store), None, recovery.Options(**options), thorough=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [INSTANT, {"mode": "partial", "keep_bytes": 1}])
@pytest.mark.parametrize("change", ["gone", "short"])
def test_an_object_that_stays_in_the_archive_and_is_not_there_is_named(change: str, options: dict[str, object]) -> None:
    archive, entries = an_archive()
    assert thorough(archive, **options).left_out == ()
    raw, _ = archive.store.get(entries[2].key)
    archive.store.delete(entries[2].key)
    if change == "short":
        archive.store.create(entries[2].key, raw[:-1])
    plan = thorough(archive, **options)
    (left_out,) = plan.left_out
    assert "offsets 10-14, which stay in the archive: " in left_out
    assert entries[2].key in left_out
    assert plan.holes == ()
    quick = archive.plan(**options)
    assert quick.left_out == ()
    assert any("runs in what stays in the archive" in note for note in quick.notes)
    assert not any("not looked at" in note for note in (*plan.notes, *archive.plan().notes))


@pytest.mark.parametrize(("options", "place"), [({}, 2), (INSTANT, 2), ({"mode": "partial", "keep_bytes": 1}, 5)])
def test_an_index_object_that_is_gone_is_noted_and_is_no_hole(options: dict[str, object], place: int) -> None:
    archive, entries = an_archive()
    archive.store.delete(entries[place].index_key)
    plan = thorough(archive, **options)
    assert (plan.holes, plan.left_out) == ((), ())
    (note,) = (each for each in plan.notes if "index object" in each)
    assert note.startswith(f"missing, or of another length: 1 index object: {entries[place].index_key}. No record is lost")


@pytest.mark.parametrize("key", ["", "../../evil", "evil"])
def test_what_stays_in_a_layout_that_is_not_known_is_named_and_not_asked_for(key: str) -> None:
    archive, entries = an_archive()
    repository = ManifestRepository(archive.store)
    identity = PartitionId(CLUSTER, archive.ids["orders"], 0, "orders")
    held = repository.load(identity)
    assert held
    hostile = msgspec.structs.replace(entries[2], layout="another", key=key, index_key=key)
    head = msgspec.structs.replace(held.head, entries=EntryTree([*entries[:2], hostile, *entries[3:]]))
    left = LeftInArchive(base_offset=0, last_offset=29, runs=6, records=30, size_bytes=600)
    found = look(archive.store, identity, head, left)
    assert (found.objects, found.runs) == (5, 1)
    assert "offsets 10-14, which stay in the archive: layout 'another'" in found.missing[0]


def test_what_was_replaced_while_it_was_looked_at_is_not_missing() -> None:
    archive, entries = an_archive()

    class Merged(MemoryStore):
        def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
            if prefix.startswith("data/") and not start_after and archive.store.get(keys.head(_identity(archive))):
                _merge_once(archive)
            return super().list(prefix, start_after=start_after)

    store = Merged()
    store.__dict__ = archive.store.__dict__
    plan = recovery.plan(ManifestRepository(store), None, recovery.Options(mode="instant"), thorough=True)
    assert plan.left_out == ()
    with pytest.raises(NotFound):
        archive.store.get(entries[0].key)


def _identity(archive: Archive) -> PartitionId:
    return ManifestRepository(archive.store).resolve("orders").partition_id(0)


def _merge_once(archive: Archive) -> None:
    held = ManifestRepository(archive.store).load(_identity(archive))
    assert held is not None
    if held.head.version == 1:
        archive.replace("orders", [plain(0, 5), plain(5, 5), plain(10, 5), plain(15, 5), plain(20, 5), plain(25, 5)])


class Many:
    """A partition of many runs in pages, and the listing of its objects, both made as they are read."""

    def __init__(self, count: int, per_page: int, listed: Callable[[int], bool] = lambda at: True) -> None:
        self.count, self.per_page, self.listed, self.stats = count, per_page, listed, 0
        self.partition = a_head(an_entry(0, 9)).partition_id

    def entry(self, at: int) -> Entry:
        key = keys.data(self.partition, 10 * at, 10 * at + 9, 1, f"{at:032x}")
        return an_entry(
            10 * at, 10 * at + 9, uid=f"{at:032x}", key=key, index_key=keys.index(key), index_bytes=7, size_bytes=100, live_bytes=100
        )

    def read(self, ref: PageRef) -> tuple[Item, ...]:
        first = ref.base_offset // 10
        return tuple(self.entry(at) for at in range(first, first + self.per_page))

    def tree(self) -> EntryTree:
        template = PageRef(
            uid="a" * 32, level=0, fence=1, base_offset=0, last_offset=0, entries=self.per_page, size_bytes=1, digest=NO_DIGEST
        )
        refs = [
            msgspec.structs.replace(template, base_offset=10 * at, last_offset=10 * (at + self.per_page) - 1)
            for at in range(0, self.count, self.per_page)
        ]
        return EntryTree(refs, self)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        for at in range(self.count):
            entry = self.entry(at)
            yield ObjectInfo(entry.index_key, 7, "", None)
            if self.listed(at):
                yield ObjectInfo(entry.key, 100, "", None)

    def stat(self, key: str) -> ObjectInfo:
        self.stats += 1
        raise NotFound(key)


@pytest.mark.long
def test_neither_entries_nor_listing_are_held() -> None:
    many = Many(20_000, 500, listed=lambda at: at % 100 != 7)
    head = msgspec.structs.replace(a_head(an_entry(0, 9)), entries=many.tree(), last_offset=10 * many.count - 1)
    left = LeftInArchive(base_offset=0, last_offset=10 * many.count - 1, runs=many.count, records=0, size_bytes=0)
    tracemalloc.start()
    found = look(many, many.partition, head, left)  # type: ignore[arg-type]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (found.objects, found.runs, len(found.missing), many.stats) == (20_000, 200, 100, 200)
    assert peak < 4 << 20
