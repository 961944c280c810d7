"""The cluster's metadata in the bucket: newer after older, whoever writes it, and nothing lost on the way."""

import gzip
import io
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import structlog

from archival import cluster_archiver
from archival.cluster_archiver import COLLECT_S, ClusterArchiver, ClusterArchiverEquipment
from archival.config import ClusterConfig
from headwater_core import milestones
from headwater_core.errors import CorruptData, ForeignOwner, NotFound
from headwater_core.objectstore.digest import digest_of
from headwater_core.segments.metadata.cluster_metadata import ClusterMetadata
from headwater_core.segments.metadata.record_schemas import SCRAM
from manifests import cluster_list, cluster_snapshot, keys
from manifests.cluster_snapshot import load_snapshot, open_snapshot
from manifests.cluster_survey import snapshot_objects, survey_snapshots
from manifests.repository import ManifestRepository
from tests.archival.cluster_world import ClusterWorld, Plant, a_state, later
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.simulation.world import WorldClock


class OneAgent:
    def __init__(self, store: MemoryStore | None = None, clock: WorldClock | None = None, **settings: Any) -> None:
        self.clock = clock or WorldClock()
        self.store = store or MemoryStore(self.clock)
        self.repository = ManifestRepository(self.store)
        self.sees: ClusterMetadata | None = a_state(1, 10, 0, self.clock.now_ms())
        self.uid = 0
        self.archiver = ClusterArchiver(
            ClusterArchiverEquipment(
                metadata=lambda: self.sees,
                store=self.store,
                repository=self.repository,
                cluster_id=lambda: "kitchen",
                writer=f"cook-{id(self)}",
                clock=self.clock,
                new_uid=self.new_uid,
                settings=lambda: ClusterConfig(**settings),
            )
        )

    def new_uid(self) -> str:
        self.uid += 1
        return f"{id(self) % 2**60:016x}{self.uid:016x}"

    @property
    def newest(self) -> cluster_list.ListedSnapshot:
        listed = self.repository.load_snapshots()
        assert listed is not None
        return listed.newest


@pytest.mark.parametrize("seed", range(40))
def test_agents_that_crash_on_a_bad_network_keep_the_chain(seed: int) -> None:
    ClusterWorld(seed).run(120)


def _run(seeds: int) -> None:
    for seed in range(seeds):
        ClusterWorld(seed).run(120)


def _fixed(value: object) -> Plant:
    return lambda patch: patch.setattr(cluster_archiver, "is_newer", lambda *_: value)


def _nothing_uploaded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cluster_archiver, "put_confirmed", lambda *_: None)


def _no_pause(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClusterArchiver, "_wait_s", lambda *_: 0.0)


def _no_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cluster_archiver, "LEASE_MS", 0)


def _collects_what_is_on_its_way(patch: pytest.MonkeyPatch) -> None:
    known = keys.parse_cluster_snapshot
    patch.setattr(keys, "parse_cluster_snapshot", lambda key: (name := known(key)) and name._replace(number=0))


def _another_decides(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClusterArchiver, "_is_settled", lambda *_: False)


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (_fixed(True), "older state"),
        (_fixed(False), "newest state"),
        (_nothing_uploaded, "not there"),
        (_no_pause, "too fast"),
        (_no_lease, "lost what was listed"),
        (_collects_what_is_on_its_way, "not there"),
        (_another_decides, "older state|too fast"),
    ],
)
def test_planted_mistakes_are_caught(plant: Plant, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, NotFound), match=words):
        _run(60)


def test_what_has_not_changed_costs_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = OneAgent()
    assert agent.archiver.step() is not None
    assert agent.sees is not None
    monkeypatch.setattr(agent.store, "get", None)
    for _ in range(5):
        agent.clock.advance(60_000)
        agent.sees = later(agent.sees, 100)
        assert agent.archiver.step() is None


def test_a_change_waits_for_its_minute_and_a_request_does_not() -> None:
    agent = OneAgent()
    agent.archiver.step()
    agent.sees = a_state(1, 20, 1)
    agent.clock.advance(59_000)
    assert agent.archiver.step() is None
    agent.clock.advance(1_000)
    second = agent.archiver.step()
    agent.sees = a_state(1, 30, 2)
    third = agent.archiver.step(requested=True)
    assert second is not None
    assert third is not None
    assert (second.number, second.end_offset, third.number) == (2, 20, 3)


def test_what_changes_all_the_time_is_looked_at_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, looked = OneAgent(), list[ClusterMetadata]()

    def content_of(state: ClusterMetadata) -> cluster_snapshot.SnapshotContent:
        looked.append(state)
        return cluster_snapshot.content_of(state)

    monkeypatch.setattr(cluster_archiver, "content_of", content_of)
    for value in range(13):
        agent.sees = a_state(1, 10 + value, value)
        agent.archiver.step()
        agent.clock.advance(10_000)
    assert [state.end_offset for state in looked] == [10, 16, 22]


def test_a_clock_that_is_a_year_ahead_holds_nobody_up() -> None:
    ahead = OneAgent()
    ahead.clock.advance(365 * 86_400_000)
    ahead.archiver.step()
    behind = OneAgent(ahead.store)
    behind.sees = a_state(1, 20, 1)
    assert behind.archiver.step() is None
    behind.clock.advance(60_000)
    taken = behind.archiver.step()
    assert taken is not None
    assert taken.taken_ms == ahead.newest.taken_ms


def test_a_recovered_cluster_goes_on_though_its_log_is_shorter() -> None:
    agent = OneAgent()
    agent.sees = a_state(9, 90_000, 1, agent.clock.now_ms())
    agent.archiver.step()
    agent.clock.advance(cluster_list.ANOTHER_LIFE_MS + 1)
    agent.sees = a_state(1, 60, 2, agent.clock.now_ms())
    taken = agent.archiver.step()
    assert taken is not None
    assert (taken.number, taken.position) == (2, (1, 60))


def test_an_agent_beside_the_old_disk_does_not_win_against_the_recovered_cluster() -> None:
    agent = OneAgent()
    old = agent.sees = a_state(9, 90_000, 1, agent.clock.now_ms())
    agent.archiver.step()
    agent.clock.advance(cluster_list.ANOTHER_LIFE_MS + 1)
    recovered = agent.sees = a_state(1, 60, 2, agent.clock.now_ms())
    agent.archiver.step()
    for state in (old, recovered, a_state(9, 90_007, 3, old.appended_ms)):
        agent.clock.advance(60_000)
        agent.sees = state
        assert agent.archiver.step(requested=True) is None
    assert agent.newest.position == (1, 60)


def test_a_late_agent_that_finds_no_list_makes_it_again_and_adds_nothing() -> None:
    agent = OneAgent()
    agent.archiver.step()
    agent.clock.advance(cluster_list.ANOTHER_LIFE_MS + 1)
    agent.sees = a_state(1, 20, 1, agent.clock.now_ms())
    agent.archiver.step()
    agent.store.delete(keys.CLUSTER_LIST)
    late = OneAgent(agent.store, agent.clock)
    late.sees = a_state(1, 15, 7, agent.clock.now_ms() - 5)
    assert late.archiver.step(requested=True) is None
    assert (late.newest.number, late.newest.position, late.newest.has_secrets) == (2, (1, 20), True)
    assert late.newest.appended_ms == agent.sees.appended_ms
    taken = agent.archiver.step()
    assert taken is None
    agent.archiver.collect()
    assert agent.archiver.step(requested=True) is None  # the object says that it has secrets


def test_an_older_list_that_was_put_back_gives_no_number_twice_and_time_to_notice() -> None:
    agent = OneAgent()
    agent.archiver.step()
    old = agent.store.get(keys.CLUSTER_LIST)[0]
    for value in (1, 2):
        agent.sees = a_state(1, 10 + value, value)
        agent.archiver.step(requested=True)
    agent.store.replace(keys.CLUSTER_LIST, old, expected_tag=agent.store.get(keys.CLUSTER_LIST)[1])
    agent.archiver.collect()
    agent.sees = a_state(1, 20, 3)
    taken = agent.archiver.step(requested=True)
    assert taken is not None
    assert taken.number == 4
    with structlog.testing.capture_logs() as events:
        assert agent.archiver.collect() == 0
    assert [(each["event"], each["objects"], each["number"]) for each in events] == [("cluster_snapshots_unlisted", 2, 3)]
    assert survey_snapshots(agent.repository).note == "not listed: 2 snapshots, the last 2, 3"
    agent.clock.advance(cluster_list.LEASE_MS)
    assert agent.archiver.collect() == 2


def test_without_secrets_none_is_stored_and_an_agent_with_them_adds_them() -> None:
    without = OneAgent(secrets=False)
    first = without.archiver.step()
    assert first is not None
    assert not first.has_secrets
    state = load_snapshot(without.store, first)
    assert SCRAM not in state.others
    having = OneAgent(without.store, without.clock)
    having.sees = without.sees
    second = having.archiver.step(requested=True)
    assert second is not None
    assert SCRAM in load_snapshot(without.store, second).others
    assert having.archiver.step(requested=True) is None
    again = OneAgent(without.store, without.clock, secrets=False)
    again.sees = replace(a_state(1, 99, 0), appended_ms=without.clock.now_ms())
    third = again.archiver.step(requested=True)
    assert third is not None
    assert not third.has_secrets
    assert again.archiver.step(requested=True) is None


def test_a_lost_list_is_made_again_and_numbers_go_on() -> None:
    agent = OneAgent()
    agent.archiver.step()
    agent.sees = a_state(1, 20, 1)
    agent.archiver.step(requested=True)
    agent.store.delete(keys.CLUSTER_LIST)
    agent.clock.advance(int(COLLECT_S) * 1000)
    agent.archiver.attempt()
    listed = agent.repository.load_snapshots()
    assert listed is not None
    assert [each.number for each in listed.snapshots] == [1, 2]
    agent.sees = a_state(1, 30, 2)
    third = agent.archiver.step(requested=True)
    assert third is not None
    assert third.number == 3
    for each in listed.snapshots:
        load_snapshot(agent.store, each)
    assert agent.archiver.collect() == 0


def test_a_damaged_list_is_an_error_and_is_left_as_it_is() -> None:
    agent = OneAgent()
    agent.archiver.step()
    raw, tag = agent.store.get(keys.CLUSTER_LIST)
    broken = raw.replace(b'"end_offset": 10', b'"end_offset": 11')
    agent.store.replace(keys.CLUSTER_LIST, broken, expected_tag=tag)
    agent.sees = a_state(1, 20, 1)
    with pytest.raises(CorruptData):
        agent.archiver.step(requested=True)
    with structlog.testing.capture_logs() as events:
        agent.archiver.attempt(requested=True)
    assert [each["event"] for each in events] == ["cluster_snapshot_failed"]
    assert agent.store.get(keys.CLUSTER_LIST)[0] == broken


def test_the_snapshots_of_another_cluster_are_not_touched() -> None:
    agent = OneAgent()
    agent.archiver.step()
    listed, raw = agent.repository.load_snapshots(), agent.store.get(keys.CLUSTER_LIST)
    assert listed is not None
    other = cluster_list.encode_cluster_list(cluster_list.ClusterList(cluster_id="pantry", snapshots=listed.snapshots))
    agent.store.replace(keys.CLUSTER_LIST, other, expected_tag=raw[1])
    agent.sees = a_state(1, 20, 1)
    with pytest.raises(ForeignOwner):
        agent.archiver.step(requested=True)


def test_damage_to_a_snapshot_is_an_error_of_ours() -> None:
    agent = OneAgent()
    agent.archiver.step()
    listed = agent.newest
    packed, _ = agent.store.get(listed.key)
    for broken in (packed[:-9], packed + b"x", packed[:40] + b"\x00" + packed[41:], b""):
        agent.store.delete(listed.key)
        agent.store.put(listed.key, io.BytesIO(broken), size_bytes=len(broken))
        with pytest.raises(CorruptData):
            load_snapshot(agent.store, listed)
    bomb = replace_size(agent, b"\x1f\x8b" + b"\x00" * 100)
    with pytest.raises(CorruptData):
        load_snapshot(agent.store, bomb)


def replace_size(agent: OneAgent, data: bytes) -> cluster_list.ListedSnapshot:
    """The newest snapshot, as if it had been listed with these bytes and no digest."""
    agent.store.delete(agent.newest.key)
    agent.store.put(agent.newest.key, io.BytesIO(data), size_bytes=len(data))
    return msgspec.structs.replace(agent.newest, size_bytes=len(data), digest=None)


def test_a_snapshot_that_unpacks_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = OneAgent()
    agent.archiver.step()
    monkeypatch.setattr(cluster_snapshot, "RAW_BYTES_MAX", 1 << 20)
    bomb = replace_size(agent, gzip.compress(bytes(1 << 24)))
    with pytest.raises(CorruptData, match="does not end"):
        load_snapshot(agent.store, bomb)


def test_no_secret_is_logged_whatever_goes_wrong() -> None:
    agent = OneAgent()

    def fails() -> ClusterMetadata:
        raise RuntimeError("storedKey=hush")

    with structlog.testing.capture_logs() as events:
        agent.archiver.attempt()
        agent.archiver = ClusterArchiver(replace(agent.archiver._equipment, metadata=fails))
        agent.archiver.attempt()
    assert [each["event"] for each in events] == ["cluster_snapshot_taken", "cluster_snapshot_failed"]
    assert "hush" not in str(events)
    assert "storedKey" not in str(events)


def test_records_that_are_not_known_are_reported_once() -> None:
    agent = OneAgent()
    assert agent.sees is not None
    agent.sees = replace(agent.sees, unread={99: 2, 18: 1}, unknown=(b"a", b"b", b"c"))
    with structlog.testing.capture_logs() as events:
        for value in range(3):
            agent.archiver.attempt()
            agent.sees = replace(a_state(1, 20 + value, value), unread={99: 2, 18: 1}, unknown=(b"a", b"b", b"c"))
    unknown = [each for each in events if each["event"] == "cluster_records_unknown"]
    assert [(each["records"], each["kinds"]) for each in unknown] == [(3, ["ACCESS_CONTROL_ENTRY_RECORD of a later version", "api key 99"])]
    assert agent.newest.unknown == 3


def test_without_a_metadata_log_nothing_happens() -> None:
    agent = OneAgent()
    agent.sees = None
    assert agent.archiver.step() is None
    off = OneAgent(snapshots=False)
    assert off.archiver.step() is None
    assert list(off.store.list("")) == []


def grown(agent: OneAgent, days: int) -> None:
    """With a snapshot a day."""
    for day in range(days):
        agent.sees = a_state(1, 10 + day, day, agent.clock.now_ms())
        assert agent.archiver.step(requested=True) is not None
        agent.clock.advance(86_400_000)
        agent.sees = replace(agent.sees, end_offset=10 + day, appended_ms=agent.clock.now_ms())


def numbers(agent: OneAgent) -> list[int]:
    listed = agent.repository.load_snapshots()
    assert listed is not None
    return [each.number for each in listed.snapshots]


def test_retention_acts_though_nothing_changes_any_more() -> None:
    agent = OneAgent(retention_s=5 * 86_400)
    grown(agent, 10)
    agent.archiver.collect()
    assert numbers(agent) == [5, 6, 7, 8, 9, 10]
    agent.clock.advance(3 * 86_400_000)
    agent.sees = replace(agent.sees or a_state(1, 1, 1), appended_ms=agent.clock.now_ms())
    agent.archiver.collect()
    assert numbers(agent) == [8, 9, 10]
    agent.clock.advance(30 * 86_400_000)
    agent.sees = replace(agent.sees or a_state(1, 1, 1), appended_ms=agent.clock.now_ms())
    agent.archiver.collect()
    assert numbers(agent) == [10]
    agent.clock.advance(cluster_list.LEASE_MS)
    agent.archiver.collect()
    assert [name.number for name, _ in snapshot_objects(agent.store)] == [10]


class SetClock(WorldClock):
    """A wall clock that is put ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


@pytest.mark.parametrize("who", ["agent", "agent and store", "agent, after a restart"])
def test_a_clock_put_ahead_drops_nothing(who: str) -> None:
    clock = SetClock()
    agent = OneAgent(MemoryStore(clock if "store" in who else WorldClock()), clock, retention_s=5 * 86_400)
    grown(agent, 4)
    clock.ahead_ms = 400 * 86_400_000
    if "restart" in who:
        sees = agent.sees
        agent = OneAgent(agent.store, clock, retention_s=5 * 86_400)
        agent.sees = sees
    agent.archiver.collect()
    assert numbers(agent) == [1, 2, 3, 4]
    agent.sees = a_state(1, 100, 77, clock.now_ms() - clock.ahead_ms)
    assert agent.archiver.step(requested=True) is not None
    agent.archiver.collect()
    assert numbers(agent) == [1, 2, 3, 4, 5]


def test_what_was_dropped_is_deleted_a_lease_after_it_was_seen_whatever_the_clock_says() -> None:
    clock = SetClock()
    agent = OneAgent(clock=clock, retention_s=86_400)
    grown(agent, 3)
    assert agent.archiver.collect() == 0
    clock.ahead_ms = 5 * cluster_list.LEASE_MS
    assert agent.archiver.collect() == 0
    assert len(snapshot_objects(agent.store)) == 3
    clock.advance(cluster_list.LEASE_MS)
    assert agent.archiver.collect() == 1


def test_secrets_switched_off_leave_the_newest_snapshot_though_nothing_changes() -> None:
    having = OneAgent()
    assert having.archiver.step() is not None
    without = OneAgent(having.store, having.clock, secrets=False)
    without.sees = having.sees
    taken = without.archiver.step(requested=True)
    assert taken is not None
    assert not taken.has_secrets
    assert SCRAM not in load_snapshot(without.store, taken).others
    assert without.archiver.step(requested=True) is None
    assert having.archiver.collect() == 0  # looks again
    assert having.archiver.step(requested=True) is not None  # the other one is set otherwise
    assert without.archiver.collect() == 0
    assert without.archiver.step(requested=True) is None  # once: two agents that are set otherwise do not take turns


def test_a_requested_snapshot_is_taken_though_another_agent_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, other, came = OneAgent(), OneAgent(), list[int]()
    other = OneAgent(agent.store, agent.clock)

    def first(name: str) -> None:
        if name == "cluster_snapshot_uploaded" and len(came) < 2:
            came.append(0)
            other.sees = a_state(1, 20 + len(came), len(came))
            other.archiver.step(requested=True)

    agent.sees = a_state(1, 30, 9)
    monkeypatch.setattr(milestones, "observer", first)
    taken = agent.archiver.step(requested=True)
    assert taken is not None
    assert (taken.end_offset, agent.newest.end_offset) == (30, 30)


def test_why_the_last_attempt_failed_is_known_and_for_how_long_the_state_has_not_been_archived() -> None:
    agent = OneAgent()
    assert agent.archiver.attempt() is None
    assert (agent.archiver.lag_s(), agent.archiver.tally.failure) == (0, "")
    agent.store.replace(keys.CLUSTER_LIST, b"{}", expected_tag=agent.store.get(keys.CLUSTER_LIST)[1])
    agent.sees = a_state(1, 20, 1)
    agent.clock.advance(60_000)
    failure = agent.archiver.attempt()
    assert isinstance(failure, CorruptData)
    agent.clock.advance(120_000)
    assert agent.archiver.lag_s() == 120
    assert agent.archiver.tally.failure == str(failure)
    assert agent.archiver.tally.failed_ms == agent.clock.now_ms() - 120_000
    agent.store.delete(keys.CLUSTER_LIST)
    assert agent.archiver.attempt() is None
    assert (agent.archiver.lag_s(), agent.archiver.tally.failure) == (0, "")


def test_without_a_list_an_object_says_what_it_is() -> None:
    agent = OneAgent(secrets=False)
    agent.archiver.step()
    agent.store.delete(keys.CLUSTER_LIST)
    adopted = survey_snapshots(agent.repository).listed.newest
    assert adopted.has_secrets is None
    opened = open_snapshot(agent.store, adopted)
    assert (opened.listed.has_secrets, opened.cluster_id, adopted.digest) == (False, "kitchen", None)
    assert opened.listed.digest == digest_of(agent.store.get(adopted.key)[0])
    assert agent.archiver.step(requested=True) is None
    other = OneAgent(agent.store, agent.clock)
    other.archiver = ClusterArchiver(replace(other.archiver._equipment, cluster_id=lambda: "pantry"))
    with pytest.raises(ForeignOwner, match="snapshot of cluster kitchen"):
        other.archiver.step(requested=True)


def test_another_snapshot_in_the_place_of_one_is_known_for_what_it_is() -> None:
    agent = OneAgent()
    first = agent.archiver.step()
    agent.sees = a_state(1, 20, 1)
    second = agent.archiver.step(requested=True)
    assert first is not None
    assert second is not None
    raw, _ = agent.store.get(first.key)
    agent.store.delete(second.key)
    agent.store.put(second.key, io.BytesIO(raw), size_bytes=len(raw))
    for listed in (second, msgspec.structs.replace(second, digest=None, size_bytes=len(raw))):
        with pytest.raises(CorruptData, match="it is snapshot 1 of cluster kitchen, up to 10"):
            load_snapshot(agent.store, listed)
