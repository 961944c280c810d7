"""Damaged objects stay known over restarts, until they are read well or no manifest lists them."""

import threading
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest
from structlog.testing import capture_logs

from headwater_core.errors import CorruptData, DiskFull, HeadwaterError, NotFound, TransientError
from hydration.answers import Isolation
from hydration.archive.damage import DAMAGES_MAX, FILE_BYTES_MAX, RECHECK_S, TEXT_MAX, TURN_S, Damage, DamageList, KnownDamage
from hydration.archive.downloads import Job
from hydration.cache.cache_directory import folder
from manifests.document import seal
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.objectstore.volatile_disk import VolatileDisk
from tests.headwater_core.segments.builders import a_segment
from tests.hydration.flaky_store import FlakyStore
from tests.hydration.world import PARTITION, World
from tests.recovery.full_disk import FullDisk

AWorld = Callable[..., World]
RUN = a_segment(0, 20, value_bytes=20_000)  # about 400 KiB; points, so chunks, lie 80 KiB apart
FOLDER = folder(PARTITION)


def flip(key: str, buffer: memoryview) -> None:
    if key.endswith(".log"):
        buffer[100] ^= 1


class Worn:
    """An archive of one object, of which every chunk is damaged, and readers that may be started again."""

    def __init__(self, a_world: AWorld) -> None:
        self.store, self.clock = FlakyStore(), ManualClock()
        self.world = a_world(local=False, store=self.store, clock=self.clock)
        self.world.archive.append(RUN)
        self.store.spoil = flip

    @property
    def key(self) -> str:
        return self.world.archive.head.entries[0].key

    @property
    def known(self) -> set[str]:
        return self.world.logs.hydrator.damaged().get(FOLDER, set())

    def read(self, offset: int = 0) -> None:
        with self.world.log.read(offset, 1 << 20, Isolation.READ_UNCOMMITTED):
            pass

    def meet(self, offset: int = 0, match: str = "CRC") -> None:
        with pytest.raises(CorruptData, match=match):
            self.read(offset)

    def restart(self) -> None:
        self.world.logs.hydrator.damage.save()
        self.world.restart()

    def repair(self) -> None:
        self.store.spoil = lambda key, buffer: None

    def look(self) -> None:
        self.clock.advance(int(RECHECK_S * 1000))
        self.world.logs.recheck_damage()


@pytest.fixture
def worn(a_world: AWorld) -> Worn:
    return Worn(a_world)


def a_damage(number: int = 0, reason: str = "CRC") -> Damage:
    return Damage(
        partition=PARTITION, key="k" * 900, uid=f"{number:032x}", offset=7, position=80, size_bytes=90, where="k", byte=5, reason=reason
    )


def test_damage_is_known_after_a_restart_and_may_be_read_again_at_once(worn: Worn) -> None:
    worn.meet()
    worn.restart()
    assert worn.known == {worn.key}
    before = worn.world.gets()
    worn.meet()
    assert worn.world.gets() == before + 2
    worn.repair()
    worn.clock.advance(300_000)
    worn.read()
    worn.restart()
    assert worn.known == set()


def test_a_restored_object_is_found_well_though_nobody_reads_it(worn: Worn) -> None:
    worn.meet()
    worn.restart()
    with pytest.raises(CorruptData, match="CRC"):
        worn.world.logs.recheck_damage()
    before = worn.world.gets()
    worn.world.logs.recheck_damage()
    assert worn.world.gets() == before, "it is not due yet"
    worn.repair()
    with capture_logs() as events:
        worn.look()
    assert worn.known == set()
    assert [(each["event"], each["key"]) for each in events] == [("object_damage_cleared", worn.key)]
    worn.restart()
    assert worn.known == set()


def test_other_chunk_sizes_change_nothing(worn: Worn) -> None:
    worn.meet()
    worn.restart()
    worn.world.config = replace(worn.world.config, chunk_bytes=1 << 20)
    worn.repair()
    worn.look()
    assert worn.known == set()


def test_what_was_read_ahead_well_is_not_damaged_any_more(a_world: AWorld) -> None:
    worn = Worn(lambda **options: a_world(readahead_chunks=8, chunk_bytes=100_000, **options))
    worn.meet()
    worn.repair()
    worn.clock.advance(300_000)
    entry = worn.world.archive.head.entries[0]
    hydrator = worn.world.logs.hydrator
    plan = hydrator.plan_now(entry)
    assert plan is not None
    hydrator.read_ahead(PARTITION, entry, plan.chunks)
    worn.read()
    assert worn.known == set()


def test_a_damaged_or_missing_index_and_a_missing_object_are_known_damage(worn: Worn) -> None:
    worn.repair()
    entry = worn.world.archive.head.entries[0]
    for key, match in ((entry.index_key, "the manifest lists it"), (entry.key, "the manifest lists it")):
        content = worn.store.get(key, max_bytes=1 << 20)[0]
        worn.store.delete(key)
        worn.meet(match=match)
        worn.restart()
        assert worn.known == {entry.key}
        with pytest.raises(HeadwaterError):
            worn.look()
        assert worn.known == {entry.key}
        worn.store.create(key, content)
        worn.look()
        assert worn.known == set()
        worn.world.restart()
        for file in (worn.world.root / "cache").rglob("*.*"):
            file.unlink()


def test_what_no_manifest_lists_is_not_damage(worn: Worn) -> None:
    worn.meet()
    worn.world.archive.commit(worn.world.archive.upload(RUN))
    with capture_logs() as events:
        worn.look()
    assert worn.known == set()
    assert [each["reason"] for each in events if each["event"] == "object_damage_cleared"] == ["no manifest lists the object any more"]


@pytest.mark.parametrize("error", [TransientError("silent"), HeadwaterError("denied")])
def test_a_store_that_does_not_answer_proves_nothing(worn: Worn, error: HeadwaterError) -> None:
    worn.meet()
    worn.repair()
    worn.store.refuse = lambda operation, key: error
    with pytest.raises(type(error)):
        worn.look()
    assert worn.known == {worn.key}


def test_the_list_survives_a_power_loss_and_knows_no_more_than_its_limit(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    disk, path = VolatileDisk(tmp_path / "data"), tmp_path / "data" / "damage.json"
    known = KnownDamage(ManualClock(), path)
    for number in range(DAMAGES_MAX + 5):
        known.note(a_damage(number, "\U0001f4a5" * TEXT_MAX))
    with disk.watching():
        known.save()
    assert path.stat().st_size < FILE_BYTES_MAX
    again = KnownDamage(ManualClock(), disk.after_power_loss(tmp_path / "left") / "damage.json")
    assert again._known.keys() == known._known.keys()
    assert len(again._known) == DAMAGES_MAX


def test_a_list_that_cannot_be_read_is_unknown_and_kept_aside(tmp_path: Path) -> None:
    path = tmp_path / "damage.json"
    whole = seal(DamageList(damages=[a_damage()]))
    body = msgspec.json.decode(whole)
    hostile = [
        seal(DamageList(damages=[msgspec.structs.replace(a_damage(), uid="../../etc/passwd")])),
        seal(DamageList(damages=[a_damage(each) for each in range(DAMAGES_MAX + 1)])),
        seal(DamageList(format=(2, 0), damages=[a_damage()])),
        whole.replace(b'"size_bytes": 90', b'"size_bytes": -90'),
        whole.replace(b'"offset": 7', b'"offset": 1' + b"0" * 400),
        b"[" * 100_000,
        b"\0" * (FILE_BYTES_MAX + 1),
        b"",
        msgspec.json.encode({**body, "damages": [[]]}),
    ]
    flips = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(0, len(whole), 11)]
    for raw in (*hostile, *flips, *(whole[:at] for at in range(0, len(whole) - 1, 11))):
        path.write_bytes(raw)
        with capture_logs() as events:
            known = KnownDamage(ManualClock(), path)
        assert known.keys() in ({}, {FOLDER: {a_damage().key}})
        if known.keys():
            continue  # white space
        assert [each["event"] for each in events] == ["damage_list_unknown"]
        assert path.with_name("damage.json.unreadable").read_bytes() == raw
        assert not path.exists()


def test_a_list_that_is_no_file_is_in_nobody_s_way(tmp_path: Path) -> None:
    path = tmp_path / "damage.json"
    path.mkdir()
    known = KnownDamage(ManualClock(), path)
    known.note(a_damage())
    known.save()
    assert KnownDamage(ManualClock(), path).keys() == {FOLDER: {a_damage().key}}


def test_a_full_disk_loses_nothing_and_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "damage.json"
    known = KnownDamage(ManualClock(), path)
    known.note(a_damage(1))
    known.save()
    known.note(a_damage(2))
    disk = FullDisk(1)
    with disk.mounted(), pytest.raises(DiskFull, match="make room"):
        known.save()
    assert len(KnownDamage(ManualClock(), path)._known) == 1
    known.save()
    assert len(KnownDamage(ManualClock(), path)._known) == 2


def test_the_list_is_written_at_the_end_though_a_recheck_hangs(tmp_path: Path) -> None:
    path, stop = tmp_path / "damage.json", threading.Event()
    known = KnownDamage(ManualClock(), path)
    begun, answered = threading.Event(), threading.Event()

    def look() -> None:
        begun.set()
        answered.wait()

    rechecks = threading.Thread(target=known.run_rechecks, args=(look, stop))
    rechecks.start()
    try:
        begun.wait()
        known.note(a_damage())
        stop.set()
        known.run(stop)
        assert KnownDamage(ManualClock(), path).keys() == {FOLDER: {a_damage().key}}
    finally:
        answered.set()
        rechecks.join()


class Turns(threading.Event):
    """Is set after a number of waits, none of which takes time."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.waits = number, list[float | None]()

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        if len(self.waits) == self.number:
            self.set()
        return self.is_set()


def test_what_a_recheck_finds_does_not_begin_the_next_one() -> None:
    known, stop = KnownDamage(ManualClock()), Turns(3)

    def look() -> None:
        known.note(a_damage(len(stop.waits)))
        if stop.waits:
            known.forget(a_damage(0).name)

    known.run_rechecks(look, stop)
    assert stop.waits == [TURN_S] * 3


@pytest.mark.parametrize("error", [CorruptData("k", 0, "CRC"), NotFound("k"), ValueError("of any kind")])
def test_a_recheck_that_found_the_damage_again_is_not_postponed(error: Exception) -> None:
    def look() -> None:
        raise error

    with capture_logs() as events:
        KnownDamage(ManualClock()).run_rechecks(look, Turns(2))
    assert [each["event"] for each in events] == ["damage_recheck_postponed"] * 2 * isinstance(error, ValueError)


def test_a_recheck_waits_for_what_readers_want(worn: Worn) -> None:
    worn.meet()
    worn.restart()
    downloads = worn.world.logs.hydrator._downloads
    urgencies, submit = list[bool](), downloads.submit

    def watched(job: Job, *, group: Hashable, urgent: bool) -> None:
        urgencies.append(urgent)
        submit(job, group=group, urgent=urgent)

    with patch.object(downloads, "submit", watched), pytest.raises(CorruptData):
        worn.look()
    worn.repair()
    with patch.object(downloads, "submit", watched):
        worn.look()
    assert (worn.known, urgencies) == (set(), [False, False])


def test_a_restored_object_is_known_as_soon_as_a_reader_has_fetched_it(a_world: AWorld) -> None:
    for readahead_chunks in (0, 8):
        worn = Worn(partial(a_world, readahead_chunks=readahead_chunks, chunk_bytes=100_000))
        worn.repair()
        entry = worn.world.archive.head.entries[0]
        content = worn.store.get(entry.key, max_bytes=1 << 20)[0]
        worn.store.delete(entry.key)
        worn.meet(match="the manifest lists it")
        assert worn.known == {entry.key}
        worn.store.create(entry.key, content)
        plan = worn.world.logs.hydrator.plan_now(entry)
        assert plan is not None
        worn.world.logs.hydrator.read_ahead(PARTITION, entry, plan.chunks[:readahead_chunks])
        worn.read()
        assert worn.known == set()


def test_a_chunk_in_the_cache_proves_no_missing_object_back(worn: Worn) -> None:
    worn.repair()
    worn.read()
    entry = worn.world.archive.head.entries[0]
    worn.store.delete(entry.key)
    worn.meet(19, match="the manifest lists it")
    worn.restart()
    worn.read()
    assert worn.known == {entry.key}
