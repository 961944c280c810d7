from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater_core.errors import CorruptData, UnsupportedFormat
from headwater_core.partition import topic_id_text
from headwater_core.segments.metadata.metadata_records import (
    ConfigRecord,
    FeatureLevel,
    MetadataRecord,
    Partition,
    PartitionChange,
    ProducerIds,
    RemoveTopic,
    Topic,
    Transaction,
    Unread,
    decode_metadata_record,
)
from headwater_core.segments.varint import encode_uvarint
from tests.headwater_core.segments.metadata.written_log import a_partition

ids = st.binary(min_size=16, max_size=16).map(topic_id_text)
i32 = st.integers(-(2**31), 2**31 - 1)
i32s = st.lists(i32, max_size=4).map(tuple)
texts = st.text(max_size=20)
records = st.one_of(
    st.builds(FeatureLevel, name=texts, level=st.integers(-(2**15), 2**15 - 1)),
    st.builds(Topic, name=texts, topic_id=ids),
    st.builds(RemoveTopic, topic_id=ids),
    st.builds(
        Partition,
        partition=i32,
        topic_id=ids,
        replicas=i32s,
        in_sync=i32s,
        leader=i32,
        leader_epoch=i32,
        partition_epoch=i32,
        removing=i32s,
        adding=i32s,
        directories=st.lists(ids, min_size=1, max_size=3).map(tuple),
        eligible_leader_replicas=st.none() | i32s,
        last_known_elr=st.none() | i32s,
    ),
    st.builds(
        PartitionChange,
        partition=i32,
        topic_id=ids,
        in_sync=st.none() | i32s,
        leader=st.none() | st.integers(-1, 9),
        replicas=st.none() | i32s,
    ),
    st.builds(ConfigRecord, resource_type=st.integers(-128, 127), resource_name=texts, name=texts, value=st.none() | texts),
    st.builds(ProducerIds, broker=i32, broker_epoch=st.integers(0, 2**62), next_producer_id=st.integers(0, 2**62)),
    st.builds(Transaction, api_key=st.sampled_from([23, 24, 25])),
)


@given(record=records)
def test_a_record_reads_back(record: MetadataRecord) -> None:
    assert decode_metadata_record(record.encode()) == record


@given(record=records, cut=st.floats(0, 0.999))
def test_a_truncated_record_is_noticed(record: MetadataRecord, cut: float) -> None:
    """Down to the tagged fields, where nothing we read may follow any more."""
    raw = record.encode()
    short = raw[: min(int(len(raw) * cut), len(raw) - 2)]
    try:
        decode_metadata_record(short)
    except (CorruptData, UnsupportedFormat):
        return
    assert len(short) >= len(raw) - 2


@given(raw=st.binary(max_size=40), api_key=st.integers(0, 30))
def test_any_bytes_are_a_record_or_a_typed_error(raw: bytes, api_key: int) -> None:
    with suppress(CorruptData, UnsupportedFormat):
        decode_metadata_record(encode_uvarint(1) + encode_uvarint(api_key) + encode_uvarint(0) + raw)


def test_unknown_records_are_kept_verbatim() -> None:
    raw = encode_uvarint(1) + encode_uvarint(11) + encode_uvarint(7) + b"whatever"
    assert decode_metadata_record(raw) == Unread(api_key=11, raw=raw)
    assert decode_metadata_record(raw).encode() == raw


def test_a_newer_version_of_a_known_record_is_refused() -> None:
    with pytest.raises(UnsupportedFormat, match="version 3"):
        decode_metadata_record(encode_uvarint(1) + encode_uvarint(Partition.api_key) + encode_uvarint(3))
    with pytest.raises(UnsupportedFormat, match="frame version 2"):
        decode_metadata_record(encode_uvarint(2))


def test_a_partition_gets_a_directory_for_each_replica() -> None:
    decoded = decode_metadata_record(a_partition().encode())
    assert isinstance(decoded, Partition)
    assert decoded.directories == ("AAAAAAAAAAAAAAAAAAAAAQ",) * 2
