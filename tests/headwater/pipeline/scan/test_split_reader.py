"""What a task does when the bucket is not what its plan says: objects replaced, damaged, gone; branches superseded."""

import functools
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from awscrt.checksums import crc32c

from headwater.pipeline.scan import buffers, split_reader
from headwater.pipeline.scan.archive_snapshot import ArchiveSnapshot
from headwater.pipeline.scan.arrow_stream import scan
from headwater.pipeline.scan.decoder import decode
from headwater.pipeline.scan.quarantine import Damage, read_quarantine
from headwater.pipeline.scan.query import Predicate, Query, parse_query
from headwater.pipeline.scan.split_reader import ReadCounters, read_split
from headwater.pipeline.scan.splits import Split, plan_splits
from headwater_core.errors import CorruptData, DataLoss, Superseded, TransientError
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.objectstore.meter import MeteredStore
from headwater_core.segments.batches import headers
from manifests.head import Entry
from manifests.repository import ManifestRepository
from tests.headwater.pipeline.archives import a_copy, run, soup, soup_rows
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.segments.builders import BASE_TIME, a_batch, a_segment
from tests.hydration.world import PARTITION, Archive

SEGMENT_BYTES = 1_500_000  # above what is read as a whole: indexes are used


@functools.cache
def _plain() -> MemoryStore:
    """Offsets 0 to 299 in three objects of 15 KB batches, each with several index points."""
    store = MemoryStore()
    archive = Archive(store)
    archive.append(*(a_segment(first, 100, value_bytes=15_000) for first in (0, 100, 200)))
    return store


@pytest.fixture
def store() -> MemoryStore:
    return a_copy(_plain())


@pytest.fixture
def archive(store: MemoryStore) -> Archive:
    held = Archive(store)
    held.held = held.repository.load(PARTITION)
    held.uploads = 100
    return held


def a_query(**options: object) -> Query:
    return parse_query({"topics": "soup", "columns": "offset,value", **options})


def plan(store: MemoryStore | MeteredStore, query: Query) -> list[Split]:
    return plan_splits(ArchiveSnapshot.read(store, query).ranges(store, query), query)


def offsets(store: MemoryStore | MeteredStore, query: Query, splits: list[Split] | None = None) -> list[int]:
    found = [batch for split in splits or plan(store, query) for batch in read_split(store, split, query)]
    return [offset for batch in found for offset in batch["offset"].to_pylist()]


def overwrite(store: MemoryStore, key: str, change: Callable[[bytearray], bytes | bytearray | None]) -> None:
    content = change(bytearray(store.get(key)[0]))
    store.delete(key)
    if content is not None:
        store.create(key, bytes(content))


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


def flipped(at: int) -> Callable[[bytearray], bytearray]:
    def flip(content: bytearray) -> bytearray:
        content[at] ^= 0x10
        return content

    return flip


def position_of(store: MemoryStore, key: str, offset: int) -> int:
    import io

    content = store.get(key)[0]
    return next(at for at, header in headers(io.BytesIO(content), 0, len(content), where=key) if header.last_offset >= offset)


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
    counters = ReadCounters()
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
    live, dead = archive.head.entries[0], archive.head.entries[1:]
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
    counters = ReadCounters()
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


# Damage


def damaged_offsets(found: list[Damage]) -> set[int]:
    lost: set[int] = set()
    for each in found:
        assert each.first_offset is not None
        assert each.last_offset is not None
        lost.update(range(each.first_offset, each.last_offset + 1))
    return lost


def quarantined(store: MemoryStore, tmp_path: Path, **options: object) -> tuple[list[int], list[Damage]]:
    query = a_query(on_corrupt="quarantine", quarantine_path=str(tmp_path / "side"), **options)
    return offsets(store, query), list(read_quarantine(DirectoryStore(tmp_path / "side")))


@pytest.mark.parametrize("split_bytes", ["64m", 300_000])
@pytest.mark.parametrize("field", [8, 17, 21, 40, 60, 5_000], ids=["length", "crc", "attributes", "producer", "records", "body"])
def test_a_flipped_bit_names_object_position_and_offset(store: MemoryStore, archive: Archive, field: int, split_bytes: object) -> None:
    key = archive.head.entries[1].key
    position = position_of(store, key, 157)
    overwrite(store, key, flipped(position + field))
    with pytest.raises(CorruptData, match="offset") as raised:
        offsets(store, a_query(split_bytes=split_bytes))
    assert (raised.value.where, raised.value.position) == (key, position)


@pytest.mark.parametrize("field", [8, 17, 21, 60, 5_000], ids=["length", "crc", "attributes", "records", "body"])
def test_a_damaged_batch_goes_to_the_side_table_and_its_neighbours_are_read(
    store: MemoryStore, archive: Archive, tmp_path: Path, field: int
) -> None:
    key = archive.head.entries[1].key
    position = position_of(store, key, 157)
    overwrite(store, key, flipped(position + field))
    found, damage = quarantined(store, tmp_path)
    lost = damaged_offsets(damage)
    assert found == [offset for offset in range(300) if offset not in lost]
    assert {157} <= lost <= set(range(157, 162))  # a wrong length hides what follows, up to the next index point
    assert damage[0].object == key
    assert damage[0].position == position
    assert (damage[0].topic, damage[0].partition) == ("soup", 0)


@pytest.mark.parametrize("byte", [7, 3], ids=["low", "high"])
def test_a_batch_that_claims_other_offsets_is_noticed(store: MemoryStore, archive: Archive, tmp_path: Path, byte: int) -> None:
    """A base offset is outside its batch's checksum."""
    key = archive.head.entries[1].key
    overwrite(store, key, flipped(position_of(store, key, 199) + byte))
    with pytest.raises(CorruptData):
        offsets(store, a_query())
    found, damage = quarantined(store, tmp_path)
    assert found == [offset for offset in range(300) if offset not in damaged_offsets(damage)]
    assert 199 in damaged_offsets(damage) <= set(range(190, 200))


def test_a_truncated_object_is_read_as_far_as_it_goes(store: MemoryStore, archive: Archive, tmp_path: Path) -> None:
    entry = archive.head.entries[2]
    cut_at = position_of(store, entry.key, 280) + 100
    overwrite(store, entry.key, lambda content: content[:cut_at])
    with pytest.raises(CorruptData, match="offsets 200 to 299 of soup:0") as raised:
        offsets(store, a_query())
    assert raised.value.where == entry.key
    found, damage = quarantined(store, tmp_path)
    assert found == [offset for offset in range(300) if offset not in damaged_offsets(damage)]
    assert set(range(280, 300)) <= damaged_offsets(damage) <= set(range(275, 300))


def test_a_missing_object_goes_to_the_side_table_as_a_whole(store: MemoryStore, archive: Archive, tmp_path: Path) -> None:
    key = archive.head.entries[1].key
    store.delete(key)
    found, damage = quarantined(store, tmp_path)
    assert found == [*range(100), *range(200, 300)]
    assert [(each.object, each.first_offset, each.last_offset) for each in damage] == [(key, 100, 199)]


@pytest.mark.parametrize("change", [None, flipped(90)], ids=["missing", "flipped"])
def test_an_index_nobody_can_read_takes_its_offsets_along(
    store: MemoryStore, archive: Archive, tmp_path: Path, change: Callable[[bytearray], bytearray] | None
) -> None:
    key = archive.head.entries[1].index_key
    overwrite(store, key, change or (lambda _: None))
    found, damage = quarantined(store, tmp_path, split_bytes=400_000)
    assert found == [*range(100), *range(200, 300)]
    assert {each.object for each in damage} == {key}
    assert damaged_offsets(damage) == set(range(100, 200))


def test_without_its_markers_nothing_of_a_task_is_called_committed(tmp_path: Path) -> None:
    store = a_copy(soup())
    archive = Archive(store)
    archive.held = archive.repository.load(PARTITION)
    key = archive.head.entries[2].index_key  # aborts what began at 20
    store.delete(key)
    with pytest.raises(CorruptData) as raised:
        offsets(store, a_query(isolation="read_committed", fail_on_data_loss=False))
    assert raised.value.where == key
    found, damage = quarantined(store, tmp_path, isolation="read_committed", fail_on_data_loss=False, split_bytes=1)
    assert found
    assert not set(found) & damaged_offsets(damage)
    assert set(found) | damaged_offsets(damage) >= {row["offset"] for row in soup_rows("read_committed")}
    assert set(found) <= {row["offset"] for row in soup_rows("read_committed")}


def test_an_object_that_decodes_but_is_not_the_manifests_is_damage(tmp_path: Path) -> None:
    """A leader epoch is outside its batch's checksum; the digest of a whole object knows."""
    store = MemoryStore()
    archive = Archive(store)
    archive.append(a_segment(0, 10), a_segment(10, 10))
    key = archive.head.entries[0].key
    overwrite(store, key, flipped(position_of(store, key, 9) + 15))
    with pytest.raises(CorruptData, match="digest"):
        offsets(store, a_query())
    found, damage = quarantined(store, tmp_path)
    assert found == list(range(10, 20))
    assert damaged_offsets(damage) == set(range(10))


def test_a_quarantine_holds_no_more_of_a_sound_object_than_what_it_yields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_reader, "PIECE_BYTES", 64 << 20)
    store = MemoryStore()
    Archive(store).append(a_segment(0, 40, value_bytes=400_000))
    decoded = []

    def counted(*arguments: object, **how: object) -> Iterator[pa.RecordBatch]:
        for batch in decode(*arguments, **how):  # type: ignore[arg-type]
            decoded.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(split_reader, "decode", counted)
    query = a_query(on_corrupt="quarantine", quarantine_path=str(tmp_path / "side"))
    (split,) = plan(store, query)
    with closing(read_split(store, split, query)) as batches:
        first = next(batches)
        assert sum(decoded) == first.num_rows < 40
        assert first.num_rows + sum(batch.num_rows for batch in batches) == 40


def test_damage_that_decoding_alone_finds_leaves_what_was_yielded_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch whose CRC is right and whose records are not, behind more than one RecordBatch of sound ones."""
    monkeypatch.setattr(split_reader, "PIECE_BYTES", 64 << 20)
    store = MemoryStore()
    bad = bytearray(a_batch(30, [b"x" * 100]))
    bad[61] ^= 0x7F  # the first record's length
    bad[17:21] = crc32c(bytes(bad[21:])).to_bytes(4, "big")
    Archive(store).append(a_segment(0, 30, value_bytes=400_000) + bytes(bad) + a_segment(31, 10))
    query = a_query(on_corrupt="quarantine", quarantine_path=str(tmp_path / "side"))
    assert offsets(store, query) == [*range(30), *range(31, 41)]
    assert damaged_offsets(list(read_quarantine(DirectoryStore(tmp_path / "side")))) == {30}


def test_the_side_table_is_the_same_after_a_second_run(store: MemoryStore, archive: Archive, tmp_path: Path) -> None:
    store.delete(archive.head.entries[1].key)
    first = quarantined(store, tmp_path)
    assert quarantined(store, tmp_path) == first
    (path,) = (tmp_path / "side").glob("*.jsonl")
    assert [json.loads(line)["first_offset"] for line in path.read_text().splitlines()] == [100]


def test_damage_is_listed_by_the_task_whose_offsets_it_takes(store: MemoryStore, archive: Archive, tmp_path: Path) -> None:
    key = archive.head.entries[1].key
    overwrite(store, key, flipped(position_of(store, key, 157) + 5_000))
    found, damage = quarantined(store, tmp_path, split_bytes=30_000)
    assert [(each.first_offset, each.last_offset) for each in damage] == [(157, 157)]
    assert found == [offset for offset in range(300) if offset != 157]


def test_a_dead_branch_behind_the_live_end_is_never_read(store: MemoryStore, archive: Archive) -> None:
    entry = archive.head.entries[2]
    live_bytes = position_of(store, entry.key, 250)
    archive.replace(2, last_offset=249, live_bytes=live_bytes)
    overwrite(store, entry.key, lambda content: content[:live_bytes])  # not even there
    assert offsets(store, a_query()) == list(range(250))
    assert offsets(store, a_query(split_bytes=200_000)) == list(range(250))


def test_a_reader_that_is_let_go_leaves_nothing_running(store: MemoryStore) -> None:
    import threading

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
