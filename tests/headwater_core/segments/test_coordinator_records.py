"""What coordinators wrote, as real brokers wrote it."""

import pytest

from headwater_core.errors import CorruptData
from headwater_core.segments import flexible
from headwater_core.segments.coordinator_records import (
    UnknownRecord,
    decode_commit_key,
    decode_commit_value,
    decode_transaction_key,
    decode_transaction_value,
)
from tests.fixtures import expected_cluster
from tests.headwater_core.segments.broker_batches import records


@pytest.mark.parametrize("name", ["pantry", "kitchen"])
def test_committed_offsets_are_what_the_admin_api_said(name: str) -> None:
    wanted = {
        (group["group"], each["topic"], each["partition"]): (each["offset"], each["metadata"])
        for group in expected_cluster(name)["groups"]
        for each in group["offsets"]
    }
    found: dict[tuple[str, str, int], set[tuple[int, str]]] = {}
    for record in records(name, "__consumer_offsets"):
        key = decode_commit_key(record.key or b"", "key")
        if key is not None and record.value is not None:
            value = decode_commit_value(record.value, "value")
            found.setdefault((key.group, key.topic, key.partition), set()).add((value.offset, value.metadata))
    assert wanted
    assert all(each in found[key] for key, each in wanted.items())


def test_an_unfinished_transaction_names_its_partitions() -> None:
    states = {}
    for record in records("pantry", "__transaction_state"):
        states[decode_transaction_key(record.key or b"", "key")] = decode_transaction_value(record.value or b"", "value")
    unfinished = [state for state in states.values() if state.unfinished]
    assert [state.partitions for state in unfinished] == [frozenset({("refunds", 0)})]
    assert len(states) > 1


@pytest.mark.parametrize("version", range(5))
def test_a_commit_that_is_rewritten_keeps_everything_but_offset_epoch_and_times(version: int) -> None:
    epoch = flexible.i32(7) if version >= 3 else b""
    metadata = b"\x03ab" if version == 4 else b"\x00\x02ab"

    def rest(commit_ms: int, expire_ms: int) -> bytes:
        return metadata + flexible.i64(commit_ms) + (flexible.i64(expire_ms) if version == 1 else b"") + tags

    tags = b"\x01\x00\x10" + bytes(range(16)) if version == 4 else b""  # the topic's id
    value = decode_commit_value(flexible.i16(version) + flexible.i64(101) + epoch + rest(17, 18), "value")
    assert (value.offset, value.leader_epoch) == (101, 7 if version >= 3 else -1)
    for epoch_max, kept in ((6, flexible.i32(-1)), (7, flexible.i32(7))):
        moved = value.rewritten(64, epoch_max=epoch_max, commit_ms=99)
        assert moved == flexible.i16(version) + flexible.i64(64) + (kept if version >= 3 else b"") + rest(99, -1)
        assert (decode_commit_value(moved, "value").offset, decode_commit_value(moved, "value").metadata) == (64, "ab")
    with pytest.raises(CorruptData):
        decode_commit_value(moved[: -len(rest(99, -1)) + 2], "value")


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
