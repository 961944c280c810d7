import struct

import pytest

from headwater_core.errors import UnsupportedFormat
from headwater_core.segments.batches import read_batch_header
from tests.headwater_core.segments.builders import a_batch


def test_a_header_tells_what_its_bits_mean() -> None:
    header = read_batch_header(a_batch(7, 3, epoch=5, codec=4, producer=9, transactional=True, last_offset=20, delete_horizon=99))
    assert (header.base_offset, header.last_offset, header.next_offset, header.records) == (7, 20, 21, 3)
    assert (header.leader_epoch, header.codec, header.producer_id, header.magic) == (5, 4, 9, 2)
    assert (header.is_transactional, header.is_control, header.log_append_time) == (True, False, False)
    assert header.first_timestamp_ms == header.max_timestamp_ms  # the base timestamp is the delete horizon


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("body", [b"", b"x" * 100])
def test_older_message_formats_are_named(magic: int, body: bytes) -> None:
    message = struct.pack(">IbbII", 0, magic, 0, 0, 0) + body
    raw = struct.pack(">qi", 5, len(message)) + message
    with pytest.raises(UnsupportedFormat, match=f"magic {magic}"):
        read_batch_header(raw)
