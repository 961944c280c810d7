"""How long one partition waits beside others when there is more to archive than can be: one at full speed beside 999 that are all behind.

    python -m bench.fairness [--partitions 999] [--scratch DIR]

The agent's own scheduler and archivers, over a directory. The 999 have segments of 1 KiB, the one has segments of 8 MiB, and whenever one
of them is archived the next two of that partition are sealed already. A partition's fair share is one thousandth of all turns, where a
step counts as one turn and one more for each MiB (archival/schedule/due_queue.py); the longest wait is between two commits of one of
the 999.
Once all keep their logs for as long, and once the broker's retention takes the one's first: then it gets every other turn.
"""

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import structlog
from rich.console import Console
from rich.table import Table

from archival.fleet import ArchiverFleet, FleetEquipment
from archival.schedule.due_queue import QUANTUM_BYTES
from archival.schedule.scheduler import Scheduler
from bench.logs import CLUSTER, Shape, make_batch
from bench.partitions import BATCH_RECORDS, WRITER, Partitions
from headwater_core.clock import SystemClock
from headwater_core.control.config import ControlConfig
from headwater_core.control.supervisor import ControlSupervisor
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.objectstore.probe import probe_store
from headwater_core.partition import PartitionId, TopicPartition, topic_id_text
from headwater_core.segments.local_log import LocalLog
from headwater_core.segments.log_dirs import LogDirs
from headwater_core.segments.metadata.cluster_metadata import Retention
from manifests.head import Head
from manifests.repository import ManifestRepository

AHEAD = 2  # sealed segments of each partition
ROUNDS = 3  # every partition is served so often, at least
BATCHES = 8  # in each of its segments
BATCH = Shape(topic="", partitions=1, batch_records=16, value_bytes=64 << 10, partition_bytes=0, segment_bytes=0)
FOR_EVER = 10**12
ONE = "full-speed"
LIMIT_S = 600.0


class FullSpeed:
    """The partition whose log grows as fast as it is archived; what is archived is deleted, by a broker's retention."""

    def __init__(self, directory: Path) -> None:
        self._path, self._batch, self._sealed = directory / f"{ONE}-0", make_batch(BATCH, random.Random(1)), 0
        self._path.mkdir()
        (self._path / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id_text((FOR_EVER).to_bytes(16, 'big'))}")
        (self._path / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
        checkpoint = directory / "replication-offset-checkpoint"
        version, count, *lines = checkpoint.read_text().splitlines()
        checkpoint.write_text("\n".join((version, str(int(count) + 1), *lines, f"{ONE} 0 {FOR_EVER}\n")))
        self.seal(AHEAD)

    def seal(self, times: int = 1) -> None:
        for _ in range(times):
            base = self._sealed * BATCHES * BATCH.batch_records
            with self._segment(base).open("wb") as file:
                for at in range(BATCHES):
                    file.write((base + at * BATCH.batch_records).to_bytes(8, "big"))
                    file.write(self._batch[8:])
            self._sealed += 1
            self._segment(self._sealed * BATCHES * BATCH.batch_records).touch()

    def drop(self, base_offset: int) -> None:
        self._segment(base_offset).unlink()

    def _segment(self, base_offset: int) -> Path:
        return self._path / f"{base_offset:020}.log"


class Logs(LogDirs):
    """With the retention that a broker's metadata log would give."""

    urgent = False

    def look(self, topic_partition: TopicPartition) -> LocalLog:
        hours = 1 if self.urgent and topic_partition.topic == ONE else 168
        return replace(super().look(topic_partition), retention=Retention(hours * 3600 * 1000, None))


@dataclass
class Commits:
    """When each of the 999 was served since all of them were claimed, and what was done for everybody. Safe to use from many threads."""

    others: Partitions
    one: FullSpeed
    archive: Path
    lock: threading.Lock = field(default_factory=threading.Lock)
    served_s: dict[PartitionId, list[float]] = field(default_factory=dict)  # of the 999
    waits_for: int = 0  # of these, how many are to be served again
    began_s: float | None = None
    ended_s: float | None = None
    turns: int = 0
    sent_bytes: int = 0
    ended: threading.Event = field(default_factory=threading.Event)

    def committed(self, head: Head) -> None:
        """Let the log grow by what was archived, and count."""
        now_s = time.monotonic()
        entry = head.entries[-1] if head.entries else None
        if entry and head.topic == ONE:
            (self.archive / entry.key).unlink()
            self.one.seal()
            self.one.drop(entry.base_offset)
        elif entry:
            self.others.roll(head.partition_id, head.last_offset + 1 + AHEAD * BATCH_RECORDS - BATCH_RECORDS)
        with self.lock:
            if self.ended_s is None:
                self._count(head, entry.size_bytes if entry else 0, now_s)

    def _count(self, head: Head, sent_bytes: int, now_s: float) -> None:
        if self.began_s is not None:
            self.turns += 1 + sent_bytes // QUANTUM_BYTES
            self.sent_bytes += sent_bytes
        if head.topic == ONE:
            return
        served = self.served_s.setdefault(head.partition_id, [])
        if self.began_s is not None:
            served.append(now_s)
            if len(served) == ROUNDS:
                self.waits_for -= 1
            if not self.waits_for:
                self.ended_s = now_s
                self.ended.set()
        elif len(self.served_s) == self.others.count:
            self.began_s, self.waits_for = now_s, self.others.count

    def longest_wait_s(self) -> float:
        assert self.began_s is not None
        assert self.ended_s is not None
        times = ((self.began_s, *served, self.ended_s) for served in self.served_s.values())
        return max(after - before for each in times for before, after in pairwise(each))


class NothingHappens:
    """One rescan, at the beginning."""

    def wait(self, stop: threading.Event, rescan_s: float) -> Collection[TopicPartition] | None:
        stop.wait()
        return ()


def measure(root: Path, others: int, *, urgent: bool) -> tuple[str, ...]:
    partitions = Partitions(root / "log", others, AHEAD)
    partitions.make()
    partitions.checkpoint(dict.fromkeys(partitions, FOR_EVER))
    store = DirectoryStore(root / "archive")
    probe_store(store)
    ManifestRepository(store).ensure_owner(CLUSTER)
    commits = Commits(partitions, FullSpeed(partitions.directory), root / "archive")
    control = ControlSupervisor(root / "state", ControlConfig(), clock=SystemClock())
    logs = Logs([partitions.directory])
    logs.urgent = urgent
    fleet = ArchiverFleet(
        FleetEquipment(
            dirs=logs,
            store=store,
            repository=ManifestRepository(store),
            control=control,
            settings_for=lambda topic: fleet.settings(),
            data_dir=root / "state",
            owned=False,
            writer=WRITER,
            clock=SystemClock(),
        )
    )
    fleet.committed = commits.committed
    stop = threading.Event()
    scheduler = Scheduler(fleet, clock=SystemClock(), random=random.Random(1))
    running = threading.Thread(target=scheduler.run, args=(NothingHappens(), stop))
    running.start()
    try:
        if not commits.ended.wait(LIMIT_S):
            sys.exit(f"not after {LIMIT_S} s: {commits.turns} turns")
    finally:
        stop.set()
        running.join()
        control.close()
    assert commits.began_s is not None
    assert commits.ended_s is not None
    took_s = commits.ended_s - commits.began_s
    share_s, longest_s = took_s * (others + 1) / commits.turns, commits.longest_wait_s()
    return (
        "retention takes its log first" if urgent else "all keep their logs for as long",
        f"{commits.turns / took_s:,.0f}",
        f"{commits.sent_bytes / took_s / 1e6:,.0f}",
        f"{share_s:.2f} s",
        f"{longest_s:.2f} s",
        f"{longest_s / share_s:.2f}",
        "≤ 3",
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--partitions", type=int, default=999)
    parser.add_argument("--scratch", type=Path, default=None)
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    title = f"one partition at full speed beside {given.partitions} that are behind"
    table = Table("the one", "turns/s", "MB/s", "fair share", "longest wait", "ratio", "aim", title=title)
    for urgent in (False, True):
        with tempfile.TemporaryDirectory(prefix="headwater-bench-", dir=given.scratch) as scratch:
            table.add_row(*measure(Path(scratch), given.partitions, urgent=urgent))
    Console(width=None if sys.stdout.isatty() else 150).print(table)


if __name__ == "__main__":
    main()
