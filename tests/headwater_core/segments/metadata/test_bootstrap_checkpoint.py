import io

from headwater_core.segments.batch_walk import walk
from headwater_core.segments.markers import read_marker
from headwater_core.segments.metadata.bootstrap_checkpoint import write_bootstrap_checkpoint
from headwater_core.segments.metadata.metadata_records import (
    FeatureLevel,
    decode_metadata_record,
)
from headwater_core.segments.records import decode_batch
from tests.fixtures import unpack


def test_a_bootstrap_checkpoint_is_laid_out_as_the_brokers_tool_does() -> None:
    """Header, data, footer; read back from the broker's own file and from ours."""
    theirs = (unpack("pantry") / "bootstrap.checkpoint").read_bytes()
    values = list(read_checkpoint(theirs))
    timestamp = int.from_bytes(theirs[27:35], "big")
    ours = write_bootstrap_checkpoint([decode_metadata_record(each) for each in values], timestamp_ms=timestamp)
    assert list(read_checkpoint(ours)) == values
    assert values
    assert len(ours) == len(theirs)


def read_checkpoint(raw: bytes) -> list[bytes]:
    values, kinds, next_offset = [], [], 0
    for position, header in walk(io.BytesIO(raw), 0, len(raw), where="test"):
        batch = raw[position : position + header.size_bytes]
        assert header.base_offset == next_offset
        next_offset = header.next_offset
        if header.is_control:
            kinds.append(read_marker(batch).type)
        else:
            values += [record.value for record in decode_batch(batch) if record.value is not None]
    assert kinds == [3, 4]
    return values


def test_a_bootstrap_checkpoint_of_many_records_goes_in_batches() -> None:
    found = [FeatureLevel(name=f"feature-{number}", level=1) for number in range(1201)]
    assert read_checkpoint(write_bootstrap_checkpoint(found)) == [each.encode() for each in found]
