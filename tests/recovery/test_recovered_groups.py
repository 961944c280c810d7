"""Groups of a recovered cluster, compared with what came back before retention is put back."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

import recovery
from headwater_core.errors import HeadwaterError, TransientError, Unauthorised, UnsupportedFormat, VerificationFailed
from recovery.held_settings import LogBounds, finish, held_of
from recovery.recovered_groups import CommittedPlace, compare_groups, recovered_commits, recovered_starts
from recovery.target import read_mark, write_mark
from tests.headwater_core.manual_clock import ManualClock
from tests.recovery.test_held_settings import Cluster
from tests.recovery.written_archive import Archive, commit, data, marker, plain, shares, snapshot

ORDERS, MENU = CommittedPlace("cooks", "orders", 0), CommittedPlace("hosts", "menu", 0)
SHARED = CommittedPlace("sharers", "orders", 0)
TOPICS = {"orders", "menu"}
CAME_BACK = {ORDERS: 3, CommittedPlace("payers", "orders", 0): 2, MENU: 2}


def archived() -> Archive:
    archive = Archive()
    archive.topic("orders", [plain(0, 4)], **{"retention.ms": "600"})
    archive.topic("menu", [plain(0, 2), data(2, 9)], **{"retention.ms": "700"})
    pending = [commit(4, ("cooks", "orders", 0, 4), producer=8), commit(5, ("hosts", "gone", 0, 1))]
    ended = [commit(2, ("payers", "orders", 0, 2), producer=7), marker(3, 7)]
    archive.topic("__consumer_offsets", [commit(0, ("cooks", "orders", 0, 3), ("hosts", "menu", 0, 9))], ended, pending)
    archive.topic("__share_group_state", [shares(0, ("sharers", snapshot(3)))])
    return archive


@pytest.fixture
def recovered(tmp_path: Path) -> tuple[Path, Archive, Cluster]:
    archive = archived()
    plan = archive.plan()
    recovery.apply(plan, tmp_path / "log", archive.store)
    ends = {(topic.topic, each.partition): each.log_end for topic in plan.topics for each in topic.partitions}
    return tmp_path / "log", archive, Cluster(plan, offsets=CAME_BACK | {MENU: min(9, ends["menu", 0])}, starts={SHARED: 3})


def test_what_comes_back_is_what_was_committed_and_not_beyond_the_logs(recovered: tuple[Path, Archive, Cluster]) -> None:
    _, archive, cluster = recovered
    assert recovered_commits(cluster.plan, TOPICS, archive.store) == cluster.offsets
    assert recovered_starts(cluster.plan, TOPICS, archive.store) == cluster.starts
    assert compare_groups(cluster.plan, TOPICS, archive.store, cluster, 0) == ({}, [])


def test_groups_that_have_what_came_back_or_more_keep_nothing_away(recovered: tuple[Path, Archive, Cluster]) -> None:
    into, archive, cluster = recovered
    cluster.offsets |= {ORDERS: 4, CommittedPlace("new", "orders", 0): 0}
    done = finish(into, cluster, ManualClock(), store=archive.store)
    assert (done.unlike, cluster.settings["orders"]["retention.ms"], held_of(into)) == ({}, "600", [])


@pytest.mark.parametrize(("offset", "has"), [(None, "no offset of orders:0, 3"), (2, "offset 2 of orders:0, 3")])
def test_a_topic_of_which_a_group_lacks_something_waits(offset: int | None, has: str, recovered: tuple[Path, Archive, Cluster]) -> None:
    into, archive, cluster = recovered
    del cluster.offsets[ORDERS]
    cluster.offsets |= {CommittedPlace("cooks", "other", 0): 1} if offset is None else {ORDERS: offset}
    done = finish(into, cluster, ManualClock(), store=archive.store)
    assert done.unlike == {"orders": f"group cooks has {has} came back"}
    with pytest.raises(VerificationFailed, match=f"1 topic; nothing was put back:\n  group cooks has {has}"):
        finish(into, cluster, ManualClock(), store=archive.store)
    assert cluster.settings["orders"]["retention.ms"] == "-1"
    assert cluster.settings["menu"]["retention.ms"] == "700"
    done = finish(into, cluster, ManualClock(), store=archive.store, checked=False)
    assert (done.unlike, cluster.settings["orders"]["retention.ms"]) == ({}, "600")


def test_each_group_that_lacks_something_is_named(recovered: tuple[Path, Archive, Cluster]) -> None:
    into, archive, cluster = recovered
    cluster.offsets.clear()
    cluster.starts.clear()
    with pytest.raises(VerificationFailed, match="2 topics; nothing was put back") as raised:
        finish(into, cluster, ManualClock(), store=archive.store)
    for group in ("cooks", "hosts", "payers"):
        assert f"group {group} has no offsets at all, 1 came back" in str(raised.value)
    assert "--unchecked-groups compares logs alone" in str(raised.value)
    assert not cluster.changes


def test_groups_that_were_deleted_on_purpose_leave_logs_to_be_compared(recovered: tuple[Path, Archive, Cluster]) -> None:
    into, archive, cluster = recovered
    cluster.offsets.clear()
    cluster.moved["menu", 0] = LogBounds(1, 3)
    done = finish(into, cluster, ManualClock(), store=archive.store, groups_checked=False)
    assert (list(done.unlike), {setting.topic for setting in done.put_back}) == (["menu"], {"orders"})


def test_a_share_group_that_is_not_known_keeps_nothing_away(recovered: tuple[Path, Archive, Cluster]) -> None:
    """Its group, or the topic of it, may be archived as it was before there was one."""
    into, archive, cluster = recovered
    cluster.starts.clear()
    done = finish(into, cluster, ManualClock(), store=archive.store)
    assert (done.unlike, done.notes) == ({}, ["share group sharers has no offsets at all, 1 came back"])
    assert (cluster.settings["orders"]["retention.ms"], held_of(into)) == ("600", [])


def test_a_share_group_that_begins_earlier_keeps_its_topic_back(recovered: tuple[Path, Archive, Cluster]) -> None:
    into, archive, cluster = recovered
    cluster.starts[SHARED] = 2
    done = finish(into, cluster, ManualClock(), store=archive.store)
    assert done.unlike == {"orders": "share group sharers has offset 2 of orders:0, 3 came back"}


def test_brokers_without_share_groups_keep_nothing_away(recovered: tuple[Path, Archive, Cluster], monkeypatch: pytest.MonkeyPatch) -> None:
    into, archive, cluster = recovered

    def fail(groups: Collection[str]) -> Mapping[CommittedPlace, int]:
        raise UnsupportedFormat("code 35")

    monkeypatch.setattr(cluster, "shared", fail)
    done = finish(into, cluster, ManualClock(), store=archive.store)
    assert (done.unlike, done.notes) == ({}, ["share groups were not compared: code 35"])


@pytest.mark.parametrize(("late_ms", "waits"), [(-1, True), (0, False)])
def test_a_group_that_may_have_expired_keeps_nothing_away(late_ms: int, waits: bool, recovered: tuple[Path, Archive, Cluster]) -> None:
    into, archive, cluster = recovered
    mark = read_mark(into)
    assert mark is not None
    write_mark(into, replace(mark, started_ms=ManualClock().now_ms() - cluster.retention_ms - late_ms))
    text = "group cooks has no offsets at all, 1 came back"
    del cluster.offsets[ORDERS]
    done = finish(into, cluster, ManualClock(), store=archive.store)
    assert (done.unlike, done.notes) == (({"orders": text}, []) if waits else ({}, [text]))
    assert cluster.settings["orders"]["retention.ms"] == ("-1" if waits else "600")


def test_a_lower_offset_keeps_a_topic_back_at_any_age(recovered: tuple[Path, Archive, Cluster]) -> None:
    into, archive, cluster = recovered
    cluster.retention_ms, cluster.offsets[ORDERS] = 0, 2
    assert list(finish(into, cluster, ManualClock(), store=archive.store).unlike) == ["orders"]


def test_groups_are_compared_of_topics_that_wait_alone(tmp_path: Path) -> None:
    archive, into = Archive(), tmp_path / "log"
    archive.topic("orders", [plain(0, 4)], **{"retention.ms": "600"})
    archive.topic("menu", [plain(0, 4)], **{"retention.ms": "700"})
    archive.topic("stock", [plain(0, 4)], **{"cleanup.policy": "compact"})
    archive.topic("__consumer_offsets", [commit(0, ("cooks", "orders", 0, 3), ("cooks", "menu", 0, 3), ("cooks", "stock", 0, 3))])
    recovery.apply(plan := archive.plan(), into, archive.store)
    orders = CommittedPlace("cooks", "orders", 0)
    cluster = Cluster(plan, moved={("menu", 0): LogBounds(1, 4)}, offsets={orders: 3, CommittedPlace("cooks", "menu", 0): 3})
    assert finish(into, cluster, ManualClock(), store=archive.store).unlike.keys() == {"menu"}
    cluster.moved.clear()
    cluster.offsets[orders] = 0  # reset since then
    assert finish(into, cluster, ManualClock(), store=archive.store).unlike == {}
    assert finish(into, cluster, ManualClock(), store=archive.store).again


@pytest.mark.parametrize("error", [TransientError("the coordinator is loading"), Unauthorised("GROUP_AUTHORIZATION_FAILED")])
@pytest.mark.parametrize("call", ["committed", "shared"])
def test_a_group_that_cannot_be_read_is_not_absent(
    call: str, error: HeadwaterError, recovered: tuple[Path, Archive, Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    into, archive, cluster = recovered

    def fail(groups: Collection[str]) -> Mapping[CommittedPlace, int]:
        raise error

    monkeypatch.setattr(cluster, call, fail)
    with pytest.raises(type(error)):
        finish(into, cluster, ManualClock(), store=archive.store)
    assert not cluster.changes
    assert not finish(into, cluster, ManualClock(), store=archive.store, checked=False).unlike


def test_what_the_archive_does_not_have_any_more_cannot_be_compared(recovered: tuple[Path, Archive, Cluster]) -> None:
    into, archive, cluster = recovered
    archive.replace("__consumer_offsets", [commit(0, ("cooks", "orders", 0, 3))])
    with pytest.raises(VerificationFailed, match=r"not in the archive any more.*take-over.*--unchecked-groups compares logs alone"):
        finish(into, cluster, ManualClock(), store=archive.store)
    assert not cluster.changes
    assert not finish(into, cluster, ManualClock(), store=archive.store, groups_checked=False).unlike


def test_offsets_that_were_to_be_kept_are_compared_as_they_are(tmp_path: Path) -> None:
    archive = archived()
    plan = archive.plan(keep_offsets=True)
    assert recovered_commits(plan, TOPICS, archive.store)[MENU] == 9
