"""PIP-76's surface: what is offered, in what part, becomes one object that a reader of the format's page understands."""

import gc
import io
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from uuid import UUID

import pytest

from headwater_core.errors import CorruptData, SourceChanged, TransientError, UnknownOutcome, UsageError
from headwater_core.layouts.streaming import (
    EntryPosition,
    FileExtent,
    LedgerEntries,
    OfferResult,
    OffloadBudget,
    OffloadHandle,
    OffloadResult,
    StreamingOffloader,
)
from headwater_core.layouts.streaming.offload_buffer import EXTENT_BYTES
from headwater_core.layouts.testing import PARTITION, a_run
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.store import NO_METADATA, GrowingObject, ObjectStore
from headwater_core.segments.batch_walk import headers
from headwater_core.segments.run_scan import OpenTransaction, scan_run
from tests.headwater_core.layouts.streaming.page_reader import Seen, read_objects
from tests.headwater_core.objectstore.memory import MemoryStore

UID = UUID("1b4e28ba-2fa1-11d2-883f-0016d3cca427")
KEY = f"stream/0000000007/{UID}"
SUCCESS, FULL, CLOSED = OfferResult.SUCCESS, OfferResult.FAIL_BUFFER_FULL, OfferResult.FAIL_SEGMENT_CLOSED


def a_handle(store: ObjectStore, *, part_bytes: int = 1 << 20, bytes_max: int = 64 << 20, **options: object) -> OffloadHandle:
    offloader = StreamingOffloader(
        store, PARTITION, prefix="stream/0000000007/", fence=7, budget=OffloadBudget(bytes_max), part_bytes=part_bytes
    )
    return offloader.streaming_offload(UID, {"bucket": "b"}, **options)  # type: ignore[arg-type]


def batches_of(run: bytes) -> list[bytes]:
    return [run[at : at + header.size_bytes] for at, header in headers(io.BytesIO(run), 0, len(run), where="run")]


def seen_in(store: ObjectStore) -> Seen:
    data, index = store.get(KEY)[0], store.get(f"{KEY}-index")[0]
    metadata = store.read_into(f"{KEY}-index", memoryview(bytearray(1)), start=0)
    keys = {info.key for info in store.list("stream/")}
    return read_objects(data, index, metadata, store.get(f"{KEY}-meta")[0] if f"{KEY}-meta" in keys else None)


@pytest.mark.parametrize("part_bytes", [1, 20_000, 1 << 20])
def test_entries_of_several_ledgers_become_one_object(part_bytes: int) -> None:
    store, run = MemoryStore(), a_run()
    batches = batches_of(run)
    places = [(5, 3 + at, each) for at, each in enumerate(batches[:10])] + [(99, at, each) for at, each in enumerate(batches[10:])]
    handle = a_handle(store, part_bytes=part_bytes, base_offset=2, open_before=(OpenTransaction(6, 2),), assigned_ms=1000)
    assert handle.can_offer(1)
    assert handle.last_offered() is None
    for ledger_id, entry_id, batch in places:
        assert handle.offer(LedgerEntries(ledger_id, entry_id, batch)) is SUCCESS
        assert handle.last_offered() == (ledger_id, entry_id)
        while handle.send_part():
            pass
    handle.seal_ledger(5, entries=13, size_bytes=123_456, closed_ms=777)
    handle.close(last_offset=900, offloaded_ms=2000)
    assert not handle.can_offer(1)
    assert handle.offer(LedgerEntries(99, len(batches) - 10, batches[0])) is CLOSED
    end = len(batches) - 11
    assert handle.result() == handle.result() == OffloadResult(UID, 5, 3, 99, end)
    seen = seen_in(store)
    assert [(ledger_id, entry_id, content) for ledger_id, entry_id, _, content in seen.entries] == places
    assert seen.fence == 7
    assert (seen.groups[5].entries, seen.groups[5].size_bytes, seen.groups[5].closed_ms, seen.groups[5].end_entry_id) == (
        13,
        123_456,
        777,
        12,
    )
    assert (seen.groups[99].entries, seen.groups[99].size_bytes, seen.groups[99].closed_ms) == (end + 1, None, None)
    assert seen.groups[5].uuid_bytes == UID.bytes
    assert seen.groups[5].driver == {"bucket": "b"}
    assert (seen.segment[4], seen.segment[5], seen.segment[6]) == ([2], [900], [len(run)])
    frames = {(ledger_id, entry_id): position for ledger_id, entry_id, position, _ in seen.entries}
    assert {position for _, _, position in seen.points} <= set(frames.values())
    done, scan = handle.offloaded(), handle.scan()
    assert (done.size_bytes, done.digest) == (len(store.get(KEY)[0]), digest_of(store.get(KEY)[0]))
    assert (done.run_bytes, done.run_digest) == (len(run), digest_of(run))
    whole = scan_run(io.BytesIO(run), start=0, end=len(run), open_before=(OpenTransaction(6, 2),), where="run")
    assert scan == whole


@pytest.mark.parametrize("frames_bytes", range(-200, 700, 41))
def test_no_entry_is_left_behind_where_only_frames_fill_a_part(frames_bytes: int) -> None:
    store, run = MemoryStore(), a_run(4)
    batches = batches_of(run)
    handle = a_handle(store, part_bytes=len(run) + frames_bytes)
    for entry_id, batch in enumerate(batches):
        assert handle.offer(LedgerEntries(5 + entry_id // 5, entry_id % 5, batch)) is SUCCESS
    while handle.send_part():
        pass
    handle.close()
    handle.result()
    assert [content for _, _, _, content in seen_in(store).entries] == batches
    assert handle.offloaded().run_digest == digest_of(run)


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[tuple[int, bytes]]:
    """A segment's file, by its descriptor, and what is in it."""
    run = a_run()
    (tmp_path / "a.log").write_bytes(run)
    fd = os.open(tmp_path / "a.log", os.O_RDONLY)
    yield fd, run
    os.close(fd)


def test_a_handle_that_is_dropped_returns_what_it_held() -> None:
    budget = OffloadBudget(1 << 20)
    offloader = StreamingOffloader(MemoryStore(), PARTITION, prefix="stream/7/", fence=7, budget=budget)
    kept, dropped = offloader.streaming_offload(UID, {}), offloader.streaming_offload(UUID(int=5), {})
    entry = batches_of(a_run())[0]
    for each in (kept, dropped):
        assert each.offer(LedgerEntries(5, 0, entry)) is SUCCESS
    assert budget.used_bytes == 2 * len(entry)
    del dropped, each
    gc.collect()
    assert budget.used_bytes == len(entry)
    kept.abort()
    kept.abort()
    del kept
    gc.collect()
    assert budget.used_bytes == 0


@pytest.mark.parametrize("part_bytes", [1, 30_000, 1 << 20])
def test_extents_take_next_to_nothing_of_the_budget(segment: tuple[int, bytes], part_bytes: int) -> None:
    fd, run = segment
    store, batches, at = MemoryStore(), batches_of(run), 0
    handle = a_handle(store, part_bytes=part_bytes, bytes_max=EXTENT_BYTES)
    for number in range(0, len(batches), 3):
        some = batches[number : number + 3]
        size_bytes = sum(map(len, some))
        assert handle.offer(LedgerEntries(5, number, FileExtent(fd, at, size_bytes), len(some))) is SUCCESS
        at += size_bytes
    assert handle.offered_bytes == len(run)
    assert handle.offer(LedgerEntries(6, 0, FileExtent(fd, 0, len(batches[0])))) is FULL
    while handle.send_part():
        pass
    handle.close()
    assert handle.result()[1:] == (5, 0, 5, len(batches) - 1)
    assert b"".join(content for _, _, _, content in seen_in(store).entries) == run
    assert handle.unsent_from is None


def test_when_the_budget_is_used_up_nothing_is_taken_until_something_was_sent() -> None:
    store, batches = MemoryStore(), batches_of(a_run())
    handle = a_handle(store, part_bytes=len(batches[0]), bytes_max=len(batches[0]) + len(batches[1]))
    assert handle.offer(LedgerEntries(5, 0, batches[0])) is SUCCESS
    assert handle.can_offer(len(batches[1]))
    assert not handle.can_offer(len(batches[1]) + 1)
    assert handle.offer(LedgerEntries(5, 1, batches[1])) is SUCCESS
    assert handle.offer(LedgerEntries(5, 2, batches[2])) is FULL
    assert handle.last_offered() == EntryPosition(5, 1)
    assert handle.unsent_from == (5, 0)
    assert handle.send_part()
    assert handle.unsent_from == (5, 1)
    assert handle.offer(LedgerEntries(5, 2, batches[0][:8] + batches[0][8:])) is SUCCESS


def test_what_does_not_follow_is_refused(segment: tuple[int, bytes]) -> None:
    batches = batches_of(segment[1])
    handle = a_handle(MemoryStore())
    assert handle.offer(LedgerEntries(5, 3, batches[0])) is SUCCESS
    for wrong in (
        LedgerEntries(5, 3, batches[1]),
        LedgerEntries(5, 5, batches[1]),
        LedgerEntries(4, 0, batches[1]),
        LedgerEntries(6, -1, batches[1]),
        LedgerEntries(5, 4, b"short"),
        LedgerEntries(5, 4, batches[1], 0),
    ):
        with pytest.raises(UsageError):
            handle.offer(wrong)
    with pytest.raises(UsageError):
        handle.result()
    empty = a_handle(MemoryStore())
    empty.close()
    with pytest.raises(UsageError):
        empty.result()


def test_an_extent_that_is_not_what_was_offered_ends_the_handle(segment: tuple[int, bytes]) -> None:
    fd, run = segment
    batches = batches_of(run)
    size_bytes = len(batches[0]) + len(batches[1])
    for content, count, error in (
        (FileExtent(fd, 0, size_bytes), 1, SourceChanged),
        (FileExtent(fd, 0, size_bytes), 3, SourceChanged),
        (FileExtent(fd, 0, size_bytes - 1), 2, SourceChanged),
        (FileExtent(fd, len(run) - 10, size_bytes), 2, SourceChanged),
        (batches[0][:-1] + bytes([batches[0][-1] ^ 1]), 1, CorruptData),
    ):
        store = MemoryStore()
        budget = OffloadBudget(1 << 20)
        handle = StreamingOffloader(store, PARTITION, prefix="stream/7/", fence=7, budget=budget).streaming_offload(UID, {})
        assert handle.offer(LedgerEntries(5, 0, content, count)) is SUCCESS
        handle.close()
        for _ in range(2):
            with pytest.raises(error):
                handle.result()
        assert handle.ended is not None
        handle.abort()
        handle.abort()
        assert budget.used_bytes == 0
        assert list(store.list("")) == []
        assert list(store.unfinished("")) == []


def test_a_file_that_is_overwritten_between_cut_and_sending_is_noticed(segment: tuple[int, bytes], tmp_path: Path) -> None:
    fd, run = segment
    store = FailingStore()
    handle = a_handle(store, part_bytes=10_000)
    batches = batches_of(run)
    handle.offer(LedgerEntries(5, 0, FileExtent(fd, 0, len(run)), len(batches)))
    store.failures = 1
    with pytest.raises(TransientError):
        handle.send_part()
    with (tmp_path / "a.log").open("r+b") as file:
        file.seek(70)
        file.write(b"other")
    with pytest.raises(SourceChanged):
        handle.send_part()
    assert handle.ended is not None


class FailingStore(MemoryStore):
    """The next `failures` parts and objects are refused, or done and not answered for."""

    failures = 0
    is_done = False

    def grow(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> GrowingObject:
        return _FailingGrowth(self, super().grow(key, metadata=metadata))

    def fail(self, call: Callable[[], object]) -> None:
        if self.failures:
            self.failures -= 1
            if self.is_done:
                call()
            raise UnknownOutcome("no answer")


class _FailingGrowth:
    def __init__(self, store: FailingStore, inner: GrowingObject) -> None:
        self._store, self._inner, self.key = store, inner, inner.key

    def send(self, number: int, content: bytes | bytearray | memoryview, *, start: int) -> int:
        self._store.fail(lambda: self._inner.send(number, content, start=start))
        return self._inner.send(number, content, start=start)

    def complete(self, rest: bytes | bytearray | memoryview) -> str:
        self._store.fail(lambda: self._inner.complete(rest))
        return self._inner.complete(rest)

    def abort(self) -> None:
        self._inner.abort()


@pytest.mark.parametrize("is_done", [False, True])
def test_whatever_gets_no_answer_may_be_called_again(is_done: bool) -> None:
    run = a_run()
    batches = batches_of(run)
    for failing in range(12):
        store = FailingStore()
        store.is_done = is_done
        handle, calls = a_handle(store, part_bytes=50_000), 0
        for entry_id, batch in enumerate(batches):
            assert handle.offer(LedgerEntries(5, entry_id, batch)) is SUCCESS
        handle.close()
        while True:
            calls += 1
            store.failures = calls == failing
            try:
                if not handle.send_part():
                    handle.result()
                    break
            except TransientError:
                continue
        assert b"".join(content for _, _, _, content in seen_in(store).entries) == run
        assert list(store.unfinished("")) == []
        assert handle._budget.used_bytes == 0
