"""What coordinators wrote, as real brokers wrote it; and what Headwater writes, against what they wrote."""

from collections.abc import Iterator

import pytest

from headwater_core.errors import CorruptData
from headwater_core.partition import TopicPartition
from headwater_core.segments import flexible, markers
from headwater_core.segments.batch_walk import walk
from headwater_core.segments.batches import DELETE_HORIZON, BatchHeader, read_batch_header
from headwater_core.segments.coordinator_records import (
    UnknownRecord,
    decode_commit_key,
    decode_commit_value,
    decode_transaction_key,
    decode_transaction_value,
)
from headwater_core.segments.encoder import encode_batch, encode_marker
from headwater_core.segments.log_dirs import LogDirs
from headwater_core.segments.records import Record, decode_batch
from tests.fixtures import expected_cluster, unpack


def batches(name: str, topic: str | None = None) -> Iterator[tuple[TopicPartition, BatchHeader, bytes]]:
    for log in LogDirs([unpack(name)]).partitions():
        if topic in (None, log.partition.topic):
            for segment in log.segments:
                with segment.path.open("rb") as file:
                    for position, header in walk(file, 0, segment.size_bytes, where=str(segment.path)):
                        file.seek(position)
                        yield log.partition.topic_partition, header, file.read(header.size_bytes)


def records(name: str, topic: str) -> Iterator[Record]:
    for _, header, raw in batches(name, topic):
        if not header.is_control:
            yield from decode_batch(raw)


@pytest.mark.parametrize("name", ["pantry", "kitchen"])
def test_committed_offsets_are_what_the_admin_api_said(name: str) -> None:
    wanted = {
        (group["group"], each["topic"], each["partition"]): each["offset"]
        for group in expected_cluster(name)["groups"]
        for each in group["offsets"]
    }
    found: dict[tuple[str, str, int], set[int]] = {}
    for record in records(name, "__consumer_offsets"):
        key = decode_commit_key(record.key or b"", "key")
        if key is not None and record.value is not None:
            found.setdefault((key.group, key.topic, key.partition), set()).add(decode_commit_value(record.value, "value").offset)
    assert wanted
    assert all(offset in found[key] for key, offset in wanted.items())


def test_an_unfinished_transaction_names_its_partitions() -> None:
    states = {}
    for record in records("pantry", "__transaction_state"):
        states[decode_transaction_key(record.key or b"", "key")] = decode_transaction_value(record.value or b"", "value")
    unfinished = [state for state in states.values() if state.unfinished]
    assert [state.partitions for state in unfinished] == [frozenset({("refunds", 0)})]
    assert len(states) > 1


@pytest.mark.parametrize("version", range(5))
def test_a_commit_that_is_moved_keeps_everything_but_offset_and_epoch(version: int) -> None:
    epoch = flexible.i32(7) if version >= 3 else b""
    metadata = b"\x03ab" if version == 4 else b"\x00\x02ab"
    rest = metadata + flexible.i64(1_700_000_000_000) + (b"\x00" if version == 4 else b"")
    value = decode_commit_value(flexible.i16(version) + flexible.i64(101) + epoch + rest, "value")
    moved = value.moved_to(64)
    assert value.offset == 101
    assert moved == flexible.i16(version) + flexible.i64(64) + (flexible.i32(-1) if version >= 3 else b"") + rest
    assert decode_commit_value(moved, "value").offset == 64


def test_records_of_groups_are_passed_over_and_later_kinds_are_said_to_be_unknown() -> None:
    assert [decode_commit_key(flexible.i16(kind), "key") for kind in range(2, 24)] == [None] * 22
    for raw in (flexible.i16(24), flexible.i16(-1)):
        with pytest.raises(UnknownRecord):
            decode_commit_key(raw, "key")
    with pytest.raises(UnknownRecord):
        decode_commit_value(flexible.i16(5) + bytes(40), "value")
    with pytest.raises(UnknownRecord):
        decode_transaction_value(flexible.i16(2) + bytes(40), "value")
    with pytest.raises(UnknownRecord):
        decode_transaction_key(flexible.i16(1), "key")


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
def test_a_record_cut_anywhere_is_damage_or_reads_the_same(topic: str) -> None:
    decode_key, decode_value = (
        (decode_commit_key, decode_commit_value) if topic == "__consumer_offsets" else (decode_transaction_key, decode_transaction_value)
    )
    record = next(record for record in records("pantry", topic) if record.value)
    assert record.key is not None
    assert record.value is not None
    for cut in range(len(record.key)):
        with pytest.raises(CorruptData):
            decode_key(record.key[:cut], "key")
    for cut in range(10):
        with pytest.raises(CorruptData):
            decode_value(record.value[:cut], "value")


def test_a_marker_is_byte_for_byte_what_a_broker_writes() -> None:
    compared = {(kind, append): 0 for kind in (markers.ABORT, markers.COMMIT) for append in (False, True)}
    for _, header, raw in (*batches("pantry"), *batches("kitchen")):
        if (
            not header.is_control or not header.records or header.attributes & DELETE_HORIZON
        ):  # a delete horizon: the cleaner wrote it again
            continue
        if header.base_timestamp_ms != header.max_timestamp_ms:  # the coordinator's clock, then the broker's: ours is one
            continue
        marker = markers.read_marker(raw)
        made = encode_marker(
            header.base_offset,
            marker.type,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            leader_epoch=header.leader_epoch,
            timestamp_ms=header.base_timestamp_ms,
            log_append_time=header.log_append_time,
        )
        assert made == raw
        compared[marker.type, header.log_append_time] += 1
    assert [kind for kind, count in compared.items() if not count] == [(markers.COMMIT, True)]  # no such one is there


def test_what_is_encoded_reads_back() -> None:
    rows = [(b"k", b"v"), (b"gone", None), (None, b"x" * 300)]
    raw = encode_batch(40, rows, leader_epoch=3, timestamp_ms=77)
    header = read_batch_header(raw)
    assert (header.base_offset, header.last_offset, header.leader_epoch, header.producer_id) == (40, 42, 3, -1)
    assert [(record.offset, record.timestamp_ms, record.key, record.value) for record in decode_batch(raw)] == [
        (40 + at, 77, *row) for at, row in enumerate(rows)
    ]
