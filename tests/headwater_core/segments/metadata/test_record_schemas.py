"""The table of metadata records, against what Kafka's own tool printed for the same bytes."""

import base64
import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater_core.errors import CorruptData, TruncatedData
from headwater_core.segments.batch_walk import walk
from headwater_core.segments.metadata.metadata_log import DIRECTORY
from headwater_core.segments.metadata.metadata_records import Unread, decode_metadata_record
from headwater_core.segments.metadata.record_schemas import ACL, SCHEMAS, SCRAM, decode_known, make_record
from headwater_core.segments.records import decode_batch
from tests.fixtures import KAFKA, unpack

SECRET = {"name": "chef", "mechanism": 1, "salt": b"salty", "storedKey": b"stored", "serverKey": b"server", "iterations": 4096}


def values_of(path: Path) -> Iterator[bytes]:
    raw = path.read_bytes()
    with path.open("rb") as file:
        for position, header in walk(file, 0, len(raw), where=path.name):
            if not header.is_control:
                yield from (record.value or b"" for record in decode_batch(raw[position : position + header.size_bytes]))


def as_kafka_prints(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, tuple):
        return [as_kafka_prints(each) for each in value]
    if isinstance(value, dict):
        return {name: as_kafka_prints(each) for name, each in value.items()}
    return value


def test_every_record_of_a_real_log_means_what_kafkas_tool_says() -> None:
    found = []
    for value in values_of(unpack("kitchen") / DIRECTORY / f"{0:020}.log"):
        record = decode_known(value, "kitchen")
        assert record is not None
        assert record.is_understood
        assert make_record(record.api_key, record.version, record.fields).raw == value
        found.append({"type": record.kind, "version": record.version, "data": as_kafka_prints(dict(record.fields))})
    with lzma.open(KAFKA / "expected" / "kitchen.metadata-dump.txt.xz", "rt") as lines:
        dumped = [json.loads(line.split("payload: ", 1)[1]) for line in lines if line.startswith("| payload: ")]
    assert {each["type"] for each in found} >= {"USER_SCRAM_CREDENTIAL_RECORD", "ACCESS_CONTROL_ENTRY_RECORD", "CLIENT_QUOTA_RECORD"}
    for ours, theirs in zip(found, dumped, strict=True):
        assert ours == theirs
    assert len(found) == len(dumped) > 200


@pytest.mark.parametrize("log", ["pantry", "brigade/node9", "brigade/node1"])
def test_nothing_of_a_real_log_is_unknown(log: str) -> None:
    name, _, below = log.partition("/")
    directory = unpack(name) / below / DIRECTORY
    values = [value for path in sorted(directory.glob("*.log")) for value in values_of(path)]
    records = [decode_known(value, log) for value in values]
    assert all(record is not None and record.is_understood for record in records)
    assert [make_record(r.api_key, r.version, r.fields).raw for r in records if r] == values
    assert len(values) > 50


@given(data=st.data(), cut=st.integers(0, 60), flipped=st.integers(0, 255))
def test_a_cut_or_flipped_record_is_an_error_of_ours_or_another_record(data: st.DataObject, cut: int, flipped: int) -> None:
    values = [value for value in SAMPLES if len(value) > 4]
    value = data.draw(st.sampled_from(values))
    at = cut % len(value)
    for broken in (value[:at], value[:at] + bytes([flipped]) + value[at + 1 :], value + b"\x01"):
        try:
            decoded = decode_known(broken, "test")
        except (CorruptData, TruncatedData):
            continue
        assert decoded is None or broken == value or decoded.raw == broken


def test_what_a_later_version_adds_is_noticed() -> None:
    value = make_record(ACL, 0, AN_ACL).raw
    added = decode_known(value[:-1] + b"\x01\x63\x02hi", "test")  # one tagged field, 99
    assert added is not None
    assert not added.is_understood
    longer = decode_known(value + b"more", "test")
    assert longer is not None
    assert not longer.is_understood


def test_a_later_version_and_a_later_kind_are_kept_verbatim() -> None:
    for value in (bytes([1, ACL, 1]) + b"whatever", bytes([1, 99, 0]) + b"whatever"):
        decoded = decode_metadata_record(value)
        assert isinstance(decoded, Unread)
        assert decoded.encode() == value


def test_no_secret_is_in_what_a_record_prints_as() -> None:
    record = make_record(SCRAM, 0, SECRET)
    assert repr(record) == "KnownRecord(USER_SCRAM_CREDENTIAL_RECORD)"


AN_ACL = {
    "id": "AAAAAAAAAAAAAAAAAAAAAQ",
    "resourceType": 2,
    "resourceName": "soup",
    "patternType": 3,
    "principal": "User:chef",
    "host": "*",
    "operation": 3,
    "permissionType": 3,
}
SAMPLES = [make_record(ACL, 0, AN_ACL).raw, make_record(SCRAM, 0, SECRET).raw]
SAMPLES += sorted(set(values_of(unpack("kitchen") / DIRECTORY / f"{0:020}.log")))[::7]


def test_the_table_has_a_name_for_each_kind() -> None:
    assert len({schema.name for schema in SCHEMAS.values()}) == len(SCHEMAS) == 27
