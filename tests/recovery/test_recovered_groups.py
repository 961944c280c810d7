"""Groups of a recovered cluster, compared with what came back before retention is put back."""

from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

import recovery
from headwater_core.errors import HeadwaterError, TransientError, Unauthorised, VerificationFailed
from recovery.held_settings import finish, held_of
from recovery.recovered_groups import CommittedPlace, recovered_commits, recovered_starts, unlike_groups
from tests.headwater_core.manual_clock import ManualClock
from tests.recovery.test_held_settings import Cluster
from tests.recovery.written_archive import Archive, commit, data, marker, plain, shares, snapshot

ORDERS, MENU = CommittedPlace("cooks", "orders", 0), CommittedPlace("hosts", "menu", 0)
SHARED = CommittedPlace("sharers", "orders", 0)
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
    assert recovered_commits(cluster.plan, archive.store) == cluster.offsets
    assert recovered_starts(cluster.plan, archive.store) == cluster.starts
    assert unlike_groups(cluster.plan, archive.store, cluster) == {}


def test_groups_that_have_what_came_back_or_more_keep_nothing_away(recovered: tuple[Path, Archive, Cluster]) -> None:
    into, archive, cluster = recovered
    cluster.offsets |= {ORDERS: 4, CommittedPlace("new", "orders", 0): 0}
    done = finish(into, cluster, ManualClock(), store=archive.store)
    assert (done.unlike, cluster.settings["orders"]["retention.ms"], held_of(into)) == ({}, "600", [])


@pytest.mark.parametrize(("offset", "has"), [(None, "no offset"), (2, "offset 2")])
def test_a_topic_of_which_a_group_lacks_something_waits(offset: int | None, has: str, recovered: tuple[Path, Archive, Cluster]) -> None:
    into, archive, cluster = recovered
    del cluster.offsets[ORDERS]
    cluster.offsets |= {} if offset is None else {ORDERS: offset}
    done = finish(into, cluster, ManualClock(), store=archive.store)
    assert done.unlike == {"orders": f"group cooks has {has} of orders:0, 3 came back"}
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
    for group in ("group cooks", "group hosts", "group payers", "share group sharers"):
        assert f"{group} has no offset" in str(raised.value)
    assert not cluster.changes


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
    with pytest.raises(VerificationFailed, match="not in the archive any more"):
        finish(into, cluster, ManualClock(), store=archive.store)
    assert not cluster.changes


def test_offsets_that_were_to_be_kept_are_compared_as_they_are(tmp_path: Path) -> None:
    archive = archived()
    plan = archive.plan(keep_offsets=True)
    assert recovered_commits(plan, archive.store)[MENU] == 9
