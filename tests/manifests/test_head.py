"""A head reads back as written, and nothing that is not one passes for it."""

import contextlib
import hashlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_core.errors import CorruptData, ForeignOwner, NeedsUpgrade, UnsupportedFormat
from headwater_core.partition import PartitionId, topic_id_text
from manifests import keys
from manifests.entry import EpochOffset
from manifests.head import Head, check_head, check_writable, decode_head, encode_head
from tests.manifests import format_1
from tests.manifests.builders import PARTITION, a_gap, a_head, an_entry, heads

HEAD = a_head(an_entry(0, 9), a_gap(10, 14), an_entry(15, 29, fence=2), fence=2, leader_epoch=4, superseded=(an_entry(40, 49),))


@given(heads())
def test_what_is_written_reads_back(head: Head) -> None:
    assert decode_head(encode_head(head), PARTITION) == head


def test_what_the_first_versions_wrote_is_read_for_ever() -> None:
    raw = format_1.encode(HEAD, format=(1, 1))
    document = json.loads(raw)
    assert document["digest"] == "crc64nvme:0e22054ce4e5f6cf"
    assert hashlib.sha256(raw).hexdigest()[:16] == "d24c56f2e5c52433"
    assert decode_head(raw, PARTITION) == msgspec.structs.replace(HEAD, format=(1, 1))


def test_a_run_that_its_object_wraps_has_a_length_and_a_digest_of_its_own() -> None:
    other = "crc64nvme:" + "5" * 16
    wrapped = an_entry(0, 9, size_bytes=500, live_bytes=400, held_bytes=400, held_digest=other)
    assert (wrapped.run_bytes, wrapped.run_digest, wrapped.is_cut) == (400, other, False)
    assert b'"run_bytes":400' in wrapped.line
    assert b"live_bytes" not in wrapped.line
    cut = msgspec.structs.replace(wrapped, live_bytes=399)
    assert cut.is_cut
    assert decode_head(encode_head(a_head(cut)), PARTITION).entries[0] == cut
    plain = an_entry(0, 9)
    assert (plain.run_bytes, plain.run_digest) == (plain.size_bytes, plain.digest)
    assert b"run_" not in plain.line


def test_what_is_written_is_what_the_first_version_with_pages_wrote() -> None:
    raw = encode_head(msgspec.structs.replace(HEAD, format=(2, 0)))
    assert hashlib.sha256(raw).hexdigest()[:16] == "73b89599b3ec181c"
    assert len(raw) < len(format_1.encode(HEAD)) / 2


@given(heads())
def test_format_1_reads_back(head: Head) -> None:
    assert decode_head(format_1.encode(head, format=head.format), PARTITION) == head


@given(heads(), st.data())
def test_a_flipped_bit_never_yields_another_head(head: Head, data: st.DataObject) -> None:
    raw = bytearray(encode_head(head))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with contextlib.suppress(CorruptData, UnsupportedFormat):
        assert decode_head(bytes(raw), PARTITION) == head  # white space, or a field that says the same


def test_every_byte_changed_to_a_neighbour_is_noticed_or_harmless() -> None:
    raw = encode_head(HEAD)
    for position in range(len(raw)):
        for byte in {raw[position] ^ 1, ord("0"), ord('"'), ord(" ")} - {raw[position]}:
            with contextlib.suppress(CorruptData, UnsupportedFormat):
                assert decode_head(raw[:position] + bytes([byte]) + raw[position + 1 :], PARTITION) == HEAD, position


def test_every_cut_is_noticed() -> None:
    raw = encode_head(HEAD)
    for length in range(len(raw) - 1):  # the last byte is the new line
        with pytest.raises(CorruptData):
            decode_head(raw[:length], PARTITION)


@given(st.binary(max_size=300))
def test_noise_is_no_head(raw: bytes) -> None:
    with pytest.raises((CorruptData, UnsupportedFormat)):
        decode_head(raw, PARTITION)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"format": 1}',
        b'{"format": []}',
        b'{"format": [1, 0]}',
        b'{"format": [true, 0], "digest": ""}',
        b"[" * 100_000,
        b'{"format": [1, 0], "x": ' + b"[" * 100_000,
        b'{"format": [1, 0], "digest": NaN}',
        b'{"format": [1, 0], "x": 1e999, "digest": "d"}',
        b'{"format": [1, 0], "x": ' + b"9" * 5000 + b"}",
        b'{"format": [1, 0], "x": "\\ud800", "digest": "d"}',
        b"\xff\xfe\x00",
    ],
)
def test_hostile_documents_are_refused(raw: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_head(raw, PARTITION)


def test_an_unknown_major_version_is_refused_and_a_minor_one_with_new_fields_read() -> None:
    with pytest.raises(UnsupportedFormat, match="needs upgrade"):
        decode_head(format_1.encode(HEAD, format=[3, 0]), PARTITION)
    newer = {**json.loads(encode_head(HEAD)), "shade": "blue", "format": [2, 7]}
    del newer["digest"]
    read = decode_head(format_1.encode_body(newer), PARTITION)
    assert read.entries == HEAD.entries
    with pytest.raises(NeedsUpgrade):
        check_writable(read)


def test_indentation_and_order_of_keys_do_not_matter() -> None:
    body = json.loads(encode_head(HEAD))
    assert decode_head(json.dumps(dict(sorted(body.items())), indent=8).encode(), PARTITION) == HEAD


@pytest.mark.parametrize(
    "other",
    [
        PartitionId("cluster-2", PARTITION.topic_id, 3, "orders"),
        PartitionId("cluster-1", topic_id_text(bytes(16)), 3, "orders"),
        PartitionId("cluster-1", PARTITION.topic_id, 4, "orders"),
        PartitionId("cluster-1", PARTITION.topic_id, 3, "payments"),
    ],
)
def test_the_head_of_another_partition_topic_or_cluster_is_foreign(other: PartitionId) -> None:
    with pytest.raises(ForeignOwner):
        decode_head(encode_head(a_head()), other)


@pytest.mark.parametrize(
    "fields",
    [
        {"topic": "../../etc"},
        {"topic": ""},
        {"topic_id": "../../../../../../../etc"},
        {"cluster_id": "a/b"},
        {"partition": -1},
        {"partition": 2**40},
        {"version": 0},
        {"version": 2**70},
        {"fence": -1},
        {"fence": 10**10},
        {"leader_epoch": 2**31},
        {"leader_epoch": -2},
        {"start_offset": -1},
        {"start_offset": 31},
        {"last_offset": 2**63 - 1},
        {"last_offset": 28},
        {"last_offset": 1.5},
        {"writer": ""},
        {"writer": "w" * 256},
        {"commit_id": ""},
        {"fence": 1},  # below the entries' own
        {"entries": [{"base_offset": 0, "last_offset": 29}]},
        {"entries": "none"},
    ],
)
def test_impossible_heads_are_refused_though_their_digest_is_right(fields: dict[str, Any]) -> None:
    with pytest.raises((CorruptData, OverflowError) if fields.keys() & {"version"} else CorruptData):
        decode_head(format_1.encode(HEAD, **fields), PARTITION)


def held(base_offset: int, last_offset: int) -> dict[str, str]:
    """The keys of an object with these offsets, and the fence and the uid of the entry from 0 to 9."""
    key = keys.data(PARTITION, base_offset, last_offset, 1, an_entry(0, 9).uid)
    return {"key": key, "index_key": keys.index(key)}


@pytest.mark.parametrize(
    "fields",
    [
        {"key": "data/../../etc/passwd"},
        held(0, 8),
        held(1, 9),
        held(10, 19),
        {"key": keys.data(PartitionId("cluster-1", PARTITION.topic_id, 4, "orders"), 0, 9, 1, "0" * 32)},
        {"fence": 0},  # not the one in the key
        {"uid": "f" * 32},
        {"size_bytes": 0},
        {"size_bytes": 2**50, "live_bytes": 2**50},
        {"live_bytes": 101},
        {"live_bytes": 0},
        {"index_bytes": -1},
        {"index_bytes": 2**50},
        {"index_key": "data/elsewhere.index"},
        {"records": -1},
        {"aborted": -1},
        {"displaced_by": EpochOffset(-1, 5)},
        {"displaced_by": EpochOffset(0, -1)},
        {"displaced_by": EpochOffset(2**31, 5)},
        {"displaced_by": EpochOffset(0, 2**63 - 1)},
        {"open_from": 10},
        {"open_from": -1},
        {"epochs": ((0, 0), (0, 5))},
        {"epochs": ((1, 5), (2, 5))},
        {"epochs": ((0, 10),)},
        {"epochs": ((2**31, 0),)},
        {"last_timestamp": 2**63},
        {"gap": True},
        {"digest": "md5:0"},
        {"index_digest": "crc64nvme:0123456789ABCDEF"},
    ],
)
def test_impossible_entries_are_refused(fields: dict[str, Any]) -> None:
    entry = {**msgspec.to_builtins(an_entry(0, 9)), **fields}
    with pytest.raises(CorruptData, match="manifest"):
        decode_head(format_1.encode(a_head(an_entry(0, 9)), entries=[entry]), PARTITION)


@pytest.mark.parametrize(
    "fields",
    [
        {"topic": "\x1b[2J", "version": 0},
        {"topic": "\x1b[2J", "pages": [{"key": "k", "base_offset": 0, "last_offset": 1, "entries": 1, "digest": "d"}]},
        {"cluster_id": "\x1b[2J"},
        {"commit_id": "\x1b[2J" * 100},
        {"format": "\x1b[2J"},
        {"format": ["\x1b[2J"]},
        {"digest": "\x1b[2J"},
    ],
)
def test_what_is_said_of_a_hostile_document_is_fit_for_a_terminal(fields: dict[str, Any]) -> None:
    body = format_1.body_of(HEAD, **fields)
    raw = json.dumps(body).encode() if "digest" in fields else format_1.encode_body(body)
    with pytest.raises((CorruptData, UnsupportedFormat)) as reported:
        decode_head(raw, PARTITION)
    assert str(reported.value).isprintable()


def test_entries_must_abut() -> None:
    with pytest.raises(CorruptData, match="abut"):
        check_head(a_head(an_entry(0, 9), an_entry(11, 20)))
    with pytest.raises(CorruptData, match="abut"):
        check_head(a_head(an_entry(0, 9), an_entry(9, 20)))


def test_an_emptied_log_keeps_its_place() -> None:
    assert decode_head(encode_head(a_head(start_offset=54, last_offset=53)), PARTITION).next_offset == 54


@settings(max_examples=30)
@given(heads(), st.integers(0, 2**62))
def test_entry_at_is_the_entry_that_holds_the_offset(head: Head, offset: int) -> None:
    probes = [offset, head.start_offset, head.last_offset, *(entry.base_offset for entry in head.entries)]
    for probe in probes:
        assert head.entries.at(probe) == next((entry for entry in head.entries if probe in entry), None)


def test_an_entry_with_a_field_that_this_version_does_not_know_is_read() -> None:
    """So an older version reads when a run was published: it passes it over, and may drop it."""
    entry = an_entry(0, 9, published_ms=5)
    head = a_head(entry)
    body = json.loads(encode_head(head))
    assert body["entries"][0]["published"] == 5
    assert body["format"] == [2, 1]
    body["entries"][0]["shade"] = body["entries"][0].pop("published")
    del body["digest"]
    assert tuple(decode_head(format_1.encode_body(body), PARTITION).entries) == (msgspec.structs.replace(entry, published_ms=None),)
