"""What every layout does. A subclass supplies the `layout` fixture."""

import io
from collections.abc import Callable

import pytest

from headwater_core.errors import AlreadyExists, CorruptData, SourceChanged, TransientError, UnknownOutcome
from headwater_core.layouts import NewRun, Offloaded, Offloader
from headwater_core.objectstore.store import ObjectInfo
from headwater_core.segments.run_scan import RunScan, scan_run
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.segments.builders import a_batch, a_commit, a_segment, an_abort

KEY, INDEX_KEY = "data/run.log", "data/run.index"
RUN = a_batch(5, 3, producer=7, transactional=True) + an_abort(8, 7) + a_segment(9, 40, value_bytes=9_000) + a_commit(49, 8)


def scanned(run: bytes = RUN, *, start: int = 0) -> RunScan:
    scan = scan_run(io.BytesIO(run), start=start, end=len(run), where="run")
    assert scan is not None
    return scan


class LossyStore(MemoryStore):
    """Loses the reply of a put, with or without having done it, and keeps digests to itself on request."""

    def __init__(self) -> None:
        super().__init__()
        self.lose: Callable[[str], str] = lambda key: ""  # "request", "reply" or ""
        self.keeps_digests = True

    def put(self, key: str, data: object, *, size_bytes: int) -> str:
        fate = self.lose(key)
        if fate == "request":
            raise UnknownOutcome(key)
        digest = super().put(key, data, size_bytes=size_bytes)  # type: ignore[arg-type]
        if fate == "reply":
            raise UnknownOutcome(key)
        return digest

    def stat(self, key: str) -> ObjectInfo:
        info = super().stat(key)
        return info if self.keeps_digests else ObjectInfo(info.key, info.size_bytes, info.tag)


def offload(layout: Offloader, store: MemoryStore, source: io.BytesIO, scan: RunScan) -> Offloaded:
    return layout.offload(store, [NewRun(KEY, INDEX_KEY, source, scan)])[0]


class OffloaderContract:
    def test_what_was_offloaded_reads_back_byte_for_byte(self, layout: Offloader) -> None:
        store, scan = MemoryStore(), scanned()
        done = offload(layout, store, io.BytesIO(RUN), scan)
        assert (done.size_bytes, done.digest) == (len(RUN), scan.digest)
        for start, size_bytes in ((0, len(RUN)), (0, 1), (100, 70_000), (len(RUN) - 1, 1)):
            buffer = bytearray(size_bytes)
            layout.read_offloaded(store, KEY, done.context, memoryview(buffer), start)
            assert buffer == RUN[start : start + size_bytes]
        assert layout.read_index(store, INDEX_KEY, done.index_bytes, done.index_digest) == scan.index

    def test_a_run_may_begin_in_the_middle_of_its_source(self, layout: Offloader) -> None:
        store, before = MemoryStore(), a_segment(0, 5)
        done = offload(layout, store, io.BytesIO(before + RUN), scanned(before + RUN, start=len(before)))
        buffer = bytearray(len(RUN))
        layout.read_offloaded(store, KEY, done.context, memoryview(buffer), 0)
        assert buffer == RUN

    @pytest.mark.parametrize("keeps_digests", [True, False])
    @pytest.mark.parametrize("key", [KEY, INDEX_KEY])
    def test_a_put_that_was_done_although_its_reply_is_lost_is_recognised(self, layout: Offloader, key: str, keeps_digests: bool) -> None:
        store = LossyStore()
        store.keeps_digests = keeps_digests
        store.lose = lambda each: "reply" if each == key else ""
        done = offload(layout, store, io.BytesIO(RUN), scanned())
        assert layout.read_index(store, INDEX_KEY, done.index_bytes, done.index_digest) == scanned().index

    @pytest.mark.parametrize("key", [KEY, INDEX_KEY])
    def test_a_put_that_may_still_happen_is_not_taken_for_done(self, layout: Offloader, key: str) -> None:
        store = LossyStore()
        store.lose = lambda each: "request" if each == key else ""
        with pytest.raises(UnknownOutcome):
            offload(layout, store, io.BytesIO(RUN), scanned())

    def test_offloading_the_same_run_again_is_fine(self, layout: Offloader) -> None:
        store = MemoryStore()
        first = offload(layout, store, io.BytesIO(RUN), scanned())
        assert offload(layout, store, io.BytesIO(RUN), scanned()) == first

    @pytest.mark.parametrize("key", ["data/0.log", "data/0.index", "data/1.log", "data/1.index"])
    @pytest.mark.parametrize("fate", ["request", "reply"])
    def test_of_several_runs_what_is_missing_after_a_failure_is_sent_again(self, layout: Offloader, key: str, fate: str) -> None:
        store, fates = LossyStore(), [fate]
        store.lose = lambda each: fates.pop() if each == key and fates else ""
        runs = [NewRun(f"data/{at}.log", f"data/{at}.index", io.BytesIO(RUN), scanned()) for at in range(2)]
        if (key, fate) == ("data/0.log", "request"):  # nothing is there
            with pytest.raises(UnknownOutcome):
                layout.offload(store, runs)
        for done, run in zip(layout.offload(store, runs), runs, strict=True):
            assert store.get(run.key)[0] == RUN
            assert layout.read_index(store, run.index_key, done.index_bytes, done.index_digest) == run.scan.index

    @pytest.mark.parametrize("keeps_digests", [True, False])
    @pytest.mark.parametrize("other", [RUN[:-1], RUN + b"x", bytes(len(RUN))])
    def test_other_bytes_under_the_key_are_left_alone(self, layout: Offloader, other: bytes, keeps_digests: bool) -> None:
        store = LossyStore()
        store.keeps_digests = keeps_digests
        store.create(KEY, other)
        with pytest.raises(SourceChanged):
            offload(layout, store, io.BytesIO(RUN), scanned())
        assert store.get(KEY)[0] == other

    @pytest.mark.parametrize("now", [RUN[:-1], b"", RUN[:200] + b"\x00" + RUN[201:]])
    def test_a_source_that_is_no_longer_what_was_scanned_is_noticed(self, layout: Offloader, now: bytes) -> None:
        store = MemoryStore()
        with pytest.raises(SourceChanged):
            offload(layout, store, io.BytesIO(now), scanned())
        assert [each.key for each in store.list("data/")] != [INDEX_KEY]  # data first: no index without its object

    def test_a_damaged_index_is_noticed(self, layout: Offloader) -> None:
        store = MemoryStore()
        done = offload(layout, store, io.BytesIO(RUN), scanned())
        raw = store.get(INDEX_KEY)[0]
        for damaged in (raw[:-1], raw[:50] + bytes([raw[50] ^ 1]) + raw[51:], b""):
            store.delete(INDEX_KEY)
            store.create(INDEX_KEY, damaged)
            with pytest.raises(CorruptData):
                layout.read_index(store, INDEX_KEY, done.index_bytes, done.index_digest)

    @pytest.mark.parametrize("size_bytes", [0, -1, 1 << 40])
    def test_an_impossible_index_length_is_refused_before_anything_is_read(self, layout: Offloader, size_bytes: int) -> None:
        with pytest.raises(CorruptData):
            layout.read_index(MemoryStore(), INDEX_KEY, size_bytes, "crc64nvme:0000000000000000")

    def test_deleting_removes_both_objects_and_may_be_repeated(self, layout: Offloader) -> None:
        store = MemoryStore()
        offload(layout, store, io.BytesIO(RUN), scanned())
        for _ in range(2):
            layout.delete_offloaded(store, KEY, INDEX_KEY)
            assert not list(store.list("data/"))

    def test_other_errors_of_the_store_pass(self, layout: Offloader) -> None:
        store = LossyStore()

        def throttled(key: str) -> str:
            raise TransientError("slow down")

        store.lose = throttled
        with pytest.raises(TransientError) as caught:
            offload(layout, store, io.BytesIO(RUN), scanned())
        assert not isinstance(caught.value, UnknownOutcome | AlreadyExists)
