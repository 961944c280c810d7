"""How a partition's state is told, from plain values."""

import os
from dataclasses import replace
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from archival import partition_status
from archival.config import ArchivalConfig, ArchiveMode
from archival.partition_status import ArchiveLag, PartitionStatus, status_of
from archival.plan.cleaner import overtaken
from archival.plan.policy import Policy
from archival.plan.steps import Idle, Step, Stop
from archival.watermark import WatermarkOrigin, WatermarkSource
from headwater_core.epochs import EpochHistory
from headwater_core.errors import NeedsUpgrade, SourceChanged
from headwater_core.partition import PartitionId
from headwater_core.segments.local_log import Generation, Leadership, LocalLog, LocalSegment
from headwater_core.segments.log_dirs import LogDirs
from manifests.document import FORMAT, check_ours
from manifests.entry import EpochOffset
from manifests.head import Head
from tests.archival.builders import Directory
from tests.headwater_core.segments.builders import BASE_TIME, a_batch, a_record
from tests.manifests.builders import an_entry

PARTITION = PartitionId("cluster", "AAAAAAAAAAAAAAAAAAAAAQ", 0, "t")
LOG = LocalLog(partition=PARTITION, directory=Path("t-0"), segments=(), high_watermark=10, log_start=10, epochs=EpochHistory.of(((3, 0),)))
HEAD = Head(
    cluster_id="cluster",
    topic="t",
    topic_id=PARTITION.topic_id,
    partition=0,
    version=1,
    commit_id="c",
    fence=1,
    writer="w",
    leader_epoch=3,
    start_offset=10,
    last_offset=9,
)
WRITTEN_MS = BASE_TIME + 60_000
FOLLOWER = Leadership(leader=2, leader_epoch=3, node=1, replicas=(1, 2), in_sync=(1, 2))


COMPACTED = replace(LOG, cleaned_to=10)
DISPLACED = msgspec.structs.replace(HEAD, entries=(msgspec.structs.replace(an_entry(0, 9), displaced_by=EpochOffset(2, 9)),))
ARCHIVED = msgspec.structs.replace(HEAD, entries=(an_entry(0, 4),))


def newer_format() -> NeedsUpgrade:
    with pytest.raises(NeedsUpgrade) as found:
        check_ours((FORMAT[0], FORMAT[1] + 1), "a manifest")
    return found.value


def state_of(log: LocalLog | None, head: Head | None, trouble: str = "") -> PartitionStatus:
    return status_of(PARTITION, log, head, policy=Policy(tail_after_ms=0), tail_age_ms=0, now_ms=0, trouble=trouble)


@pytest.mark.parametrize(
    ("log", "head", "trouble", "state"),
    [
        (LOG, HEAD, "", "archived"),
        (LOG, None, "", "due"),
        (None, HEAD, "", "archive-only"),
        (replace(LOG, leadership=FOLLOWER), HEAD, "", "standby"),
        (replace(LOG, epochs=EpochHistory.of(((2, 0),))), HEAD, "", "behind"),
        (replace(LOG, high_watermark=None), None, "", "waiting"),
        (replace(LOG, high_watermark=None), HEAD, "", "waiting"),
        (LOG, HEAD, "a suspected gap", "stopped"),
        (LOG, HEAD, overtaken(COMPACTED, ARCHIVED, 5, (), 0, stale_keys_below=None), "needs replacement"),
        (LOG, HEAD, str(newer_format()), "needs upgrade"),
        (replace(LOG, epochs=EpochHistory.of(((3, 5),))), DISPLACED, "", "needs replacement"),
        (replace(LOG, epochs=EpochHistory.of(((3, 5),)), leadership=FOLLOWER), DISPLACED, "", "standby"),
    ],
)
def test_states(log: LocalLog | None, head: Head | None, trouble: str, state: str) -> None:
    found = state_of(log, head, trouble)
    assert found.state == state
    assert found.reason


@pytest.mark.parametrize("log", [LOG, replace(LOG, leadership=FOLLOWER)])
def test_what_is_excluded_has_no_lag(log: LocalLog) -> None:
    policy = Policy.of(ArchivalConfig(archive=ArchiveMode.OFF))
    for head in (None, HEAD):
        found = status_of(PARTITION, log, head, policy=policy, tail_age_ms=0, now_ms=0)
        assert (found.state, found.reason, found.lag_bytes, found.lag_s) == ("excluded", "archive = off", None, None)
    manual = Policy.of(ArchivalConfig(archive=ArchiveMode.MANUAL))
    assert status_of(PARTITION, LOG, None, policy=manual, tail_age_ms=0, now_ms=0).state == "waiting"


def test_an_empty_log_has_an_end_even_so() -> None:
    found = state_of(LOG, HEAD)
    assert (found.archive_start, found.last_offset, found.high_watermark, found.lag_bytes, found.lag_s) == (10, 9, 10, 0, 0)


def test_an_unknown_lag_is_not_zero() -> None:
    found = state_of(replace(LOG, high_watermark=None), HEAD)
    assert (found.lag_bytes, found.lag_s) == (None, None)
    assert ArchiveLag(size_bytes=7, oldest_ms=None).age_s(now_ms=1000) is None
    assert ArchiveLag(size_bytes=7, oldest_ms=400).age_s(now_ms=1000) == 0.6
    assert ArchiveLag(size_bytes=0, oldest_ms=None).age_s(now_ms=1000) == 0.0


@pytest.mark.parametrize(
    ("dated_ms", "oldest_ms"), [(BASE_TIME, BASE_TIME), (1000 * BASE_TIME, WRITTEN_MS), (2**63 - 1, WRITTEN_MS), (-1, None)]
)
def test_a_record_that_is_dated_ahead_has_waited_since_its_segment_was_written(
    directory: Directory, dated_ms: int, oldest_ms: int | None
) -> None:
    """Else it had never waited at all, however long the archive stands still."""
    path = directory.segment(0, a_batch(0, [a_record(0, timestamp=dated_ms)]))
    os.utime(path, ns=(0, WRITTEN_MS * 1_000_000))
    directory.high_watermark(1)
    log = LogDirs([directory.root]).look(directory.partition.topic_partition)
    assert partition_status.backlog(log, 0) == ArchiveLag(size_bytes=path.stat().st_size, oldest_ms=oldest_ms)


def test_whose_word_the_high_watermark_is_and_how_old() -> None:
    led = replace(LOG, leadership=replace(FOLLOWER, leader=1))

    def shown(log: LocalLog, origin: WatermarkOrigin | None) -> tuple[str, float | None, str]:
        found = status_of(PARTITION, log, HEAD, policy=Policy(), tail_age_ms=0, now_ms=0, origin=origin)
        return found.high_watermark_source, found.high_watermark_age_s, found.reason

    assert shown(led, WatermarkOrigin(WatermarkSource.BROKER, 0.21)) == ("broker", 0.21, "caught up with the broker's answer")
    by_file = "caught up with the broker's checkpoint; by default it writes one every 5 s"
    assert shown(led, WatermarkOrigin(WatermarkSource.CHECKPOINT, 3.0)) == ("checkpoint", 3.0, by_file)
    assert shown(led, None)[:2] == ("checkpoint", None)
    assert shown(replace(led, high_watermark=None), WatermarkOrigin(WatermarkSource.CHECKPOINT, 3.0))[:2] == ("", None)


def test_a_log_that_changes_while_it_is_looked_at_has_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise SourceChanged("a segment was deleted")

    monkeypatch.setattr(partition_status, "backlog", gone)
    with pytest.raises(SourceChanged):
        state_of(LOG, HEAD)


def test_offsets_without_a_batch_are_not_due(tmp_path: Path) -> None:
    """What was committed there was cut off, or never whole: the step finds nothing to upload, each time."""
    (tmp_path / f"{0:020}.log").touch()
    active = LocalSegment(base_offset=0, directory=tmp_path, size_bytes=0, generation=generation_of(tmp_path), is_active=True)
    log = replace(LOG, segments=(active,), high_watermark=12, log_start=10)
    status = state_of(log, HEAD)
    assert (status.state, status.lag_bytes) == ("archived", 0)


def generation_of(directory: Path) -> Generation:
    status = (directory / f"{0:020}.log").stat()
    return Generation(status.st_ino, status.st_mtime_ns)


def test_every_step_has_a_sentence_that_says_what_comes_next() -> None:
    assert set(partition_status._NEXT) | {Idle, Stop} == set(get_args(Step))


def test_a_log_without_an_epoch_history_has_stopped_where_nobody_else_leads() -> None:
    bare = replace(LOG, epochs=EpochHistory(), log_start=0, segments=())

    def state(leadership: Leadership | None) -> str:
        return status_of(PARTITION, replace(bare, leadership=leadership), None, policy=Policy(), tail_age_ms=0, now_ms=0).state

    assert [state(None), state(replace(FOLLOWER, leader=1)), state(FOLLOWER)] == ["stopped", "stopped", "standby"]
