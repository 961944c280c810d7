"""A broker's log directory with many partitions, written by hand, and what archives it without threads or a real clock."""

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from archival.broker import broker_view
from archival.config import ArchivalConfig
from archival.fleet import ArchiverFleet, FleetEquipment
from archival.known_pauses import KnownPauses
from archival.plan.policy import Policy
from archival.schedule.scheduler import Scheduler
from archival.schedule.store_breaker import heard
from headwater_core.epochs import EpochHistory
from headwater_core.objectstore.guard import GuardedStore
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId, TopicPartition, topic_id_text
from headwater_core.segments import checkpoints
from headwater_core.segments.log_dirs import LogDirs
from manifests.head import Head
from manifests.repository import ManifestRepository
from tests.headwater_core.control.local_control import LocalControl
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.segments.builders import a_segment

CLUSTER = "kitchen-1"


def topic_id(topic: str, incarnation: int = 0) -> str:
    return topic_id_text(f"{incarnation}{topic}".encode().ljust(16)[:16])


class Broker:
    """Segments hold ten records each; the last one of a partition is active, and all before it is committed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True)
        identity = checkpoints.MetaProperties(cluster_id=CLUSTER, node_id=1)
        (root / checkpoints.META_PROPERTIES).write_bytes(checkpoints.encode_meta_properties(identity))
        self._high_watermarks: dict[TopicPartition, int] = {}

    def partition(self, topic: str, *numbers: int, segments: int = 2, incarnation: int = 0) -> None:
        for number in numbers:
            path = self.directory(topic, number)
            path.mkdir()
            (path / checkpoints.PARTITION_METADATA).write_bytes(checkpoints.encode_partition_metadata(topic_id(topic, incarnation)))
            (path / checkpoints.LEADER_EPOCHS).write_bytes(checkpoints.encode_epochs(EpochHistory.of(((0, 0),))))
            self.roll(topic, number, segments)

    def directory(self, topic: str, number: int) -> Path:
        return self.root / f"{topic}-{number}"

    def drop(self, topic: str, *numbers: int) -> None:
        """The partitions are deleted."""
        for number in numbers:
            shutil.rmtree(self.directory(topic, number))
            del self._high_watermarks[TopicPartition(topic, number)]
        self.checkpoint()

    def roll(self, topic: str, number: int, times: int = 1) -> None:
        """So many new segments."""
        for _ in range(times):
            base = 10 * len(self.segments(topic, number))
            (self.directory(topic, number) / f"{base:020}.log").write_bytes(a_segment(base, 10))
            self._high_watermarks[TopicPartition(topic, number)] = base
        self.checkpoint()

    def commit(self, topic: str, number: int, high_watermark: int) -> None:
        self._high_watermarks[TopicPartition(topic, number)] = high_watermark
        self.checkpoint()

    def drop_history(self, topic: str, number: int, log_start: int) -> None:
        """As a broker does when its retention has moved the log start."""
        path = self.directory(topic, number) / checkpoints.LEADER_EPOCHS
        path.write_bytes(checkpoints.encode_epochs(EpochHistory.of(((0, log_start),))))

    def wait(self) -> None:
        """Long enough for file stamps to tell old from new."""
        for path in [*self.root.iterdir(), *self.root.glob("*/leader-epoch-checkpoint")]:
            if path.stat().st_mtime > time.time() - 5:
                os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 10))

    def segments(self, topic: str, number: int) -> Sequence[Path]:
        return sorted(self.directory(topic, number).glob("*.log"))

    def checkpoint(self) -> None:
        partial = self.root / "checkpoint.tmp"
        partial.write_bytes(checkpoints.encode_offsets(self._high_watermarks))
        partial.rename(self.root / checkpoints.HIGH_WATERMARKS)


class Bench:
    """An agent's archivers over `broker`, and its scheduler, on a manual clock."""

    def __init__(
        self,
        root: Path,
        store: ObjectStore | None = None,
        *,
        owned: bool = False,
        heeds_pauses: bool = False,
        asked: broker_view.Broker | None = None,
    ) -> None:
        self.root, self.broker, self.control, self._asked = root, Broker(root / "log"), LocalControl(), asked
        self.store = store or MemoryStore()
        self.clock, self.settings, self._owned = ManualClock(), ArchivalConfig(), owned
        self._heeds_pauses = heeds_pauses
        self.free_bytes: list[int] = []  # of the log directory's disk
        self.settings_of: dict[str, ArchivalConfig] = {}  # topics that have their own
        (root / "state").mkdir()
        self.start()

    def start(self) -> None:
        """The agent starts, for the first time or again."""
        audible = GuardedStore(self.store, heard)
        self.pauses = KnownPauses(ManifestRepository(audible), self.clock)
        self.fleet = ArchiverFleet(
            FleetEquipment(
                dirs=LogDirs([self.broker.root], owned=self._owned),
                store=audible,
                repository=ManifestRepository(audible),
                control=self.control,
                settings_for=lambda topic: self.settings_of.get(topic, self.settings),
                settings=lambda: self.settings,
                data_dir=self.root / "state",
                owned=self._owned,
                writer="agent-a",
                clock=self.clock,
                pauses=self.pauses if self._heeds_pauses else None,
                broker=self._asked,
                free_bytes=lambda: self.free_bytes,
            )
        )
        self.scheduler = Scheduler(self.fleet, clock=self.clock, random=Random(7), policy_for=Policy.of, settings=self.fleet.settings)
        self.pauses.changed = self.scheduler.reconsider

    def turns(self, most: int = 1000) -> int:
        """Turns until nothing is due; how many that took."""
        for turn in range(most):
            if not self.scheduler.turn():
                return turn
        raise AssertionError(f"still at work after {most} turns")

    def head(self, topic: str, number: int, incarnation: int = 0) -> Head | None:
        held = ManifestRepository(self.store).load(PartitionId(CLUSTER, topic_id(topic, incarnation), number, topic))
        return held.head if held else None

    def last_offset(self, topic: str, number: int) -> int:
        head = self.head(topic, number)
        return head.last_offset if head else -1
