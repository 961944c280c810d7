"""A log in one file, for tests of the gateway itself: what it serves is real record batches, what it knows a test sets."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from headwater_core.epochs import EpochHistory
from headwater_core.errors import HeadwaterError, NotFound, OffsetOutOfRange
from headwater_core.partition import PartitionId
from headwater_core.segments.batches import read_batch_header
from hydration.config import ReadPriority
from hydration.logs import KnownTopic, Logs
from hydration.partition_log import Bounds, Isolation, PartitionLog, Pending, ReadResult, Slice
from hydration.runfile import RunFile
from hydration.scope import EpochEnd, epoch_end
from hydration.times import RecordTime

CLUSTER = "fake-cluster"


def a_batch(base_offset: int, values: Sequence[bytes], timestamp_ms: int = 1_000, leader_epoch: int = 0) -> bytes:
    """One uncompressed batch; record n has timestamp `timestamp_ms` + n."""
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1, batch_size=1 << 30
    )
    for at, value in enumerate(values):
        builder.append(at, timestamp_ms + at, b"k", value, [])
    batch = bytearray(builder.build())
    batch[0:8] = base_offset.to_bytes(8, "big")
    batch[12:16] = leader_epoch.to_bytes(4, "big", signed=True)  # neither is under the CRC
    return bytes(batch)


class FakeLog(PartitionLog):
    """Answers from one file. `next_reads` and `next_bounds` are filled with what to answer next instead."""

    def __init__(self, partition: PartitionId, path: Path, batches: Sequence[bytes], leader_epoch: int = 0) -> None:
        self.partition = partition
        self.path = path
        self.leader_epoch = leader_epoch
        self.next_reads: list[Exception | Pending[ReadResult]] = []
        self.next_bounds: list[HeadwaterError] = []
        self.reads = 0
        self.open_results = 0
        path.touch()
        self._ends: list[int] = []  # next offset per batch
        self._positions = [0]
        for batch in batches:
            self.append(batch)

    def append(self, batch: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(batch)
        self._ends.append(read_batch_header(batch).next_offset)
        self._positions.append(self._positions[-1] + len(batch))

    @property
    def end(self) -> int:
        return self._ends[-1] if self._ends else 0

    def bounds(self, isolation: Isolation = Isolation.READ_UNCOMMITTED, *, timeout_s: float | None = 30.0) -> Bounds:
        return Bounds(
            log_start=0,
            local_start=0,
            last_offset=None,
            high_watermark=self.end,
            last_stable_offset=self.end,
            leader_epoch=self.leader_epoch,
        )

    def try_bounds(self, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> Bounds | Pending[Bounds]:
        if self.next_bounds:
            raise self.next_bounds.pop(0)
        return self.bounds(isolation)

    def known_bounds(self, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> Bounds | None:
        return self.bounds(isolation)

    def try_leader_epoch(self) -> int | Pending[int]:
        bounds = self.try_bounds()
        assert isinstance(bounds, Bounds)
        return bounds.leader_epoch

    def read(self, offset: int, max_bytes: int, isolation: Isolation, *, timeout_s: float | None = 30.0) -> ReadResult:
        if not 0 <= offset <= self.end:
            raise OffsetOutOfRange(offset, 0, self.end)
        slices = []
        if offset < self.end:
            first = bisect_right(self._ends, offset)
            last = max(bisect_right(self._positions, self._positions[first] + max_bytes) - 1, first + 1)
            start, end = self._positions[first], self._positions[last]
            slices = [Slice(RunFile.open(self.path), start, end - start)]
        self.open_results += 1
        return CountedResult(slices=slices, high_watermark=self.end, last_stable_offset=self.end, log_start=0, next_offset=offset, log=self)

    def try_read(self, offset: int, max_bytes: int, isolation: Isolation) -> ReadResult | Pending[ReadResult]:
        self.reads += 1
        if self.next_reads:
            answer = self.next_reads.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        return self.read(offset, max_bytes, isolation)

    def offset_for_time(self, timestamp_ms: int, *, now_ms: int | None = None, timeout_s: float | None = 30.0) -> RecordTime | None:
        data = self.path.read_bytes()
        for position in self._positions[:-1]:
            header = read_batch_header(data, position)
            if header.max_timestamp_ms >= timestamp_ms:
                at = max(0, timestamp_ms - header.base_timestamp_ms)
                return RecordTime(header.base_offset + at, header.base_timestamp_ms + at)
        return None

    def epoch_end(self, epoch: int, *, timeout_s: float | None = 30.0) -> EpochEnd:
        return epoch_end(EpochHistory.of([(self.leader_epoch, 0)]), epoch, self.end)


class CountedResult(ReadResult):
    """Tells its log when it is closed, so that a test sees what was not."""

    def __init__(self, *, log: FakeLog, **facts: object) -> None:
        super().__init__(**facts)  # type: ignore[arg-type]
        self._log: FakeLog | None = log

    def close(self) -> None:
        super().close()
        if self._log is not None:
            self._log.open_results -= 1
            self._log = None


class FakeLogs(Logs):
    cluster_id = CLUSTER
    unlisted = None

    def __init__(self, *logs: FakeLog) -> None:
        self._logs = {(log.partition.topic, log.partition.partition): log for log in logs}
        self.refreshes = 0

    def refresh(self) -> None:
        self.refreshes += 1

    def topics(self) -> dict[str, KnownTopic]:
        found: dict[str, KnownTopic] = {}
        for topic, partition in sorted(self._logs):
            before = found[topic].partitions if topic in found else ()
            found[topic] = KnownTopic(topic, self._logs[topic, partition].partition.topic_id, (*before, partition))
        return found

    def try_leader_epoch(self, topic: str, partition: int) -> int | Pending[int]:
        return self.partition(topic, partition).try_leader_epoch()

    def partition(self, topic: str, partition: int, priority: ReadPriority | None = None) -> FakeLog:
        try:
            return self._logs[topic, partition]
        except KeyError:
            raise NotFound(f"{topic}:{partition}") from None

    @contextmanager
    def kept_fresh(self) -> Iterator[None]:
        yield

    def close(self) -> None:
        pass


def a_topic_partition(topic: str, partition: int = 0) -> PartitionId:
    return PartitionId(CLUSTER, (topic.replace(".", "-") + "A" * 22)[:21] + "A", partition, topic)


def on_its_way() -> Pending[ReadResult]:
    """A read that waits for its download until the test completes the future."""
    return Pending(Future())
