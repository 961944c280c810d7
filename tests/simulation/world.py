"""One seed: two brokers, three agents beside them, one bucket behind a bad network, and a schedule that a random source draws.

Agents run the real code of archival, manifests, layouts and segments over real files. They can be paused, overtaken and
killed at every look, every store call and every named step. A seed is a whole story: it replays exactly.
"""

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import BinaryIO, TypeVar

import structlog
from msgspec.structs import replace

from archival.announce import Announcer
from archival.archiver import PartitionArchiver
from archival.plan import Policy
from archival.release import Releaser
from archival.source import open_segment
from archival.tails import Tails
from archival.topics import TopicFacts, TopicRecords
from control.log import LocalControl
from control.records import Record
from layouts import open_layout
from manifests import keys
from manifests.repository import ManifestRepository
from model import steps
from model.clock import ManualClock
from model.errors import Conflict, Fenced, HeadwaterError, TransientError, UnknownOutcome, UnrelatedLog
from model.partition import PartitionId, TopicPartition
from objectstore.store import DOCUMENT_BYTES_MAX, ObjectInfo
from segments.log import LocalLog, LocalSegment
from tests.objectstore.faulty import BAD_NETWORK, NO_FAULTS, FaultyStore
from tests.simulation.actors import Actor
from tests.simulation.brokers import Brokers
from tests.simulation.bucket import Checks, Violation, WatchedStore, rest_of

ACTIONS = 140
_STEPS_TO_REST = 80
_MEMORY = Path("/dev/shm")
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """What a seed has more of than others."""

    follows: float = 1
    elections: float = 1
    retention: float = 0.5
    releases: float = 1
    recreation: float = 0
    replacements: float = 0
    rolls: float = 1


THEMES = {
    "even": Theme(),
    "lineage": Theme(elections=3, retention=0, follows=0.7),
    "release": Theme(elections=2, retention=0.2, releases=3, follows=2, rolls=3),
    "gaps": Theme(elections=3, retention=3, releases=3, rolls=2, follows=0.6),
    "incarnations": Theme(recreation=1),
    "disks": Theme(replacements=2, elections=2),
}


@dataclass(slots=True)
class Story:
    """What one seed came to."""

    seed: int
    trace: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    violation: str = ""


def tell(seed: int, *, theme: str | None = None, actions: int = ACTIONS, within: Path | None = None) -> Story:
    """Run one seed to its end, or to the first violation. The seed draws its theme unless one is given.

    within  where its files go; in memory when there is a file system for that
    """
    story = Story(seed)
    with _quiet(), tempfile.TemporaryDirectory(prefix="headwater-", dir=within or in_memory()) as root:
        world = World(story, Path(root), theme)
        try:
            world.run(actions)
        except Violation as violation:
            story.violation = str(violation)
        finally:
            world.close()
    return story


def in_memory() -> Path | None:
    return _MEMORY if _MEMORY.is_dir() else None


@contextmanager
def _quiet() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(processors=[], wrapper_class=structlog.make_filtering_bound_logger(50))
    try:
        yield
    finally:
        structlog.configure(**before)


class World:
    def __init__(self, story: Story, root: Path, theme: str | None) -> None:
        self.story, self.root = story, root
        self.random = Random(story.seed)
        self.theme = THEMES[theme or self.random.choice(tuple(THEMES))]
        self.compacted = self.random.random() < 0.25
        self.brokers = Brokers(root, self.random, compacted=self.compacted)
        self.clock = ManualClock()
        self.inner = WatchedStore(self.clock)
        self.control = LossyControl(self.random)
        self.stopped: tuple[str, int] | None = None  # topic id, and the leader epoch that its log begins in
        self.checks = Checks(self.inner, self.brokers)
        faults = NO_FAULTS if self.random.random() < 0.4 else BAD_NETWORK
        self.haste = self.random.choice((0.1, 0.25, 0.5))
        self.agents = [
            Agent(self, "a", 0, FaultyStore(self.inner, self.random, faults)),
            Agent(self, "b", 1, FaultyStore(self.inner, self.random, faults)),
            Agent(self, "a-stale", 0, FaultyStore(self.inner, self.random, faults)),
        ]
        self.running: Actor | None = None
        self._reached = steps.reached
        steps.reached = self._step_reached

    def close(self) -> None:
        for agent in self.agents:
            agent.kill()
        steps.reached = self._reached
        shutil.rmtree(self.root, ignore_errors=True)

    @property
    def begin_anew_epoch(self) -> int | None:
        return self.checks.consents.get(self.brokers.partition.topic_id)

    def id(self) -> str:
        return f"{self.random.getrandbits(128):032x}"

    # Scheduling

    def run(self, actions: int) -> None:
        for _ in range(actions):
            self._act()
            self.checks.after_action()
            self._witness()
        self._come_to_rest()

    def _act(self) -> None:
        brokers, random = self.brokers, self.random
        theme = self.theme
        choices: list[tuple[float, Callable[[], str | None]]] = [
            (4, brokers.write),
            (1.5 * theme.rolls, lambda: brokers.roll(brokers.leader)),
            (2 * theme.follows, brokers.follow),
            (0.7 * theme.elections, brokers.fall_behind),
            (0.7 * theme.elections, lambda: brokers.elect(unclean=False)),
            (1.2 * theme.elections, lambda: brokers.elect(unclean=True)),
            (1.5, brokers.write_checkpoint),
            (0.5 * theme.retention, brokers.retain),
            (0.3 * theme.recreation, brokers.recreate),
            (0.3 * theme.replacements, brokers.replace_disk),
            (1, self._wait),
            (0.5 if self.stopped else 0, self.consent),
        ]
        for agent in self.agents:
            often = 0.2 if agent.name == "a-stale" else 1.0 if brokers.replicas[agent.beside].lead is not None else 0.3
            if agent.actor.is_busy:
                choices.append((9 * often + 1, agent.go_on))
                choices.append((0.35, agent.die))
            else:
                choices += [(9 * often, agent.archive), (1.6 * often * theme.releases, agent.release), (0.4 * often, agent.collect)]
            if agent.store.under_way:
                choices.append((1, agent.land))
        if self.compacted and not any(agent.actor.doing == "release" and agent.actor.is_busy for agent in self.agents):
            choices += [(2, lambda at=at: brokers.clean(brokers.replicas[at])) for at in (0, 1)]  # type: ignore[misc]
        action = random.choices([action for _, action in choices], [weight for weight, _ in choices])[0]
        self.note(action())
        for replica in brokers.replicas:
            self.note(brokers.notice_release(replica))

    def note(self, line: str | None) -> None:
        if line:
            self.story.trace.append(line.replace(str(self.root), ""))

    def _wait(self) -> str:
        self.clock.advance(self.random.choice((100, 5_000, 60_000)))
        return ""

    def consent(self) -> str:
        """A person has read why an archiver stopped, and lets the topic begin anew."""
        assert self.stopped
        topic_id, begins_in = self.stopped
        self.checks.consents[topic_id] = max(begins_in, self.checks.consents.get(topic_id, -1))
        self.stopped = None
        self.story.seen["consent to begin anew"] += 1
        return f"an operator lets {topic_id} begin anew in epoch {begins_in}"

    def pause(self, at: str) -> None:
        """A point where the running agent may be overtaken."""
        if self.running and self.random.random() < self.haste:
            self.running.pause(at)

    def _step_reached(self, step: str) -> None:
        self.story.seen[step] += 1
        self.pause(step)

    # The end

    def _come_to_rest(self) -> None:
        """No more faults: whoever leads now must finish the work, whatever was left lying about; then the other one too."""
        for agent in self.agents:
            agent.store.faults = NO_FAULTS
            if self.random.random() < 0.5:
                agent.kill()
            elif agent.actor.is_busy:
                while agent.actor.is_busy:
                    agent.go_on()
            if self.random.random() < 0.5:
                agent.store.lose()
            else:
                agent.store.land()
            self.checks.after_action()
        self.control.deaf = False
        for replica in self.brokers.replicas:
            self.brokers.finish_cleaning(replica)
            self.brokers.notice_release(replica)
        for _ in range(2):
            self.note(self.brokers.write_checkpoint())
            self._finish(self.agents[self.brokers.leading])
            self.note(self.brokers.follow())
            self.note(self.brokers.elect(unclean=False))
            self.note(self.brokers.write())

    def _finish(self, agent: "Agent") -> None:
        leader = self.brokers.leader
        self.note(f"{agent.name} comes to rest beside broker {leader.node}, {rest_of(leader)}")
        outcome = ""
        for _ in range(_STEPS_TO_REST):
            outcome = agent.step_now()
            self.checks.after_action()
            if outcome.startswith("idle"):
                break
            if outcome.startswith("stopped"):
                self.checks.stopped()
                self.note(self.consent())
        else:
            raise Violation(f"I15 {agent.name} does not come to rest: {outcome}")
        self.checks.at_rest()

    def _witness(self) -> None:
        """Interesting states; a run that never reaches them proves nothing."""
        seen, brokers = self.story.seen, self.brokers
        head = self.checks.head(brokers.partition)
        if any(replica.lead is not None for replica in brokers.replicas if replica is not brokers.leader):
            seen["an old leader does not know the new epoch"] += 1
        if any(agent.store.under_way for agent in self.agents):
            seen["a write is under way"] += 1
        if sum(agent.actor.is_busy for agent in self.agents) > 1:
            seen["two agents are at work"] += 1
        if brokers.incarnation > 1 and head:
            seen["a topic was created again and is archived"] += 1
        if any(replica.ghost and replica.ghost[-1].last >= replica.policy for replica in brokers.replicas):
            seen["released records are served by the archive"] += 1
        if head:
            if head.superseded:
                seen["a dead branch is superseded"] += 1
                if head.entries and head.entries[-1].epochs and head.entries[-1].epochs[-1][0] > head.superseded[0].epochs[0][0]:
                    seen["superseded, and the newer epoch is archived"] += 1
            if any(entry.gap for entry in head.entries):
                seen["a gap"] += 1
            if any(entry.is_cut for entry in head.entries):
                seen["an entry is cut inside"] += 1
            if any(entry.open_from is not None for entry in head.entries):
                seen["a transaction is open at the end of an entry"] += 1
            if head.entries and head.last_offset + 1 == brokers.leader.hw:
                seen["the archive has caught up"] += 1
            if head.fence > 2:
                seen["several claims"] += 1
        if any(replica.cleaned_to for replica in brokers.replicas):
            seen["compacted"] += 1


class Agent:
    """One Headwater agent: what it keeps in memory is lost when it dies; its store client's requests outlive it."""

    def __init__(self, world: World, name: str, beside: int, store: FaultyStore) -> None:
        self.world, self.name, self.beside, self.store = world, name, beside, store
        self.actor = Actor(name)
        self._outcome = ""
        self._start()

    def _start(self) -> None:
        world = self.world
        self.logs = LookedAtLogs(world, self.beside)
        self.paused_store = PausingStore(world, self.store)
        self.repository = ManifestRepository(self.paused_store, new_id=world.id)
        self._tails = Tails(None, world.clock)
        self._topics = TopicRecords(self.repository, lambda _: TopicFacts(partitions=1, configs={}))
        self._archivers: dict[PartitionId, PartitionArchiver] = {}
        self._releaser = Releaser(logs=self.logs, repository=self.repository, writer=self.name, owned=True)

    def archiver(self) -> PartitionArchiver:
        partition = self.world.brokers.partition
        if partition not in self._archivers:
            self._archivers[partition] = PartitionArchiver(
                partition,
                logs=self.logs,
                store=self.paused_store,
                repository=self.repository,
                offloader=open_layout("segment"),
                announcer=Announcer(self.world.control, self.world.clock),
                topics=self._topics,
                tails=self._tails,
                writer=self.name,
                new_uid=self.world.id,
                open_segment=self._open,
            )
        return self._archivers[partition]

    def _open(self, segment: LocalSegment) -> BinaryIO:
        self.world.pause("open")
        file = open_segment(segment)
        try:
            self.world.pause("opened")
        except BaseException:
            file.close()
            raise
        return file

    # Errands

    def archive(self) -> str:
        policy = Policy(tail_after_ms=self.world.random.choice((None, 0, 0, 10_000)), begin_anew_epoch=self.world.begin_anew_epoch)
        archiver = self.archiver()
        return self._send("archive", lambda: self._step(archiver, policy))

    def _step(self, archiver: PartitionArchiver, policy: Policy) -> str:
        outcome = archiver.step(policy)
        self.world.story.seen[f"outcome {outcome.action}"] += 1
        entry = outcome.entry
        what = f" {entry.base_offset}..{entry.last_offset} epochs {entry.epochs}" if entry else ""
        return f"{outcome.action}{what} {outcome.reason}"

    def release(self) -> str:
        archiver = self.archiver()
        return self._send("release", lambda: self._release(archiver))

    def _release(self, archiver: PartitionArchiver) -> str:
        released = self._releaser.release(archiver)
        if released.segments:
            self.world.story.seen["segments released"] += 1
        return f"released {len(released.segments)} segments, local start {released.local_start} ({released.reason})"

    def collect(self) -> str:
        return self._send("gc", self._collect)

    def _collect(self) -> str:
        """Garbage collection as design §4 has it; here until there is a real one."""
        partition = self.world.brokers.partition
        held = self.repository.load(partition)
        if held is None:
            return "nothing to collect"
        raised = self.repository.commit(held, replace(held.head, fence=held.head.fence + 1, writer=self.name)).head
        named = {name for entry in (*raised.entries, *raised.superseded) for name in (entry.key, entry.index_key)}
        gone = 0
        for info in self.paused_store.list(keys.data_prefix(partition)):
            name = keys.parse_data(info.key)
            if name and name.fence < raised.fence and info.key not in named:
                self.paused_store.delete(info.key)
                gone += 1
        self.world.story.seen["orphans collected"] += bool(gone)
        return f"collected {gone} objects below fence {raised.fence}"

    # What the world does with an agent

    def _send(self, doing: str, errand: Callable[[], str]) -> str:
        self._outcome = ""
        self.actor.start(doing, lambda: self._do(errand))
        return self.go_on()

    def _do(self, errand: Callable[[], str]) -> None:
        try:
            self._outcome = errand()
        except (TransientError, Fenced, Conflict) as error:
            self.world.story.seen[f"error {type(error).__name__}"] += 1
            self._outcome = f"{type(error).__name__}: {error}"
        except UnrelatedLog as error:
            self.world.story.seen["stopped: the log shares nothing with the archive"] += 1
            self.world.stopped = self.world.brokers.partition.topic_id, error.begins_in
            self._outcome = f"stopped: {error}"

    def go_on(self) -> str:
        world = self.world
        world.running = self.actor
        try:
            self.actor.resume()
        except (HeadwaterError, ValueError, AssertionError, LookupError, OSError) as error:
            raise Violation(f"I15 {self.name}'s {self.actor.doing} fails: {type(error).__name__}: {error}") from error
        finally:
            world.running = None
        return f"  {self.name} {self.actor.doing}: {f'… {self.actor.at}' if self.actor.is_busy else self._outcome}"

    def step_now(self) -> str:
        """One step without a pause."""
        archiver = self.archiver()
        try:
            self._do(lambda: self._step(archiver, Policy(tail_after_ms=0, begin_anew_epoch=self.world.begin_anew_epoch)))
        except (HeadwaterError, ValueError, AssertionError, LookupError, OSError) as error:
            raise Violation(f"I15 {self.name} fails at rest: {type(error).__name__}: {error}") from error
        self.world.note(f"  {self.name}: {self._outcome}")
        return self._outcome

    def die(self) -> str:
        at = self.actor.at
        self.kill()
        self.world.story.seen["crash"] += 1
        return f"  {self.name} is killed at {at}"

    def kill(self) -> None:
        if self.actor.is_busy:
            self.actor.crash()
        self._start()

    def land(self) -> str:
        self.store.land(1)
        return f"    a delayed write of {self.name} arrives"


class LookedAtLogs:
    """What LogDirs tells of a broker's directory, at its worst: a look is torn over several moments."""

    def __init__(self, world: World, beside: int) -> None:
        self._world, self._beside = world, beside

    def look(self, partition: TopicPartition) -> LocalLog:
        world, random = self._world, self._world.random
        world.pause("look")
        replica = world.brokers.replicas[self._beside]
        checkpoint, leadership = replica.checkpoint, world.brokers.leadership(replica)
        cleaned_to, log_start = replica.cleaned_to, replica.start_checkpoint
        world.pause("look: checkpoints read")
        replica = world.brokers.replicas[self._beside]
        if random.random() < 0.5:
            identity, epochs = world.brokers.partition, replica.epochs()
            world.pause("look: identity read")
            names = self._list(replica.directory)
        else:
            names = self._list(replica.directory)
            world.pause("look: listed")
            replica = world.brokers.replicas[self._beside]
            identity, epochs = world.brokers.partition, replica.epochs()
        segments = self._segments(replica.directory, names)
        first = segments[0].base_offset if segments else 0
        return LocalLog(
            partition=identity,
            directory=replica.directory,
            segments=segments,
            high_watermark=checkpoint,
            log_start=max(first, log_start),
            epochs=epochs,
            cleaned_to=cleaned_to,
            compacted=world.compacted,
            leadership=leadership,
            settled=not any(name.endswith((".swap", ".cleaned")) for name in names),
        )

    def _list(self, directory: Path) -> list[str]:
        """A listing that was overtaken: names up to some point are older than those after it."""
        names = sorted(os.listdir(directory))
        if names and self._world.random.random() < 0.3:
            pivot = self._world.random.choice(names)
            self._world.pause("look: half listed")
            names = [name for name in names if name <= pivot] + [name for name in sorted(os.listdir(directory)) if name > pivot]
        return names

    def _segments(self, directory: Path, names: list[str]) -> tuple[LocalSegment, ...]:
        found = []
        for name in names:
            if name.endswith(".log"):
                try:
                    found.append((name, (directory / name).stat()))
                except FileNotFoundError:
                    continue
        return tuple(
            LocalSegment(
                base_offset=int(name[:20]),
                path=directory / name,
                size_bytes=status.st_size,
                generation=(status.st_ino, status.st_mtime_ns),
                is_active=at == len(found) - 1,
            )
            for at, (name, status) in enumerate(found)
        )


class PausingStore:
    """A store whose every call is a place to be overtaken, before and after."""

    def __init__(self, world: World, inner: FaultyStore) -> None:
        self._world, self._inner = world, inner

    @property
    def url(self) -> str:
        return self._inner.url

    def put(self, key: str, data: BinaryIO, *, size_bytes: int) -> str:
        return self._paused("put", lambda: self._inner.put(key, data, size_bytes=size_bytes))

    def create(self, key: str, document: bytes) -> str:
        return self._paused("create", lambda: self._inner.create(key, document))

    def replace(self, key: str, document: bytes, *, expected_tag: str) -> str:
        return self._paused("replace", lambda: self._inner.replace(key, document, expected_tag=expected_tag))

    def get(self, key: str, *, max_bytes: int = DOCUMENT_BYTES_MAX) -> tuple[bytes, str]:
        return self._paused("get", lambda: self._inner.get(key, max_bytes=max_bytes))

    def read_into(self, key: str, buffer: memoryview, *, start: int) -> None:
        self._paused("read", lambda: self._inner.read_into(key, buffer, start=start))

    def stream_into(self, key: str, buffers: Sequence[memoryview], *, start: int) -> Generator[None, None, None]:
        for buffer in buffers:
            self.read_into(key, buffer, start=start)
            start += len(buffer)
            yield

    def stat(self, key: str) -> ObjectInfo:
        return self._paused("stat", lambda: self._inner.stat(key))

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        return self._paused("list", lambda: self._inner.list(prefix, start_after=start_after))

    def delete(self, key: str) -> None:
        self._paused("delete", lambda: self._inner.delete(key))

    def _paused(self, call: str, do: Callable[[], _Answer]) -> _Answer:
        self._world.pause(call)
        try:
            return do()
        finally:
            if self._world.running:
                self._world.pause(f"{call} done")


class LossyControl(LocalControl):
    """Announcements may be lost, or arrive without anybody hearing so."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._random = random
        self.deaf = True

    def publish(self, *records: Record, timeout_s: float = 0.0) -> None:
        if self.deaf and self._random.random() < 0.1:
            raise TransientError("no leader")
        super().publish(*records, timeout_s=timeout_s)
        if self.deaf and self._random.random() < 0.1:
            raise UnknownOutcome("no answer")
