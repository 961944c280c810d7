"""What a running cluster is given beside topics, and what stays as it has it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import recovery
from headwater_core.errors import ForeignOwner, NotFound, TransientError, UsageError, VerificationFailed
from headwater_core.segments.metadata.record_schemas import ACL
from manifests.repository import ManifestRepository
from recovery import target
from recovery.given_state import (
    Handed,
    QuotaEntity,
    acls_of,
    acls_to_create,
    clamped_commits,
    commits_to_make,
    hand_over,
    quotas_of,
    quotas_to_set,
    reassignment,
    settings_of,
    settings_to_set,
)
from recovery.held_settings import LogBounds, finish
from recovery.recovered_groups import CommittedPlace
from recovery.recovery_plan import GroupCommit
from recovery.target import read_mark, write_mark
from recovery.topic_creation import with_created_topics
from tests.headwater_core.manual_clock import ManualClock
from tests.recovery.running import Running, Silent
from tests.recovery.test_cluster_state import WITHHELD, Kitchen, replicated, with_passwords
from tests.recovery.written_archive import Archive, commit, plain, shares, snapshot

USER: QuotaEntity = (("user", "chef"),)
DEFAULT: QuotaEntity = (("client-id", None),)


def test_acls_that_are_there_are_not_created_again() -> None:
    acls = acls_of(Kitchen().state)
    assert len(acls) == 3
    assert acls_to_create(acls, set(acls[:1])) == acls[1:]


def test_an_entity_that_has_any_quota_keeps_its_own() -> None:
    archived = {USER: {"producer_byte_rate": 5.0, "request_percentage": 9.0}, DEFAULT: {"consumer_byte_rate": 1.0}}
    assert quotas_to_set(archived, {USER: {"request_percentage": 50.0}}) == {DEFAULT: {"consumer_byte_rate": 1.0}}


def test_a_setting_that_is_set_stays() -> None:
    assert settings_to_set({"a": "1", "b": "2"}, {"b": "7", "c": None}) == {"a": "1"}


def test_settings_of_single_brokers_are_about_other_machines() -> None:
    state = Kitchen().state
    assert (4, "1") in state.configs
    assert set(settings_of(state)) == {(4, ""), (16, "kitchen-telemetry"), (32, "cooks")}


def a_commit(group: str, offset: int, topic: str = "orders") -> GroupCommit:
    return GroupCommit(group=group, topic=topic, partition=0, offset=offset)


def test_a_group_that_has_committed_there_keeps_what_it_has() -> None:
    commits = [a_commit("cooks", 3), a_commit("cooks", 5, "bills"), a_commit("hosts", 9)]
    held = {CommittedPlace("cooks", "orders", 0): 1}
    assert commits_to_make(commits, held) == {"cooks": [commits[1]], "hosts": [commits[2]]}


class Stage:
    """Topics that are in place in a running cluster."""

    def __init__(self, root: Path, cluster: Running | None = None, **options: Any) -> None:
        archive = Archive()
        archive.topic("orders", [plain(0, 4)])
        archive.topic("bills", [plain(0, 9)])
        offsets = [("cooks", "orders", 0, 3), ("cooks", "bills", 0, 99), ("hosts", "bills", 0, 2)]
        archive.topic("__consumer_offsets", [commit(0, *offsets)])
        self.cluster, self.into = cluster or Running(), root / "staging"
        plan = recovery.plan(ManifestRepository(archive.store), None, recovery.Options(running=True, **options), running=self.cluster)
        recovery.apply(plan, self.into, archive.store, create=lambda made: with_created_topics(made, self.cluster))
        self.cluster.bounds |= {("orders", 0): LogBounds(0, 4), ("bills", 0): LogBounds(0, 12)}

    def hand_over(self, **how: Any) -> list[Handed] | None:
        return hand_over(self.into, self.cluster, ManualClock(), **how)

    @property
    def offsets(self) -> dict[tuple[str, str], int]:
        return {(place.group, place.topic): offset for place, offset in self.cluster.offsets.items()}


def test_groups_go_on_where_they_were_and_not_beyond_what_came_back(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    handed = stage.hand_over()
    assert handed is not None
    assert {each.state for each in handed} == {"given"}
    assert stage.offsets == {("cooks", "orders"): 3, ("cooks", "bills"): 9, ("hosts", "bills"): 2}
    stage.cluster.offsets.clear()
    assert stage.hand_over() is None  # once
    assert stage.offsets == {}


def test_of_two_at_a_time_the_second_sees_what_the_first_has_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One waits for nothing, and begins right after the other has ended."""
    stage = Stage(tmp_path)
    locked = target.locked

    @contextmanager
    def overtaken(into: Path) -> Iterator[None]:
        monkeypatch.setattr(target, "locked", locked)
        assert stage.hand_over()
        assert finish(stage.into, stage.cluster, ManualClock()).put_back
        with locked(into):
            yield

    monkeypatch.setattr(target, "locked", overtaken)
    assert stage.hand_over() is None
    found = read_mark(stage.into)
    assert found is not None
    assert found.handed_over_ms is not None
    assert found.put_back_ms is not None
    stage = Stage(tmp_path / "other")
    monkeypatch.setattr(target, "locked", overtaken)
    assert finish(stage.into, stage.cluster, ManualClock()).again
    found = read_mark(stage.into)
    assert found is not None
    assert found.handed_over_ms is not None


def test_offsets_that_were_to_be_kept_are_not_clamped(tmp_path: Path) -> None:
    stage = Stage(tmp_path, keep_offsets=True)
    plan = recovery.running_plan(stage.into)
    assert plan is not None
    assert {each.offset for each in clamped_commits(plan)} == {3, 99, 2}


def test_a_group_with_members_is_named_and_gets_its_offsets_with_the_next_run(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Running(with_members={"hosts"}, offsets={CommittedPlace("cooks", "orders", 0): 4}))
    handed = stage.hand_over()
    assert handed is not None
    states = {each.what: (each.state, each.why[:17]) for each in handed}
    assert states == {
        "cooks of orders:0": ("stays", ""),
        "cooks of bills:0": ("given", ""),
        "hosts of bills:0": ("failed", "UNKNOWN_MEMBER_ID"),
    }
    stage.cluster.with_members.clear()
    handed = stage.hand_over()
    assert handed is not None
    assert {each.what: each.state for each in handed} == {
        "cooks of orders:0": "stays",
        "cooks of bills:0": "there",
        "hosts of bills:0": "given",
    }


def test_no_offset_is_given_for_a_log_that_is_not_in_place(tmp_path: Path) -> None:
    """A group would be set back by auto.offset.reset, and keep the wrong place for good."""
    stage = Stage(tmp_path)
    stage.cluster.bounds["bills", 0] = LogBounds(0, 0)
    handed = stage.hand_over()
    assert handed is not None
    assert [(each.what, each.state) for each in handed] == [("all of bills", "failed"), ("cooks of orders:0", "given")]
    stage.cluster.bounds["bills", 0] = LogBounds(5, 12)  # retention is at work by now
    assert stage.hand_over()
    assert stage.offsets == {("cooks", "orders"): 3, ("cooks", "bills"): 9, ("hosts", "bills"): 2}


def test_nothing_is_given_while_nothing_is_in_place_or_to_another_cluster(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.cluster.bounds.clear()
    with pytest.raises(VerificationFailed, match="not one topic"):
        stage.hand_over()
    stage.cluster.name = "another"
    with pytest.raises(ForeignOwner, match="of cluster another"):
        stage.hand_over()
    with pytest.raises(NotFound):
        hand_over(tmp_path / "nothing", stage.cluster, ManualClock())


def test_share_groups_get_their_start_and_one_that_is_there_keeps_its_own(tmp_path: Path) -> None:
    archive = Archive()
    archive.topic("orders", [plain(0, 4)])
    archive.topic("__share_group_state", [shares(0, ("waiters", snapshot(3)), ("ahead", snapshot(9)), ("own", snapshot(1)))])
    cluster = Running(starts={CommittedPlace("own", "orders", 0): 2})
    plan = recovery.plan(ManifestRepository(archive.store), None, recovery.Options(running=True), running=cluster)
    assert [(each.group, each.offset, each.log_end, each.shared) for each in plan.offsets_ahead] == [("ahead", 9, 4, True)]
    recovery.apply(plan, tmp_path, archive.store, create=lambda made: with_created_topics(made, cluster))
    cluster.bounds["orders", 0] = LogBounds(0, 4)
    cluster.has_share_groups = False
    [none] = hand_over(tmp_path, cluster, ManualClock()) or []
    assert (none.kind, none.what, none.state) == ("share group offset", "offsets of 3 share groups", "failed")
    cluster.has_share_groups, cluster.with_members = True, {"waiters"}
    states = {each.what: (each.state, each.why[-15:]) for each in hand_over(tmp_path, cluster, ManualClock()) or ()}
    assert states == {
        "waiters of orders:0": ("failed", "NON_EMPTY_GROUP"),
        "ahead of orders:0": ("given", ""),
        "own of orders:0": ("stays", ""),
    }
    cluster.with_members = set()
    assert hand_over(tmp_path, cluster, ManualClock())
    assert {place.group: start for place, start in cluster.starts.items()} == {"waiters": 3, "ahead": 4, "own": 2}


def test_a_cluster_that_does_not_answer_may_do_so_later(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Silent())
    with pytest.raises(TransientError, match="loading"):
        stage.hand_over()


class KitchenStage:
    def __init__(self, root: Path, cluster: Running, kitchen: Kitchen | None = None) -> None:
        self.kitchen, self.cluster, self.into = kitchen or Kitchen(), cluster, root / "staging"
        options = recovery.Options(cluster="latest", running=True)
        self.plan = plan = recovery.plan(self.kitchen.repository, None, options, running=cluster)
        recovery.apply(plan, self.into, self.kitchen.store, create=lambda made: with_created_topics(made, cluster))
        ends = {
            (topic.topic, each.partition): LogBounds(each.start_offset, each.log_end) for topic in plan.topics for each in topic.partitions
        }
        cluster.bounds |= ends

    def hand_over(self) -> dict[str, list[Handed]]:
        handed = hand_over(self.into, self.cluster, ManualClock())
        assert handed is not None
        found: dict[str, list[Handed]] = {}
        for each in handed:
            found.setdefault(each.kind, []).append(each)
        return found


def test_a_whole_cluster_gives_its_acls_quotas_and_settings_and_the_running_ones_stay(tmp_path: Path) -> None:
    cluster = Running(
        held_quotas={USER: {"producer_byte_rate": 1.0}},
        dynamic={(4, ""): {"log.cleaner.threads": "7", "min.insync.replicas": "1"}, (32, "cooks"): {}},
    )
    stage = KitchenStage(tmp_path, cluster)
    found = stage.hand_over()
    state = stage.kitchen.state
    assert cluster.held_acls == set(acls_of(state))
    assert [each.state for each in found["acl"]] == ["given"] * len(state.others[ACL])
    assert cluster.held_quotas == quotas_of(state) | {USER: {"producer_byte_rate": 1.0}}
    assert {each.what: each.state for each in found["quota"]}["user chef producer_byte_rate"] == "stays"
    states = {each.what: each.state for each in found["setting"]}
    assert states["broker (default) log.cleaner.threads"] == "stays"
    assert states["broker (default) min.insync.replicas"] == "there"
    assert states["group cooks consumer.session.timeout.ms"] == "given"
    assert cluster.dynamic[4, ""]["log.cleaner.threads"] == "7"
    assert not any(each.value for each in found["setting"])  # one may be a password


def test_what_was_archived_without_secrets_is_left_out_by_name_and_the_rest_is_given(tmp_path: Path) -> None:
    state, cluster = Kitchen().state, Running()
    kitchen = Kitchen(secrets=False, unread={99: 1}, unknown=(b"\x01\x63\x00one",), **with_passwords(state))
    stage = KitchenStage(tmp_path, cluster, kitchen)
    assert stage.plan.left_out == (
        "settings of brokers 1: the running cluster's brokers are others",
        "1 record of the cluster's metadata that this version does not know",
        WITHHELD,
    )
    stage.hand_over()
    assert (cluster.held_acls, cluster.held_quotas, cluster.dynamic) == (set(acls_of(state)), quotas_of(state), settings_of(state))


def test_without_an_authorizer_the_rest_is_given_all_the_same(tmp_path: Path) -> None:
    stage = KitchenStage(tmp_path, Running(has_authorizer=False))
    found = stage.hand_over()
    assert [(each.state, "SECURITY_DISABLED" in each.why) for each in found["acl"]] == [("failed", True)]
    assert {each.state for each in found["quota"]} == {"given"}
    stage.cluster.has_authorizer = True
    assert {each.state for each in stage.hand_over()["acl"]} == {"given"}


def test_an_unfinished_recovery_gives_nothing(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    mark = read_mark(stage.into)
    assert mark is not None
    write_mark(stage.into, replace(mark, finished_ms=None))
    with pytest.raises(UsageError, match="not finished"):
        stage.hand_over()


def test_replicas_are_grown_by_kafkas_own_tool_where_their_number_is_known() -> None:
    kitchen = Kitchen(topics=replicated(Kitchen().state, 2))
    options, cluster = recovery.Options(cluster="latest", running=True), Running(nodes={1: None, 2: None, 3: None})
    plan = recovery.plan(kitchen.repository, None, options, running=cluster)
    wanted: Any = reassignment(plan)
    assert wanted["version"] == 1
    assert {len(set(each["replicas"])) for each in wanted["partitions"]} == {2}
    assert len(wanted["partitions"]) == sum(len(topic.partitions) for topic in plan.topics)
    alone = recovery.plan(Kitchen().repository, None, options, running=cluster)
    assert reassignment(alone) is None
