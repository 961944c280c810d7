"""Batches and records, compared: each difference is found and named."""

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from headwater.drill.comparison import Difference, ReadFailed, archived_batches, check_index, compare_records, compare_run
from headwater.drill.drill_report import Amount
from headwater.drill.read_path import PathBounds, split_batches
from headwater_core.errors import CorruptData, HeadwaterError, NotFound, TransientError
from headwater_core.objectstore.digest import digest_of
from headwater_core.partition import TopicPartition
from headwater_core.segments.batches import read_batch_header
from headwater_core.segments.records import Record, decode_batch
from tests.headwater_core.segments.builders import a_batch
from tests.recovery.interrupted import damaged
from tests.recovery.written_archive import Archive, data, marker, plain

PLACE = TopicPartition("orders", 0)


class Served:
    """A read path over batches in memory. error: what it raises after them"""

    name = "memory"

    def __init__(self, *batches: bytes, error: HeadwaterError | None = None) -> None:
        self._batches, self._error = batches, error

    def topic_id(self, topic: str) -> str | None:
        return None

    def bounds(self, place: TopicPartition) -> PathBounds:
        return PathBounds(0, 100)

    def batches(self, place: TopicPartition, first: int, end: int) -> Iterator[bytes]:
        for batch in self._batches:
            header = read_batch_header(batch)
            if header.next_offset > first and header.base_offset < end:
                yield batch
        if self._error is not None:
            raise self._error


def run(archived: list[bytes], served: Served, first: int = 0, end: int = 100) -> Amount:
    return compare_run(PLACE, archived, served, first, end, lambda _: None)


def records(archived: list[bytes], served: Served, first: int = 0, end: int = 100, *, is_compacted: bool = False) -> Amount:
    return compare_records(PLACE, archived, served, first, end, is_compacted=is_compacted, progressed=lambda _: None)


LOG = [plain(0, 5), data(5, 1000, b"a", b"b"), marker(7, 1000), plain(8, 2)]
RECORDS = 9


@pytest.mark.parametrize("compare", [run, records])
def test_equal_batches_are_counted(compare: type) -> None:
    assert compare(LOG, Served(*LOG)) == Amount(runs=1, batches=4, records=RECORDS, size_bytes=sum(map(len, LOG)))


def test_a_log_that_starts_inside_a_batch() -> None:
    assert run(LOG, Served(*LOG), first=6).batches == 3
    assert records(LOG, Served(*LOG), first=8).records == 2


@pytest.mark.parametrize(
    ("served", "offset"),
    [
        ([*LOG[:1], *LOG[2:]], 5),
        (LOG[:3], 8),
        ([], 0),
        ([*LOG, plain(10)], 10),
        ([plain(0, 4), *LOG[1:]], 0),
        ([LOG[0], data(5, 1001, b"a", b"b"), *LOG[2:]], 5),
        ([LOG[0], data(5, 1000, b"a", b"c"), *LOG[2:]], 5),
        ([*LOG[:2], *LOG[3:]], 7),
    ],
)
def test_each_difference_has_its_offset(served: list[bytes], offset: int) -> None:
    with pytest.raises(Difference) as raised:
        run(LOG, Served(*served))
    assert raised.value.offset == offset


def test_what_cannot_be_read_is_a_difference_and_what_may_pass_is_said_to_be() -> None:
    with pytest.raises(Difference, match="rotten") as raised:
        run(LOG, Served(*LOG[:2], error=CorruptData("file", 0, "rotten")))
    assert (raised.value.offset, type(raised.value)) == (7, Difference)
    with pytest.raises(ReadFailed):
        run(LOG, Served(*LOG[:2], error=TransientError("timed out")))
    with pytest.raises(ReadFailed):
        records(LOG, Served(*LOG[:2], error=TransientError("timed out")))


def rewritten(*batches: bytes, without: tuple[int, ...] = ()) -> bytes:
    """All records in one batch, as a broker might write them again."""

    found = [
        each for batch in batches if not read_batch_header(batch).is_control for each in decode_batch(batch) if each.offset not in without
    ]
    return a_batch(read_batch_header(batches[0]).base_offset, found)


def test_batches_that_were_written_again_are_compared_by_their_records() -> None:
    assert records(LOG, Served(rewritten(LOG[0], LOG[1]), *LOG[3:])).records == RECORDS
    assert records([rewritten(LOG[0], LOG[1]), *LOG[3:]], Served(*LOG)).records == RECORDS


def test_only_a_compacted_log_may_lack_records() -> None:
    lacking = Served(rewritten(LOG[0], LOG[1], without=(2, 6)), LOG[3])
    assert records(LOG, lacking, is_compacted=True).records == RECORDS - 2
    with pytest.raises(Difference, match="no record at offset 2"):
        records(LOG, lacking)
    assert records(LOG, Served(), is_compacted=True).records == 0


def test_no_live_log_has_a_record_that_the_archive_lacks() -> None:
    for is_compacted in (False, True):
        with pytest.raises(Difference, match="the archive has none"):
            records([LOG[0], *LOG[2:]], Served(*LOG), is_compacted=is_compacted)
        with pytest.raises(Difference, match="the archive has none"):
            records(LOG, Served(*LOG, plain(10)), is_compacted=is_compacted)


@pytest.mark.parametrize(("field", "value"), [("key", b"other"), ("value", None), ("headers", (("h", b""),)), ("timestamp_ms", 5)])
def test_each_field_of_a_record_counts(field: str, value: Any) -> None:
    before = Record(0, 1_700_000_000_000, b"key", b"value", ())
    with pytest.raises(Difference, match=f"offset 0 has another {field}"):
        records([a_batch(0, [before])], Served(a_batch(0, [before._replace(**{field: value})])))


# The archive's side


def an_archive() -> Archive:
    archive = Archive()
    archive.topic("orders", LOG)
    return archive


def test_what_is_archived_is_read_whole() -> None:
    archive = Archive()
    [entry] = archive.topic("orders", LOG)
    assert list(archived_batches(archive.store, entry)) == LOG
    check_index(archive.store, entry)


@pytest.mark.parametrize("change", ["gone", "short", "flipped"])
def test_damage_of_object_and_index_is_found(change: str) -> None:
    archive = Archive()
    [entry] = archive.topic("orders", LOG)
    with pytest.raises(CorruptData):
        list(archived_batches(damaged(archive.store, entry.key, change), entry))
    with pytest.raises(CorruptData):
        check_index(damaged(archive.store, entry.index_key, change), entry)


def test_what_follows_an_index_is_found() -> None:
    archive = Archive()
    [entry] = archive.topic("orders", LOG)
    raw = archive.store.get(entry.index_key)[0]
    archive.store.delete(entry.index_key)
    archive.store.create(entry.index_key, raw + raw[-9:])
    with pytest.raises(CorruptData, match=rf"{len(raw) + 9} bytes, the manifest says {len(raw)}"):
        check_index(archive.store, entry)


def test_an_object_that_is_sound_and_another_one_is_found() -> None:
    archive = Archive()
    [entry] = archive.topic("orders", LOG)
    other = b"".join([plain(0, 4), *LOG[1:]])
    swapped = replace(entry, digest=digest_of(other), size_bytes=len(other), live_bytes=len(other))
    archive.store.delete(entry.key)
    archive.store.create(entry.key, other)
    with pytest.raises(CorruptData, match="records"):
        list(archived_batches(archive.store, swapped))
    with pytest.raises(CorruptData):
        list(archived_batches(archive.store, entry))


def test_a_live_part_that_ends_inside_a_batch_is_damage() -> None:
    archive = Archive()
    [entry] = archive.topic("orders", LOG)
    with pytest.raises(CorruptData, match="inside a batch"):
        list(archived_batches(archive.store, replace(entry, live_bytes=entry.live_bytes - 1)))


def test_the_last_batch_of_an_answer_may_be_cut() -> None:
    raw = LOG[0] + LOG[1]
    assert list(split_batches(raw[:-1], "answer", may_be_cut=True)) == LOG[:1]
    assert list(split_batches(raw + LOG[2][:30], "answer", may_be_cut=True)) == LOG[:2]
    with pytest.raises(CorruptData):
        list(split_batches(raw[:-1], "answer", may_be_cut=False))
    with pytest.raises(CorruptData):
        list(split_batches(raw[:70] + bytes([raw[70] ^ 1]) + raw[71:], "answer", may_be_cut=True))


def test_not_found_is_told_apart_by_who_says_it() -> None:
    with pytest.raises(Difference, match="memory cannot read orders:0"):
        run(LOG, Served(error=NotFound("gone")))


def test_only_what_a_compacted_log_still_has_counts_as_compared() -> None:
    assert records(LOG, Served(), is_compacted=True) == Amount()
    amount = records(LOG, Served(LOG[3]), is_compacted=True)
    assert amount == Amount(runs=1, batches=1, records=2, size_bytes=len(LOG[3]))


def test_a_live_batch_that_cannot_be_decoded_is_no_damage_of_the_archive() -> None:
    raw = bytearray(LOG[0])
    raw[-1] ^= 0x7F
    with pytest.raises(Difference, match="cannot be decoded"):
        records(LOG[:1], Served(bytes(raw)))
