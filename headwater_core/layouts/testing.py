"""What every layout does, as a contract to run over it: for ours, and for anyone who writes another.

A subclass, collected by pytest, supplies the fixtures `layout` and `store` (an empty one), and may narrow `KEY` and `INDEX_KEY`:

    class TestMyLayout(OffloaderContract):
        @pytest.fixture
        def layout(self) -> Offloader: ...
        @pytest.fixture
        def store(self, tmp_path: Path) -> ObjectStore: ...
"""

import io
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

from headwater_core.errors import CorruptData, HeadwaterError, NotFound, SourceChanged, TruncatedData, UnsupportedFormat
from headwater_core.layouts.layout_table import NoOffloader
from headwater_core.layouts.offloader import NewRun, Offloaded, Offloader, StoredRun
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.store import ObjectForm, ObjectInfo, ObjectStore
from headwater_core.partition import PartitionId
from headwater_core.segments.batch_walk import headers
from headwater_core.segments.encoder import encode_batch, encode_marker
from headwater_core.segments.markers import ABORT, COMMIT
from headwater_core.segments.records import Record, decode_batch
from headwater_core.segments.run_scan import RunScan, scan_run
from headwater_core.segments.runindex import RunIndex
from headwater_core.segments.transactions import OpenTransaction

PARTITION = PartitionId("cluster-1", "8oKxBSxSTqiNSI4eyBDMxw", 3, "orders")
EXTRA = {"written-by": "the contract", "purpose": "look at me"}
_TRANSACTIONAL = 0x10
_FLIPS = 120  # bytes of each object that are changed in turn, and lengths to which it is cut
_TIME_MS = 1_700_000_000_000


def a_run(batches: int = 40, *, value_bytes: int = 9_000, base_offset: int = 5) -> bytes:
    """Batches of all sizes, of two leader epochs, with a hole that compaction left, an aborted, a committed and an open transaction."""
    made: list[bytes] = []
    offset = base_offset

    def add(batch: bytes, offsets: int) -> None:
        nonlocal offset
        made.append(batch)
        offset += offsets

    def data(rows: int, size_bytes: int, epoch: int, producer_id: int = -1) -> None:
        values = [(b"k%d" % n, (b"%d " % (offset + n)).ljust(size_bytes, b".")) for n in range(rows)]
        attributes = 0 if producer_id < 0 else _TRANSACTIONAL
        add(
            encode_batch(
                offset,
                values,
                leader_epoch=epoch,
                timestamp_ms=_TIME_MS + offset,
                attributes=attributes,
                producer_id=producer_id,
                producer_epoch=0 if producer_id >= 0 else -1,
            ),
            rows,
        )

    def ends(kind: int, producer_id: int, epoch: int) -> None:
        marker = encode_marker(
            offset, kind, producer_id=producer_id, producer_epoch=0, coordinator_epoch=1, leader_epoch=epoch, timestamp_ms=_TIME_MS + offset
        )
        add(marker, 1)

    data(3, min(100, value_bytes), 2, producer_id=7)
    ends(ABORT, 7, 2)
    for number in range(batches // 2):
        data(1 + number % 3, value_bytes * (number % 4 + 1) // 4, 2)
    offset += 4  # what compaction took
    data(2, min(50, value_bytes), 4, producer_id=8)
    ends(COMMIT, 8, 4)
    for number in range(batches - batches // 2):
        data(1, value_bytes * (number % 3 + 1) // 3, 4)
    data(1, min(10, value_bytes), 4, producer_id=9)
    return b"".join(made)


def scanned(run: bytes, *, start: int = 0) -> RunScan:
    """What an archiver knows of `run` before its upload."""
    before = (OpenTransaction(6, 2),)
    scan = scan_run(io.BytesIO(run), start=start, end=len(run), open_before=before, where="run")
    assert scan is not None
    return scan


@dataclass(frozen=True)
class Archived:
    """A run in a store, and how to look at it.

    run   as it is read back: the very bytes that were offloaded, where the layout preserves batches
    scan  of what was offloaded
    """

    layout: Offloader
    store: ObjectStore
    run: bytes
    scan: RunScan
    stored: StoredRun
    done: Offloaded

    def read(self, start: int, size_bytes: int) -> bytes:
        buffer = bytearray(size_bytes)
        self.layout.read_offloaded(self.store, self.stored).read_into(memoryview(buffer), start)
        return bytes(buffer)

    def examine(self, piece_bytes: int = 1 << 30) -> str:
        """ "" when all of it is as it was written, else what is wrong. Reads the run in pieces, as a scrub does."""
        try:
            reader = self.layout.read_offloaded(self.store, self.stored)
            if not self.is_index(reader.read_index()):
                return "another index"
            reader.check_rest()
            size_bytes = self.stored.run_bytes
            content = b"".join(self.read(at, min(piece_bytes, size_bytes - at)) for at in range(0, size_bytes, piece_bytes))
            return "" if digest_of(content) == self.done.run_digest else "other bytes"
        except (CorruptData, NotFound, UnsupportedFormat) as error:
            return str(error) or "damaged"

    def is_index(self, found: RunIndex) -> bool:
        """It says what the scan has found, and where that is in `run`."""
        starts = {at: header.base_offset for at, header in headers(io.BytesIO(self.run), 0, len(self.run), where="run")}
        points = found.points
        are_there = all(starts.get(at) == offset for at, offset in zip(points.positions, points.offsets, strict=True))
        expected = self.scan.index
        if not self.layout.preserves_batches:
            expected = replace(expected, size_bytes=len(self.run), points=expected.points._replace(positions=points.positions))
        return are_there and found == expected


class OffloaderOnStore:
    """The part of the contract that a store has a part in."""

    KEY, INDEX_KEY = "data/run.log", "data/run.index"

    def offload(self, layout: Offloader, store: ObjectStore, run: bytes | None = None, start: int = 0) -> Archived:
        """`run` from byte `start` on, offloaded."""
        run = a_run() if run is None else run
        scan = scanned(run, start=start)
        done = self._offload(layout, store, io.BytesIO(run), scan)
        archived = Archived(layout, store, run[start:], scan, self.stored(layout, done), done)
        return archived if layout.preserves_batches else replace(archived, run=archived.read(0, archived.stored.run_bytes))

    def held_keys(self, archived: Archived) -> list[str]:
        """The objects of a run, each of which is damaged in turn."""
        return [key for key in (archived.stored.key, archived.stored.index_key) if key]

    def stored(self, layout: Offloader, done: Offloaded) -> StoredRun:
        """What a manifest entry would say."""
        said: Any = SimpleNamespace(layout=layout.name, key=self.KEY, index_key=self.INDEX_KEY, **_fields(done))
        return cast(StoredRun, said)

    def _offload(self, layout: Offloader, store: ObjectStore, source: io.BytesIO, scan: RunScan) -> Offloaded:
        new = NewRun(PARTITION, scan.base_offset, scan.last_offset, self.KEY, self.INDEX_KEY, source, scan)
        return layout.offload(store, [new], EXTRA)[0]

    def test_a_scan_equals_the_source_in_every_field(self, layout: Offloader, store: ObjectStore) -> None:
        run = a_run()
        archived = self.offload(layout, store, run)
        content = archived.read(0, archived.stored.run_bytes)
        assert list(_records(content)) == list(_records(run))
        if layout.preserves_batches:
            assert content == run
            assert (archived.done.run_bytes, archived.done.run_digest) == (len(run), archived.scan.digest)
        assert archived.done.run_digest == digest_of(content)
        assert archived.is_index(layout.read_offloaded(store, archived.stored).read_index())

    def test_what_is_recorded_of_the_object_is_what_the_store_has(self, layout: Offloader, store: ObjectStore) -> None:
        archived = self.offload(layout, store)
        content = store.get(self.KEY)[0]
        assert (archived.done.size_bytes, archived.done.digest) == (len(content), digest_of(content))

    def test_a_read_may_begin_and_end_anywhere(self, layout: Offloader, store: ObjectStore) -> None:
        archived = self.offload(layout, store)
        whole = archived.read(0, archived.stored.run_bytes)
        places = [position for position, _ in headers(io.BytesIO(whole), 0, len(whole), where="run")]
        for start in (*places, 1, 17, len(whole) // 2, len(whole) - 1):
            for size_bytes in (1, 100, len(whole) // 3, len(whole)):
                end = min(start + size_bytes, len(whole))
                assert archived.read(start, end - start) == whole[start:end]

    def test_a_stream_fills_buffers_in_turn_and_may_be_left(self, layout: Offloader, store: ObjectStore) -> None:
        archived = self.offload(layout, store)
        whole = archived.read(0, archived.stored.run_bytes)
        buffers = [bytearray(size) for size in (10, len(whole) // 2, 1, len(whole) // 4)]
        reader = layout.read_offloaded(store, archived.stored)
        at = 333
        stream = reader.stream_into([memoryview(each) for each in buffers], at)
        for each, _ in zip(buffers, stream, strict=True):
            assert each == whole[at : at + len(each)]
            at += len(each)
        stream.close()
        left = reader.stream_into([memoryview(each) for each in buffers], 0)
        next(left)
        left.close()

    def test_a_read_past_the_end_is_refused(self, layout: Offloader, store: ObjectStore) -> None:
        archived = self.offload(layout, store)
        refused(lambda: archived.read(archived.stored.run_bytes - 5, 6), CorruptData)
        refused(lambda: archived.read(archived.stored.run_bytes, 1), CorruptData)

    def test_a_run_may_begin_in_the_middle_of_its_source(self, layout: Offloader, store: ObjectStore) -> None:
        before = encode_batch(0, [(None, b"earlier")], leader_epoch=1, timestamp_ms=_TIME_MS)
        archived = self.offload(layout, store, before + a_run(4), start=len(before))
        assert archived.examine() == ""

    def test_runs_of_one_batch_and_of_a_large_one(self, layout: Offloader, store: ObjectStore) -> None:
        for run in (encode_batch(9, [(None, b"x")], leader_epoch=1, timestamp_ms=1), a_run(3, value_bytes=1_500_000)):
            archived = self.offload(layout, store, run)
            assert archived.examine() == ""
            layout.delete_offloaded(store, archived.stored)

    def test_what_is_cut_in_the_store_is_noticed(self, layout: Offloader, store: ObjectStore) -> None:
        archived = self.offload(layout, store)
        for key in self.held_keys(archived):
            content = store.get(key)[0]
            for size_bytes in (0, 1, len(content) // 2, len(content) - 1):
                self._replace(store, key, content[:size_bytes])
                assert archived.examine() != "", f"{key} cut to {size_bytes} of {len(content)} bytes"
            self._replace(store, key, content)
        assert archived.examine() == ""

    def test_what_is_flipped_in_the_store_is_noticed(self, layout: Offloader, store: ObjectStore) -> None:
        archived = self.offload(layout, store)
        for key in self.held_keys(archived):
            content = store.get(key)[0]
            for at in {0, len(content) // 2, len(content) - 1}:
                self._replace(store, key, content[:at] + bytes([content[at] ^ (1 << at % 8)]) + content[at + 1 :])
                assert archived.examine() != "", f"{key}, byte {at} of {len(content)}"
            self._replace(store, key, content)
        assert archived.examine() == ""

    def _replace(self, store: ObjectStore, key: str, content: bytes) -> None:
        metadata = dict(store.read_into(key, memoryview(bytearray(1)), start=0))  # before the object goes
        store.delete(key)
        store.put(key, io.BytesIO(content or b"\x00"), size_bytes=len(content) or 1, form=ObjectForm(metadata=metadata))

    def test_extra_metadata_is_there_for_people(self, layout: Offloader, store: ObjectStore) -> None:
        archived = self.offload(layout, store)
        metadata = store.read_into(archived.stored.key, memoryview(bytearray(1)), start=0)
        assert {name: metadata.get(name) for name in EXTRA} == EXTRA

    def test_offloading_the_same_run_again_is_fine(self, layout: Offloader, store: ObjectStore) -> None:
        assert self.offload(layout, store).done == self.offload(layout, store).done

    def test_other_bytes_under_the_key_are_left_alone(self, layout: Offloader, store: ObjectStore) -> None:
        store.create(self.KEY, b"another one's")
        refused(lambda: self.offload(layout, store), SourceChanged)
        assert store.get(self.KEY)[0] == b"another one's"

    def test_a_source_that_is_no_longer_what_was_scanned_is_noticed(self, layout: Offloader, store: ObjectStore) -> None:
        run = a_run(6)
        for now in (run[:-1], b"", run[:200] + b"\x00" + run[201:]):
            refused(lambda now=now: self._offload(layout, store, io.BytesIO(now), scanned(run)), SourceChanged)  # type: ignore[misc]
            for info in list(store.list("data/")):
                store.delete(info.key)

    def test_deleting_leaves_nothing_and_may_be_repeated(self, layout: Offloader, store: ObjectStore) -> None:
        archived = self.offload(layout, store)
        for _ in range(2):
            layout.delete_offloaded(store, archived.stored)
            assert list(store.list("data/")) == []
        refused(lambda: archived.read(0, 1), NotFound)

    def test_without_an_offloader_every_call_says_so(self, layout: Offloader, store: ObjectStore) -> None:
        archived, none = self.offload(layout, store), NoOffloader("none-of-these")
        for call in (
            lambda: none.offload(store, [], {}),
            lambda: none.read_offloaded(store, archived.stored),
            lambda: none.delete_offloaded(store, archived.stored),
        ):
            assert "none-of-these" in str(refused(call, UnsupportedFormat))


class OffloaderContract(OffloaderOnStore):
    """What every layout does. See the module. The objects that are damaged here are held in memory: the same from each store."""

    def test_every_offset_is_found_and_every_position_is_read_from(self, layout: Offloader, store: ObjectStore) -> None:
        archived = self.offload(layout, store, a_run(6, value_bytes=20))
        whole, index = archived.run, layout.read_offloaded(store, archived.stored).read_index()
        archived, _ = _held(archived, self.held_keys(archived))
        for start in range(len(whole)):
            assert archived.read(start, min(97, len(whole) - start)) == whole[start : start + 97]
        for _, _, record in _records(whole):
            at = index.points.positions[bisect_right(index.points.offsets, record.offset) - 1]
            assert record in [each for _, _, each in _records(archived.read(at, len(whole) - at))]

    def test_each_truncation_and_each_flipped_bit_of_a_small_object_is_noticed(self, layout: Offloader, store: ObjectStore) -> None:
        archived = self.offload(layout, store, a_run(2, value_bytes=1))
        altered, held = _held(archived, self.held_keys(archived))
        for key, each in held.items():
            content = each.content
            for size_bytes in range(len(content)):
                each.content = content[:size_bytes]
                assert altered.examine() != "", f"{key} cut to {size_bytes} of {len(content)} bytes"
            for bit in range(8 * len(content)):
                at = bit // 8
                each.content = content[:at] + bytes([content[at] ^ (1 << bit % 8)]) + content[at + 1 :]
                assert altered.examine() != "", f"{key}, byte {at} of {len(content)}, bit {bit % 8}"
            each.content = content
            assert altered.examine() == ""

    def test_every_truncation_is_noticed(self, layout: Offloader, store: ObjectStore) -> None:
        archived = self.offload(layout, store)
        altered, held = _held(archived, self.held_keys(archived))
        for key, each in held.items():
            content = each.content
            for size_bytes in _places(len(content)):
                each.content = content[:size_bytes]
                assert altered.examine() != "", f"{key} cut to {size_bytes} of {len(content)} bytes"
            each.content = content
        assert altered.examine() == ""

    def test_every_flipped_bit_is_noticed(self, layout: Offloader, store: ObjectStore) -> None:
        archived = self.offload(layout, store)
        altered, held = _held(archived, self.held_keys(archived))
        for key, each in held.items():
            content = each.content
            for at in _places(len(content)):
                each.content = content[:at] + bytes([content[at] ^ (1 << at % 8)]) + content[at + 1 :]
                assert altered.examine() != "", f"{key}, byte {at} of {len(content)}"
            each.content = content
        assert altered.examine() == ""

    def test_reads_of_pieces_notice_what_is_flipped_around_the_batches(self, layout: Offloader, store: ObjectStore) -> None:
        """No read sees a whole unit of the layout, which may be larger than what a scrub holds at once."""
        archived = self.offload(layout, store, a_run(8, value_bytes=70_000))
        altered, held = _held(archived, [self.KEY])
        content, run = held[self.KEY].content, archived.run
        around = set(range(len(content)))
        for position, header in headers(io.BytesIO(run), 0, len(run), where="run"):
            at = content.find(run[position : position + header.size_bytes])
            around.difference_update(range(at, at + header.size_bytes) if at >= 0 else ())
        for at in sorted(around)[-_FLIPS:]:
            held[self.KEY].content = content[:at] + bytes([content[at] ^ (1 << at % 8)]) + content[at + 1 :]
            assert altered.examine(piece_bytes=40_000) != "", f"byte {at} of {len(content)}"
        held[self.KEY].content = content
        assert altered.examine(piece_bytes=40_000) == ""


class _HeldObject:
    """An object as it is read: its content may be altered."""

    def __init__(self, store: ObjectStore, key: str) -> None:
        self.content = store.get(key)[0]
        self.metadata = dict(store.read_into(key, memoryview(bytearray(1)), start=0))


class _HeldStore:
    """A store as readers see it, whose objects are held from when they are read first."""

    def __init__(self, store: ObjectStore, held: Mapping[str, _HeldObject]) -> None:
        self._store, self._held = store, dict(held)

    def read_into(self, key: str, buffer: memoryview, *, start: int) -> Mapping[str, str]:
        held = self._object(key)
        if start + len(buffer) > len(held.content):
            raise TruncatedData(key, len(held.content), f"{len(buffer)} bytes wanted from {start} on")
        buffer[:] = held.content[start : start + len(buffer)]
        return held.metadata

    def stream_into(self, key: str, buffers: Sequence[memoryview], *, start: int) -> Generator[None, None, None]:
        for buffer in buffers:
            self.read_into(key, buffer, start=start)
            start += len(buffer)
            yield

    def stat(self, key: str) -> ObjectInfo:
        return ObjectInfo(key, len(self._object(key).content), "")

    def _object(self, key: str) -> _HeldObject:
        if key not in self._held:
            self._held[key] = _HeldObject(self._store, key)
        return self._held[key]


def _held(archived: Archived, keys: Sequence[str]) -> tuple[Archived, dict[str, _HeldObject]]:
    """`archived` with the objects of these keys as they are held, to be altered."""
    held = {key: _HeldObject(archived.store, key) for key in keys}
    return replace(archived, store=cast(ObjectStore, _HeldStore(archived.store, held))), held


def refused(call: Callable[[], object], kind: type[HeadwaterError]) -> HeadwaterError:
    """The error of `kind` that `call` raises; AssertionError when it raises none."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def _fields(done: Offloaded) -> dict[str, Any]:
    return {name: getattr(done, name) for name in Offloaded.__slots__}


def _places(size_bytes: int) -> list[int]:
    """Positions below `size_bytes`: all of the first, and some over the rest."""
    step = max(1, size_bytes // _FLIPS)
    return sorted({*range(min(size_bytes, 40)), *range(0, size_bytes, step), *range(max(0, size_bytes - 4), size_bytes)})


def _records(run: bytes) -> Iterator[tuple[int, int, Record]]:
    """Every record of the run with its leader epoch and producer."""
    for position, header in headers(io.BytesIO(run), 0, len(run), where="run"):
        for record in decode_batch(run[position : position + header.size_bytes]):
            yield header.leader_epoch, header.producer_id, record
