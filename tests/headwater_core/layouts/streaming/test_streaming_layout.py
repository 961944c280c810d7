"""The layout `streaming` on a store that fails, how many requests it makes, and objects of several ledgers."""

import hashlib
import io
import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from headwater_core.errors import CorruptData, NotFound, TransientError, UnsupportedFormat, UsageError
from headwater_core.layouts import NewRun, Offloaded, is_known, open_layout
from headwater_core.layouts.streaming import LedgerEntries, OffloadBudget, StreamingLayout, StreamingOffloader
from headwater_core.layouts.testing import PARTITION, a_run, scanned
from headwater_core.objectstore.store import NO_METADATA, GrowingObject, ObjectForm
from headwater_core.segments.batch_walk import headers
from tests.headwater_core.layouts.contract import new_run, stored
from tests.headwater_core.layouts.streaming.page_reader import read_objects
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.objectstore.meter import MeteredStore

UID = UUID("1b4e28ba-2fa1-11d2-883f-0016d3cca427")
KEY = f"data/0000000007/{UID}"


def archived(store: MemoryStore, run: bytes, part_bytes: int = 100_000) -> Any:
    scan = scanned(run)
    new = NewRun(PARTITION, scan.base_offset, scan.last_offset, KEY, "", io.BytesIO(run), scan)
    return stored(StreamingLayout(part_bytes), new, StreamingLayout(part_bytes).offload(store, [new], {"a": "b"})[0])


def test_it_is_known_and_not_what_segments_are_archived_as() -> None:
    assert is_known("streaming")
    assert open_layout("streaming").name == "streaming"


@pytest.mark.parametrize("batches", [3, 200])
def test_a_cold_read_at_an_offset_takes_three_requests_at_most_and_the_next_one_a_single_one(batches: int) -> None:
    store, run = MemoryStore(), a_run(batches, value_bytes=20_000)
    entry = archived(store, run)
    has_meta = entry.context.get("segment_in") == "meta"
    assert has_meta == (batches == 200)
    metered, layout = MeteredStore(store, log_calls=10), StreamingLayout()
    at = max(0, scanned(run).index.points.positions[-1] - 1_000)
    buffer = bytearray(min(30_000, len(run) - at))
    layout.read_offloaded(metered, entry).read_into(memoryview(buffer), at)
    assert buffer == run[at : at + len(buffer)]
    assert [call.key for call in metered.log] == [f"{KEY}-index", *([f"{KEY}-meta"] if has_meta else []), KEY]
    layout.read_offloaded(metered, entry).read_into(memoryview(buffer)[:100], 0)
    assert metered.calls["read_into"] == len(metered.log) == 3 + has_meta


def test_what_the_page_says_is_what_a_whole_run_becomes() -> None:
    store, run = MemoryStore(), a_run()
    archived(store, run, part_bytes=70_000)
    metadata = store.read_into(f"{KEY}-index", memoryview(bytearray(1)), start=0)
    seen = read_objects(store.get(KEY)[0], store.get(f"{KEY}-index")[0], metadata, None)
    scan = scanned(run)
    assert b"".join(content for _, _, _, content in seen.entries) == run
    assert (seen.fence, list(seen.groups), len(seen.blocks) > 3) == (7, [scan.base_offset], True)
    assert metadata["headwater-partition"] == "orders:3"
    data = store.read_into(KEY, memoryview(bytearray(1)), start=0)
    assert (data["a"], data["headwater-streaming-version"]) == ("b", "1")


def test_the_first_version_is_read_for_ever() -> None:
    """Byte for byte what the first version of this layout wrote."""
    store = MemoryStore()
    archived(store, a_run(6, value_bytes=300), part_bytes=900)
    assert hashlib.sha256(store.get(KEY)[0] + store.get(f"{KEY}-index")[0]).hexdigest()[:16] == "0c5c08f6d64fa5b0"


def offloaded_in_part(store: MemoryStore) -> tuple[Any, bytes]:
    """A run of three ledgers, of which the first began before it."""
    run = a_run()
    batches = [run[at : at + header.size_bytes] for at, header in headers(io.BytesIO(run), 0, len(run), where="run")]
    offloader = StreamingOffloader(store, PARTITION, prefix="data/0000000007/", fence=7, budget=OffloadBudget(1 << 30), part_bytes=40_000)
    handle = offloader.streaming_offload(UID, {}, base_offset=1)
    for ledger_id, first, some in ((3, 17, batches[:9]), (40, 0, batches[9:11]), (60, 0, batches[11:])):
        handle.offer(LedgerEntries(ledger_id, first, b"".join(some), len(some)))
    handle.close()
    done = handle.offloaded()
    fields = {name: getattr(done, name) for name in Offloaded.__slots__}
    return SimpleNamespace(layout="streaming", key=KEY, index_key="", **fields), run


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_run_of_several_ledgers_reads_back_at_every_place(is_compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    entry, run = offloaded_in_part(store)
    if not is_compiled:
        monkeypatch.setattr("headwater_core.layouts.frame_stream.take_id_frames", None)
        monkeypatch.setattr("headwater_core.segments.stretch.put_id_frames", None)
        other = MemoryStore()
        offloaded_in_part(other)
        assert other.get(KEY)[0] == store.get(KEY)[0]
    reader = StreamingLayout().read_offloaded(store, entry)
    for start in range(0, len(run), 997):
        for size in (1, 1_000, 90_000):
            buffer = bytearray(min(size, len(run) - start))
            reader.read_into(memoryview(buffer), start)
            assert buffer == run[start : start + len(buffer)]


def test_every_byte_of_headers_and_frames_is_looked_at() -> None:
    store = MemoryStore()
    entry, run = offloaded_in_part(store)
    raw = store.get(KEY)[0]
    around = set(range(len(raw)))
    for at, header in headers(io.BytesIO(run), 0, len(run), where="run"):
        found = raw.find(run[at : at + header.size_bytes])
        around.difference_update(range(found, found + header.size_bytes))
    for at in sorted(around)[::3]:
        store.delete(KEY)
        store.create(KEY, raw[:at] + bytes([raw[at] ^ (1 << at % 8)]) + raw[at + 1 :])
        reader = StreamingLayout().read_offloaded(store, entry)
        with pytest.raises(CorruptData):
            reader.read_into(memoryview(bytearray(len(run))), 0)


def test_another_version_and_a_context_of_another_kind_are_refused() -> None:
    store = MemoryStore()
    entry, _ = offloaded_in_part(store)
    for context, error in (({**entry.context, "version": "2"}, UnsupportedFormat), ({"version": "1"}, CorruptData)):
        with pytest.raises(error):
            StreamingLayout().read_offloaded(store, SimpleNamespace(**{**vars(entry), "context": context}))
    raw, metadata = store.get(f"{KEY}-index")[0], dict(store.read_into(f"{KEY}-index", memoryview(bytearray(1)), start=0))
    for named, error in (({**metadata, "headwater-streaming-version": "2"}, UnsupportedFormat), ({}, CorruptData)):
        store.delete(f"{KEY}-index")
        store.put(f"{KEY}-index", io.BytesIO(raw), size_bytes=len(raw), form=ObjectForm(metadata=named))
        with pytest.raises(error):
            StreamingLayout().read_offloaded(store, entry).read_index()


def test_a_key_without_a_uuid_is_refused_and_nothing_is_written() -> None:
    store = MemoryStore()
    with pytest.raises(UsageError):
        StreamingLayout().offload(store, [new_run(0, (".log", ""))], {})
    assert list(store.list("")) == []


def test_deleting_takes_all_three_objects_readers_first() -> None:
    store = MemoryStore()
    entry = archived(store, a_run(200, value_bytes=20_000))
    metered = MeteredStore(store, log_calls=10)
    StreamingLayout().delete_offloaded(metered, entry)
    assert [call.key for call in metered.log] == [f"{KEY}-index", f"{KEY}-meta", KEY]
    assert list(store.list("")) == []
    with pytest.raises(NotFound):
        StreamingLayout().read_offloaded(store, entry).read_index()


class StoreWithLatency(MemoryStore):
    """It takes no small parts, so several go at a time; those of the numbers in `failing` fail."""

    part_bytes_min = 1_000

    def __init__(self) -> None:
        super().__init__()
        self.failing: set[int] = set()
        self.threads: set[str] = set()

    def grow(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> GrowingObject:
        growing = super().grow(key, metadata=metadata)
        send = growing.send

        def send_or_fail(number: int, content: bytes | bytearray | memoryview, *, start: int) -> int:
            self.threads.add(threading.current_thread().name)
            if number in self.failing:
                raise TransientError(f"part {number}")
            return send(number, content, start=start)

        growing.send = send_or_fail  # type: ignore[method-assign]
        return growing


def test_parts_that_threads_send_make_the_same_object() -> None:
    store, plain, run = StoreWithLatency(), MemoryStore(), a_run()
    entry = archived(store, run, part_bytes=500)
    assert entry.digest == archived(plain, run, part_bytes=3_000).digest, "three of the least part each"
    assert store.get(KEY)[0] == plain.get(KEY)[0]
    assert threading.current_thread().name not in store.threads


@pytest.mark.parametrize("part", [1, 5, 30])
def test_a_part_that_fails_ends_the_upload(part: int) -> None:
    store = StoreWithLatency()
    store.failing.add(part)
    with pytest.raises(TransientError, match=f"part {part}"):
        archived(store, a_run(), part_bytes=500)
    assert [*store.list(""), *store.unfinished("")] == []
    store.failing.clear()
    assert archived(store, a_run(), part_bytes=500).run_bytes == len(a_run())


def test_a_run_that_is_too_long_for_an_object_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater_core.layouts.streaming.streaming_layout.PARTS_MAX", 3)
    store = MemoryStore()
    with pytest.raises(UsageError, match="more than one object holds"):
        archived(store, a_run(), part_bytes=3_000)
    assert [*store.list(""), *store.unfinished("")] == []
