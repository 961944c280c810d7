"""What a task does when the bucket is not what its plan says: objects replaced, damaged, gone; branches superseded."""

import threading

import msgspec
import pyarrow as pa
import pytest

from headwater.pipeline.scan import buffers, split_reader
from headwater.pipeline.scan.arrow_stream import scan
from headwater.pipeline.scan.query import Predicate
from headwater.pipeline.scan.scan_counters import ScanCounters
from headwater.pipeline.scan.split_reader import read_split
from headwater_core.errors import CorruptData, DataLoss, Superseded, TransientError
from manifests.entry import Entry
from manifests.repository import ManifestRepository
from tests.headwater.pipeline.archives import a_copy, run, soup, soup_rows
from tests.headwater.pipeline.scan.damageable import a_query, flipped, offsets, overwrite, plan, position_of
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.objectstore.meter import MeteredStore
from tests.headwater_core.segments.builders import BASE_TIME, a_batch, a_segment
from tests.hydration.world import PARTITION, Archive


def test_what_was_read_does_not_lie_in_memory_that_is_used_again(
    store: MemoryStore, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither while a split is read nor after; and all of that memory is given back, whatever ends the reading."""
    blocks, before = buffers._blocks, buffers._blocks.taken
    give_back = blocks.give_back

    def spoil(block: memoryview) -> None:
        block[:] = b"\xff" * len(block)
        give_back(block)

    monkeypatch.setattr(blocks, "give_back", spoil)
    monkeypatch.setattr(split_reader, "PIECE_BYTES", 200_000)
    query = a_query(columns="key,value,headers,offset,timestamp", includeHeaders=True)
    batches = [batch for split in plan(store, query) for batch in read_split(store, split, query)]
    assert pa.Table.from_batches(batches).equals(scan(a_copy(store), "soup", columns="key,value,headers,offset,timestamp").read_all())
    (split, *_) = plan(store, query)
    left = read_split(store, split, query)
    next(left)
    left.close()
    overwrite(store, archive.head.entries[1].key, flipped(700_000))
    with pytest.raises(CorruptData):
        offsets(store, query)
    overwrite(store, archive.head.entries[1].key, lambda content: content[:600_000])
    with pytest.raises(CorruptData):
        offsets(store, query)
    assert blocks.taken == before


# An archive that moves on


def merge(archive: Archive, *, run_of: bytes | None = None, first: int = 0, count: int = 2) -> list[Entry]:
    """`count` entries from the index `first` on replaced by one; the old objects are deleted."""
    entries = list(archive.head.entries)
    old = entries[first : first + count]
    merged = archive.upload(run_of or b"".join(archive.store.get(entry.key)[0] for entry in old), base_offset=old[0].base_offset)
    archive.commit(*entries[:first], merged, *entries[first + count :])
    for entry in old:
        archive.store.delete(entry.key)
        archive.store.delete(entry.index_key)
    return old


@pytest.mark.parametrize("split_bytes", ["64m", 400_000])
def test_an_object_that_was_merged_away_is_found_again_by_its_offsets(store: MemoryStore, archive: Archive, split_bytes: object) -> None:
    query = a_query(split_bytes=split_bytes)
    splits = plan(store, query)
    merge(archive)
    assert offsets(store, query, splits) == list(range(300))


def test_an_object_may_be_replaced_in_the_middle_of_a_task(store: MemoryStore, archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_reader, "PIECE_BYTES", 200_000)
    query = a_query()
    (split,) = plan(store, query)
    counters = ScanCounters()
    batches = read_split(store, split, query, counters)
    found = next(batches)["offset"].to_pylist()
    merge(archive, count=3)
    for batch in batches:
        found += batch["offset"].to_pylist()
    assert found == list(range(300))
    assert counters.heads_reread == 1


def test_what_was_replaced_under_the_same_bytes_is_not_read_twice(store: MemoryStore, archive: Archive) -> None:
    query = a_query()
    splits = plan(store, query)
    merge(archive, first=1, count=1)
    assert offsets(store, query, splits) == list(range(300))


def test_an_object_that_is_listed_and_gone_is_damage(store: MemoryStore, archive: Archive) -> None:
    key = archive.head.entries[1].key
    store.delete(key)
    with pytest.raises(CorruptData, match=r"the store does not have it; offsets 100 to 199 of soup:0") as raised:
        offsets(store, a_query())
    assert raised.value.where == key


def test_an_index_that_is_listed_and_gone_is_damage(store: MemoryStore, archive: Archive) -> None:
    key = archive.head.entries[1].index_key
    store.delete(key)
    with pytest.raises(CorruptData, match=r"the store does not have it; offsets 150 to 160 of soup:0") as raised:
        offsets(store, a_query().where(Predicate(first_offset=150, end_offset=161)))
    assert raised.value.where == key


def test_replacing_for_ever_ends_in_a_retriable_error(store: MemoryStore, archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    query = a_query()
    splits = plan(store, query)
    entry = merge(archive, count=1)[0]
    load = ManifestRepository.load

    def moving(self: ManifestRepository, partition: object) -> object:
        merge(archive, count=1)
        held = load(self, PARTITION)
        merge(archive, count=1)
        return held

    monkeypatch.setattr(ManifestRepository, "load", moving)
    with pytest.raises(TransientError, match="was replaced"):
        offsets(store, query, splits)
    assert entry.base_offset == 0


def test_a_superseded_branch_is_an_error_that_says_so(store: MemoryStore, archive: Archive) -> None:
    query = a_query()
    splits = plan(store, query)
    live, dead = archive.head.entries[0], tuple(archive.head.entries)[1:]
    archive.commit(live, archive.upload(a_segment(100, 200, value_bytes=100, epoch=3)))
    for entry in dead:
        store.delete(entry.key)
    with pytest.raises(Superseded, match="from offset 100 on"):
        offsets(store, query, splits)


def test_a_shorter_branch_is_superseded_too(store: MemoryStore, archive: Archive) -> None:
    query = a_query()
    splits = plan(store, query)
    *live, dead = archive.head.entries
    archive.commit(*live)
    store.delete(dead.key)
    with pytest.raises(Superseded, match="from offset 200 on"):
        offsets(store, query, splits)


def test_a_compaction_that_takes_records_is_no_other_branch(store: MemoryStore, archive: Archive) -> None:
    """The first batches of a leadership may be compacted away; then its offsets seem to begin later."""
    batches = [a_batch(n, [b"x" * 15_000], epoch=n // 100) for n in range(300)]
    archive.commit(*(archive.upload(b"".join(batches[at : at + 100])) for at in (0, 100, 200)))
    query = a_query()
    splits = plan(store, query)
    merge(archive, count=3, run_of=b"".join(batches[:90] + batches[120:195] + batches[230:]))
    assert offsets(store, query, splits) == [*range(90), *range(120, 195), *range(230, 300)]


def test_what_retention_took_meanwhile_is_loss(store: MemoryStore, archive: Archive) -> None:
    query = a_query()
    splits = plan(store, query)
    dropped, *kept = archive.head.entries
    archive.commit(*kept)
    store.delete(dropped.key)
    with pytest.raises(DataLoss, match="begins at 100 now"):
        offsets(store, query, splits)
    assert offsets(store, a_query(fail_on_data_loss=False), splits) == list(range(100, 300))


def test_aborted_transactions_are_found_again_after_a_merge() -> None:
    store = a_copy(soup())
    archive = Archive(store)
    archive.held = archive.repository.load(PARTITION)
    archive.uploads = 100
    query = a_query(isolation="read_committed", fail_on_data_loss=False)
    splits = plan(store, query)
    merge(archive, count=4)
    assert offsets(store, query, splits) == [row["offset"] for row in soup_rows("read_committed")]


# Only what is needed


def test_a_narrow_range_fetches_little_of_a_large_object(store: MemoryStore) -> None:
    metered = MeteredStore(store, log_calls=100)
    query = a_query().where(Predicate(first_offset=142, end_offset=147))
    splits = plan(metered, query)
    metered.reset()
    counters = ScanCounters()
    found = [offset for split in splits for batch in read_split(metered, split, query, counters) for offset in batch["offset"].to_pylist()]
    assert found == [142, 143, 144, 145, 146]
    assert metered.bytes_read == counters.bytes_fetched < 250_000
    assert sum(metered.calls.values()) == counters.gets == 2  # the index and one range


def test_a_time_filter_leaves_out_what_is_older_by_entries_and_by_index_points(store: MemoryStore) -> None:
    metered = MeteredStore(store)
    query = a_query().where(Predicate(first_timestamp_ms=BASE_TIME + 280))
    splits = plan(metered, query)
    metered.reset()
    assert offsets(metered, query, splits) == list(range(280, 300))
    assert metered.bytes_read < 450_000


def test_a_starting_time_is_found_with_two_small_reads_and_what_is_older_is_not_fetched(store: MemoryStore) -> None:
    metered = MeteredStore(store)
    query = a_query(starting_timestamp=BASE_TIME + 150, ending_timestamp=BASE_TIME + 160)
    assert offsets(metered, query) == list(range(150, 160))
    assert metered.bytes_read < 1_000_000


def test_a_dead_branch_behind_the_live_end_is_never_read(store: MemoryStore, archive: Archive) -> None:
    entry = archive.head.entries[2]
    live_bytes = position_of(store, entry.key, 250)
    archive.replace(2, last_offset=249, live_bytes=live_bytes)
    overwrite(store, entry.key, lambda content: content[:live_bytes])  # not even there
    assert offsets(store, a_query()) == list(range(250))
    assert offsets(store, a_query(split_bytes=200_000)) == list(range(250))


def test_a_reader_that_is_let_go_leaves_nothing_running(store: MemoryStore) -> None:
    before = set(threading.enumerate())
    query = a_query()
    batches = read_split(store, plan(store, query)[0], query)
    assert isinstance(next(batches), pa.RecordBatch)
    batches.close()
    assert not set(threading.enumerate()) - before


@pytest.mark.parametrize("claim", [{"index_bytes": 1 << 40}, {"size_bytes": 1 << 40, "live_bytes": 1 << 40}])
def test_a_head_that_claims_impossible_sizes_costs_no_memory(store: MemoryStore, archive: Archive, claim: dict[str, int]) -> None:
    entries = list(archive.head.entries)
    entries[0] = msgspec.structs.replace(entries[0], **claim)
    archive.commit(*entries)
    query = a_query().where(Predicate(end_offset=50))
    with pytest.raises(CorruptData):
        offsets(store, query)
    assert run(0, 1)
