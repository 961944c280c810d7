"""Agents of one cluster, each beside its own copy of the metadata log, that archive it into one bucket: under a seed, with crashes, a bad
network, followers that are late, and records that a new controller takes back."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from uuid import UUID

import pytest

from archival.cluster_archiver import COLLECT_S, LOOK_S, ClusterArchiver, ClusterArchiverEquipment
from archival.config import ClusterConfig
from headwater_core import milestones
from headwater_core.errors import HeadwaterError
from headwater_core.segments.metadata.cluster_metadata import ClusterMetadata
from headwater_core.segments.metadata.record_schemas import SCRAM, make_record
from manifests import keys
from manifests.cluster_list import LEASE_MS, ClusterList
from manifests.cluster_snapshot import load_snapshot
from manifests.repository import ManifestRepository
from tests.headwater_core.objectstore.faulty import BAD_NETWORK, NO_FAULTS, FaultyStore
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.simulation.world import WorldClock

MILESTONES = ("cluster_snapshot_uploaded", "cluster_snapshot_listed")


class Crash(BaseException):
    """kill -9."""


def a_state(epoch: int, offset: int, value: int, appended_ms: int = 0) -> ClusterMetadata:
    secret = {"name": "chef", "mechanism": 1, "salt": b"salt", "storedKey": b"%d" % (value // 3), "serverKey": b"s", "iterations": 4096}
    return ClusterMetadata(
        topics={},
        configs={(4, ""): {"log.retention.ms": str(value)}},
        features={"metadata.version": 30},
        next_producer_id=0,
        unread={},
        end_offset=offset,
        end_epoch=epoch,
        appended_ms=appended_ms,
        others={SCRAM: {("chef", 1): make_record(SCRAM, 0, secret)}},
    )


@dataclass(slots=True)
class Agent:
    archiver: ClusterArchiver
    store: FaultyStore
    sees: ClusterMetadata


class ClusterWorld:
    """history: value of the state by (epoch, offset), every branch of the log"""

    def __init__(self, seed: int) -> None:
        self.random, self.clock = Random(seed), WorldClock()
        self.bucket = MemoryStore(self.clock)
        self.history: dict[tuple[int, int], int] = {(1, 5): 0}
        self.committed = [a_state(1, 5, 0, self.clock.now_ms())]
        self.listed: ClusterList | None = None
        self.ever: dict[int, str] = {}
        self.agents = [self.new_agent() for _ in range(self.random.randint(2, 3))]

    def new_agent(self) -> Agent:
        store = FaultyStore(self.bucket, self.random, BAD_NETWORK)
        agent: Agent
        equipment = ClusterArchiverEquipment(
            metadata=lambda: agent.sees,
            store=store,
            repository=ManifestRepository(store),
            cluster_id=lambda: "kitchen",
            writer="cook",
            clock=self.clock,
            new_uid=lambda: UUID(int=self.random.getrandbits(128)).hex,
            settings=lambda: ClusterConfig(retention_s=6 * 3600),
        )
        agent = Agent(ClusterArchiver(equipment), store, self.committed[self.random.randrange(len(self.committed))])
        return agent

    def run(self, steps: int) -> None:
        for _ in range(steps):
            happens = (self.append, self.elect, self.catch_up, self.step, self.collect, self.wait)
            self.random.choices(happens, weights=(3, 0.3, 4, 8, 0.5, 3))[0]()
            self.check()
        self.settle()

    def append(self) -> None:
        last = self.committed[-1]
        value = self.history[(last.end_epoch, last.end_offset)] + self.random.choice((0, 1))
        self._commit(last.end_epoch, last.end_offset + self.random.randint(1, 5), value)

    def elect(self) -> None:
        """A new controller. A follower may have records of the old one that were never committed, beyond where the new one begins."""
        last = self.committed[-1]
        lost = a_state(last.end_epoch, last.end_offset + 7, 10_000 + self.random.randint(0, 99), self.clock.now_ms())
        self.history[(lost.end_epoch, lost.end_offset)] = int(lost.configs[(4, "")]["log.retention.ms"])
        self.random.choice(self.agents).sees = lost
        self._commit(last.end_epoch + 1, last.end_offset + 1, self.history[(last.end_epoch, last.end_offset)] + 1)

    def _commit(self, epoch: int, offset: int, value: int) -> None:
        self.history[(epoch, offset)] = value
        self.committed.append(a_state(epoch, offset, value, self.clock.now_ms()))

    def catch_up(self) -> None:
        agent = self.random.choice(self.agents)
        sooner = [each for each in self.committed if (each.end_epoch, each.end_offset) > (agent.sees.end_epoch, agent.sees.end_offset)]
        if sooner:
            agent.sees = self.random.choice(sooner)

    def step(self, besides: Agent | None = None) -> None:
        """Whole, or ended anywhere. In between another one may go on, besides the one that waits meanwhile."""
        agent = self.random.choice([each for each in self.agents if each is not besides])
        dies = self.random.choice((*MILESTONES, "", "", "", "", ""))
        goes_on = self.random.random() < 0.3

        def observe(name: str) -> None:
            milestones.observer = lambda _: None
            if name == dies:
                raise Crash
            if goes_on and besides is None:
                self.step(agent)

        before, milestones.observer = milestones.observer, observe
        try:
            agent.archiver.step()
        except HeadwaterError:
            pass
        except Crash:
            agent.store.land()
            self.agents[self.agents.index(agent)] = self.new_agent()
        finally:
            milestones.observer = before

    def collect(self) -> None:
        with suppress(HeadwaterError):
            self.random.choice(self.agents).archiver.collect()

    def wait(self) -> None:
        self.clock.advance(self.random.choice((int(LOOK_S * 1000), 60_000, 600_000, 3 * 3_600_000)))

    def check(self) -> None:
        """What must hold in every state."""
        listed = ManifestRepository(self.bucket).load_snapshots()
        if listed is None:
            assert self.listed is None, "the list is gone"
            return
        for each in listed.snapshots:
            assert self.ever.setdefault(each.number, each.uid) == each.uid, "two snapshots bear one number"
            state = load_snapshot(self.bucket, each)
            assert state == a_state(*each.position, self.history[each.position], state.appended_ms), f"{each} holds another state"
        if self.listed is not None:
            before, after = self.listed.newest, listed.newest
            assert after.position >= before.position, "an older state was put over a newer one"
            assert after.number >= before.number, "numbers fell"
            if after.number > before.number:
                assert after.taken_ms - before.taken_ms >= 60_000, "snapshots follow each other too fast"
        there = {info.key for info in self.bucket.list(keys.CLUSTER)}
        for gone in listed.dropped:
            if self.clock.now_ms() - gone.dropped_ms < LEASE_MS:
                assert any(f"/{gone.number:010}/" in key and gone.uid in key for key in there), "a reader has lost what was listed"
        self.listed = listed

    def settle(self) -> None:
        """Without faults, once everybody has caught up, the newest state is archived, and nothing lies about."""
        for agent in self.agents:
            agent.store.faults = NO_FAULTS
            agent.store.land()
        for _ in range(3):
            self.clock.advance(2 * int(COLLECT_S) * 1000)
            for agent in self.agents:
                agent.sees = self.committed[-1]
                agent.archiver.step()
                self.check()
        self._commit(self.committed[-1].end_epoch, self.committed[-1].end_offset + 1, 20_000)
        self.agents[0].sees = self.committed[-1]
        assert self.agents[0].archiver.step() is not None, "the newest state is not archived"
        for _ in range(2):
            self.agents[0].archiver.collect()
            self.clock.advance(LEASE_MS)
        self.agents[0].archiver.collect()
        self.check()
        assert self.listed is not None
        last = self.committed[-1]
        newest = load_snapshot(self.bucket, self.listed.newest)
        assert newest.configs == last.configs, "the newest state is not archived"
        kept = {each.key for each in self.listed.snapshots}
        assert {info.key for info in self.bucket.list(keys.CLUSTER)} == kept | {keys.CLUSTER_LIST}, "something lies about"


Plant = Callable[[pytest.MonkeyPatch], object]


def later(state: ClusterMetadata, by: int) -> ClusterMetadata:
    """The same state after `by` records that say nothing."""
    return replace(state, end_offset=state.end_offset + by)
