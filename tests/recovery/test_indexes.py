"""Kafka's index files as recovery makes them. That a broker makes the same is tests/peers/test_recovery.py."""

import io
import struct
from itertools import pairwise
from pathlib import Path

import pytest

import recovery
from headwater_core.segments.batch_walk import walk
from recovery.indexes import INTERVAL_BYTES, Indexes
from recovery.layout import index_interval_bytes
from recovery.runs import restore, segment_name
from tests.fixtures import unpack
from tests.headwater_core.segments.builders import a_batch, a_record
from tests.recovery.archived import archive_in_memory


def made_of(run: bytes, base_offset: int) -> dict[str, bytes]:
    indexes = Indexes(base_offset)
    for position, header in walk(io.BytesIO(run), 0, len(run), where="run"):
        indexes.add(position, header.last_offset, header.max_timestamp_ms)
    return indexes.files()


@pytest.mark.parametrize("name", ["pantry", "kitchen"])
def test_every_restored_segment_has_indexes_that_say_where_its_batches_are(name: str, tmp_path: Path) -> None:
    store, repository = archive_in_memory(unpack(name))
    plan = recovery.plan(repository, None)
    recovery.apply(plan, tmp_path, store)
    intervals = {topic.topic: index_interval_bytes(topic) for topic in plan.topics}
    entries = 0
    for log in (path for path in tmp_path.rglob("*.log") if path.stat().st_size):
        run, base = log.read_bytes(), int(log.stem)
        batches = dict(walk(io.BytesIO(run), 0, len(run), where=str(log)))
        found = list(struct.iter_unpack(">Ii", log.with_suffix(".index").read_bytes()))
        assert all(batches[position].last_offset == base + relative for relative, position in found)
        interval = intervals[log.parent.name.rpartition("-")[0]]
        positions = [0, *(position for _, position in found), len(run)]
        assert all(later - earlier > interval for earlier, later in pairwise(positions[:-1]))
        largest = max(header.size_bytes for header in batches.values())
        assert all(later - earlier <= interval + largest for earlier, later in pairwise(positions))
        times = list(struct.iter_unpack(">qI", log.with_suffix(".timeindex").read_bytes()))
        assert all(one < other for one, other in pairwise(times))
        assert times[-1][0] == max(header.max_timestamp_ms for header in batches.values())
        for timestamp, relative in times:
            first = next(header for header in batches.values() if header.max_timestamp_ms >= timestamp)
            assert (first.max_timestamp_ms, first.last_offset) == (timestamp, base + relative)
        entries += len(found)
    assert entries


def test_offsets_count_from_the_name_and_times_that_fall_are_left_out() -> None:
    value = b"x" * INTERVAL_BYTES
    rows = [(112, 50), (115, 40), (120, 50), (121, 60), (130, 10)]
    run = b"".join(a_batch(offset, [a_record(offset, value, timestamp=timestamp)]) for offset, timestamp in rows)
    size = len(run) // len(rows)
    files = made_of(run, 100)
    assert list(struct.iter_unpack(">Ii", files[".index"])) == [(15, size), (20, 2 * size), (21, 3 * size), (30, 4 * size)]
    assert list(struct.iter_unpack(">qI", files[".timeindex"])) == [(50, 12), (60, 21)]


def test_small_segments_have_empty_offset_indexes() -> None:
    assert made_of(a_batch(0, 3), 0)[".index"] == b""


def test_a_segment_wider_than_an_index_can_say_has_none() -> None:
    assert made_of(a_batch(2**31 - 1, 1), 0)
    assert made_of(a_batch(2**31 - 1, 1) + a_batch(2**31, 1), 0) == {}
    assert made_of(a_batch(2**31, 1), 1)


def test_an_index_that_was_damaged_before_the_end_is_made_again(tmp_path: Path) -> None:
    store, repository = archive_in_memory(unpack("kitchen"))
    entry = next(each for each in recovery.plan(repository, ["specials"]).topics).partitions[0].files[0]
    path = tmp_path / segment_name(entry.base_offset)
    made = restore(store, entry, path)
    contents = {beside: beside.read_bytes() for beside in (path.with_suffix(".index"), path.with_suffix(".timeindex"))}
    assert [len(content) for content in contents.values()] == [made.index_bytes, made.timeindex_bytes] == [0, 12]
    for damage in (b"", b"x" * 12, None):
        for beside in contents:
            beside.unlink() if damage is None else beside.write_bytes(damage)
        assert restore(store, entry, path) == made
        assert {beside: beside.read_bytes() for beside in contents} == contents
