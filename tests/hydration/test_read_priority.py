"""Each read priority with each tier broken in each way, changed while everything is open."""

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater_core.errors import HeadwaterError, TransientError, Unauthorised
from hydration.answers import Isolation
from hydration.config import ReadPriority
from hydration.local.local_tier import FAILED_S, OpenFiles
from hydration.partition_log import PartitionLog, Pending
from hydration.reader import records
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.segments.builders import a_segment
from tests.hydration.flaky_store import FlakyStore
from tests.hydration.world import TOPIC, World

AWorld = Callable[..., World]
RECORDS = 20


class Breakage:
    """What is done to one tier of a world whose tiers both hold everything."""

    def __init__(self, world: World, store: FlakyStore, patches: pytest.MonkeyPatch) -> None:
        self.world, self.store, self.patches = world, store, patches

    def local_is_gone(self) -> None:
        shutil.rmtree(self.world.broker.directory)

    def local_disk_fails(self) -> None:
        pread = os.pread

        def failing(fd: int, size_bytes: int, position: int) -> bytes:
            if str(self.world.broker.root) in os.readlink(f"/proc/self/fd/{fd}"):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return pread(fd, size_bytes, position)

        self.patches.setattr(os, "pread", failing)

    def local_is_forbidden(self) -> None:
        opened = os.open

        def refusing(path: "str | Path", *rest: int, **named: int) -> int:
            if str(path).startswith(str(self.world.broker.directory)):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return opened(path, *rest, **named)

        self.patches.setattr(os, "open", refusing)

    def local_is_damaged(self) -> None:
        path = self.world.broker.path(0)
        path.write_bytes(b"\xff" * path.stat().st_size)

    def archive_is_gone(self) -> None:
        for info in list(self.store.list("data/")):
            self.store.delete(info.key)

    def archive_is_unreachable(self) -> None:
        self.store.refuse = lambda operation, key: TransientError("connection refused")

    def archive_is_forbidden(self) -> None:
        self.store.refuse = lambda operation, key: Unauthorised("access denied")

    def archive_is_damaged(self) -> None:
        def spoil(key: str, buffer: memoryview) -> None:
            buffer[:] = b"\xff" * len(buffer)

        self.store.spoil = spoil


LOCAL = [Breakage.local_is_gone, Breakage.local_disk_fails, Breakage.local_is_forbidden, Breakage.local_is_damaged]
ARCHIVE = [Breakage.archive_is_gone, Breakage.archive_is_unreachable, Breakage.archive_is_forbidden, Breakage.archive_is_damaged]


@pytest.fixture
def broken(a_world: AWorld, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Breakage], None], bool], World]:
    def make(how: Callable[[Breakage], None], is_open: bool) -> World:
        store = FlakyStore()
        world = a_world(store=store, clock=ManualClock(), cache_bytes=0)
        run = a_segment(0, RECORDS)
        world.archive.append(run)
        world.broker.write(0, run)
        world.broker.set_high_watermark(RECORDS)
        world.logs.refresh()
        if is_open:  # both tiers were read before
            for world.priority in ReadPriority:
                assert world.read_all() == list(range(RECORDS))
        else:
            assert world.log.bounds().high_watermark == RECORDS
        how(Breakage(world, store, monkeypatch))
        world.clock.advance(60_000)  # type: ignore[attr-defined]
        return world

    return make


def fails_soon(world: World) -> bool:
    """A chunk that was read ahead may be in memory for a moment yet."""
    until_s = time.monotonic() + 30
    while time.monotonic() < until_s:
        try:
            assert read_from_the_beginning(world.log) == list(range(RECORDS))
        except HeadwaterError:
            return True
    return False


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("how", [*LOCAL, *ARCHIVE], ids=lambda how: how.__name__)
def test_first_falls_back_whatever_is_broken_and_only_never_does(
    broken: Callable[[Callable[[Breakage], None], bool], World], how: Callable[[Breakage], None], is_open: bool
) -> None:
    world = broken(how, is_open)
    fatal = ReadPriority.LOCAL_ONLY if how in LOCAL else ReadPriority.OFFLOADED_ONLY
    stays_open = is_open and how is Breakage.local_is_forbidden  # for who has opened it before
    for world.priority in (*ReadPriority, *reversed(ReadPriority)):
        if world.priority is fatal and not stays_open:
            assert fails_soon(world)
        else:
            assert read_from_the_beginning(world.log) == list(range(RECORDS)), world.priority


def read_from_the_beginning(log: PartitionLog) -> list[int]:
    return [each.record.offset for each in records(log, 0, RECORDS)]


def test_a_change_holds_for_the_next_read_and_an_argument_for_one(a_world: AWorld) -> None:
    world = a_world(cache_bytes=0)
    run = a_segment(0, RECORDS)
    world.archive.append(run)
    world.broker.write(0, run)
    world.broker.set_high_watermark(RECORDS)
    held = world.log
    assert (read_from_the_beginning(held), world.gets()) == (list(range(RECORDS)), 0)
    world.priority = ReadPriority.OFFLOADED_ONLY
    assert (read_from_the_beginning(world.log), world.gets()) == (list(range(RECORDS)), 1)
    assert (read_from_the_beginning(held), world.gets()) == (list(range(RECORDS)), 1), "what was begun ends as it began"
    once = world.logs.partition(TOPIC, 0, ReadPriority.LOCAL_ONLY)
    assert (read_from_the_beginning(once), world.gets()) == (list(range(RECORDS)), 1)
    assert world.log.priority is ReadPriority.OFFLOADED_ONLY
    world.priority = ReadPriority.LOCAL_FIRST
    assert (read_from_the_beginning(world.log), world.gets()) == (list(range(RECORDS)), 1)


@pytest.mark.parametrize("isolation", Isolation)
def test_a_first_read_that_the_log_cannot_answer_waits_to_learn_what_the_archive_has(
    a_world: AWorld, monkeypatch: pytest.MonkeyPatch, isolation: Isolation
) -> None:
    """Where the log is sound, it waits for no manifest."""
    may_answer = threading.Event()
    store = FlakyStore()

    def late(operation: str, key: str) -> None:
        assert may_answer.wait(60)

    world = a_world(store=store, cache_bytes=0)
    run = a_segment(0, RECORDS)
    world.archive.append(run)
    world.broker.write(0, run)
    world.broker.set_high_watermark(RECORDS)
    log = world.log
    store.refuse = late
    log.read(0, 1, Isolation.READ_UNCOMMITTED).close()
    Breakage(world, store, monkeypatch).local_is_damaged()
    read = log.try_read(0, 1 << 20, isolation)
    assert isinstance(read, Pending)
    may_answer.set()
    with read.future.result(60) as answer:
        assert answer.next_offset == RECORDS


@pytest.mark.parametrize("priority", [ReadPriority.LOCAL_ONLY, ReadPriority.OFFLOADED_ONLY])
def test_only_shows_the_offsets_of_its_tier(a_world: AWorld, priority: ReadPriority) -> None:
    world = a_world()
    world.archive.append(a_segment(0, 20))
    world.broker.write(10, a_segment(10, 20))
    world.broker.set_high_watermark(30)
    assert (world.log.bounds().log_start, world.log.bounds().high_watermark) == (0, 30)
    world.priority = priority
    bounds = world.log.bounds()
    assert (bounds.log_start, bounds.high_watermark) == ((10, 30) if priority is ReadPriority.LOCAL_ONLY else (0, 20))


@pytest.mark.parametrize("priority", [ReadPriority.LOCAL_FIRST, ReadPriority.LOCAL_ONLY])
def test_what_failed_while_it_was_sent_is_not_sent_again_at_once(a_world: AWorld, priority: ReadPriority) -> None:
    """The gateway cannot take another copy in the middle of a response: the next read does."""
    now_s = [0.0]
    world = a_world(cache_bytes=0, priority=priority)
    run = a_segment(0, RECORDS)
    world.archive.append(run)
    world.broker.write(0, run)
    world.broker.set_high_watermark(RECORDS)
    world.logs.refresh()
    files = world.logs._files = world.log.local._files = OpenFiles(now_s=lambda: now_s[0])  # type: ignore[union-attr]
    for _ in range(2):
        with world.log.read(0, 1 << 20, Isolation.READ_UNCOMMITTED) as answer:
            answer.slices[0].file.fail("Input/output error")
        for _ in range(2):
            if priority is ReadPriority.LOCAL_ONLY:
                with pytest.raises(TransientError, match="Input/output error"):
                    read_from_the_beginning(world.log)
            else:
                assert read_from_the_beginning(world.log) == list(range(RECORDS))
            files.close()  # as for want of room
        gets = world.gets()
        assert (gets > 0) == (priority is ReadPriority.LOCAL_FIRST)
        now_s[0] += FAILED_S
        assert read_from_the_beginning(world.log) == list(range(RECORDS))
        assert world.gets() == gets, "it is tried again after a while"
    files.close()
