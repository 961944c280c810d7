"""Passes end when they are told to, and survive what goes wrong with one partition."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from archival.archive_pass import archive_all
from archival.partition.archiver import Outcome, PartitionArchiver
from archival.plan.policy import Policy
from archival.schedule.scheduler import Scheduler
from archival.schedule.store_breaker import PROBE_S
from headwater import session, store_identity
from headwater.admin.status_page import PartitionRow, StatusQuery, page_of
from headwater.admin_port import Vitals, page_facts
from headwater.config import load
from headwater.session import PassRequest, Session, open_session, pass_rows
from headwater.wiring import open_logs, writer_id
from headwater_core.clock import SystemClock
from headwater_core.errors import DiskFull, TransientError, UsageError
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.partition import TopicPartition
from headwater_core.segments.local_log import LocalLog
from headwater_core.segments.log_dirs import LogDirs
from hydration.logs import Logs
from tests.headwater.conftest import Stage
from tests.headwater_core.objectstore.volatile_disk import VolatileDisk
from tests.headwater_core.segments.builders import newer_metadata


def test_the_name_that_heads_know_this_agent_by_survives_a_power_loss(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    disk = VolatileDisk(tmp_path / "data")
    with disk.watching():
        name = writer_id(load(None, {}, {"node.data_dir": str(tmp_path / "data")}))
    left = disk.after_power_loss(tmp_path / "left")
    assert writer_id(load(None, {}, {"node.data_dir": str(left)})) == name


@pytest.fixture
def held(stage: Stage) -> Iterator[Session]:
    flags = {"node.data_dir": str(stage.data_dir), "store.url": f"file://{stage.bucket}", "log.dirs": [str(stage.log("kitchen"))]}
    with open_session(load(None, {}, flags)) as opened:
        yield opened


def test_a_rebuild_that_a_silent_store_holds_up_keeps_no_agent_from_ending(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, answered = threading.Event(), threading.Event()

    def hanging(*_: object, **__: object) -> None:
        begun.set()
        answered.wait(60)

    monkeypatch.setattr(session, "rebuild_control_if_needed", hanging)
    monkeypatch.setattr(session, "REBUILD_STOP_S", 0.05)
    flags = {"node.data_dir": str(stage.data_dir), "store.url": f"file://{stage.bucket}"}
    try:
        with open_session(load(None, {}, flags), patient=True):
            assert begun.wait(60)
        assert any(thread.name == "control-rebuild" for thread in threading.enumerate())
    finally:
        answered.set()


def test_a_file_that_cannot_be_read_stops_its_own_partition_only(held: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    step = PartitionArchiver.step

    def failing(archiver: PartitionArchiver, policy: Policy, log: LocalLog | None = None, **how: Any) -> Outcome:
        if archiver.partition.topic == "orders.in":
            raise OSError(5, "Input/output error")
        return step(archiver, policy, log, **how)

    monkeypatch.setattr(PartitionArchiver, "step", failing)
    assert held.fleet is not None
    outcomes = list(archive_all(held.fleet, PassRequest().policy))
    assert {outcome.place.topic for outcome in outcomes if outcome.error} == {"orders.in"}
    assert all(isinstance(outcome.error, TransientError) for outcome in outcomes if outcome.error)
    assert len(outcomes) > 5


def test_a_pass_that_finds_nothing_to_do_looks_at_each_partition_once(held: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    assert held.fleet is not None
    order = PassRequest(tail_older_than_s=0)
    assert sum(outcome.objects for outcome in archive_all(held.fleet, order.policy)) > 0
    looks: list[TopicPartition] = []
    look = LogDirs.look

    def counted(dirs: LogDirs, place: TopicPartition) -> LocalLog:
        looks.append(place)
        return look(dirs, place)

    monkeypatch.setattr(LogDirs, "look", counted)
    outcomes = list(archive_all(held.fleet, order.policy))
    assert {outcome.error for outcome in outcomes} == {None}
    assert len(outcomes) > 5
    assert len(looks) == len(outcomes) == len(set(looks))


def test_a_stopped_pass_says_that_it_was_stopped(held: Session) -> None:
    assert held.fleet is not None
    stop = threading.Event()
    rows = pass_rows(held.fleet, PassRequest(), stop)
    next(rows)
    stop.set()
    with pytest.raises(TransientError, match="stopped"):
        list(rows)


class Watched:
    """An agent's scheduler, and the status that is kept beside it."""

    def __init__(self, held: Session, logs: Logs) -> None:
        self.held, self.logs, self.vitals = held, logs, Vitals.of(held, logs)
        assert self.vitals.work is not None
        assert held.fleet is not None
        held.fleet.committed = self.vitals.committed
        self.scheduler = self.vitals.scheduler = Scheduler(
            self.vitals.work, clock=SystemClock(), random=Random(1), settings=held.fleet.settings
        )

    def work(self) -> None:
        self.scheduler.rescan()
        while self.scheduler.turn():
            pass

    def rows(self, topic: str | None = None) -> list[PartitionRow]:
        board = self.vitals.board
        assert board is not None
        board.round()
        query, facts = StatusQuery(topic=topic, partitions=True), page_facts(self.held, self.logs, self.vitals)
        page = page_of([*board.entries(), *board.elsewhere()], query, facts, now_s=board.clock.monotonic_s(), at_ms=0)
        assert not isinstance(page.partitions, msgspec.UnsetType)
        return page.partitions


@pytest.fixture
def watched(held: Session) -> Iterator[Watched]:
    with open_logs(held.config, held.bucket) as logs:
        yield Watched(held, logs)


def test_status_says_when_a_store_that_answers_nobody_is_tried_again(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise TransientError("read-only file system")

    with monkeypatch.context() as broken:
        broken.setattr(DirectoryStore, "create", refuse)
        watched.work()
        began_ms = SystemClock().now_ms()
        held_back = watched.rows()
    for row in held_back:
        assert row.store_try_ms is not None
        assert began_ms <= row.store_try_ms <= SystemClock().now_ms() + PROBE_S * 1000
    assert any("read-only file system; archiving is held back" in row.reason for row in held_back)
    while watched.scheduler.probe_in_s() is not None:
        watched.scheduler.turn()
    answering = watched.rows()
    assert {row.store_try_ms for row in answering} == {None}
    assert not any("held back" in row.reason for row in answering)


def test_a_deleted_topic_is_archive_only_where_the_bucket_is_known_to_have_it(watched: Watched) -> None:
    """The control log forgets it, and its archive stays."""
    [log_dir] = watched.held.config.log.dirs
    watched.work()
    assert {row.state for row in watched.rows("orders.in")} == {"archived", "waiting"}
    watched.logs.refresh()
    for directory in Path(log_dir).glob("orders.in-*"):
        shutil.rmtree(directory)
    for _ in range(2):
        watched.work()
    remains = watched.rows("orders.in")
    assert {(row.state, row.local_start, row.lag_bytes) for row in remains} == {("archive-only", None, None)}
    assert all(row.archived_bytes for row in remains if row.last_offset is not None)


@pytest.mark.parametrize("case", ["aside", "named", "owned", "beside"])
def test_a_broker_whose_metadata_is_nowhere_is_told_of_once(case: str, stage: Stage) -> None:
    """Then nothing says who leads. In an owned directory nobody does."""
    log_dir, aside = stage.log("kitchen"), stage.root / "metadata"
    flags: dict[str, object] = {"node.data_dir": str(stage.data_dir), "store.url": f"file://{stage.bucket}", "log.dirs": [str(log_dir)]}
    if case != "beside":
        aside.mkdir()
        shutil.copy(log_dir / "meta.properties", aside)
        shutil.move(log_dir / "__cluster_metadata-0", aside)
    if case == "named":
        flags["log.metadata_dir"] = str(aside)
    flags["log.owned"] = case == "owned"
    with capture_logs() as logs, open_session(load(None, {}, flags)):
        pass
    assert [event["log_level"] for event in logs if event["event"] == "leadership_unknown"] == (["warning"] if case == "aside" else [])


def test_metadata_of_a_later_version_is_told_once_and_archiving_goes_on(stage: Stage) -> None:
    log = stage.log("kitchen")
    newer_metadata(log)
    flags = {"node.data_dir": str(stage.data_dir), "store.url": f"file://{stage.bucket}", "log.dirs": [str(log)]}
    with capture_logs() as events, open_session(load(None, {}, flags)) as held:
        assert held.fleet is not None
        for _ in range(2):
            outcomes = list(archive_all(held.fleet, PassRequest(tail_older_than_s=0).policy))
            assert {outcome.error for outcome in outcomes} == {None}
            assert {outcome.reason for outcome in outcomes} == {"caught up"}
    [reported] = [event for event in events if event["event"] == "leadership_unknown"]
    assert reported["log_level"] == "error"
    assert "version 99" in reported["reason"]


def test_a_full_data_directory_is_no_store_that_is_away(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> None:
        raise DiskFull(f"{path}: No space left on device")

    monkeypatch.setattr(store_identity, "replace_file", full)
    with capture_logs() as events, open_session(load(None, {}, flags_of(stage)), patient=True):
        pass
    reported = {event["event"]: event for event in events}
    assert "store_unavailable" not in reported
    assert str(stage.data_dir) in reported["data_directory_full"]["reason"]


def flags_of(stage: Stage) -> dict[str, object]:
    return {"node.data_dir": str(stage.data_dir), "store.url": f"file://{stage.bucket}", "log.dirs": [str(stage.log("kitchen"))]}


@pytest.mark.parametrize("release", [{"archival.release": True}, {"archival.release": False}, {}])
def test_a_release_that_nobody_can_do_is_reported(stage: Stage, release: dict[str, object]) -> None:
    with capture_logs() as logs, open_session(load(None, {}, {**flags_of(stage), **release})):
        pass
    reported = [event["log_level"] for event in logs if event["event"] == "release_not_possible"]
    assert reported == (["warning"] if any(release.values()) else [])


def test_client_properties_that_cannot_be_used_are_an_error_at_the_start(stage: Stage) -> None:
    properties = stage.root / "client.properties"
    flags = {**flags_of(stage), "log.bootstrap_servers": "127.0.0.1:9", "log.client_properties": str(properties)}
    properties.write_text("security.protocol=SASL_SSL\nsasl.mechanism=GSSAPI\nacks=all\n")
    with pytest.raises(UsageError, match=r"sasl.mechanism must be one of"), open_session(load(None, {}, flags)):
        pass
    properties.write_text("acks=all\n")
    with capture_logs() as logs, open_session(load(None, {}, flags)):
        pass
    assert [event["keys"] for event in logs if event["event"] == "client_properties_ignored"] == [["acks"]]


@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_a_data_directory_with_rights_for_others_is_reported(stage: Stage, mode: int) -> None:
    stage.bucket.mkdir()
    stage.data_dir.mkdir()
    stage.data_dir.chmod(mode)
    flags = {"node.data_dir": str(stage.data_dir), "store.url": f"file://{stage.bucket}"}
    with capture_logs() as logs, open_session(load(None, {}, flags)):
        pass
    assert ("data_directory_shared" in {each["event"] for each in logs}) == (mode != 0o700)
