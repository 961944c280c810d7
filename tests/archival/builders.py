"""A broker's directory to write into, and an agent beside it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from archival.partition.announcer import Announcer
from archival.partition.archiver import ArchiverEquipment, Outcome, PartitionArchiver
from archival.partition.looks import CleanerLooks
from archival.partition.release import Releaser
from archival.partition.source import LocalLogs, OpenSegment, open_segment
from archival.partition.tails import Tails
from archival.partition.topics import TopicFacts, TopicRecords
from archival.plan.policy import Policy
from headwater_core.epochs import EpochHistory
from headwater_core.layouts import Offloader, open_layout
from headwater_core.layouts.chunks.upload_pool import UploadPool
from headwater_core.layouts.streaming import OffloadBudget
from headwater_core.objectstore.store import PLAIN, ObjectForm, ObjectStore
from headwater_core.partition import PartitionId, TopicPartition, topic_id_text
from headwater_core.segments import checkpoints
from headwater_core.segments.batches import read_batch_header
from headwater_core.segments.local_log import Generation, Leadership, LocalLog, LocalSegment
from headwater_core.segments.log_dirs import LogDirs
from manifests.archivedrun import ArchivedRun
from manifests.entry import Entry
from manifests.head import Head
from manifests.repository import ManifestRepository
from tests.headwater_core.control.local_control import LocalControl
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.segments.builders import a_segment

PARTITION = PartitionId("kitchen-1", topic_id_text(bytes(range(16))), 0, "soup")
EVERYTHING = Policy(tail_after_ms=0)
SEALED = Policy()


def a_log(
    *bases: int,
    hw: int | None,
    start: int | None = None,
    epochs: Sequence[tuple[int, int]] = ((0, 0),),
    leadership: Leadership | None = None,
    compacted: bool = False,
    settled: bool = True,
) -> LocalLog:
    """A log as one look sees it; the last of `bases` is the active segment's."""
    return LocalLog(
        partition=PARTITION,
        directory=Path("/logs/soup-0"),
        segments=tuple(
            LocalSegment(
                base_offset=base,
                directory=Path("/logs/soup-0"),
                size_bytes=100,
                generation=Generation(base + 1, 1),
                is_active=base == bases[-1],
            )
            for base in bases
        ),
        high_watermark=hw,
        log_start=bases[0] if start is None else start,
        epochs=EpochHistory.of(cut_at(start or 0, epochs)),
        compacted=compacted,
        leadership=leadership,
        settled=settled,
    )


def cut_at(start: int, epochs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """A history as brokers leave it when the log start moves."""
    below = [epoch for epoch, first in epochs if first <= start]
    return [*([(below[-1], start)] if below else []), *(step for step in epochs if step[1] > start)]


def led_by(leader: int, epoch: int, *, node: int = 1, replicas: tuple[int, ...] = (1, 2), in_sync: tuple[int, ...] = (1, 2)) -> Leadership:
    return Leadership(leader=leader, leader_epoch=epoch, node=node, replicas=replicas, in_sync=in_sync)


class Directory:
    """One broker's log directory with one partition in it, written as Kafka would."""

    def __init__(self, root: Path, partition: PartitionId = PARTITION) -> None:
        self.root, self.partition = root, partition
        self._epochs: tuple[tuple[int, int], ...] = ()
        self.path = root / f"{partition.topic}-{partition.partition}"
        self.path.mkdir(parents=True)
        identity = checkpoints.MetaProperties(cluster_id=partition.cluster_id, node_id=1)
        (root / checkpoints.META_PROPERTIES).write_bytes(checkpoints.encode_meta_properties(identity))
        self.incarnate(partition)
        self.epochs((0, 0))

    def incarnate(self, partition: PartitionId) -> None:
        self.partition = partition
        (self.path / checkpoints.PARTITION_METADATA).write_bytes(checkpoints.encode_partition_metadata(partition.topic_id))

    def segment(self, base: int, *batches: bytes) -> Path:
        path = self.path / f"{base:020}.log"
        path.write_bytes(b"".join(batches))
        return path

    def append(self, base: int, *batches: bytes) -> None:
        with (self.path / f"{base:020}.log").open("ab") as file:
            file.write(b"".join(batches))

    def epochs(self, *steps: tuple[int, int]) -> None:
        self._epochs = steps
        (self.path / checkpoints.LEADER_EPOCHS).write_bytes(checkpoints.encode_epochs(EpochHistory.of(steps)))

    def high_watermark(self, offset: int) -> None:
        self._checkpoint(checkpoints.HIGH_WATERMARKS, offset)

    def log_start(self, offset: int) -> None:
        self._checkpoint(checkpoints.LOG_STARTS, offset)
        self.epochs(*cut_at(offset, self._epochs))

    def cleaned(self, offset: int) -> None:
        self._checkpoint(checkpoints.CLEANED, offset)

    def _checkpoint(self, name: str, offset: int) -> None:
        (self.root / name).write_bytes(checkpoints.encode_offsets({self.partition.topic_partition: offset}))


def fill(directory: Directory, *bases: int, end: int, epoch: int = 0) -> bytes:
    """Plain segments of one-record batches from each base to the next, all committed; returns their bytes."""
    runs = [a_segment(base, after - base, epoch=epoch) for base, after in zip(bases, (*bases[1:], end), strict=True)]
    for base, run in zip(bases, runs, strict=True):
        directory.segment(base, run)
    directory.high_watermark(end)
    return b"".join(runs)


@dataclass(frozen=True)
class LogsWithRetention:
    """Log directories of the leader's, beside a metadata log that tells how long tombstones are kept."""

    dirs: LogDirs
    delete_retention_ms: int

    def look(self, partition: TopicPartition) -> LocalLog:
        log = self.dirs.look(partition)
        leadership = led_by(1, log.epochs.starts[-1].epoch if log.epochs.starts else 0)
        return replace(log, compacted=True, delete_retention_ms=self.delete_retention_ms, leadership=leadership)


@dataclass
class Agent:
    """An agent beside `root`. Another one with the same store and writer is the same agent after a restart."""

    root: Path
    store: ObjectStore = field(default_factory=MemoryStore)
    writer: str = "agent-a"
    partition: PartitionId = PARTITION
    clock: ManualClock = field(default_factory=ManualClock)
    control: LocalControl = field(default_factory=LocalControl)
    owned: bool = True
    looks_file: Path | None = None
    delete_retention_ms: int | None = None
    open_segment: OpenSegment = open_segment
    runs_max: int = 1
    layout: str = "segment"
    offloader: Offloader | None = None  # instead of a layout with its defaults

    def __post_init__(self) -> None:
        self.uids = 0
        self.budget = OffloadBudget(1 << 20)
        self.pool = UploadPool()
        self.looks = CleanerLooks(self.looks_file, self.clock)
        self.logs = LogDirs([self.root], owned=self.owned)
        self.repository = ManifestRepository(self.store)
        self.archiver = self.archiver_of(self.partition)
        self.releaser = Releaser(logs=self.logs, repository=self.repository, writer=self.writer, owned=self.owned)

    def archiver_of(self, partition: PartitionId, logs: LocalLogs | None = None) -> PartitionArchiver:
        own: LocalLogs = self.logs if self.delete_retention_ms is None else LogsWithRetention(self.logs, self.delete_retention_ms)
        equipment = ArchiverEquipment(
            logs=logs or own,
            store=self.store,
            repository=self.repository,
            announcer=Announcer(self.control, self.clock),
            topics=TopicRecords(self.repository, lambda _: TopicFacts(partitions=1, configs={})),
            tails=Tails(None, self.clock),
            looks=self.looks,
            writer=self.writer,
            new_uid=self._new_uid,
            open_segment=self.open_segment,
            runs_max=self.runs_max,
            budget=self.budget,
            pool=self.pool,
        )
        return PartitionArchiver(partition, equipment, self.offloader or open_layout(self.layout))

    def _new_uid(self) -> str:
        self.uids += 1
        return f"{sum(self.writer.encode()):016x}{self.uids:016x}"

    def step(self, policy: Policy = EVERYTHING) -> Outcome:
        return self.archiver.step(policy)

    def run(self, policy: Policy = EVERYTHING) -> list[str]:
        """Step until idle; what was done, the reason for the rest last."""
        return run(self.archiver, policy)

    def archive_all(self) -> None:
        """Everything in the directory that may be archived."""
        for log in self.logs.partitions():
            run(self.archiver_of(log.partition), EVERYTHING)

    @property
    def head(self) -> Head:
        return load(self.store, self.partition)


def run(archiver: PartitionArchiver, policy: Policy) -> list[str]:
    done: list[str] = []
    while (outcome := archiver.step(policy)).progressed:
        done.append(outcome.action)
    return [*done, outcome.reason]


def load(store: ObjectStore, partition: PartitionId) -> Head:
    held = ManifestRepository(store).load(partition)
    assert held is not None, f"{partition} has no head"
    return held.head


def ranges(entries: Iterable[Entry]) -> list[tuple[int, int]]:
    return [(entry.base_offset, entry.last_offset) for entry in entries]


def batches_of(store: ObjectStore, entry: Entry) -> list[bytes]:
    """The live batches of one entry, byte for byte."""
    raw = ArchivedRun(store, entry).read(entry.live_bytes)
    found, position = [], 0
    while position < len(raw):
        end = position + read_batch_header(raw, position).size_bytes
        found.append(raw[position:end])
        position = end
    return found


def live_bytes(store: ObjectStore, head: Head) -> bytes:
    return b"".join(batch for entry in head.entries if not entry.gap for batch in batches_of(store, entry))


def place(topic: str, partition: int = 0) -> TopicPartition:
    return TopicPartition(topic, partition)


class SendingStore(MemoryStore):
    """`sending` hears of each data object before it is stored, by its key."""

    sending: Callable[[str], object] = staticmethod(lambda key: None)

    def put(self, key: str, data: BinaryIO, *, size_bytes: int, form: ObjectForm = PLAIN) -> str:
        if key.endswith(".log"):
            self.sending(key)
        return super().put(key, data, size_bytes=size_bytes, form=form)


def number_of(key: str) -> int:
    """The partition of a data object."""
    return int(key.split("/")[4])
