"""What holds on every store: each state of a segment is found out from a listing alone and recovered without an operator, in both variants
(docs/formats/chunks.md, "States"). And on each S3 server: whatever request a consolidation ends at, it is taken up again."""

import io
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from random import Random

import pytest

from headwater_core.errors import CorruptData, HeadwaterError, TruncatedData, UsageError
from headwater_core.layouts.chunks import ChunkSegment, SegmentPlace, SegmentState, Variant, consolidate, delete_chunks
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.s3 import S3Store
from headwater_core.objectstore.store import NO_METADATA, ObjectForm, ObjectStore
from tests.headwater_core.objectstore.badnetwork import LOSE_REPLY, LOSE_REQUEST, PASS, Answer, BadNetwork

MIB = 1 << 20
CHUNK_BYTES = 10  # of small segments
WHOLE = Random(14).randbytes(15 * CHUNK_BYTES + 3)
QUEUE = "chunks/cluster/node.7/orders/0"
PLACES = {variant: SegmentPlace(QUEUE, "commitLog", 5, variant) for variant in Variant}
FATES = pytest.mark.parametrize(
    "fate", [pytest.param(LOSE_REQUEST, id="request", marks=pytest.mark.long), pytest.param(LOSE_REPLY, id="reply")]
)
BOTH = pytest.mark.parametrize("place", PLACES.values(), ids=[variant.value for variant in PLACES])


def put(store: ObjectStore, key: str, content: bytes, metadata: dict[str, str] | None = None) -> None:
    store.put(key, io.BytesIO(content), size_bytes=len(content), form=ObjectForm(metadata or NO_METADATA))


def put_chunks(store: ObjectStore, place: SegmentPlace, *, but: int = -1) -> None:
    """All of WHOLE, without the chunk of position `but`; in no order of theirs, as those that several senders sent."""
    starts = list(range(0, len(WHOLE), CHUNK_BYTES))
    Random(1).shuffle(starts)
    for start in starts:
        if start != but:
            put(store, place.chunk_key(start), WHOLE[start : start + CHUNK_BYTES])


def found(store: ObjectStore, place: SegmentPlace, *, is_full: bool = False) -> ChunkSegment:
    """As a process finds it that knows nothing of those before it."""
    return ChunkSegment.open(store, place, chunk_bytes=CHUNK_BYTES, is_full=is_full)


def keys(store: ObjectStore) -> list[str]:
    return [info.key for info in store.list(QUEUE)]


def said(content: bytes) -> dict[str, str]:
    """What a consolidated object says of itself."""
    return {"headwater-bytes": str(len(content)), "headwater-crc": digest_of(content).partition(":")[2]}


class Consolidation:
    """A subclass supplies the fixture `store`, an empty one."""

    @BOTH
    def test_consolidation_pending(self, store: ObjectStore, place: SegmentPlace) -> None:
        put_chunks(store, place)
        segment = found(store, place, is_full=True)
        assert segment.found.state is SegmentState.FULL
        assert segment.read0(0, len(WHOLE)) == WHOLE
        assert consolidate(store, place, len(WHOLE)).state is SegmentState.LEFTOVER
        assert len(keys(store)) == 1 + -(-len(WHOLE) // CHUNK_BYTES), "chunks go by another call"
        assert delete_chunks(store, place, len(WHOLE)).state is SegmentState.DONE
        assert keys(store) == [place.segment_key]

    def test_a_stale_chunk_of_a_shorter_retry_is_no_other_byte(self, store: ObjectStore) -> None:
        """Covered, reaching into the next, and of other bytes; what RocketMQ's own retries leave, and ours do not."""
        place = PLACES[Variant.APPEND]
        put_chunks(store, place)
        put(store, place.chunk_key(43), WHOLE[43:47])
        put(store, place.chunk_key(77), WHOLE[77:95])
        assert found(store, place).read0(0, len(WHOLE)) == WHOLE
        assert consolidate(store, place, len(WHOLE)).state is SegmentState.LEFTOVER
        assert delete_chunks(store, place, len(WHOLE)).state is SegmentState.DONE
        assert found(store, place).read0(0, len(WHOLE)) == WHOLE

    @BOTH
    def test_chunks_of_all_sizes_become_one_object(self, store: ObjectStore, place: SegmentPlace) -> None:
        """Some as long as the least part of Amazon's, some shorter."""
        sizes = [10, 300_000, 6 * MIB, 5 * MIB, 1, 7 * MIB, 100_000]
        content = Random(2).randbytes(sum(sizes))
        segment, at = ChunkSegment.open(store, place, chunk_bytes=6 * MIB), 0
        for size_bytes in sizes:
            at = segment.commit0(at, content[at : at + size_bytes])
        assert consolidate(store, place, len(content)).state is SegmentState.LEFTOVER
        assert delete_chunks(store, place, len(content)).state is SegmentState.DONE
        assert keys(store) == [place.segment_key]
        assert found(store, place).read0(0, len(content)) == content
        assert list(store.unfinished("")) == []


class Recovery(Consolidation):
    """With all that a store has no part in beyond keeping objects."""

    @BOTH
    def test_new(self, store: ObjectStore, place: SegmentPlace) -> None:
        segment = found(store, place)
        assert (segment.found.state, segment.end) == (SegmentState.NEW, 0)
        assert segment.commit0(0, WHOLE) == len(WHOLE)
        assert found(store, place).read0(0, len(WHOLE)) == WHOLE

    @BOTH
    def test_open(self, store: ObjectStore, place: SegmentPlace) -> None:
        """Its numbers do not sort as names do; what is short at the end is continued."""
        put_chunks(store, place)
        segment = found(store, place)
        assert (segment.found.state, segment.end) == (SegmentState.OPEN, len(WHOLE))
        assert segment.read0(0, len(WHOLE)) == WHOLE
        assert segment.commit0(len(WHOLE), b"and more of it") == len(WHOLE) + 14
        assert found(store, place).read0(len(WHOLE) - 5, 19) == WHOLE[-5:] + b"and more of it"
        last = store.get(place.chunk_key(len(WHOLE) // CHUNK_BYTES * CHUNK_BYTES))[0]
        assert len(last) == (CHUNK_BYTES if place.variant is Variant.FIXED else len(WHOLE) % CHUNK_BYTES)

    @BOTH
    def test_done(self, store: ObjectStore, place: SegmentPlace) -> None:
        put(store, place.segment_key, WHOLE, said(WHOLE))
        segment = found(store, place)
        assert (segment.found.state, segment.end) == (SegmentState.DONE, len(WHOLE))
        assert segment.read0(0, len(WHOLE)) == WHOLE
        assert len(segment.found.tiles) == 1
        with pytest.raises(UsageError):
            segment.commit0(len(WHOLE), b"more")
        for call in (consolidate, delete_chunks):
            assert call(store, place, len(WHOLE)).state is SegmentState.DONE
        assert keys(store) == [place.segment_key]

    @BOTH
    @pytest.mark.parametrize("gone", [-1, 0, 70, 150])
    def test_delete_pending(self, store: ObjectStore, place: SegmentPlace, gone: int) -> None:
        put_chunks(store, place, but=gone)
        put(store, place.segment_key, WHOLE, said(WHOLE))
        segment = found(store, place)
        assert segment.found.state is SegmentState.LEFTOVER
        assert [tile.key for tile in segment.found.tiles] == [place.segment_key]
        assert segment.read0(0, len(WHOLE)) == WHOLE
        assert consolidate(store, place, len(WHOLE)).state is SegmentState.LEFTOVER
        assert delete_chunks(store, place, len(WHOLE)).state is SegmentState.DONE
        assert keys(store) == [place.segment_key]

    @BOTH
    def test_broken_consolidation(self, store: ObjectStore, place: SegmentPlace) -> None:
        put_chunks(store, place)
        put(store, place.segment_key, WHOLE[:70], said(WHOLE))
        before = keys(store)
        segment = found(store, place)
        assert (segment.found.state, segment.end) == (SegmentState.BROKEN, len(WHOLE))
        assert segment.read0(0, len(WHOLE)) == WHOLE
        assert all(tile.key != place.segment_key for tile in segment.found.tiles)
        for call in (consolidate, delete_chunks):
            with pytest.raises(CorruptData, match=place.segment_key):
                call(store, place, len(WHOLE))
        assert keys(store) == before

    @BOTH
    @pytest.mark.parametrize("missing", [0, 70, 140, 150])
    def test_lost_chunk(self, store: ObjectStore, place: SegmentPlace, missing: int) -> None:
        """The last one, too: the manifest knows of it, and no listing."""
        put_chunks(store, place, but=missing)
        before = keys(store)
        segment = found(store, place)
        assert segment.end == missing
        assert segment.read0(0, missing) == WHOLE[:missing]
        if missing < 150:
            assert segment.found.state is SegmentState.LOST
            with pytest.raises(CorruptData, match=f"chunk-{missing}$|chunk-{missing}[^0-9]"):
                segment.read0(max(missing - 1, 0), 2)
        else:
            with pytest.raises(TruncatedData):
                segment.read0(149, 2)
        with pytest.raises(CorruptData, match=f"chunk-{missing}[^0-9]"):
            consolidate(store, place, len(WHOLE))
        with pytest.raises(UsageError):
            delete_chunks(store, place, len(WHOLE))
        assert keys(store) == before
        assert segment.commit0(missing, WHOLE[missing:]) == len(WHOLE)  # who still has the bytes fills the hole
        assert consolidate(store, place, len(WHOLE)).state is SegmentState.LEFTOVER
        assert delete_chunks(store, place, len(WHOLE)).state is SegmentState.DONE
        assert found(store, place).read0(0, len(WHOLE)) == WHOLE

    def test_chunks_that_contradict_each_other_are_kept_and_named(self, store: ObjectStore) -> None:
        place = PLACES[Variant.APPEND]
        put_chunks(store, place)
        put(store, place.chunk_key(77), b"others")
        before = keys(store)
        segment = found(store, place)
        assert (segment.found.state, segment.end) == (SegmentState.LOST, 77)
        with pytest.raises(CorruptData, match=r"chunk-77.*chunk-70"):
            segment.read0(70, 10)
        with pytest.raises(CorruptData, match="chunk-77"):
            consolidate(store, place, len(WHOLE))
        with pytest.raises(CorruptData, match="chunk-77"):
            segment.commit0(77, WHOLE[77:])
        assert keys(store) == before


class InterruptedConsolidation:
    """A subclass supplies the fixtures `store`, `network` and `far`, as tests/headwater_core/objectstore/s3/conftest.py has them."""

    SIZES = (5 * MIB, 700, 300)  # the first one is copied by the service, the others are joined and sent

    @BOTH
    @FATES
    def test_a_consolidation_that_ends_at_any_request_is_taken_up_again(
        self, store: S3Store, far: S3Store, network: BadNetwork, place: SegmentPlace, fate: Answer
    ) -> None:
        content, at = Random(3).randbytes(sum(self.SIZES)), 0
        segment = ChunkSegment.open(store, place, chunk_bytes=self.SIZES[0])
        for size_bytes in self.SIZES:
            at = segment.commit0(at, content[at : at + size_bytes])
        chunks = keys(store)

        def check() -> None:
            assert found(store, place).read0(0, len(content)) == content
            state = consolidate(store, place, len(content)).state
            assert state is SegmentState.LEFTOVER
            assert store.stat(place.segment_key).size_bytes == len(content)
            assert found(store, place).read0(0, len(content)) == content
            assert sorted(keys(store)) == sorted([*chunks, place.segment_key])
            assert list(store.unfinished("")) == []
            store.delete(place.segment_key)

        requests = self._interrupted(network, fate, lambda: consolidate(far, place, len(content)), check)
        assert requests > 10

    def _interrupted(
        self, network: BadNetwork, fate: Answer, call: Callable[[], object], check: Callable[[], None], *, step: int = 1
    ) -> int:
        """`call` ends with request 0, 1, ..., after which its process reaches the store no more; `check` follows each time. How many
        requests it takes."""
        for at in count(0, step):
            network.plan.clear()
            network.plan.extend([PASS] * at + [fate])
            network.fate = lambda: LOSE_REQUEST
            before = len(network.passages)
            with suppress(HeadwaterError):
                call()
            is_whole = len(network.passages) - before <= at
            check()
            if is_whole:
                return at
        raise AssertionError


class Interruptions(InterruptedConsolidation):
    @BOTH
    @FATES
    def test_a_deletion_that_ends_at_any_request_is_taken_up_again(
        self, store: S3Store, far: S3Store, network: BadNetwork, place: SegmentPlace, fate: Answer
    ) -> None:
        def prepare() -> None:
            put_chunks(store, place)
            put(store, place.segment_key, WHOLE, said(WHOLE))

        def check() -> None:
            assert found(store, place).read0(0, len(WHOLE)) == WHOLE
            assert delete_chunks(store, place, len(WHOLE)).state is SegmentState.DONE
            assert keys(store) == [place.segment_key]
            store.delete(place.segment_key)
            prepare()

        prepare()
        requests = self._interrupted(network, fate, lambda: delete_chunks(far, place, len(WHOLE)), check, step=4)
        assert requests > len(WHOLE) // CHUNK_BYTES
