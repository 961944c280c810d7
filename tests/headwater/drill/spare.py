"""A broker over what a drill has restored, as tests/recovery/coordinator_model.py has its coordinators."""

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from headwater.drill.broker_check import java_hash
from headwater.drill.coordinator_check import OFFSETS, TRANSACTIONS
from headwater.drill.equipment import SpareBroker
from headwater.drill.read_path import DirectoryReadPath, PathBounds, open_directory
from headwater.drill.scratch import Scratch
from headwater_core.partition import TopicPartition
from hydration.logs import Logs
from recovery import RecoveryPlan
from recovery.recovered_groups import CommittedPlace
from tests.recovery.coordinator_model import OFFSETS_RETENTION_MS, GroupCoordinator, LeaderLog, Refused, Row, TransactionCoordinator
from tests.recovery.written_archive import batches_in


class StableDirectory(DirectoryReadPath):
    name = "kafka"

    def __init__(self, logs: Logs, log_dir: Path) -> None:
        super().__init__(logs)
        self._log_dir = log_dir

    def bounds(self, place: TopicPartition) -> PathBounds:
        bounds = super().bounds(place)
        return bounds._replace(end=self._leader(place, bounds.end).end)

    def stable_end(self, partition: TopicPartition, first: int) -> int:
        return self._leader(partition, super().bounds(partition).end).last_stable_offset

    def _leader(self, place: TopicPartition, end: int) -> LeaderLog:
        batches = batches_in(self._log_dir / f"{place.topic}-{place.partition}")
        return LeaderLog([Row.of(*batch) for batch in batches], end)


class RestoredCoordinators:
    """starts: of share groups; checked: the partitions of __consumer_offsets of which groups were checked"""

    def __init__(self, log_dir: Path, plan: RecoveryPlan) -> None:
        partitions = {topic.topic: len(topic.partitions) for topic in plan.topics}
        places = [(topic, number) for topic, count in partitions.items() for number in range(count)]
        logs = {place: batches_in(log_dir / f"{place[0]}-{place[1]}") for place in places}
        self.groups = {number: GroupCoordinator() for number in range(partitions.get(OFFSETS, 0))}
        for number, coordinator in self.groups.items():
            coordinator.load(logs[OFFSETS, number])
        leaders = {place: LeaderLog([Row.of(*batch) for batch in batches], 0) for place, batches in logs.items()}
        self.transactions = TransactionCoordinator(leaders, 1 << 40)
        for number in range(partitions.get(TRANSACTIONS, 0)):
            self.transactions.load(logs[TRANSACTIONS, number], 0)
        self.starts: dict[CommittedPlace, int] = {}
        self.checked: list[int] = []

    def pass_expiry_check(self, groups: Collection[str], topic: str) -> None:
        assert topic == OFFSETS
        assert not self.committed(groups)
        self.checked += sorted(java_hash(group) % len(self.groups) for group in groups)
        for number in self.checked:
            self.groups[number].expire(now_ms())

    def committed(self, groups: Collection[str]) -> Mapping[CommittedPlace, int]:
        held = {key: commit for coordinator in self.groups.values() for key, commit in coordinator.commits.items()}
        return {CommittedPlace(*key): commit.offset for key, commit in held.items() if key.group in groups}

    def shared(self, groups: Collection[str]) -> Mapping[CommittedPlace, int]:
        return {place: start for place, start in self.starts.items() if place.group in groups}

    def offsets_retention_ms(self) -> int:
        return OFFSETS_RETENTION_MS

    def initialize(self, transactional_ids: Collection[str]) -> Mapping[str, str]:
        done = dict.fromkeys(transactional_ids, "")
        self.transactions.run(now_ms())
        for name in done:
            try:
                self.transactions.initialize(name, now_ms(), 2)
            except Refused as error:
                done[name] = str(error)
        return done


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@contextmanager
def served(scratch: Scratch, plan: RecoveryPlan) -> Iterator[SpareBroker]:
    with open_directory(scratch.log_dir, scratch.work_dir) as path:
        yield SpareBroker(StableDirectory(path._logs, scratch.log_dir), RestoredCoordinators(scratch.log_dir, plan))
