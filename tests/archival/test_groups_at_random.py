"""Groups come, read, are reset and go at random while an agent releases: nothing goes that a group has not read.

The judge knows groups as they were when a listing began, and when each segment was sealed. It knows nothing of the agent's decisions.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from archival.broker import lagging_groups
from archival.broker.broker_view import Group, GroupOffset
from archival.broker.lagging_groups import GroupListing, LaggingGroups
from archival.config import ArchivalConfig
from headwater.broker import consumer_groups
from headwater.broker.broker_connection import BrokerAddress, BrokerApi, BrokerConnection
from headwater_core.partition import TopicPartition
from tests.archival.test_releases import Deleting
from tests.headwater.broker import Bench
from tests.headwater.coordinators import Cluster, Coordinator, subscription

pytestmark = pytest.mark.slow

SEEDS, STEPS = 8, 60
GONE_S = 7200
PLACES = [TopicPartition("soup", number) for number in (0, 1)]
NAMES = {"mail": "Classic", "bills": "Consumer", "share": "Share"}


@dataclass
class Reader:
    """A group as it truly is. idle_s: the longest that an agent may have seen it idle"""

    kind: str
    has_members: bool = True
    commits: dict[TopicPartition, int] = field(default_factory=dict)
    idle_s: float = 0.0
    last_seen: tuple[bool, dict[TopicPartition, int]] | None = None

    def unread_from(self, place: TopicPartition) -> int | None:
        return self.commits.get(place, 0 if self.has_members or self.commits else None)


class InProcess:
    """A connection to the only coordinator."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator, self.address = coordinator, coordinator.address

    def ask(self, api: BrokerApi, fields: Mapping[str, Any]) -> dict[str, Any]:
        return dict(self._coordinator.answers[api](fields) or {})

    def knows(self, api: BrokerApi) -> bool:
        return True

    def close(self) -> None:
        pass


class Kitchen(Deleting):
    """The broker, its groups, and the judge."""

    def __init__(self, root: Path) -> None:
        super().__init__(root / "log")
        self.coordinator = Coordinator()
        self.coordinator.close()  # requests do not go over its socket
        self.cluster = Cluster(self.coordinator, self.coordinator)
        self.cluster.leaders = [(7, 3)]
        self.readers: dict[str, Reader] = {}
        self.denied: set[str] = set()
        self.sealed: dict[tuple[TopicPartition, int], int] = {}  # by place and end: at which moment
        self.moment = 0
        self.complete: list[tuple[int, dict[TopicPartition, int]]] = []  # when a listing began, and what is needed from where on
        self.listed_s: float | None = None  # by the process that runs
        self.bench = Bench(root, asked=self)
        self.bench.settings = ArchivalConfig(release=True, release_ignore_groups_after_s=GONE_S)
        self.wrong: list[str] = []
        for place in PLACES:
            self.bench.broker.partition(place.topic, place.partition, segments=2)
            self.sealed[place, 10] = 0

    def groups(self, known: Collection[str]) -> Sequence[Group]:
        self.moment += 1
        connection = cast(BrokerConnection, InProcess(self.coordinator))
        addresses: Callable[[BrokerAddress], BrokerConnection] = lambda _: connection  # noqa: E731
        groups = consumer_groups.list_groups(connection, addresses, known)
        found = list({group.name: group for group in groups}.values())  # both brokers are one
        now_s = self.bench.clock.monotonic_s()
        passed_s = now_s - self.listed_s if self.listed_s is not None and now_s - self.listed_s <= 3600 else 0.0
        for reader in self.readers.values():
            seen = (reader.has_members, dict(reader.commits))
            reader.idle_s = reader.idle_s + passed_s if reader.last_seen == seen and not reader.has_members else 0.0
            reader.last_seen = seen
        self.listed_s = now_s
        live = [reader for reader in self.readers.values() if reader.idle_s < GONE_S]
        needed = {place: [offset for reader in live if (offset := reader.unread_from(place)) is not None] for place in PLACES}
        self.complete.append((self.moment, {place: min(offsets, default=1 << 62) for place, offsets in needed.items()}))
        return found

    def delete_records(self, place: TopicPartition, end: int) -> None:
        super().delete_records(place, end)
        if not any(moment > self.sealed[place, end] and needed[place] >= end for moment, needed in self.complete):
            self.wrong.append(f"{place} is deleted up to {end}, sealed at {self.sealed[place, end]}: {self.complete[-3:]}")

    def publish(self) -> None:
        """What the coordinator answers from now on."""
        coordinator, readers = self.coordinator, self.readers
        coordinator.groups = {name: (each.kind, "Stable" if each.has_members else "Empty", "consumer") for name, each in readers.items()}
        coordinator.commits = {name: each.commits for name, each in readers.items()}
        coordinator.metadata = {name: [subscription("soup")] for name in readers}
        coordinator.subscribed = {name: ["soup"] for name in readers}
        coordinator.group_code = dict.fromkeys(self.denied, 30)

    def step(self, random: Random) -> None:
        """Something happens, and then the agent does what is due."""
        bench, reader = self.bench, self.readers.get(random.choice(list(NAMES)))
        place = random.choice(PLACES)
        ends = {each: 10 * (len(bench.broker.segments(each.topic, each.partition)) - 1) for each in PLACES}
        self.moment += 1
        match random.randrange(20):
            case 0 | 1 | 2 | 3 | 4:
                bench.broker.roll(place.topic, place.partition)
                self.sealed[place, ends[place] + 10] = self.moment
            case 5 | 6 | 7 | 8 if reader is not None:
                reader.commits[place] = random.randint(reader.commits.get(place, 0), ends[place])
            case 9 | 10 if reader is not None:
                reader.commits.update(ends)
            case 11 if reader is not None:
                reader.commits[place] = random.choice([0, max(0, ends[place] - random.choice([1, 1, 7, 11]))])
            case 12 | 13 if reader is not None:
                reader.has_members = not reader.has_members
            case 14:
                name = random.choice(list(NAMES))
                if name in self.readers and random.random() < 0.5:
                    del self.readers[name]
                else:
                    self.readers.setdefault(name, Reader(NAMES[name]))
            case 15:
                self.denied = set() if self.denied else {random.choice(list(NAMES))}
            case 16:
                bench.clock.advance(random.choice([1, 3, 8]) * 3_600_000)  # the agent is off
                bench.start()
                self.listed_s = None
            case 17 | 18:
                bench.clock.advance(random.choice([20, 59, 61]) * 60_000)
        self.publish()
        for _ in range(random.choice([1, 1, 4])):
            bench.scheduler.rescan()
            bench.turns()
            bench.clock.advance(random.choice([500, 4_000, 11_000]))


def history(root: Path, seed: int) -> Kitchen:
    kitchen, random = Kitchen(root / str(seed)), Random(seed)
    kitchen.publish()
    for _ in range(STEPS):
        kitchen.step(random)
    return kitchen


@pytest.fixture(autouse=True)
def _led(led: None) -> None:
    """The agent's broker leads all partitions."""


def test_nothing_is_deleted_that_a_group_has_not_read(tmp_path: Path) -> None:
    deleted = 0
    for seed in range(SEEDS):
        kitchen = history(tmp_path, seed)
        assert not kitchen.wrong, (seed, kitchen.wrong)
        deleted += len(kitchen.deleted)
    assert deleted > 2 * SEEDS


def an_old_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    newer_than = LaggingGroups.newer_than
    monkeypatch.setattr(LaggingGroups, "newer_than", lambda self, number, *, at_once=False: newer_than(self, 0, at_once=at_once))


def denied_groups_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    check = consumer_groups._check
    monkeypatch.setattr(consumer_groups, "_check", lambda code, what: None if code == 30 else check(code, what))
    answers = consumer_groups._answers

    def readable(connection: BrokerConnection, api: BrokerApi, fields: Mapping[str, Any], names: Sequence[str]) -> list[dict[str, Any]]:
        return [answer for answer in answers(connection, api, fields, names) if answer["error_code"] != 30]

    monkeypatch.setattr(consumer_groups, "_answers", readable)


def time_off_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the wall clock, since the last listing of any process."""
    monkeypatch.setattr(lagging_groups, "APART_MAX_S", float("inf"))


def share_groups_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    groups_of = consumer_groups._groups_of

    def without(connection: BrokerConnection) -> Iterator[Group]:
        return (group for group in groups_of(connection) if group.name != "share")

    monkeypatch.setattr(consumer_groups, "_groups_of", without)


def one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    lowest = GroupListing.lowest

    def beyond(self: GroupListing, partition: TopicPartition, ignore_after_s: float) -> GroupOffset | None:
        found = lowest(self, partition, ignore_after_s)
        return found and found._replace(offset=found.offset + 1)

    monkeypatch.setattr(GroupListing, "lowest", beyond)


def members_without_commits_hold_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Group, "unread_from", lambda self, partition: self.commits.get(partition))


@pytest.mark.parametrize(
    "mutant",
    [an_old_listing, denied_groups_are_none, time_off_counts, share_groups_are_none, one_too_many, members_without_commits_hold_nothing],
    ids=lambda mutant: mutant.__name__,
)
def test_a_planted_mistake_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: Callable[[pytest.MonkeyPatch], None]) -> None:
    mutant(monkeypatch)
    assert any(history(tmp_path, seed).wrong for seed in range(4 * SEEDS))
