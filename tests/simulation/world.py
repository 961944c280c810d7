"""One seed: two brokers, three agents beside them, one bucket behind a bad network, and a schedule that a random source draws.

Agents run the real code of archival, manifests, layouts and segments over real files. They can be paused, overtaken and
killed at every look, every store call and every named step. A seed decides all that happens: it replays exactly.
"""

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import cast
from unittest.mock import patch

import structlog

import archival.broker.broker_logs
import archival.partition.archiver
import archival.partition.stream_writers
import archival.partition.topics
import archival.plan.merge_plan
import headwater.admin.status_board
import recovery.bucket_survey
import recovery.discovery
import recovery.endings
import recovery.placement
import recovery.take_over
from archival.config import ArchivalConfig
from archival.partition.topics import TopicFacts
from headwater_core import milestones
from headwater_core.errors import (
    Conflict,
    CorruptData,
    Fenced,
    NeedsReplacement,
    NeedsUpgrade,
    SuspectedGap,
    TransientError,
    UnrelatedLog,
    UnsupportedFormat,
)
from headwater_core.layouts import open_layout
from headwater_core.layouts.chunks import chunk_segment, chunks_layout
from headwater_core.layouts.chunks.chunks_layout import ChunksLayout
from headwater_core.objectstore.store_meter import StoreMeter
from headwater_core.partition import PartitionId
from manifests.page_limits import LIMITS
from tests.headwater_core.objectstore.faulty import BAD_NETWORK, NO_FAULTS, FaultyStore
from tests.manifests.trees import SMALL, TINY
from tests.simulation.actors import Actor
from tests.simulation.agents import Agent, LossyControl, Trouble, YieldingLocks
from tests.simulation.brokers import Brokers
from tests.simulation.bucket import Checks, Violation, WatchedStore, rest_of
from tests.simulation.consumer_groups import ConsumerGroups
from tests.simulation.damaged_buckets import Damager
from tests.simulation.operator import Operator
from tests.simulation.readers import Reader
from tests.simulation.recoveries import InlinePool, Recoverer, ScatteredPool
from tests.simulation.statuses import AgentStatus, LoudLog
from tests.simulation.triggers import TriggerWorld
from tests.simulation.versions import Version

ACTIONS = 140
_STEPS_TO_REST = 80
_MEMORY = Path("/dev/shm")
_LOCKED = [archival.partition.archiver, archival.broker.broker_logs, archival.partition.topics]  # with locks that a task may be paused in


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """What a seed has more of than others.

    compacted  how likely the topic is
    forgets    tombstones leave within the run
    branches   how likely a leader goes ahead alone, and cleans its log by what it has written there; no reader is there
    lazy       how much less often an agent begins a task
    pairs      how likely agents run two tasks at a time
    trouble    how likely each call to the store and the control log fails, with an error of any class
    alone      one replica, in a directory that Headwater owns: there is no leader to know
    unnamed    how likely the leader is unknown, beside two brokers: then nothing is released either
    damage     of local files
    slow       how much less often tasks of a kind go on, which is drawn: they are overtaken by a lot
    pages      heads hold two entries, and pages three; for every other seed of other themes it is one more
    saves      what compaction has made smaller is archived again
    pauses     how likely a person pauses archiving, or resumes it
    looks      how likely an agent is overtaken at each step of a look at a log, where it would be at another step
    requests   high watermarks are asked of the broker, and it deletes what is released
    groups     releases wait for consumer groups
    collects   how often agents collect
    trims      the archive's own retention lets go of it, and so does somebody at any offset
    versions   agents are of three versions, and are upgraded
    triggers   sealed segments wait for triggers, which are changed, and so is the brokers' retention
    layouts    each start of an agent draws how it lays out what it archives
    streams    what is committed is archived while it is written, on and off
    chunks     each start of an agent draws a variant of the layout of that name
    switches   agents are started anew, with streaming switched on or off, while writes of theirs are late
    unjoined   no store makes an object of others
    scattered  chunks go several at a time, and so in any order; and what becomes one object may be cut short, with no answer
    taken      in the end a recovered cluster takes the archive over
    damages    copies of the bucket are damaged, and recovered
    actions    how many there are
    """

    follows: float = 1
    elections: float = 1
    vacancies: float = 0.1
    retention: float = 0.5
    releases: float = 1
    recreation: float = 0
    replacements: float = 0
    rolls: float = 1
    compacted: float = 0.2
    forgets: bool = False
    branches: float = 0
    lazy: float = 1
    pairs: float = 0.2
    trouble: float = 0
    alone: bool = False
    unnamed: float = 0.05
    damage: float = 0
    slow: float = 1
    pages: bool = False
    merges: float = 0
    saves: bool = False
    taken: bool = False
    damages: bool = False
    pauses: float = 0
    looks: float = 1
    requests: bool = False
    groups: bool = False
    collects: float = 0.4
    days: float = 0
    trims: bool = False
    versions: bool = False
    triggers: bool = False
    layouts: bool = False
    streams: bool = False
    chunks: bool = False
    switches: bool = False
    unjoined: bool = False
    scattered: bool = False
    actions: int = ACTIONS


THEMES = {
    "even": Theme(),
    "lineage": Theme(elections=3, retention=0, follows=0.7),
    "release": Theme(elections=2, retention=0.2, releases=3, follows=2, rolls=3, unnamed=0),
    "gaps": Theme(elections=3, retention=3, releases=3, rolls=2, follows=0.6, unnamed=0, pairs=0, vacancies=0),
    "incarnations": Theme(recreation=1),
    "disks": Theme(replacements=2, elections=2, unnamed=0, pairs=0, vacancies=0),
    "vacancies": Theme(vacancies=2, releases=2),
    "alone": Theme(alone=True, retention=0.2, replacements=0.3, rolls=2, releases=2),
    "pairs": Theme(pairs=1, elections=2, releases=3, rolls=2),
    "trouble": Theme(trouble=0.04, recreation=0.2),
    "overtaken": Theme(elections=3, follows=2, retention=0.4, releases=4, rolls=4, compacted=0.1, unnamed=0, pairs=0, slow=0.1),
    "cleaned": Theme(elections=0.2, retention=0.1, rolls=4, compacted=1, slow=0.3),
    "damage": Theme(damage=1, elections=0.7, rolls=4),
    "keys": Theme(compacted=1, forgets=True, lazy=0.15, retention=0, rolls=3, follows=4, elections=0.3, vacancies=0),
    "branches": Theme(compacted=1, branches=1, elections=0.5, follows=0.3, rolls=2, retention=0.05, vacancies=0),
    "pages": Theme(
        pages=True, actions=350, elections=1.5, retention=0.3, releases=2, rolls=5, follows=0.7, unnamed=0, pairs=0, vacancies=0
    ),
    "merges": Theme(merges=3, actions=400, elections=0.4, retention=0.4, releases=2, rolls=4, follows=3, pairs=0.1, vacancies=0),
    "merged branches": Theme(
        merges=3, pages=True, actions=400, elections=1.2, retention=1, releases=2, rolls=6, follows=1.5, unnamed=0, pairs=0, vacancies=0
    ),
    "merged keys": Theme(merges=4, actions=300, compacted=1, branches=0.3, elections=0.2, follows=2, rolls=4, retention=0.05, vacancies=0),
    "shrinks": Theme(
        saves=True, merges=0.3, collects=1.5, actions=250, compacted=1, elections=0.4, follows=3, rolls=4, retention=0.15, vacancies=0
    ),
    "shrunk branches": Theme(
        saves=True, collects=1.5, actions=250, compacted=1, forgets=True, branches=0.5, elections=0.5, follows=1, rolls=3, vacancies=0
    ),
    "trims": Theme(
        trims=True,
        collects=3,
        elections=1.2,
        rolls=6,
        releases=2,
        follows=3,
        retention=0.1,
        unnamed=0,
        vacancies=0,
        compacted=0.1,
        actions=300,
    ),
    "collected": Theme(collects=4, elections=3, retention=0, follows=0.7, unnamed=0, vacancies=0, actions=200),
    "recovered": Theme(
        days=1.5,
        trims=True,
        taken=True,
        merges=1,
        collects=1,
        elections=0.3,
        rolls=6,
        follows=2,
        retention=0.3,
        releases=1,
        unnamed=0,
        vacancies=0,
    ),
    "damaged buckets": Theme(
        damages=True,
        pages=True,
        layouts=True,
        recreation=0.3,
        merges=1,
        collects=1,
        elections=0.7,
        rolls=6,
        follows=2,
        retention=0.4,
        unnamed=0,
        vacancies=0,
    ),
    "versions": Theme(pages=True, versions=True, actions=250, elections=1.5, releases=2, rolls=4, unnamed=0, pairs=0),
    "layouts": Theme(
        layouts=True, merges=1.5, collects=1, actions=300, elections=1.5, releases=2, rolls=5, follows=1, retention=0.3, unnamed=0, days=0.3
    ),
    "layouts again": Theme(
        layouts=True,
        recreation=0.6,
        merges=1.5,
        collects=2,
        actions=250,
        elections=1,
        releases=2,
        rolls=5,
        follows=1,
        retention=0.3,
        days=0.3,
    ),
    "layouts of keys": Theme(
        layouts=True, actions=250, compacted=1, forgets=True, branches=0.5, elections=0.5, follows=1, rolls=3, retention=0.1, vacancies=0
    ),
    "chunks": Theme(
        chunks=True, merges=1.5, collects=2, actions=300, elections=1.5, releases=2, rolls=5, retention=0.3, unnamed=0, days=0.5
    ),
    "chunks of two": Theme(
        chunks=True, merges=1, collects=1, actions=250, elections=4, follows=2, rolls=5, pairs=0.6, slow=0.15, vacancies=0.02
    ),
    "chunks that stay": Theme(
        chunks=True, unjoined=True, merges=3, collects=1, actions=250, elections=0.4, releases=2, rolls=5, follows=2, unnamed=0, vacancies=0
    ),
    "chunks of names": Theme(chunks=True, merges=1, collects=2, actions=250, recreation=1, rolls=4, days=0.5, trims=True),
    "scattered chunks": Theme(
        chunks=True,
        scattered=True,
        streams=True,
        merges=2,
        collects=1,
        actions=300,
        elections=1.2,
        follows=2,
        releases=2,
        rolls=5,
        retention=0.3,
        unnamed=0,
        vacancies=0.02,
        pairs=0.4,
        trouble=0.03,
        days=0.3,
    ),
    "streams": Theme(streams=True, collects=2, actions=250, elections=0.6, releases=2, rolls=4, follows=2, retention=0.3, unnamed=0),
    "streamed branches": Theme(
        streams=True, merges=0.5, trims=True, collects=1.5, actions=250, elections=2, releases=2, rolls=3, follows=0.7, pairs=0.4
    ),
    "streamed damage": Theme(streams=True, damage=1, collects=1, elections=0.5, rolls=4, follows=2, unnamed=0),
    "streamed triggers": Theme(
        streams=True, triggers=True, collects=1, actions=250, elections=0.8, retention=0.3, rolls=5, follows=3, pairs=0, unnamed=0
    ),
    "streamed runs": Theme(
        streams=True, layouts=True, switches=True, merges=1.5, days=0.3, actions=250, elections=0.8, rolls=5, follows=1.5, unnamed=0
    ),
    "streamed chunks": Theme(
        streams=True, chunks=True, collects=2, merges=0.5, actions=250, elections=0.6, releases=2, rolls=4, follows=2, unnamed=0
    ),
    "streamed chunks in trouble": Theme(
        streams=True,
        chunks=True,
        collects=2,
        merges=0.5,
        actions=250,
        elections=0.6,
        releases=2,
        rolls=4,
        follows=2,
        trouble=0.05,
        unnamed=0,
    ),
    "streamed chunk branches": Theme(
        streams=True, chunks=True, trims=True, collects=1.5, actions=250, elections=2, rolls=3, follows=0.7, pairs=0.4
    ),
    "forgotten": Theme(compacted=1, forgets=True, branches=1, elections=0.5, follows=0.5, rolls=2, retention=0.3, lazy=0.3, vacancies=0),
    "pauses": Theme(pauses=1, actions=250, elections=1.5, retention=2, releases=0.5, rolls=3, pairs=0, vacancies=0.05),
    "triggers": Theme(
        triggers=True, actions=250, elections=0.6, retention=0.3, rolls=5, follows=3, releases=0.5, pairs=0, vacancies=0.05, unnamed=0
    ),
    "requests": Theme(
        requests=True, actions=250, elections=0.6, retention=0.1, releases=4, follows=4, rolls=5, recreation=0.15, vacancies=0.03, unnamed=0
    ),
    "groups": Theme(
        requests=True,
        groups=True,
        looks=0.05,
        lazy=0.5,
        actions=400,
        elections=0.2,
        retention=0,
        releases=4,
        follows=4,
        rolls=6,
        vacancies=0,
        compacted=0,
        unnamed=0,
        pairs=0,
    ),
}


APART = {  # no seed draws them by itself: who wants them names them
    name
    for name, theme in THEMES.items()
    if theme.branches
    or theme.pages
    or theme.versions
    or theme.layouts
    or theme.triggers
    or theme.streams
    or theme.merges
    or theme.requests
    or theme.pauses
    or theme.collects > 1
}
MERGING = ("merges", "merged branches", "merged keys")
DRAWN = (*(name for name in THEMES if name not in APART), "lineage", "lineage", "lineage", "gaps", *MERGING)


@dataclass(slots=True)
class SimulationResult:
    """How the run of one seed ended, what happened in it, and what it reached."""

    seed: int
    trace: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    violation: str = ""


def run_seed(seed: int, *, theme: str | None = None, within: Path | None = None) -> SimulationResult:
    """Run one seed to its end, or to the first violation. The seed draws its theme unless one is given, and then takes ACTIONS actions.

    within  where its files go; in memory when there is a file system for that
    """
    result = SimulationResult(seed)
    with quiet(), tempfile.TemporaryDirectory(prefix="headwater-", dir=within or in_memory()) as root:
        world = World(result, Path(root), THEMES[theme] if theme else None)
        try:
            world.run(world.theme.actions if theme else ACTIONS)
        except Violation as violation:
            result.violation = str(violation)
        finally:
            world.close()
    return result


def in_memory() -> Path | None:
    return _MEMORY if _MEMORY.is_dir() else None


@contextmanager
def quiet() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(processors=[], wrapper_class=structlog.make_filtering_bound_logger(50))
    try:
        yield
    finally:
        structlog.configure(**before)


class WorldClock:
    """Time as agents and brokers see it. The wall clock may be set back; durations are measured with one that is not."""

    def __init__(self) -> None:
        self._wall_ms, self._passed_ms = 1_700_000_000_000, 0

    def now_ms(self) -> int:
        return self._wall_ms

    def monotonic_s(self) -> float:
        return self._passed_ms / 1000

    def advance(self, by_ms: int) -> None:
        self._passed_ms += by_ms
        self._wall_ms += by_ms

    def set_back(self, by_ms: int) -> None:
        self._wall_ms -= by_ms


class World:
    def __init__(self, result: SimulationResult, root: Path, theme: Theme | None, *, faulty: bool = True) -> None:
        self.result, self.root = result, root
        self.random = random = Random(result.seed)
        self.theme = theme_of = theme or THEMES[random.choice(DRAWN)]
        self.compacted = random.random() < theme_of.compacted
        self.releases = theme_of.alone or random.random() >= theme_of.unnamed
        self.pairs = random.random() < theme_of.pairs
        self.clock = WorldClock()
        self.brokers = Brokers(
            root,
            random,
            self.clock,
            compacted=self.compacted,
            named=self.releases and not theme_of.alone,
            alone=theme_of.alone,
            delete_retention_ms=60_000 if theme_of.forgets else 86_400_000,
            side_files=Random(f"side files {result.seed}").random() < 0.5,
            dated=theme_of.triggers,
        )
        self.is_taken_over = False  # a take-over has begun
        self.inner = WatchedStore(self.clock)
        self.trouble = Trouble(self, theme_of.trouble)
        self.control = LossyControl(self)
        self.control.trouble.likely = theme_of.trouble
        self.stopped: tuple[str, int] | None = None  # topic id, and the leader epoch that its log begins in
        self.limits = TINY if theme_of.pages else SMALL if result.seed % 2 else LIMITS
        drawn = Random(f"collection {result.seed}")
        self.retention = ArchivalConfig(
            reader_lease_s=drawn.choice((0, 0, 5, 60)), superseded_retention_s=drawn.choice((0, 60, 10_000)), seal_timeout_s=0
        )
        self.trims_released = theme_of.alone or drawn.random() < 0.5
        self.checks = Checks(self.inner, self.brokers, self.limits, self.retention, keeps_tables=theme_of.saves and not theme_of.forgets)
        faults = BAD_NETWORK if faulty and random.random() < 0.6 else NO_FAULTS
        self.slow = random.choice(("archive", "release"))
        self.haste = random.choice((0.1, 0.25, 0.5))
        self.running: Actor | None = None
        self.killing = False
        self.versions = Random(f"versions {result.seed}")
        self.layouts = Random(f"layouts {result.seed}")
        self.consumer_groups = ConsumerGroups(self, Random(f"groups {result.seed}"))
        self.triggers = TriggerWorld(Random(f"triggers {result.seed}"), self.brokers, result.seen, streams=theme_of.streams)
        self.streams = theme_of.streams
        self._patched = ExitStack()
        for module in _LOCKED:
            self._patched.enter_context(patch.object(module, "threading", YieldingLocks(self)))
        self._patched.enter_context(patch.object(archival.plan.merge_plan, "GROWTH", 2))  # more merges with fewer entries
        self._patched.enter_context(patch.object(archival.partition.stream_writers, "PART_BYTES", 700))  # a few batches
        halves = cast(ChunksLayout, open_layout("chunks"))._halves
        self._patched.enter_context(patch.object(halves, "_wait_s", 0.0))  # for what a task in its turn may be getting
        self._patched.enter_context(patch.object(headwater.admin.status_board, "log", LoudLog()))
        self._patched.enter_context(patch.object(milestones, "reached", self._step_reached))
        modules = (
            *(recovery.bucket_survey, recovery.discovery, recovery.endings, recovery.placement, recovery.take_over),
            *(chunk_segment, chunks_layout),
        )
        for module in modules:
            self._patched.enter_context(patch.object(module, "ContextThreads", InlinePool))
        self.senders = Random(f"senders {result.seed}")
        for module in (chunk_segment, chunks_layout) if theme_of.scattered else ():
            self._patched.enter_context(patch.object(module, "ContextThreads", partial(ScatteredPool, self.senders)))
        places = (("a", 0), ("a-stale", 0)) if theme_of.alone else (("a", 0), ("b", 1), ("a-stale", 0))
        self.agents = [Agent(self, name, beside, FaultyStore(self.inner, random, faults)) for name, beside in places]
        self.checks.beside = dict(places)
        self.operator = Operator(self)
        self.reader = None if theme_of.damage or theme_of.branches else Reader(self, 0 if theme_of.alone else result.seed % 2)
        is_lively = theme_of.trims or theme_of.merges or theme_of.pages or theme_of.collects > 1
        is_recovered = not theme_of.damages and (is_lively or result.seed % 4 == 1)
        self.recoverer = Recoverer(self) if is_recovered else None
        self.damager = Damager(self) if theme_of.damages else None

    def close(self) -> None:
        for agent in self.agents:
            agent.kill()
        if self.reader:
            self.reader.close()
        if self.recoverer:
            self.recoverer.close()
        self._patched.close()
        shutil.rmtree(self.root, ignore_errors=True)

    @property
    def begin_anew_epoch(self) -> int | None:
        return self.checks.consents.get(self.brokers.partition.topic_id)

    def status_of(self, agent: Agent, meter: StoreMeter) -> AgentStatus:
        return AgentStatus(self, agent, meter)

    def id(self) -> str:
        return f"{self.random.getrandbits(128):032x}"

    def describe(self, partition: PartitionId) -> TopicFacts:
        """What a broker has on the topic, if it is this very incarnation."""
        if partition != self.brokers.partition:
            return TopicFacts()
        return TopicFacts(partitions=1, configs=self.brokers.configs)

    # Scheduling

    def run(self, actions: int) -> None:
        for _ in range(actions):
            self._act()
            self.checks.after_action()
            self._witness()
            self.operator.after_action()
            for agent in self.agents:
                agent.status.after_action()
            if self.reader:
                self.reader.after_action()
            if self.recoverer:
                self.recoverer.after_action()
            if self.damager:
                self.damager.after_action()
        self._come_to_rest()

    def _act(self) -> None:
        brokers, random = self.brokers, self.random
        theme = self.theme
        choices: list[tuple[float, Callable[[], str | None]]] = [
            (4, brokers.write),
            (1.5 * theme.rolls, lambda: brokers.roll(brokers.leader)),
            (1.5, brokers.write_checkpoint),
            (0 if brokers.begun else 4, brokers.begin),
            (0.5 * theme.retention, brokers.retain),
            (0.3 * theme.recreation, brokers.recreate),
            (3 if theme.forgets else 1, self._wait),
            (0.5 if self.stopped else 0, self.consent),
        ]
        if theme.alone:
            choices += [(0.7, brokers.restart), (0.3 * theme.replacements, lambda: brokers.replace_disk(brokers.leader))]
        else:
            choices += [
                (2 * theme.follows, brokers.follow),
                (0.7 * theme.elections, brokers.fall_behind),
                (0.7 * theme.elections, lambda: brokers.elect(unclean=False)),
                (1.2 * theme.elections, lambda: brokers.elect(unclean=True)),
                (0.7 * theme.vacancies, brokers.resign),
                (0.7 * theme.branches, self._go_ahead),
                (0.7 if brokers.vacant else 0, brokers.restart),
                (0.3 * theme.replacements, lambda: brokers.replace_disk(random.choice(brokers.replicas))),
            ]
        if theme.streams:
            choices.append((0.4, self._switch_streams))
        if theme.groups:
            choices += [(6, self.consumer_groups.act), (4, self._wait)]
        if theme.days:
            choices.append((theme.days, self._spend_a_day))
        if theme.pauses:
            choices.append((0.5 * theme.pauses, self.operator.pause_or_resume))
            choices += [(1, lambda agent=agent: self.operator.look(agent)) for agent in self.agents if not agent.is_busy]  # type: ignore[misc]
        if theme.triggers:
            choices += [(0.7, self.triggers.change), (0.5, lambda: brokers.move(random.choice(brokers.replicas)))]
        if theme.damage:
            replica = random.choice(brokers.replicas)
            choices += [(theme.damage, lambda: brokers.damage(replica)), (0.5, lambda: brokers.heal(replica))]
        for agent in self.agents:
            often = 0.2 if agent.name == "a-stale" else 1.0 if brokers.replicas[agent.beside].lead is not None else 0.3
            for task in agent.tasks:
                if task.is_busy:
                    choices.append(((9 * often + 1) * (theme.slow if task.doing == self.slow else 1), task.resume))
            if agent.is_busy:
                choices.append((0.35, agent.die))
            if not all(task.is_busy for task in agent.tasks):
                choices += [
                    (9 * often * theme.lazy, agent.archive),
                    (theme.collects * often, agent.collect),
                    (1.5 * often * theme.merges, agent.merge),
                ]
                if self.releases and brokers.replicas[agent.beside].cleaning is None:  # where a directory is ours, no cleaner is
                    choices.append((1.6 * often * theme.releases, agent.release))
            choices.append((2 * often, agent.announce))
            if theme.versions and agent.version is not Version.LATER:
                choices.append((0.05, agent.upgrade))
            if agent.store.in_flight:
                choices.append((1, agent.land))
                if theme.switches:
                    choices.append((5, lambda agent=agent: self._switch_agent(agent)))  # type: ignore[misc]
        if self.compacted and not any(agent.is_at("release") for agent in self.agents):
            choices += [(4 if theme.forgets else 2, lambda at=at: brokers.clean(brokers.replicas[at])) for at in (0, 1)]  # type: ignore[misc]
        action = random.choices([action for _, action in choices], [weight for weight, _ in choices])[0]
        self.note(action())
        for replica in brokers.replicas:
            self.note(brokers.notice_release(replica))
            brokers.keep_side_files(replica)
            brokers.keep_time_indexes(replica)
        if theme.groups:
            self.consumer_groups.after_action()

    def note(self, line: str | None) -> None:
        if line:
            self.result.trace.append(line.replace(str(self.root), ""))

    def _wait(self) -> str:
        if self.random.random() < 0.1:
            self.clock.set_back(3_600_000)
            self.result.seen["the clock is set back"] += 1
            return "the clock is set back by an hour"
        self.clock.advance(self.random.choice((100, 5_000, 60_000)))
        return ""

    def _switch_agent(self, agent: Agent) -> str:
        switched = self._switch_streams()
        layout = agent.restart()
        self.result.seen["an agent's offload is switched while a write of it is late"] += 1
        return f"{switched}, and {agent.name} starts anew with layout {layout}"

    def _switch_streams(self) -> str:
        self.streams = not self.streams
        self.result.seen["streams are switched"] += 1
        return f"streaming offload is {'on' if self.streams else 'off'}"

    def _spend_a_day(self) -> str:
        agent = self.agents[self.brokers.leading]
        agent.finish()
        return agent.spend_a_day()

    def consent(self) -> str:
        """A person has read why an archiver stopped, and lets the topic begin again."""
        assert self.stopped
        topic_id, begins_in = self.stopped
        self.checks.consents[topic_id] = max(begins_in, self.checks.consents.get(topic_id, -1))
        self.stopped = None
        self.result.seen["consent to begin again"] += 1
        return f"an operator lets {topic_id} begin again in epoch {begins_in}"

    def outcome_of(self, doing: str, do: Callable[[], str], *, damaged: Callable[[], bool]) -> str:
        """Do it; what became of it, for the trace. An error that nothing in this world explains is a violation.

        damaged  are there local files that explain an error?
        """
        try:
            return do()
        except (TransientError, Fenced, Conflict) as error:
            self.result.seen[f"error {type(error).__name__}"] += 1
            return f"{type(error).__name__}: {error}"
        except UnrelatedLog as error:
            self.result.seen["stopped: the log shares nothing with the archive"] += 1
            self.stopped = self.brokers.partition.topic_id, error.begins_in
            return f"stopped: {error}"
        except NeedsReplacement as error:
            self.result.seen["stopped: compaction went past the archive"] += 1
            return f"needs replacement: {error}"
        except Violation:
            raise
        except Exception as error:
            if isinstance(error, NeedsUpgrade | UnsupportedFormat) and self.theme.versions:
                self.result.seen["an agent needs an upgrade"] += 1
                return f"needs upgrade: {error}"
            if isinstance(error, CorruptData | SuspectedGap) and damaged():
                self.result.seen[f"damage is noticed: {type(error).__name__}"] += 1
                return f"damaged: {error}"
            if self.control.trouble.explains(error):
                raise Violation(f"I27 {doing} fails with the control log: {type(error).__name__}: {error}") from error
            if not self.trouble.explains(error):
                raise Violation(f"I15 {doing} fails: {type(error).__name__}: {error}") from error
            return f"{type(error).__name__}: {error}"

    def cuts_join(self) -> bool:
        return self.senders.random() < 0.3 and self.trouble.likely > 0

    def pause(self, at: str) -> None:
        """A point where the running agent may be overtaken."""
        if self.running and self.random.random() < self.haste * (self.theme.looks if at.startswith("look") else 1):
            self.running.pause(at)

    def _step_reached(self, step: str) -> None:
        self.result.seen[step] += 1
        self.pause(step)

    # The end

    def _come_to_rest(self) -> None:
        """No more faults: the leader of now must finish the work, whatever was left; then the other one too."""
        self.control.deaf, self.control.trouble.likely, self.trouble.likely = False, 0, 0
        for agent in self.agents:
            agent.store.faults = NO_FAULTS
            if self.random.random() < 0.5:
                agent.kill()
            else:
                agent.finish()
            if self.random.random() < 0.5:
                agent.store.lose()
            else:
                agent.store.land()
            self.checks.after_action()
        if self.theme.pauses:
            self.note(self.operator.resume())
            for agent in self.agents:
                agent.pauses.refresh()
        if self.random.random() < 0.3:
            self.clock.set_back(3_600_000)
        if self.brokers.vacant:
            self.note(self.brokers.restart())
        self.note(self.brokers.begin())
        if self.brokers.leader.damaged:
            agent = self.agents[self.brokers.leading]
            for _ in range(_STEPS_TO_REST):
                if agent.step_now().startswith(("idle", "damaged")):
                    break
                self.checks.after_action()
        for replica in self.brokers.replicas:
            self.note(self.brokers.heal(replica))
            self.brokers.finish_cleaning(replica)
            self.note(self.brokers.notice_release(replica))
        if self.theme.forgets and self.random.random() < 0.6:
            self._nobody_acts()
        if self.theme.branches and self.random.random() < 0.7:
            self._branch_dies()
        for _ in range(2):
            self.clock.advance(60_000)  # an announcer that was refused may try again
            self.note(self.brokers.write_checkpoint())
            self._finish(self.agents[self.brokers.leading])
            if not self.theme.alone:
                self.note(self.brokers.follow())
                self.note(self.brokers.elect(unclean=False))
            self.note(self.brokers.begin())
            self.note(self.brokers.write())
        if self.theme.groups:
            self.consumer_groups.read_all()
            self.agents[self.brokers.leading].release_to_the_end()
        if self.recoverer and self.theme.taken and self.checks.heads:
            self.recoverer.hand_over()

    def _go_ahead(self) -> str:
        """The leader alone writes on, rolls, and cleans what both have by what only it has."""
        brokers = self.brokers
        for line in (brokers.follow(), brokers.fall_behind()):
            self.note(line)
        for _ in range(self.random.randrange(1, 4)):
            self.note(brokers.write())
        for line in (brokers.roll(brokers.leader), brokers.write(), brokers.write_checkpoint()):
            self.note(line)
        if not any(agent.is_at("release") for agent in self.agents):
            self.note(brokers.clean(brokers.leader))
            if self.random.random() < 0.7:
                brokers.finish_cleaning(brokers.leader)
        return f"broker {brokers.leader.node} is ahead, and has compacted all before {brokers.leader.cleaned_to}"

    def _branch_dies(self) -> None:
        """Some of it is archived, and the other broker takes over."""
        self.note(self._go_ahead())
        self.brokers.finish_cleaning(self.brokers.leader)
        for _ in range(self.random.randrange(12)):
            self.agents[self.brokers.leading].step_now()
            self.checks.after_action()
        self.note(self.brokers.elect(unclean=True))
        self.note(self.brokers.begin())

    def _nobody_acts(self) -> None:
        """No agent does anything for long, and cleaners do."""
        brokers = self.brokers
        for line in (brokers.write(), brokers.roll(brokers.leader), brokers.write(), brokers.follow(), brokers.write_checkpoint()):
            self.note(line)
        for _ in range(3):
            for replica in brokers.replicas:
                self.note(brokers.clean(replica))
                brokers.finish_cleaning(replica)
            self.clock.advance(90_000)

    def _finish(self, agent: "Agent") -> None:
        leader = self.brokers.leader
        for replica in self.brokers.replicas:
            self.brokers.keep_side_files(replica)
        self.note(f"{agent.name} comes to rest beside broker {leader.node}, {rest_of(leader)}")
        outcome, progressed = "", False
        for _ in range(_STEPS_TO_REST):
            outcome = agent.step_now()
            self.checks.after_action()
            if outcome.startswith("idle"):
                break
            if outcome.startswith("needs replacement"):
                if "in vain" in outcome:
                    raise Violation(f"I15 {agent.name} replaces what is archived in vain, and nothing takes any time: {outcome}")
                self.checks.overtaken()
                agent.status.overtaken()
                return
            progressed = True
            if outcome.startswith("needs upgrade"):
                there = list(self.inner.list(""))  # it knows by now
                again = agent.step_now()
                self.checks.outdated(agent.version, unchanged=again == outcome and there == list(self.inner.list("")))
                self.note(agent.upgrade())
            if outcome.startswith("stopped"):
                self.checks.stopped()
                self.note(self.consent())
        else:
            raise Violation(f"I15 {agent.name} does not come to rest: {outcome}")
        self.checks.at_rest()
        if agent.archiver().open_stream is None and agent.budget.used_bytes:
            raise Violation(f"I26 the offload buffer has {agent.budget.used_bytes} bytes of nothing, and others want the room")
        agent.status.rest()
        if self.reader:
            self.reader.rest()
        if self.recoverer:
            self.recoverer.rest()
        if self.damager:
            self.damager.rest()
        if progressed:  # else the newest head may be one that garbage collection has written, which is not announced
            self.result.seen["the control log is compared with the head"] += 1
            self.checks.control(self.control.state())

    def _witness(self) -> None:
        """Interesting states; a run that never reaches them proves nothing."""
        seen, brokers = self.result.seen, self.brokers
        head = self.checks.head(brokers.partition)
        if any(replica.lead is not None for replica in brokers.replicas if replica is not brokers.leader):
            seen["an old leader does not know the new epoch"] += 1
        if any(agent.store.in_flight for agent in self.agents):
            seen["a write is in flight"] += 1
        if not brokers.begun:
            seen["a leader's log does not show its epoch yet"] += 1
        if brokers.vacant and brokers.eligible:
            seen["no leader, eligible leader replicas"] += 1
        if any(replica.checkpoint > replica.hw for replica in brokers.replicas):
            seen["a checkpoint is ahead of the high watermark"] += 1
        if sum(agent.is_busy for agent in self.agents) > 1:
            seen["two agents are at work"] += 1
        if brokers.incarnation > 1 and head:
            seen["a topic was created again and is archived"] += 1
        if any(replica.ghost and replica.ghost[-1].last >= replica.policy for replica in brokers.replicas):
            seen["released records are served by the archive"] += 1
        if head:
            if head.superseded:
                seen["a dead branch is superseded"] += 1
                if head.entries and head.entries[-1].epochs and head.entries[-1].epochs[-1][0] > next(iter(head.superseded)).epochs[0][0]:
                    seen["superseded, and the newer epoch is archived"] += 1
            if self.checks.deepest > 1:
                seen["pages refer to pages"] += 1
            if self.checks.carried_over:
                seen["a manifest is carried over"] += 1
            if head.superseded.references:
                seen["superseded entries are in pages"] += 1
            if any(entry.gap for entry in head.entries):
                seen["a gap"] += 1
            if any(entry.reason for entry in head.entries):
                seen["a gap with a pause as its reason"] += 1
            if any(entry.is_cut for entry in head.entries):
                seen["an entry is cut inside"] += 1
            if self.theme.streams:
                layouts = {entry.layout for entry in head.entries if not entry.gap}
                seen["an object that was written while it filled"] += "streaming" in layouts
                seen["such objects beside others"] += "streaming" in layouts and len(layouts) > 1
                seen["a segment of several chunks"] += any(int(entry.context.get("chunk", 0)) > 1 for entry in head.entries)
                seen["such an object was cut"] += any(entry.is_cut and entry.layout == "streaming" for entry in head.entries)
                seen["a name has failed"] += any(not each.is_assigned for each in head.pending)
                seen["a name is kept by a collection"] += any(each.is_assigned and each.fence < head.fence for each in head.pending)
            for state, times in self.checks.segments.states.items():
                seen[f"a segment is {state}"] = max(seen[f"a segment is {state}"], times)
            seen["two writers' segments"] += self.checks.segments.owners > 1
            if sum(agent.is_busy for agent in self.agents) > 1:
                for state in self.checks.segments.claimed:
                    seen[f"two owners while a segment is {state}"] += 1
                self.checks.segments.claimed = set()
            if any(entry.open_from is not None for entry in head.entries):
                seen["a transaction is open at the end of an entry"] += 1
            if head.entries and head.last_offset + 1 == brokers.leader.hw:
                seen["the archive has caught up"] += 1
            if head.fence > 2:
                seen["several claims"] += 1
        if any(replica.cleaned_to for replica in brokers.replicas):
            seen["compacted"] += 1
        if head and not brokers.named:
            seen["archived where the leader is unknown"] += 1
