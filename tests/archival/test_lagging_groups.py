"""Groups that have not read what release deletes: how they are listed, and when one counts as gone."""

import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from archival.broker.broker_view import CommittedEnd, Group, GroupOffset, PinnedBroker
from archival.broker.lagging_groups import APART_MAX_S, INTERVAL_S, GroupListing, IdleGroup, IdleTime, LaggingGroups, idle_times
from headwater_core.errors import HeadwaterError, TransientError
from headwater_core.partition import TopicPartition
from tests.archival.builders import PARTITION
from tests.headwater_core.manual_clock import ManualClock

SOUP, ANOTHER = PARTITION.topic_partition, TopicPartition("soup", 1)
WEEK_S = 7 * 24 * 3600.0


def a_group(name: str = "bills", *, has_members: bool = False, topics: frozenset[str] | None = frozenset(), **commits: int) -> Group:
    """commits  of soup:0, named `soup0`, and of soup:1"""
    return Group(name, has_members, {TopicPartition("soup", int(key[-1])): offset for key, offset in commits.items()}, topics)


class Coordinators:
    def __init__(self) -> None:
        self.listed: list[Group] | HeadwaterError = [a_group(soup0=15)]
        self.known: list[set[str]] = []

    def groups(self, known: Collection[str]) -> Sequence[Group]:
        self.known.append(set(known))
        if isinstance(self.listed, HeadwaterError):
            raise self.listed
        return self.listed

    def committed(self, places: Collection[TopicPartition]) -> Mapping[TopicPartition, CommittedEnd]:
        raise AssertionError

    def pinned(self) -> AbstractContextManager[PinnedBroker]:
        raise AssertionError


class Agent:
    def __init__(self, directory: Path) -> None:
        self.broker, self.clock, self.path = Coordinators(), ManualClock(), directory / "groups"
        self.start()

    def start(self) -> None:
        self.groups = LaggingGroups(self.broker, self.clock, self.path)

    def idle_s(self) -> float:
        """How long the first group has been idle by now."""
        listing = self.groups.newer_than(self.groups.begun, at_once=True)
        assert listing is not None
        return listing.groups[0].idle_s

    def watch(self, hours: int) -> float:
        for _ in range(hours):
            self.clock.advance(3_600_000)
            idle_s = self.idle_s()
        return idle_s


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent(tmp_path)


@pytest.mark.parametrize(
    ("group", "unread_from"),
    [
        (a_group(soup0=15), 15),
        (a_group(soup1=15), 0),  # it reads the topic, and has read nothing of this partition
        (a_group(), None),
        (a_group(has_members=True, topics=frozenset({"soup"})), 0),
        (a_group(has_members=True, topics=frozenset({"bread"})), None),
        (a_group(has_members=True, topics=None), 0),  # nobody knows what it reads
        (a_group(has_members=True, topics=None, soup0=15), 15),
        (Group("bills", True, {TopicPartition("bread", 0): 3}, None), 0),  # it rebalances, and may have subscribed to soup
        (Group("bills", False, {TopicPartition("bread", 0): 3}, None), None),
        (Group("connect", True, {TopicPartition("bread", 0): 3}, frozenset()), None),  # its members subscribe to nothing
        (Group("bills", True, {TopicPartition("bread", 0): 3}, frozenset({"soup", "bread"})), 0),
    ],
)
def test_where_a_group_continues(group: Group, unread_from: int | None) -> None:
    assert group.unread_from(SOUP) == unread_from


def test_the_group_that_has_read_least_counts_unless_it_is_gone() -> None:
    listing = GroupListing(
        1, [IdleGroup(a_group("old", soup0=3), WEEK_S), IdleGroup(a_group("late", soup0=5), 10.0), IdleGroup(a_group("new", soup0=9), 0.0)]
    )
    assert listing.lowest(SOUP, WEEK_S) == GroupOffset("late", 5)
    assert listing.lowest(SOUP, WEEK_S + 1) == GroupOffset("old", 3)
    assert listing.lowest(SOUP, 10.0) == GroupOffset("new", 9)
    assert GroupListing(1, ()).lowest(SOUP, WEEK_S) is None


offsets = st.dictionaries(st.sampled_from([SOUP, ANOTHER]), st.integers(0, 3), max_size=2)
moments = st.tuples(st.booleans(), offsets, st.booleans())


@given(st.lists(st.tuples(st.floats(0, APART_MAX_S), moments), max_size=20))
def test_only_time_without_members_and_changes_counts(history: list[tuple[float, tuple[bool, dict[TopicPartition, int], bool]]]) -> None:
    """Against the definition: the sum of the times since the last listing that showed members, another commit, or no such group."""
    times: dict[str, IdleTime] = {}
    since: float | None = None
    last: dict[TopicPartition, int] | None = None
    for passed_s, (has_members, commits, exists) in history:
        times = idle_times(times, [Group("bills", has_members, commits)] if exists else [], passed_s)
        is_same = exists and not has_members and last == commits and since is not None
        since = (since + passed_s if since is not None and is_same else 0.0) if exists and not has_members else None
        last = commits if exists and not has_members else None
        assert times.get("bills", IdleTime("", 0.0)).idle_s == (since or 0.0)


def test_a_listing_counts_for_those_who_chose_before_it_began(agent: Agent) -> None:
    groups, clock = agent.groups, agent.clock
    first = groups.newer_than(groups.begun)
    assert first is not None
    assert groups.newer_than(0) is first
    assert groups.newer_than(groups.begun) is None
    assert groups.wait_s == INTERVAL_S
    clock.advance(int(1000 * INTERVAL_S))
    second = groups.newer_than(1)
    assert second is not None
    assert (second.number, len(agent.broker.known)) == (2, 2)
    assert agent.broker.known == [set(), {"bills"}]
    third = groups.newer_than(2, at_once=True)
    assert third is not None
    assert third.number == 3


def test_a_choice_made_while_a_listing_is_under_way_waits_for_the_next(agent: Agent) -> None:
    inside, go = threading.Event(), threading.Event()
    list_groups = agent.broker.groups

    def slowly(known: Collection[str]) -> Sequence[Group]:
        inside.set()
        assert go.wait(10)
        return list_groups(known)

    agent.broker.groups = slowly  # type: ignore[method-assign]
    thread = threading.Thread(target=agent.groups.newer_than, args=(0,))
    thread.start()
    assert inside.wait(10)
    chosen = agent.groups.begun
    assert agent.groups.newer_than(0) is None  # nobody waits for a broker that is slow
    go.set()
    thread.join(10)
    assert agent.groups.newer_than(0) is not None
    assert agent.groups.newer_than(chosen) is None


def test_a_listing_that_fails_is_reported_once_and_tried_ever_more_seldom(agent: Agent) -> None:
    agent.broker.listed = TransientError("no answer")
    with capture_logs() as logs:
        for _ in range(1000):
            with pytest.raises(TransientError, match="no answer"):
                agent.groups.newer_than(0)
            agent.clock.advance(1000)
        assert 5 < len(agent.broker.known) < 10
        agent.broker.listed = []
        agent.clock.advance(300_000)
        assert agent.groups.newer_than(0) is not None
    assert [each["event"] for each in logs] == ["consumer_groups_unknown", "consumer_groups_known"]


def test_time_counts_while_the_agent_sees_the_group_idle(agent: Agent) -> None:
    assert agent.idle_s() == 0
    assert agent.watch(hours=10) == 36_000
    agent.broker.listed = [a_group(soup0=16)]
    assert agent.idle_s() == 0
    assert agent.watch(hours=2) == 7_200
    agent.broker.listed = [a_group(soup0=16, has_members=True)]
    assert agent.watch(hours=2) == 0


def test_time_while_nobody_looked_does_not_count(agent: Agent) -> None:
    agent.idle_s()
    assert agent.watch(hours=3) == 10_800
    agent.clock.advance(int(1000 * APART_MAX_S) + 1)
    assert agent.idle_s() == 10_800
    agent.clock.advance(90 * 24 * 3_600_000)
    agent.start()
    assert agent.idle_s() == 10_800
    assert agent.watch(hours=1) == 14_400


@pytest.mark.parametrize("content", [None, b"", b"00000000\n{}", b"deadbeef\n{"])
def test_a_lost_or_damaged_file_begins_anew(agent: Agent, content: bytes | None) -> None:
    agent.idle_s()
    agent.watch(hours=3)
    if content is None:
        agent.path.unlink()
    else:
        agent.path.write_bytes(content)
    agent.start()
    assert agent.idle_s() == 0


def test_each_flipped_bit_of_the_file_is_noticed(agent: Agent) -> None:
    agent.idle_s()
    agent.watch(hours=3)
    whole = agent.path.read_bytes()
    for at in range(len(whole)):
        agent.path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with capture_logs() as logs:
            agent.start()
        assert [(each["event"], each["path"]) for each in logs] == [("state_file_refused", str(agent.path))]
        assert agent.idle_s() == 0, at


def test_what_came_back_is_on_disk_before_it_counts(agent: Agent) -> None:
    agent.idle_s()
    agent.watch(hours=3)
    agent.broker.listed = [a_group(soup0=15, has_members=True)]
    agent.idle_s()
    agent.start()
    agent.broker.listed = [a_group(soup0=15)]
    assert agent.idle_s() == 0


def test_release_past_groups_warns_once_for_each_commit(agent: Agent) -> None:
    with capture_logs() as logs:
        agent.groups.warn(PARTITION, 15)
        assert not logs
        for end in (20, 30):
            agent.groups.warn(PARTITION, end)
        assert [(each["event"], each["group"], each["offset"], each["next_offset"]) for each in logs] == [
            ("consumers_behind_release", "bills", 15, 20)
        ]
        assert len(agent.broker.known) == 1
        agent.clock.advance(3_600_000)
        agent.broker.listed = [a_group(soup0=25)]
        agent.groups.warn(PARTITION, 30)
        assert (len(agent.broker.known), len(logs)) == (2, 2)
        agent.clock.advance(3_600_000)
        agent.broker.listed = TransientError("no answer")
        agent.groups.warn(PARTITION, 40)
    assert logs[-1]["event"] == "consumer_groups_unknown"
