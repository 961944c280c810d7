"""What is read of damaged objects, and what is not."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from awscrt.checksums import crc32c

from headwater.pipeline.scan import split_decoder, split_reader
from headwater.pipeline.scan.decoder import decode
from headwater.pipeline.scan.pieces import Piece
from headwater.pipeline.scan.salvage import Flaw, SoundBytes, sound_spans
from headwater.pipeline.scan.split_reader import read_split
from headwater_core.errors import CorruptData
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.segments.batches import check_batch
from manifests.entry import Entry
from tests.headwater.pipeline.archives import a_copy, soup, soup_rows
from tests.headwater.pipeline.scan.damageable import (
    a_query,
    damaged_offsets,
    flipped,
    offsets,
    overwrite,
    plan,
    position_of,
    quarantined,
    read_quarantine,
)
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.segments.builders import a_batch, a_segment
from tests.hydration.world import PARTITION, Archive


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

    monkeypatch.setattr(split_decoder, "decode", counted)
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
    assert damaged_offsets(read_quarantine(DirectoryStore(tmp_path / "side"))) == {30}


# One piece


def a_piece(**fields: Any) -> Piece:
    entry = Entry(base_offset=0, last_offset=99, records=100, size_bytes=10_000, live_bytes=10_000)
    return Piece(entry, **{"position": 1_000, "size_bytes": 0, "first_offset": 10, "next_offset": 20, "last_point": 1_000, **fields})


def check(batch: memoryview, position: int) -> None:
    check_batch(batch, 0, where="run")


def test_a_sound_piece_is_one_span() -> None:
    batches = [a_batch(offset, [b"x" * 100]) for offset in (10, 11, 15)]
    assert sound_spans(a_piece(), memoryview(b"".join(batches)), check) == ([SoundBytes(0, sum(map(len, batches)))], [])


def test_a_batch_that_fails_its_check_parts_its_neighbours() -> None:
    first, bad, last = (bytearray(a_batch(offset, [b"x" * 100])) for offset in (10, 11, 15))
    bad[70] ^= 1
    spans, flaws = sound_spans(a_piece(), memoryview(first + bad + last), check)
    assert spans == [SoundBytes(0, len(first)), SoundBytes(len(first) + len(bad), len(first) + len(bad) + len(last))]
    assert [(flaw.position, flaw.first_offset, flaw.last_offset) for flaw in flaws] == [(1_000 + len(first), 11, 11)]


def test_after_a_batch_without_a_header_nothing_is_sound() -> None:
    first, bad, last = (bytearray(a_batch(offset, [b"x" * 100])) for offset in (10, 11, 15))
    bad[16] = 9  # its magic byte
    spans, flaws = sound_spans(a_piece(), memoryview(first + bad + last), check)
    assert spans == [SoundBytes(0, len(first))]
    assert [(flaw.position, flaw.first_offset, flaw.last_offset) for flaw in flaws] == [(1_000 + len(first), 11, 19)]


@pytest.mark.parametrize("offsets", [(11, 12), (10, 10), (10, 20)], ids=["not at the point", "falling", "past the end"])
def test_offsets_that_disagree_make_the_whole_piece_unsound(offsets: tuple[int, ...]) -> None:
    buffer = memoryview(b"".join(a_batch(offset, [b"x"]) for offset in offsets))
    spans, flaws = sound_spans(a_piece(), buffer, check)
    assert spans == []
    assert [Flaw(flaw.error, 1_000, 10, 19) for flaw in flaws] == flaws
    assert len(flaws) == 1


def test_a_piece_that_is_cut_off_is_sound_up_to_there() -> None:
    first, second = (a_batch(offset, [b"x" * 100]) for offset in (10, 11))
    spans, flaws = sound_spans(a_piece(), memoryview(first + second[:-1]), check)
    assert spans == [SoundBytes(0, len(first))]
    assert [(flaw.first_offset, flaw.last_offset) for flaw in flaws] == [(11, 19)]
