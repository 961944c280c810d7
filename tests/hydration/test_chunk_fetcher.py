"""Neighbouring chunks by one GET: each is checked, kept and answered for on its own."""

from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from msgspec import structs

from headwater_core.errors import CorruptData, TransientError, TruncatedData
from hydration.answers import Isolation
from hydration.archive.chunk_fetcher import check_chunk
from hydration.archive.chunks import Chunk, ChunkPlan
from hydration.archive.hydrator import Hydrator
from hydration.cache.blocks import Blocks
from hydration.resumption import run_blocking
from hydration.runfile import RunFile
from manifests.entry import Entry
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.segments.builders import a_segment
from tests.hydration.flaky_store import FlakyStore
from tests.hydration.world import PARTITION, World

AWorld = Callable[..., World]
UNCOMMITTED = Isolation.READ_UNCOMMITTED
RUN = a_segment(0, 60, value_bytes=20_000)  # points, so chunks, lie 80 KiB apart
CHUNK_BYTES = 100_000  # holds one of them, so that a block does


class Cold:
    """A run of which nothing is cached but its index."""

    def __init__(self, a_world: AWorld) -> None:
        self.store = FlakyStore()
        self.world = a_world(local=False, store=self.store, chunk_bytes=CHUNK_BYTES, readahead_chunks=8)
        self.world.archive.append(RUN)
        self.open()

    def open(self) -> None:
        self.entry: Entry = self.world.archive.head.entries[0]
        self.plan: ChunkPlan = run_blocking(self.hydrator.plan(PARTITION, self.entry), 20)
        self.world.store.reset()
        self._before = self.hydrator.counters.downloaded_bytes

    @property
    def downloaded_bytes(self) -> int:
        return self.hydrator.counters.downloaded_bytes - self._before

    @property
    def hydrator(self) -> Hydrator:
        return self.world.logs.hydrator

    @property
    def blocks(self) -> Blocks:
        return self.hydrator._fetcher._blocks

    def get_ready(self, chunks: Sequence[Chunk]) -> None:
        self.hydrator.read_ahead(PARTITION, self.entry, chunks)

    def read(self, chunk: Chunk) -> bytes:
        file: RunFile = run_blocking(self.hydrator.chunk(PARTITION, self.entry, chunk), 20)
        try:
            return file.read(0, chunk.size_bytes)
        finally:
            file.release()

    def expect(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            assert self.read(chunk) == RUN[chunk.position : chunk.end]


@pytest.fixture
def cold(a_world: AWorld) -> Cold:
    return Cold(a_world)


def test_a_run_is_one_get_and_a_reader_in_between_joins_it(cold: Cold) -> None:
    cold.store.go.clear()
    cold.get_ready(cold.plan.chunks[2:6])
    assert cold.store.arrived.acquire(timeout=20)
    pending = [cold.world.log.try_read(chunk.first_offset, 1, UNCOMMITTED) for chunk in cold.plan.chunks[2:6]]
    cold.store.go.set()
    for each in pending:
        each.future.result(20).close()  # type: ignore[union-attr]
    cold.expect(cold.plan.chunks[2:6])
    assert cold.world.gets() == 1
    assert cold.downloaded_bytes == sum(chunk.size_bytes for chunk in cold.plan.chunks[2:6])


def test_what_is_there_or_in_flight_is_not_fetched_again(cold: Cold) -> None:
    cold.read(cold.plan.chunks[3])
    cold.store.go.clear()
    cold.get_ready(cold.plan.chunks[4:6])
    cold.get_ready(cold.plan.chunks[1:8])
    cold.store.go.set()
    cold.expect(cold.plan.chunks[1:8])
    assert cold.downloaded_bytes == sum(chunk.size_bytes for chunk in cold.plan.chunks[1:8])
    assert cold.world.gets() == 4  # 3; 4 and 5; 1 and 2; 6 and 7


def test_what_an_earlier_process_left_is_checked_and_not_fetched(cold: Cold) -> None:
    cold.read(cold.plan.chunks[2])
    cold.read(cold.plan.chunks[3])
    name = next(iter(Path(cold.world.root / "cache").rglob(f"*.{cold.plan.chunks[3].position}-*.run")))
    cold.world.restart()
    name.write_bytes(bytes(name.stat().st_size))
    cold.open()
    cold.get_ready(cold.plan.chunks[1:5])
    cold.expect(cold.plan.chunks[1:5])
    assert cold.downloaded_bytes == sum(cold.plan.chunks[at].size_bytes for at in (1, 3, 4))


def test_a_chunk_that_is_damaged_on_the_way_is_fetched_again_alone(cold: Cold) -> None:
    arrivals = iter([False, True])

    def spoil(key: str, buffer: memoryview) -> None:
        if key.endswith(".log") and next(arrivals, False):
            buffer[70] ^= 1

    cold.store.spoil = spoil
    cold.get_ready(cold.plan.chunks[:4])
    cold.expect(cold.plan.chunks[:4])
    assert cold.hydrator.counters.damaged == 1
    assert cold.blocks.taken == 0
    assert cold.world.gets() == 2
    assert cold.downloaded_bytes == sum(chunk.size_bytes for chunk in (*cold.plan.chunks[:4], cold.plan.chunks[1]))


def test_one_that_stays_damaged_spoils_no_other(cold: Cold) -> None:
    damaged = cold.plan.chunks[1]
    content = RUN[damaged.position : damaged.end]

    def spoil(key: str, buffer: memoryview) -> None:
        if buffer == content:
            buffer[70] ^= 1

    cold.store.spoil = spoil
    cold.get_ready(cold.plan.chunks[:4])
    with pytest.raises(CorruptData):
        cold.read(damaged)
    gets = cold.world.gets()
    cold.expect([chunk for chunk in cold.plan.chunks[:4] if chunk is not damaged])
    assert cold.world.gets() == gets


def test_when_the_connection_breaks_what_has_come_is_kept_and_the_rest_can_be_asked_for(cold: Cold) -> None:
    answers = iter([None, None, TransientError("the line is dead")])
    cold.store.refuse = lambda operation, key: next(answers, None) if key.endswith(".log") else None
    cold.get_ready(cold.plan.chunks[:4])
    for chunk in cold.plan.chunks[:2]:
        cold.expect([chunk])
    assert cold.world.gets() == 1
    for chunk in cold.plan.chunks[2:4]:
        with suppress(TransientError):  # who was quick enough to join it hears of it
            cold.read(chunk)
    cold.expect(cold.plan.chunks[:4])
    assert cold.blocks.taken == 0
    assert cold.world.gets() == 3


def test_an_object_that_ends_too_early_spoils_only_what_it_lacks(cold: Cold, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 says so at once, before the first byte of the run."""
    chunks = cold.plan.chunks[:4]
    content = cold.store.get(cold.entry.key)[0][: chunks[2].end - 10]
    cold.store.delete(cold.entry.key)
    cold.store.create(cold.entry.key, content)

    def stream_into(key: str, buffers: Sequence[memoryview], *, start: int) -> Generator[None, None, None]:
        if start + sum(map(len, buffers)) > len(content):
            raise TruncatedData(key, len(content), "it ends here")
        yield from MemoryStore.stream_into(cold.store, key, buffers, start=start)

    monkeypatch.setattr(cold.store, "stream_into", stream_into)
    cold.get_ready(chunks)
    cold.expect(chunks[:2])
    for chunk in chunks[2:]:
        with pytest.raises(CorruptData):
            cold.read(chunk)
    assert cold.blocks.taken == 0


def test_with_too_few_blocks_the_rest_comes_one_by_one(a_world: AWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hydration.archive.chunk_fetcher.BLOCKS_BYTES_MAX", 4 * 102_400)  # half of them at most
    cold = Cold(a_world)
    cold.get_ready(cold.plan.chunks[:4])
    cold.expect(cold.plan.chunks[:4])
    assert cold.world.gets() == 3


def test_a_reader_that_continues_gets_several_chunks_a_request_and_every_byte_once(cold: Cold) -> None:
    assert cold.world.read_all(max_bytes=30_000) == list(range(60))
    assert cold.world.gets() < len(cold.plan.chunks)
    assert cold.downloaded_bytes == len(RUN)


@pytest.mark.parametrize("wrong", [{"last_offset": 58}, {"base_offset": 1}])
@pytest.mark.parametrize("in_memory", [False, True])
def test_batches_of_other_offsets_than_the_manifest_says_are_damage(cold: Cold, wrong: dict[str, int], in_memory: bool) -> None:
    """Their checksums are right: an object under the key of another."""
    chunk = replace(cold.plan.chunks[0], first_offset=wrong.get("base_offset", 0), position=0, size_bytes=len(RUN))
    entry = structs.replace(cold.entry, last_offset=wrong.get("last_offset", cold.entry.last_offset))
    good = replace(chunk, first_offset=0)
    check_chunk(memoryview(RUN) if in_memory else BytesIO(RUN), cold.entry, good)
    with pytest.raises(CorruptData, match="expected"):
        check_chunk(memoryview(RUN) if in_memory else BytesIO(RUN), entry, chunk)
