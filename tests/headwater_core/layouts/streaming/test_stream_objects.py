"""What lies around a stream's data, and where the run's metadata goes."""

import base64
import io
from array import array
from uuid import UUID

import pytest

from headwater_core.layouts.offloader import Offloaded
from headwater_core.layouts.segment_metadata import decode_segment_metadata
from headwater_core.layouts.streaming.stream_format import LedgerInfo, StreamBlock, decode_stream_index
from headwater_core.layouts.streaming.stream_objects import LedgerPart, NewStream, StreamContent, put_index
from headwater_core.layouts.testing import PARTITION
from headwater_core.objectstore.digest import Digest, digest_of
from headwater_core.segments.run_scan import RunScan, scan_run
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.segments.builders import a_batch

UID = UUID("1b4e28ba-2fa1-11d2-883f-0016d3cca427")
KEY = f"data/0000000007/{UID}"
NEW = NewStream(partition=PARTITION, key=KEY, uuid=UID, fence=7, extra_metadata={"a": "b", "headwater-fence": "8"})


def a_scan(batches: int) -> RunScan:
    run = b"".join(a_batch(offset, [bytes(30_000)]) for offset in range(5, 5 + batches))
    scan = scan_run(io.BytesIO(run), start=0, end=len(run), where="run")
    assert scan is not None
    return scan


def put(store: MemoryStore, scan: RunScan) -> Offloaded:
    """As if its batches lay in one block."""
    points = scan.index.points.positions
    digest = Digest()
    digest.append(1234, 128 + scan.size_bytes + 12 * scan.batches)
    frames = array("q", (128 + at + 12 * before for at, before in zip(points, scan.batches_before, strict=True)))
    ledgers = [LedgerPart(LedgerInfo(5, scan.batches), scan.batches - 1)]
    blocks = [StreamBlock(5, 0, 0)]
    return put_index(store, NEW, StreamContent(digest, blocks, frames, scan.batches_before, ledgers, scan.last_offset), scan)


def test_what_is_said_of_the_object_is_ours_where_the_caller_says_the_same_name() -> None:
    assert NEW.data_metadata == {"a": "b", **NEW.own_metadata}
    assert NEW.own_metadata["headwater-fence"] == "7"


@pytest.mark.parametrize(("batches", "keeps_metadata"), [(2, True), (2, False), (300, True)])
def test_the_metadata_of_the_run_goes_where_it_is_safe(batches: int, keeps_metadata: bool) -> None:
    """Into the index object's, where it fits; into an object of its own, where it does not or would get lost with a copy."""
    store, scan = MemoryStore(), a_scan(batches)
    store.keeps_metadata = keeps_metadata
    done = put(store, scan)
    named = store.read_into(f"{KEY}-index", memoryview(bytearray(1)), start=0)
    has_meta = batches > 2 or not keeps_metadata
    assert [info.key for info in store.list("")] == [f"{KEY}-index", *([f"{KEY}-meta"] if has_meta else [])]
    assert (done.context.get("segment_in") == "meta") == has_meta
    assert ("headwater-segment" in named) == (batches == 2)
    held = [base64.b64decode(named["headwater-segment"])] if batches == 2 else []
    for segment in [*held, *([store.get(f"{KEY}-meta")[0]] if has_meta else [])]:
        assert digest_of(segment) == done.context["segment_digest"]
        assert decode_segment_metadata(memoryview(segment), "segment").run_index == scan.index
    index = decode_stream_index(store.get(f"{KEY}-index")[0], "index")
    assert (index.data_bytes, index.blocks, index.ledgers[0].entries) == (done.size_bytes, (StreamBlock(5, 0, 0),), batches)
    assert (done.run_bytes, done.run_digest, done.digest) == (scan.size_bytes, scan.digest, f"crc64nvme:{1234:016x}")
