"""One log directory of two whose disk hangs: readers of the other do not notice, and nothing keeps the process."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater_core.errors import TransientError
from headwater_core.partition import PartitionId
from headwater_core.segments.log_dirs import LogDirs
from hydration.answers import Isolation
from hydration.archive.hydrator import LOOK_WORKERS, SCAN_WORKERS
from hydration.config import HydrationConfig
from hydration.logs import open_logs
from hydration.partition_log import PartitionLog, Pending
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.segments.builders import a_segment
from tests.hung_disk import hung_disk, within
from tests.hydration.world import CLUSTER, TOPIC, TOPIC_ID, Archive, Broker

UNCOMMITTED = Isolation.READ_UNCOMMITTED
HANGING = 2 * (LOOK_WORKERS + SCAN_WORKERS)  # partitions
SOUND = HANGING


class Two:
    def __init__(self, root: Path) -> None:
        self.hanging, self.sound, self.clock = root / "a", root / "b", ManualClock()
        for number in range(HANGING + 1):
            partition = PartitionId(CLUSTER, TOPIC_ID, number, TOPIC)
            broker = Broker(self.sound if number == SOUND else self.hanging, partition)
            broker.write(0, a_segment(0, 10))
        for directory, numbers in ((self.hanging, range(HANGING)), (self.sound, (SOUND,))):
            lines = "".join(f"{TOPIC} {number} 10\n" for number in numbers)
            (directory / "replication-offset-checkpoint").write_text(f"0\n{len(numbers)}\n{lines}")
        store = MemoryStore()
        Archive(store)  # an empty one
        self.logs = open_logs(
            HydrationConfig(),
            store=store,
            cache_directory=root / "cache",
            dirs=LogDirs([self.hanging, self.sound], patience_s=1.0),
            clock=self.clock,
        )
        self.logs.refresh()

    def log(self, number: int) -> PartitionLog:
        return self.logs.partition(TOPIC, number)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    made = Two(tmp_path)
    yield made
    made.logs.close()


def read_all(log: PartitionLog) -> int:
    with log.read(0, 1 << 20, UNCOMMITTED, timeout_s=20) as answer:
        return answer.next_offset


def test_looks_at_partitions_that_hang_keep_no_other_from_being_read(two: Two) -> None:
    for number in range(HANGING + 1):
        two.log(number).bounds()
    two.clock.advance(2_000)  # the looks are old
    with hung_disk(two.hanging) as disk:
        waiting = [two.log(number).try_read(0, 1 << 20, UNCOMMITTED) for number in range(HANGING)]
        assert all(isinstance(each, Pending) for each in waiting)
        assert disk.reached.acquire(timeout=20)
        assert read_all(two.log(SOUND)) == 10
        for each in waiting:
            assert isinstance(each, Pending)
            with pytest.raises(TransientError):
                each.future.result(20)


def test_scans_of_files_that_hang_keep_no_other_from_being_scanned(two: Two) -> None:
    go = threading.Event()
    try:
        for number in range(HANGING):
            two.log(number)._tiers.submit(lambda: go.wait(60))
        assert two.log(SOUND)._tiers.submit(lambda: "scanned").result(20) == "scanned"
    finally:
        go.set()


def test_a_refresh_finds_what_other_directories_hold(two: Two) -> None:
    Broker(two.sound, PartitionId(CLUSTER, TOPIC_ID, SOUND + 1, TOPIC)).write(0, a_segment(0, 10))
    with hung_disk(two.hanging):
        within(20, two.logs.refresh)
        assert two.logs.topics()[TOPIC].partitions == tuple(range(SOUND + 2)), "and those whose disk hangs are not gone"


def test_closing_waits_for_no_disk(two: Two) -> None:
    with hung_disk(two.hanging) as disk:
        two.clock.advance(2_000)
        two.log(0).try_read(0, 1, UNCOMMITTED)
        two.log(0)._tiers.submit(lambda: disk.answers.wait(60))
        assert disk.reached.acquire(timeout=20)
        within(20, two.logs.close)


def test_a_process_ends_though_a_disk_hangs() -> None:
    program = (
        "import threading\n"
        "from hydration.disk_threads import DiskThreads\n"
        "threads, begun = DiskThreads(1, 'looks'), threading.Event()\n"
        "threads.submit(None, lambda: (begun.set(), threading.Event().wait()))\n"
        "begun.wait(20)\n"
        "threads.close()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
