"""Consumer groups beside a simulated log, and what release may delete of it.

The judge knows each group as it was when a look-up described it, and when segments ended. It knows nothing of what agents decide.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from archival.broker.broker_view import Group
from headwater_core.errors import HeadwaterError, TransientError, Unauthorised
from headwater_core.partition import TopicPartition
from tests.simulation.bucket import Violation

if TYPE_CHECKING:
    from tests.simulation.world import World

GONE_S = 300  # a group counts as gone after so long: a few waits of a simulated world
APART_S = 3600.0  # design.md: time between look-ups that are further apart does not count
_NAMES = ("bills", "mail", "share")
_EVERYTHING = 1 << 62


@dataclass(slots=True)
class Idle:
    """How long one agent may have seen a group without members and with the same commits."""

    group: Group
    idle_s: float = 0.0


@dataclass(slots=True)
class LookUps:
    """Those of one agent, which outlives its processes. began_s: of the last one by the process that runs"""

    idle: dict[str, Idle] = field(default_factory=dict)
    began_s: float | None = None


class ConsumerGroups:
    def __init__(self, world: "World", random: Random) -> None:
        self._world, self._random = world, random
        self.groups: dict[str, Group] = {}
        self._moment = 0
        self._ended: dict[int, int] = {}  # when a segment that ends there was first seen
        self._complete: list[tuple[int, int]] = []  # when a look-up began, and the first offset that a group needed at it
        self._fails: HeadwaterError | None = None

    def act(self) -> str:
        """One group reads, comes, goes, or is reset; or coordinators cannot be asked."""
        random, place = self._random, self._world.brokers.partition.topic_partition
        name = random.choice(_NAMES)
        group, end = self.groups.get(name), self._world.brokers.leader.hw
        choice = random.random()
        if choice < 0.06:
            self._fails = random.choice((TransientError("a coordinator loads"), Unauthorised("a group may not be described")))
        elif choice < 0.25:
            self._fails = None
        elif group is None:
            commits = {} if random.random() < 0.3 else {place: random.randrange(end + 1)}
            self.groups[name] = self._group(name, random.random() < 0.5, commits)
        elif choice < 0.29:
            del self.groups[name]
        elif choice < 0.4:
            self.groups[name] = self._group(name, not group.has_members, group.commits)
        elif choice < 0.44:
            self.groups[name] = self._group(name, True, {place: random.randrange(end + 1)})  # it is reset
        else:
            self.groups[name] = self._group(name, random.random() < 0.6, {place: max(end, group.commits.get(place, 0))})
        return f"groups are {', '.join(map(str, self.groups.values()))}; {self._fails or 'all can be asked'}"

    def _group(self, name: str, has_members: bool, commits: Mapping[TopicPartition, int]) -> Group:
        """What its members subscribe to, nobody knows while they rebalance."""
        topics: frozenset[str] | None = frozenset()
        if has_members:
            topics = frozenset({self._world.brokers.partition.topic}) if self._random.random() < 0.8 else None
        return Group(name, has_members, commits, topics)

    def after_action(self) -> None:
        self._moment += 1
        for replica in self._world.brokers.replicas:
            for segment in replica.segments[1:]:
                self._ended.setdefault(segment.base, self._moment)

    def list(self, known: Collection[str], look_ups: LookUps, asked: Callable[[str], object]) -> Sequence[Group]:
        """Answer a look-up. Before each request arrives anything may happen.

        Raises TransientError where one is not answered, or a known group is not listed though it is there.
        """
        self._moment += 1
        began, began_s, found = self._moment, self._world.clock.monotonic_s(), list[Group]()
        asked("ListGroups")
        names = sorted(self.groups)
        if isinstance(self._fails, Unauthorised) or (self._fails is not None and self._random.random() < 0.5):
            self._world.result.seen["a look-up of groups fails"] += 1
            raise self._fails
        if self._fails is not None:
            names = names[1:]  # a broker lists the groups that it has loaded
        for name in names:
            asked("OffsetFetch")
            if name in self.groups:
                found.append(self.groups[name])
        if set(known) & self.groups.keys() - {group.name for group in found}:
            raise TransientError("a group is there that no broker has listed")
        self._judge(began, began_s, found, look_ups)
        self._world.result.seen["groups are listed"] += 1
        return found

    def _judge(self, began: int, began_s: float, found: Sequence[Group], look_ups: LookUps) -> None:
        """Note from where on groups need the log; a group counts as gone after the longest time that the agent may have seen it idle.

        One that was described before, is there and is not `found` needs it from where it is.
        """
        last_s, place = look_ups.began_s, self._world.brokers.partition.topic_partition
        passed_s = began_s - last_s if last_s is not None and began_s - last_s <= APART_S else 0.0
        look_ups.began_s = began_s
        names = {group.name for group in found}
        found = [*found, *(group for name, group in self.groups.items() if name in look_ups.idle.keys() - names)]
        look_ups.idle = {
            group.name: Idle(
                group, before.idle_s + passed_s if (before := look_ups.idle.get(group.name)) and before.group == group else 0.0
            )
            for group in found
        }
        needed = _EVERYTHING
        for idle in look_ups.idle.values():
            group = idle.group
            if group.has_members or idle.idle_s < GONE_S:
                needed = min(needed, group.commits.get(place, 0 if group.has_members or group.commits else _EVERYTHING))
            elif group.commits.get(place, _EVERYTHING) < needed:
                self._world.result.seen["a group counts as gone"] += 1
        self._complete.append((began, needed))

    def check_deletion(self, end: int) -> None:
        """Whether the broker may delete what is before `end`."""
        if any(began > self._ended.get(end, 0) and needed >= end for began, needed in self._complete):
            return
        raise Violation(f"I30 deleted up to {end}, which ended at {self._ended.get(end)}: groups need {self._complete[-3:]}")

    def read_all(self) -> None:
        """At the end: all groups have read everything, and can be asked."""
        self._fails, place = None, self._world.brokers.partition.topic_partition
        self.groups = {name: group._replace(commits={place: self._world.brokers.leader.end}) for name, group in self.groups.items()}
