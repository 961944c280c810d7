"""A broker's log directory, a bucket, and the readers over both, for tests to arrange as they like."""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from headwater_core.clock import Clock, SystemClock
from headwater_core.epochs import EpochHistory
from headwater_core.layouts import NewRun, open_layout
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId, topic_id_text
from headwater_core.segments.local_log import LocalLog
from headwater_core.segments.log_dirs import LogDirs
from headwater_core.segments.run_scan import OpenTransaction, scan_run
from hydration.answers import Isolation
from hydration.config import HydrationConfig, ReadPriority
from hydration.logs import Logs, open_logs
from hydration.partition_log import PartitionLog
from hydration.reader import records
from manifests import keys
from manifests.entry import Entry
from manifests.entry_tree import EntryTree
from manifests.head import Head
from manifests.index import ManifestIndex
from manifests.repository import ManifestRepository, Versioned
from manifests.topic import TopicManifest
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.objectstore.meter import MeteredStore

CLUSTER = "test-cluster"
TOPIC = "soup"
TOPIC_ID = topic_id_text(bytes(range(16)))
PARTITION = PartitionId(CLUSTER, TOPIC_ID, 0, TOPIC)


def a_topic(partition: PartitionId = PARTITION, *, partitions: int = 1) -> TopicManifest:
    return TopicManifest(cluster_id=partition.cluster_id, topic=partition.topic, topic_id=partition.topic_id, partitions=partitions)


@dataclass
class Archive:
    """The bucket's side: uploads runs and commits heads, as the archiver would."""

    store: ObjectStore
    partition: PartitionId = PARTITION
    held: Versioned | None = None
    uploads: int = 0
    layout: str = "segment"  # of what is uploaded next
    repository: ManifestRepository = field(init=False)

    def __post_init__(self) -> None:
        self.repository = ManifestRepository(self.store)
        self.repository.ensure_owner(self.partition.cluster_id)

    @property
    def head(self) -> Head:
        assert self.held is not None
        return self.held.head

    def upload(self, run: bytes, open_before: Sequence[OpenTransaction] = (), *, base_offset: int | None = None) -> Entry:
        """An entry for `run`, its objects in the bucket; from `base_offset` on where compaction took what was there before it."""
        scan = scan_run(io.BytesIO(run), start=0, end=len(run), open_before=open_before, where="run")
        assert scan is not None
        self.uploads += 1
        uid = f"{self.uploads:032x}"
        base_offset = scan.base_offset if base_offset is None else base_offset
        key = keys.data(self.partition, base_offset, scan.last_offset, 1, uid, self.layout)
        new = NewRun(self.partition, base_offset, scan.last_offset, key, keys.index(key), io.BytesIO(run), scan)
        (done,) = open_layout(self.layout).offload(self.store, [new], {})
        return Entry(
            base_offset=base_offset,
            last_offset=scan.last_offset,
            epochs=scan.epochs,
            first_timestamp_ms=scan.first_timestamp_ms,
            last_timestamp_ms=scan.last_timestamp_ms,
            records=scan.records,
            uid=uid,
            fence=1,
            key=key,
            size_bytes=done.size_bytes,
            live_bytes=done.run_bytes,
            digest=done.digest,
            held_bytes=done.run_bytes if done.is_wrapped else 0,
            held_digest=done.run_digest if done.is_wrapped else "",
            index_key=keys.index(key),
            index_bytes=done.index_bytes,
            index_digest=done.index_digest,
            layout=self.layout,
            context=done.context,
            open_from=scan.open_from,
            aborted=len(scan.aborted),
            aborted_from=scan.aborted_from,
        )

    def append(self, *runs: bytes, base_offset: int | None = None) -> None:
        """Upload and commit runs after what is there, transactions carried from run to run. `base_offset` is the first one's."""
        for run in runs:
            entries = self.held.head.entries if self.held else ()
            carried: Sequence[OpenTransaction] = ()
            if entries and not entries[-1].gap:
                last = entries[-1]
                index = open_layout(last.layout).read_offloaded(self.store, last).read_index()
                carried = index.open_transactions
            self.commit(*entries, self.upload(run, carried, base_offset=entries[-1].next_offset if entries else base_offset))

    def commit(self, *entries: Entry, start_offset: int | None = None, leader_epoch: int | None = None) -> None:
        """A head that lists exactly these."""
        first = start_offset if start_offset is not None else entries[0].base_offset
        epochs = [epoch for entry in entries for epoch, _ in entry.epochs]
        head = Head(
            cluster_id=self.partition.cluster_id,
            topic=self.partition.topic,
            topic_id=self.partition.topic_id,
            partition=self.partition.partition,
            version=1,
            commit_id="x",
            fence=1,
            writer="test",
            leader_epoch=max(epochs, default=-1) if leader_epoch is None else leader_epoch,
            start_offset=first,
            last_offset=entries[-1].last_offset if entries else first - 1,
            entries=EntryTree(entries),
        )
        if self.held is None:
            self.repository.ensure_topic(a_topic(self.partition, partitions=self.partition.partition + 1))
        self.held = self.repository.commit(self.held, head)

    def replace(self, at: int, **changes: object) -> None:
        """Commit the same entries with the one at index `at` changed."""
        entries = list(self.head.entries)
        entries[at] = msgspec.structs.replace(entries[at], **changes)
        self.commit(*entries, start_offset=self.head.start_offset)


class Broker:
    """The directory's side: writes what Kafka would."""

    def __init__(self, root: Path, partition: PartitionId = PARTITION) -> None:
        self.root = root
        self.partition = partition
        self.directory = root / f"{partition.topic}-{partition.partition}"
        self.directory.mkdir(parents=True)
        (root / "meta.properties").write_text(f"version=1\ncluster.id={partition.cluster_id}\nnode.id=1\ndirectory.id=x\n")
        (self.directory / "partition.metadata").write_text(f"version: 0\ntopic_id: {partition.topic_id}\n")

    def path(self, base_offset: int, suffix: str = "log") -> Path:
        return self.directory / f"{base_offset:020}.{suffix}"

    def write(self, base_offset: int, run: bytes) -> None:
        self.path(base_offset).write_bytes(run)

    def append(self, base_offset: int, run: bytes) -> None:
        with self.path(base_offset).open("ab") as file:
            file.write(run)

    def drop(self, base_offset: int) -> None:
        for path in self.directory.glob(f"{base_offset:020}.*"):
            path.unlink()

    def set_high_watermark(self, offset: int) -> None:
        self._checkpoint("replication-offset-checkpoint", offset)

    def set_log_start(self, offset: int) -> None:
        self._checkpoint("log-start-offset-checkpoint", offset)

    def set_recovery_point(self, offset: int) -> None:
        self._checkpoint("recovery-point-offset-checkpoint", offset)

    def set_cleaned(self, offset: int) -> None:
        self._checkpoint("cleaner-offset-checkpoint", offset)

    def set_epochs(self, epochs: EpochHistory) -> None:
        lines = "".join(f"{epoch} {first}\n" for epoch, first in epochs.starts)
        (self.directory / "leader-epoch-checkpoint").write_text(f"0\n{len(epochs.starts)}\n{lines}")

    def look(self) -> LocalLog:
        return LogDirs([self.root]).look(self.partition.topic_partition)

    def _checkpoint(self, name: str, offset: int) -> None:
        path = self.root / f"{name}.tmp"
        path.write_text(f"0\n1\n{self.partition.topic} {self.partition.partition} {offset}\n")
        path.rename(self.root / name)


class World:
    """One partition, its readers, and everything a test wants to break. Close it."""

    def __init__(
        self,
        root: Path,
        *,
        local: bool = True,
        store: ObjectStore | None = None,
        clock: Clock | None = None,
        priority: ReadPriority = ReadPriority.LOCAL_FIRST,
        cache_bytes: int = 1 << 30,
        cache_ttl_s: float = 3600.0,
        chunk_bytes: int = 64 << 10,
        readahead_chunks: int = 0,
        lmdb: bool = False,
    ) -> None:
        self.root = root
        self.store = MeteredStore(store or MemoryStore(), log_calls=10_000)
        self.archive = Archive(self.store)
        self.broker = Broker(root / "kafka")
        self.local = local
        self.clock = clock or SystemClock()
        self.priority = priority  # may be changed at any time
        self.config = HydrationConfig(
            read_priority=priority,
            cache_bytes=cache_bytes,
            cache_ttl_s=cache_ttl_s,
            chunk_bytes=chunk_bytes,
            readahead_chunks=readahead_chunks,
        )
        self.index = ManifestIndex(root / "index") if lmdb else None
        self._logs: Logs | None = None

    @property
    def logs(self) -> Logs:
        """Opened when first asked for."""
        if self._logs is None:
            self._logs = open_logs(
                self.config,
                store=self.store,
                cache_directory=self.root / "cache",
                dirs=LogDirs([self.broker.root]) if self.local else None,
                index=self.index,
                clock=self.clock,
                priority_for=lambda _: self.priority,
                damage_path=self.root / "damage.json",
            )
            self._logs.refresh()
        return self._logs

    @property
    def log(self) -> PartitionLog:
        return self.logs.partition(TOPIC, 0)

    def restart(self) -> None:
        self.close()

    def close(self) -> None:
        if self._logs is not None:
            self._logs.close()
            self._logs = None

    def gets(self, suffix: str = ".log") -> int:
        """How many requests read data objects."""
        return sum(1 for call in self.store.log if call.operation == "read_into" and call.key.endswith(suffix))

    def read_all(self, isolation: Isolation = Isolation.READ_UNCOMMITTED, first: int = 0, *, max_bytes: int = 1 << 20) -> list[int]:
        """The offsets of everything that can be read."""
        return [each.record.offset for each in records(self.log, first, isolation=isolation, max_bytes=max_bytes)]
