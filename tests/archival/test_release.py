from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from archival.partition.release import NO_LIMIT, ReleaseLimit, kept_from, plan_release, release_bound
from archival.plan.policy import Policy
from headwater_core.errors import SourceChanged, UsageError
from headwater_core.segments.local_log import Generation, LocalLog
from manifests.head import Head
from tests.archival.builders import PARTITION, Agent, Directory, a_log, led_by
from tests.headwater_core.segments.builders import a_segment
from tests.manifests import builders
from tests.manifests.builders import a_gap


def an_entry(base: int, last: int, **fields: Any) -> Any:
    return builders.an_entry(base, last, partition=PARTITION, **fields)


def a_head(*entries: Any, **fields: Any) -> Head:
    return builders.a_head(*entries, partition=PARTITION, **{"writer": "me", "leader_epoch": 0, **fields})


def bound(log: LocalLog, head: Head | None) -> int:
    return release_bound(log, head, "me")[0]


WHOLE = an_entry(0, 29)


def test_segments_wholly_archived_go_and_the_active_one_stays() -> None:
    plan = plan_release(a_log(0, 10, 20, hw=30), a_head(WHOLE), "me")
    assert [segment.base_offset for segment in plan.segments] == [0, 10]
    assert plan.local_start == 20


def test_a_segment_partly_archived_stays() -> None:
    plan = plan_release(a_log(0, 10, 20, hw=30), a_head(an_entry(0, 14)), "me")
    assert [segment.base_offset for segment in plan.segments] == [0]


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (None, "nothing is archived"),
        (a_head(WHOLE, writer="she"), "she holds"),
        (a_head(WHOLE, leader_epoch=-1), "leader epoch"),
        (a_head(start_offset=0), "begins at"),
        (a_head(an_entry(10, 29)), "begins at 10"),
    ],
)
def test_nothing_goes_without_our_own_up_to_date_head(head: Head | None, why: str) -> None:
    at, reason = release_bound(a_log(0, 10, 20, hw=30), head, "me")
    assert at == 0
    assert why in reason


def test_release_stops_at_the_high_watermark() -> None:
    assert bound(a_log(0, 10, 20, hw=15), a_head(WHOLE)) == 15


def test_release_stops_below_a_gap_over_offsets_the_log_holds() -> None:
    assert bound(a_log(0, 10, 20, hw=30), a_head(an_entry(0, 9), a_gap(10, 14), an_entry(15, 29))) == 10


def test_a_gap_below_the_log_start_is_no_obstacle() -> None:
    assert bound(a_log(20, 25, hw=30), a_head(an_entry(0, 9), a_gap(10, 19), an_entry(20, 29))) == 30


def test_release_stops_where_a_dead_branch_begins() -> None:
    head = a_head(an_entry(0, 9), an_entry(10, 29, epochs=((1, 10),)), leader_epoch=2)
    assert bound(a_log(0, 10, 20, hw=30, epochs=[(0, 0), (1, 10), (2, 14)]), head) == 14


def test_release_stops_at_an_object_that_was_never_verified() -> None:
    assert bound(a_log(0, 10, 20, hw=30), a_head(an_entry(0, 9), an_entry(10, 29, digest="", layout="foreign"))) == 10


def test_every_replica_must_be_in_sync() -> None:
    assert bound(a_log(0, 10, hw=10, leadership=led_by(1, 0, in_sync=(1,))), a_head(WHOLE)) == 0
    assert bound(a_log(0, 10, hw=10, leadership=led_by(1, 0)), a_head(WHOLE)) == 10
    assert bound(a_log(0, 10, hw=10, leadership=led_by(1, 0, replicas=(1,), in_sync=(1,))), a_head(WHOLE)) == 10


def test_a_follower_releases_nothing() -> None:
    assert bound(a_log(0, 10, hw=10, leadership=led_by(2, 0)), a_head(WHOLE)) == 0


def test_a_log_in_the_middle_of_a_compaction_releases_nothing() -> None:
    assert bound(a_log(0, 10, hw=10, settled=False), a_head(WHOLE)) == 0


def test_while_it_is_unknown_who_leads_nothing_is_released() -> None:
    log = a_log(0, 10, hw=10)
    assert bound(log, a_head(WHOLE)) > 0
    assert bound(replace(log, leadership_unread=True), a_head(WHOLE)) == 0


def kept(keep_bytes: int = 0, keep_ms: int = 0, now_ms: int = 1000) -> int:
    """100 bytes in each of three segments, last written to at 100, 200 and 300 ms."""
    log = a_log(0, 10, 20, hw=30)
    segments = (
        replace(segment, size_bytes=100, generation=Generation(at_ms, at_ms * 1_000_000))
        for segment, at_ms in zip(log.segments, (100, 200, 300), strict=True)
    )
    return kept_from(replace(log, segments=tuple(segments)), keep_bytes=keep_bytes, keep_ms=keep_ms, now_ms=now_ms).offset


def test_the_newest_bytes_are_kept() -> None:
    assert kept() == NO_LIMIT.offset
    assert [kept(keep_bytes=size) for size in (1, 100, 101, 200, 201, 1000)] == [20, 20, 10, 10, 0, 0]


def test_what_was_written_to_of_late_is_kept() -> None:
    assert [kept(keep_ms=keep_ms) for keep_ms in (700, 701, 800, 801, 901)] == [NO_LIMIT.offset, 20, 20, 10, 0]
    assert kept(keep_ms=1, now_ms=0) == 0  # a clock that went back keeps all
    assert kept(now_ms=0) == NO_LIMIT.offset


def test_more_than_the_newest_bytes_is_kept_for_its_time() -> None:
    assert kept(keep_bytes=100, keep_ms=801) == 10
    assert kept(keep_bytes=300, keep_ms=701) == 0


def test_nothing_is_released_that_is_kept() -> None:
    log = a_log(0, 10, 20, hw=30)
    plan = plan_release(log, a_head(WHOLE), "me", ReleaseLimit(10, "kept"))
    assert [segment.base_offset for segment in plan.segments] == [0]
    assert (plan.local_start, plan.reason) == (10, "kept")


# In a directory


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    directory = Directory(tmp_path / "logs")
    for base in (0, 10, 20):
        directory.segment(base, a_segment(base, 10 if base < 20 else 5))
        for suffix in ("index", "timeindex", "txnindex", "snapshot"):
            (directory.path / f"{base:020}.{suffix}").write_bytes(b"")
    directory.high_watermark(25)
    return directory


def names(directory: Directory) -> list[str]:
    return sorted(path.name for path in directory.path.iterdir() if path.name[0].isdigit())


def test_archived_segments_are_deleted_with_all_their_files(directory: Directory) -> None:
    agent = Agent(directory.root)
    agent.run(Policy())
    release = agent.releaser.release(agent.archiver)
    assert [segment.base_offset for segment in release.segments] == [0, 10]
    assert release.size_bytes > 0
    assert {name[:20] for name in names(directory)} == {f"{20:020}"}
    assert agent.run(Policy(tail_after_ms=0)) == ["archived", "caught up"]


def test_segments_that_are_kept_stay_with_all_their_files(directory: Directory) -> None:
    agent = Agent(directory.root)
    agent.run()
    release = agent.releaser.release(agent.archiver, lambda log: ReleaseLimit(log.segments[1].base_offset, "kept"))
    assert [segment.base_offset for segment in release.segments] == [0]
    assert {name[:20] for name in names(directory)} == {f"{base:020}" for base in (10, 20)}


def test_a_dry_run_deletes_nothing(directory: Directory) -> None:
    agent = Agent(directory.root)
    agent.run()
    before = names(directory)
    assert agent.releaser.release(agent.archiver, dry_run=True).segments
    assert names(directory) == before


def test_what_a_crash_left_is_swept(directory: Directory) -> None:
    agent = Agent(directory.root)
    agent.run()
    (directory.path / f"{0:020}.log").unlink()
    agent.releaser.release(agent.archiver)
    assert {name[:20] for name in names(directory)} == {f"{20:020}"}


def test_a_snapshot_of_the_local_start_and_above_stays(directory: Directory) -> None:
    agent = Agent(directory.root)
    agent.run()
    snapshot = directory.path / f"{25:020}.snapshot"
    snapshot.write_bytes(b"")
    agent.releaser.release(agent.archiver)
    assert snapshot.exists()


def test_a_brokers_directory_is_never_touched(directory: Directory) -> None:
    agent = Agent(directory.root, owned=False)
    agent.run()
    with pytest.raises(UsageError, match="not owned"):
        agent.releaser.release(agent.archiver)


def test_release_believes_the_bucket_not_what_the_archiver_remembers(directory: Directory) -> None:
    agent = Agent(directory.root)
    agent.run()
    other = Agent(directory.root, store=agent.store, writer="agent-b")
    other.run()
    assert agent.releaser.release(agent.archiver).segments == ()


def test_a_log_that_changes_while_release_decides_is_left_alone(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent(directory.root)
    agent.run()
    looks = iter([agent.logs.look(PARTITION.topic_partition)])
    look = agent.logs.look

    def overtaken(partition: Any) -> LocalLog:
        first = next(looks, None)
        if first:
            directory.epochs((0, 0), (1, 12))
            return first
        return look(partition)

    monkeypatch.setattr(agent.logs, "look", overtaken)
    with pytest.raises(SourceChanged):
        agent.releaser.release(agent.archiver)
    assert len([name for name in names(directory) if name.endswith(".log")]) == 3
