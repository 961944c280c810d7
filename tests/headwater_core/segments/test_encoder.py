from headwater_core.segments import markers
from headwater_core.segments.batches import DELETE_HORIZON, read_batch_header
from headwater_core.segments.encoder import encode_batch, encode_marker
from headwater_core.segments.records import decode_batch
from tests.headwater_core.segments.broker_batches import batches


def test_a_marker_is_byte_for_byte_what_a_broker_writes() -> None:
    compared = {(kind, append): 0 for kind in (markers.ABORT, markers.COMMIT) for append in (False, True)}
    for _, header, raw in (*batches("pantry"), *batches("kitchen")):
        if not header.is_control or not header.records:
            continue
        if header.attributes & DELETE_HORIZON:  # the cleaner wrote it again
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
