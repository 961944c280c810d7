"""The layout `blocks` on a store that fails, and how many requests it makes."""

import io
from typing import Any

import pytest

from headwater_core.errors import CorruptData, UnsupportedFormat
from headwater_core.layouts import Offloader
from headwater_core.layouts.blocks import BlocksLayout
from headwater_core.layouts.run_maps import RunMaps
from headwater_core.layouts.testing import a_run, scanned
from headwater_core.objectstore.store import ObjectForm
from tests.headwater_core.layouts.contract import OffloaderOnBadNetwork, new_run, stored
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.objectstore.meter import MeteredStore

SUFFIXES = (".blocks", "")


class TestBlocksLayout(OffloaderOnBadNetwork):
    suffixes = SUFFIXES

    @pytest.fixture(params=[64 << 20, 20_000])
    def layout(self, request: pytest.FixtureRequest) -> Offloader:
        return BlocksLayout(request.param)


def archived(layout: Offloader, store: MemoryStore, run: bytes | None = None) -> Any:
    new = new_run(0, SUFFIXES)
    if run is not None:
        new = new._replace(source=io.BytesIO(run), scan=scanned(run))
    return stored(layout, new, layout.offload(store, [new], {})[0])


def test_a_cold_read_at_an_offset_takes_two_requests_and_the_next_one_a_single_one() -> None:
    store, run = MemoryStore(), a_run(200, value_bytes=20_000)
    entry = archived(BlocksLayout(500_000), store, run)
    metered = MeteredStore(store, log_calls=10)
    layout = BlocksLayout(500_000)
    reader = layout.read_offloaded(metered, entry)
    index = reader.read_index()
    buffer = bytearray(300_000)
    at = index.points.positions[7]
    reader.read_into(memoryview(buffer), at)
    assert buffer == run[at : at + 300_000]
    assert [call.operation for call in metered.log] == ["read_into", "read_into"]
    assert metered.log[0].size_bytes == int(entry.context["index_bytes"])
    assert metered.log[1].size_bytes < 300_000 + 2 * (64 << 10) + 60_000
    layout.read_offloaded(metered, entry).read_into(memoryview(buffer), index.points.positions[20])
    assert metered.calls["read_into"] == 3


def test_a_stream_over_several_blocks_is_one_request() -> None:
    store, run = MemoryStore(), a_run(100, value_bytes=20_000)
    layout = BlocksLayout(150_000)
    entry = archived(layout, store, run)
    reader = layout.read_offloaded(store, entry)
    reader.read_index()
    metered = MeteredStore(store)
    buffers = [bytearray(len(run) // 4) for _ in range(4)]
    streamed = layout.read_offloaded(metered, entry).stream_into([memoryview(each) for each in buffers], 0)
    assert len(list(streamed)) == 4
    assert b"".join(buffers) == run[: len(run) // 4 * 4]
    assert metered.calls["read_into"] == 1


@pytest.mark.parametrize("context", [{}, {"version": "2"}, {"version": "2", "index_bytes": "5", "index_digest": ""}])
def test_another_version_in_the_manifest_is_refused(context: dict[str, str]) -> None:
    layout, store = BlocksLayout(), MemoryStore()
    entry = archived(layout, store)
    entry.context = context
    with pytest.raises(UnsupportedFormat):
        layout.read_offloaded(store, entry)


@pytest.mark.parametrize("context", [{"version": "1"}, {"version": "1", "index_bytes": "x", "index_digest": ""}])
def test_a_context_that_no_version_wrote_is_damage(context: dict[str, str]) -> None:
    layout, store = BlocksLayout(), MemoryStore()
    entry = archived(layout, store)
    entry.context = context
    with pytest.raises(CorruptData):
        layout.read_offloaded(store, entry)


def test_another_version_in_the_user_metadata_is_refused_and_none_is_read() -> None:
    layout, store = BlocksLayout(), MemoryStore()
    entry = archived(layout, store)
    content, _ = store.get(entry.key)
    for metadata, is_read in (({}, True), ({"headwater-blocks-version": "1"}, True), ({"headwater-blocks-version": "2"}, False)):
        store.delete(entry.key)
        store.put(entry.key, io.BytesIO(content), size_bytes=len(content), form=ObjectForm(metadata=metadata))
        if is_read:
            assert BlocksLayout().read_offloaded(store, entry).read_index()
        else:
            with pytest.raises(UnsupportedFormat):
                BlocksLayout().read_offloaded(store, entry).read_index()


def test_maps_are_bounded() -> None:
    layout, store = BlocksLayout(), MemoryStore()
    entry = archived(layout, store)
    found = layout.read_offloaded(store, entry)._read_map()
    maps = RunMaps(bytes_max=10_000)
    for number in range(100):
        maps.keep(f"data/{number}", "digest", found)
    kept = [number for number in range(100) if maps.get(f"data/{number}", "digest")]
    assert 1 <= len(kept) < 20
    assert kept[-1] == 99
    assert maps.get("data/99", "another digest") is None
