"""Objects that hang: they delay only those who need them."""

import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from headwater_core.errors import HeadwaterError
from headwater_core.partition import PartitionId
from hydration.answers import Isolation
from hydration.config import HydrationConfig
from hydration.logs import Logs, open_logs
from manifests.repository import ManifestRepository
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.segments.builders import a_segment
from tests.hydration.world import CLUSTER, TOPIC, TOPIC_ID, Archive, a_topic

HANGING = 8  # partitions, as many as there are workers of a kind
HEALTHY = HANGING
RUN = a_segment(0, 120, value_bytes=20_000)


class HangingStore(MemoryStore):
    """GETs of the data of partitions that `hang` wait for `go`, all of them or those of several chunks."""

    def __init__(self) -> None:
        super().__init__()
        self.hang: range = range(0)
        self.only_runs = False
        self.go = threading.Event()
        self.hung = threading.Semaphore(0)

    def read_into(self, key: str, buffer: memoryview, *, start: int) -> Mapping[str, str]:
        if not self.only_runs:
            self._wait(key)
        return super().read_into(key, buffer, start=start)

    def stream_into(self, key: str, buffers: Sequence[memoryview], *, start: int) -> Generator[None, None, None]:
        self._wait(key)
        yield from super().stream_into(key, buffers, start=start)

    def _wait(self, key: str) -> None:
        if key.endswith(".log") and any(f"/{number}/" in key for number in self.hang):
            self.hung.release()
            assert self.go.wait(60)


@pytest.fixture
def store() -> Iterator[HangingStore]:
    made = HangingStore()
    partitions = [PartitionId(CLUSTER, TOPIC_ID, number, TOPIC) for number in range(HANGING + 1)]
    for each in partitions:
        Archive(made, each).append(RUN)
    ManifestRepository(made).ensure_topic(a_topic(partitions[-1], partitions=len(partitions)))
    yield made
    made.go.set()


@pytest.fixture
def logs(store: HangingStore, tmp_path: Path) -> Iterator[Logs]:
    made = open_logs(HydrationConfig(chunk_bytes=100_000, readahead_chunks=8), store=store, cache_directory=tmp_path / "cache")
    made.refresh()
    yield made
    store.go.set()
    made.close()


def walk(logs: Logs, partition: int, reads: int, offset: int = 0, timeout_s: float = 20.0) -> int:
    log = logs.partition(TOPIC, partition)
    for _ in range(reads):
        with log.read(offset, 100_000, Isolation.READ_UNCOMMITTED, timeout_s=timeout_s) as answer:
            offset = answer.next_offset
    return offset


def test_readers_of_objects_that_hang_stop_no_other_reader(store: HangingStore, logs: Logs) -> None:
    reached = [walk(logs, number, 8) for number in range(HANGING)]  # sequential: what follows is got ready for each

    def stuck(number: int) -> None:
        with suppress(HeadwaterError):
            walk(logs, number, 12, reached[number], 60)

    store.hang = range(HANGING)
    readers = [threading.Thread(target=stuck, args=(number,)) for number in range(HANGING)]
    for each in readers:
        each.start()
    for _ in range(HANGING):
        assert store.hung.acquire(timeout=20)
    assert walk(logs, HEALTHY, 20) == 80
    store.go.set()
    for each in readers:
        each.join()


def test_what_was_fetched_ahead_and_hangs_is_fetched_again_for_a_reader(
    store: HangingStore, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs.hydrator._downloads, "_patience_s", 0.05)
    offset = walk(logs, 0, 8)
    store.hang, store.only_runs = range(1), True
    assert walk(logs, 0, 12, offset) == 80
    assert store.hung.acquire(blocking=False), "nothing was fetched ahead"
