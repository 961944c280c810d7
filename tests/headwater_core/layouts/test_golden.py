"""Objects that an earlier version wrote, kept as they were: they are read by today's layouts, by readers of the format pages alone, and
written again byte for byte. What fails here has changed a promise."""

import io
import re
import struct
from collections.abc import Mapping

import pytest

from headwater_core.layouts import open_layout
from headwater_core.layouts.testing import scanned
from headwater_core.objectstore.digest import digest_of
from headwater_core.segments.batch_walk import headers
from tests.headwater_core.layouts.blocks.page_reader import read_object
from tests.headwater_core.layouts.golden import BASE, CHUNK_BYTES, GOLDEN, QUEUE, SETS, SOFTWARE, frozen, source
from tests.headwater_core.layouts.streaming.page_reader import read_objects

NAMES = pytest.mark.parametrize("name", list(SETS))


def batches() -> list[bytes]:
    run = source()
    return [run[at : at + header.size_bytes] for at, header in headers(io.BytesIO(run), 0, len(run), where="run")]


def test_each_set_is_known_and_no_other_one() -> None:
    assert {each.name for each in GOLDEN.iterdir() if each.is_dir()} == set(SETS)


@NAMES
def test_the_layout_reads_what_was_frozen(name: str) -> None:
    golden, run = frozen(name), source()
    store, scan = golden.store(), scanned(source())
    reader = open_layout(golden.entry["layout"]).read_offloaded(store, golden.stored_run)
    content = bytearray(len(run))
    reader.read_into(memoryview(content), 0)
    assert content == run
    assert reader.read_index() == scan.index
    reader.check_rest()
    for at, header in headers(io.BytesIO(run), 0, len(run), where="run"):
        part = bytearray(header.size_bytes)
        reader.read_into(memoryview(part), at)
        assert part == run[at : at + header.size_bytes]
    assert (golden.entry["run_bytes"], golden.entry["run_digest"]) == (len(run), digest_of(run))


@NAMES
def test_what_was_frozen_is_written_again_byte_for_byte(name: str) -> None:
    """Its user metadata and its entry, too, but for the version of the software."""
    golden, made = frozen(name), SETS[name](source())
    assert made.objects == golden.objects
    assert made.entry == golden.entry
    assert _without_software(made.metadata) == _without_software(golden.metadata)


def _without_software(metadata: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    return {key: {name: value for name, value in said.items() if name != SOFTWARE} for key, said in metadata.items()}


def test_the_blocks_hold_what_the_page_says() -> None:
    golden = frozen("blocks")
    (raw,) = golden.objects.values()
    seen = read_object(raw)
    assert [content for _, content in seen.entries] == batches()
    assert (seen.topic, seen.partition, seen.base_offset, seen.length) == ("orders", 3, BASE, len(source()))
    assert len(seen.blocks) > 1
    assert (golden.entry["size_bytes"], golden.entry["digest"]) == (len(raw), digest_of(raw))
    assert int(golden.entry["context"]["index_bytes"]) == seen.index_bytes


@pytest.mark.parametrize("name", ["streaming", "streaming-ledgers"])
def test_the_streaming_objects_hold_what_the_page_says(name: str) -> None:
    golden = frozen(name)
    key = golden.entry["key"]
    data, index = golden.objects[key], golden.objects[f"{key}-index"]
    seen = read_objects(data, index, golden.metadata[f"{key}-index"], golden.objects.get(f"{key}-meta"))
    assert [content for *_, content in seen.entries] == batches()
    assert seen.fence == 7
    assert (golden.entry["size_bytes"], golden.entry["digest"]) == (len(data), digest_of(data))
    assert (int(golden.entry["context"]["index_bytes"]), golden.entry["context"]["index_digest"]) == (len(index), digest_of(index))
    if name == "streaming-ledgers":
        closed, still_open = (seen.groups[ledger] for ledger in (BASE, 17))
        assert (closed.size_bytes, closed.closed_ms, closed.driver) == (77_000, 1_700_000_001_000, {"bucket": "b"})
        assert (still_open.size_bytes, still_open.closed_ms) == (None, None)
        assert f"{key}-meta" in golden.objects
    else:
        assert list(seen.groups) == [BASE]


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("chunks-append", rf"{QUEUE}/commitLog/seg-{BASE}/chunk-(\d+)"),
        ("chunks-fixed", rf"{QUEUE}/commitLog-{BASE}/chunk-(\d+)"),
        ("chunks-consolidated", rf"{QUEUE}/commitLog-{BASE}-seg()"),
    ],
)
def test_the_chunks_hold_what_the_page_says(name: str, pattern: str) -> None:
    golden = frozen(name)
    found = {key: match for key in golden.objects if (match := re.fullmatch(pattern, key))}
    in_order = sorted(found, key=lambda key: int(found[key][1] or 0))
    at = 0
    for key in in_order:
        assert int(found[key][1] or 0) == at, "numbers are the positions of first bytes"
        assert golden.metadata[key]["headwater-chunks-version"] == "1"
        assert golden.metadata[key]["headwater-partition"] == "orders:3"
        at += len(golden.objects[key])
    assert b"".join(golden.objects[key] for key in in_order) == source()
    (index_key,) = golden.objects.keys() - found.keys()
    index = golden.objects[index_key]
    assert struct.unpack_from(">4sHHqqq", index) == (b"HWRI", 1, 0, BASE, scanned(source()).last_offset, len(source()))
    assert (golden.entry["index_bytes"], golden.entry["index_digest"]) == (len(index), digest_of(index))
    if name == "chunks-fixed":
        assert all(len(golden.objects[key]) == CHUNK_BYTES for key in in_order[:-1])
        assert len(in_order) > 2
    if name == "chunks-consolidated":
        said = golden.metadata[in_order[0]]
        assert (said["headwater-bytes"], f"crc64nvme:{said['headwater-crc']}") == (str(len(source())), digest_of(source()))
