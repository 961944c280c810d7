"""Who looks at local directories, and who never does: a caller that must not wait for a disk."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from headwater.gateway.config import GatewayConfig
from headwater.gateway.protocol import Api
from headwater.gateway.server import GatewayServer
from headwater_core.errors import CorruptData, TransientError
from headwater_core.partition import PartitionId, TopicPartition
from headwater_core.segments.local_log import LocalLog
from headwater_core.segments.log_dirs import LogDirs, Roster
from hydration.answers import Isolation
from hydration.local import local_tier
from hydration.local.local_tier import HANGS_S, LOOK_S
from hydration.partition_log import Pending
from hydration.resumption import Resumable
from tests.headwater.gateway.raw import RawClient, a_fetch
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.segments.builders import a_segment
from tests.hydration.world import TOPIC, World

AWorld = Callable[..., World]
UNCOMMITTED = Isolation.READ_UNCOMMITTED


class Disk:
    """Looks and listings of the log directories wait while it `hangs`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.reached = threading.Semaphore(0)
        self.looks = 0
        look, roster = LogDirs.look, LogDirs.roster

        def slow_look(dirs: LogDirs, partition: TopicPartition) -> LocalLog:
            self.looks += 1
            self._wait()
            return look(dirs, partition)

        def slow_roster(dirs: LogDirs) -> Roster:
            self._wait()
            return roster(dirs)

        monkeypatch.setattr(LogDirs, "look", slow_look)
        monkeypatch.setattr(LogDirs, "roster", slow_roster)

    def _wait(self) -> None:
        self.reached.release()
        assert self.answers.wait(60)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    made = Disk(monkeypatch)
    yield made
    made.answers.set()


def test_a_read_never_waits_for_a_look_in_its_callers_thread(a_world: AWorld, disk: Disk) -> None:
    clock = ManualClock()
    world = a_world(clock=clock)
    world.broker.write(0, a_segment(0, 10))
    world.broker.set_high_watermark(10)
    world.log.bounds()  # a read of local offsets would not wait for the manifest
    clock.advance(int(LOOK_S * 1000))
    disk.answers.clear()
    read = world.log.try_read(0, 1 << 20, UNCOMMITTED)
    assert isinstance(read, Pending)
    assert isinstance(world.log.try_leader_epoch(), int), "what Metadata tells is what was seen last"
    assert world.log.known_scope() is not None
    disk.answers.set()
    with read.future.result(20) as result:
        assert result.next_offset == 10


def test_the_logs_end_takes_no_look_in_the_callers_thread(a_world: AWorld, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this reader's look has found is overtaken by another's while it asks for an offset beyond the high watermark."""
    world = a_world(clock=ManualClock())
    world.broker.write(0, a_segment(0, 10))
    world.broker.set_high_watermark(5)
    log = world.log
    assert log.local is not None
    log.bounds()
    known, local, looks = log._views.known, log.local, disk.looks

    def overtaken(**how: bool) -> Resumable[object]:
        view = yield from known(**how)
        local.look_again()
        return view

    monkeypatch.setattr(log._views, "known", overtaken)
    log.read(7, 1, UNCOMMITTED).close()
    assert disk.looks == looks


def test_a_look_that_proved_needless_is_no_disk_that_hangs(a_world: AWorld) -> None:
    clock = ManualClock()
    world = a_world(clock=clock)
    world.broker.write(0, a_segment(0, 10))
    world.broker.set_high_watermark(10)
    log = world.log
    assert log.bounds().high_watermark == 10
    assert log.local is not None
    clock.advance(60)
    assert log.local.needs_look(0.05)
    log.local.log(LOOK_S)  # by an earlier reader, for which what was found since suffices
    clock.advance(int(HANGS_S * 1000))
    assert log.bounds().high_watermark == 10
    with log.read(0, 1 << 20, UNCOMMITTED) as answer:
        assert answer.next_offset == 10


def test_what_the_archive_has_is_read_while_the_disk_hangs(a_world: AWorld, disk: Disk) -> None:
    clock = ManualClock()
    world = a_world(clock=clock)
    world.archive.append(a_segment(0, 10))
    world.broker.write(0, a_segment(0, 20))
    world.broker.set_high_watermark(20)
    log = world.log
    log.read(0, 1, UNCOMMITTED).close()
    clock.advance(int(LOOK_S * 1000))
    disk.answers.clear()
    first = log.try_read(0, 1 << 20, UNCOMMITTED)
    assert isinstance(first, Pending)
    clock.advance(int(HANGS_S * 1000))
    with log.read(0, 1 << 20, UNCOMMITTED, timeout_s=20) as answer:
        assert answer.next_offset == 10
    with pytest.raises(TransientError, match="disk does not answer"):
        log.read(15, 1 << 20, UNCOMMITTED, timeout_s=20)
    disk.answers.set()
    first.future.result(20).close()
    with log.read(15, 1 << 20, UNCOMMITTED, timeout_s=20) as answer:
        assert answer.next_offset == 20


def test_the_gateway_answers_while_the_disk_hangs(a_world: AWorld, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_tier, "HANGS_S", 0.2)
    world = a_world()
    world.archive.append(a_segment(0, 10))
    world.broker.write(0, a_segment(0, 20))
    world.broker.set_high_watermark(20)
    with GatewayServer(world.logs, GatewayConfig(listen="127.0.0.1:0")) as server, RawClient(server.address, 30) as client:
        assert client.fetch(a_fetch((TOPIC, 0, 0)))["error_code"] == 0
        disk.answers.clear()
        while disk.reached.acquire(blocking=False):
            pass
        assert disk.reached.acquire(timeout=20)  # the thread that keeps looks fresh hangs
        for _ in range(3):
            client.ask(Api.API_VERSIONS, 0)
            topics = client.ask(Api.METADATA, 1, topics=[{"name": TOPIC}])["topics"]
            assert [each["error_code"] for each in topics] == [0]
        answers = [client.fetch(a_fetch((TOPIC, 0, 3))) for _ in range(20)]
        assert any(each["records"] for each in answers)
        disk.answers.set()


def test_a_listing_is_no_look_and_a_reader_takes_the_one_of_its_partition(a_world: AWorld, disk: Disk) -> None:
    world = a_world(clock=ManualClock())
    world.broker.write(0, a_segment(0, 10))
    world.broker.set_high_watermark(10)
    log = world.log
    world.logs.refresh()
    assert disk.looks == 0
    log.read(5, 1 << 20, UNCOMMITTED).close()
    log.read(5, 1 << 20, UNCOMMITTED).close()
    assert disk.looks == 1


def test_the_look_that_explains_damage_is_taken_by_its_disks_own_threads(a_world: AWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of no disk are for partitions that were never seen: one disk that hangs must not take them."""
    world = a_world(clock=ManualClock())
    run = a_segment(0, 10)
    world.broker.write(0, b"\xff" * len(run))
    world.broker.set_high_watermark(10)
    log = world.log
    log.bounds()
    join_look, log_dirs = world.logs.hydrator.join_look, []

    def recorded(partition: PartitionId, work: Callable[[], None], log_dir: Path | None = None) -> "Future[None]":
        log_dirs.append(log_dir)
        return join_look(partition, work, log_dir)

    monkeypatch.setattr(world.logs.hydrator, "join_look", recorded)
    with pytest.raises(CorruptData):
        log.read(0, 1, UNCOMMITTED)
    assert set(log_dirs) == {world.broker.root}
