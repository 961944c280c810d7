"""One Headwater agent of a simulated world: the real code, and between it and the world what can be torn, late, broken or paused."""

import io
import os
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace as dataclass_replace
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeVar, cast
from uuid import UUID

from archival.broker.broker_logs import BrokerLogs
from archival.broker.broker_release import BrokerReleaser
from archival.collection.collector import Collector
from archival.collection.sightings import Sightings
from archival.config import ArchivalConfig
from archival.known_pauses import KnownPauses
from archival.members import Member
from archival.partition.announcer import Announcer
from archival.partition.archiver import ArchiverEquipment, Outcome, PartitionArchiver
from archival.partition.looks import CleanerLooks
from archival.partition.release import Releaser, plan_release
from archival.partition.source import LocalLogs, open_segment
from archival.partition.tails import Tails
from archival.partition.topics import TopicRecords
from archival.plan.offload_trigger import bounded
from archival.plan.policy import ChunkCommits, Policy, StreamLimits
from archival.plan.replacement import SMALLER
from archival.plan.stream_plan import assigned_to
from archival.plan.trim import delete_to
from archival.releases import Releases
from headwater_core.control.control_records import Record
from headwater_core.errors import (
    Conflict,
    CorruptData,
    DiskFull,
    Fenced,
    ForeignOwner,
    HeadwaterError,
    NeedsReplacement,
    TransientError,
    Unauthorised,
    UnknownOutcome,
    UnrelatedLog,
    UsageError,
)
from headwater_core.layouts import Offloader, open_layout
from headwater_core.layouts.blocks import BlocksLayout
from headwater_core.layouts.chunks import Variant
from headwater_core.layouts.chunks.chunk_handle import CommitLimits
from headwater_core.layouts.chunks.chunks_layout import ChunksLayout
from headwater_core.layouts.streaming import OffloadBudget
from headwater_core.objectstore.store import (
    DOCUMENT_BYTES_MAX,
    NO_METADATA,
    PLAIN,
    GrowingObject,
    NewObject,
    ObjectForm,
    ObjectInfo,
    ObjectRange,
    Pace,
    UnfinishedUpload,
    at_once,
    put_each,
)
from headwater_core.objectstore.store_meter import MeteredStore, StoreMeter
from headwater_core.partition import PartitionId, TopicPartition
from headwater_core.segments.local_log import Generation, LocalLog, LocalSegment
from manifests import chunk_keys, keys
from manifests.head import Head
from tests.headwater_core.control.local_control import LocalControl
from tests.headwater_core.objectstore.faulty import FaultyStore
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.simulation.actors import Actor, Crash
from tests.simulation.brokers import Brokers
from tests.simulation.bucket import Violation
from tests.simulation.consumer_groups import GONE_S, LookUps
from tests.simulation.requests import AnsweringBroker, LateMetadata
from tests.simulation.triggers import due_end
from tests.simulation.versions import Version, repository_of

if TYPE_CHECKING:
    from tests.simulation.world import World

_Answer = TypeVar("_Answer")
_STEPS_BEFORE_MERGE = 8
_JOINS_FAIL_BY = (UsageError, Unauthorised, DiskFull, TransientError)
_TURNS_MAX = 2_000  # of one agent's tasks until they have ended; more, and they wait for each other


LAYOUTS: tuple[Offloader, ...] = (
    open_layout("segment"),
    BlocksLayout(block_bytes=400),  # a batch or three in each block
    ChunksLayout(segment_bytes=1_500),  # a chunk or three in each segment
    ChunksLayout(Variant.FIXED, 300, senders=1),  # in the agent's own thread: only that one is paused and killed
)
CHUNKS = tuple(each for each in LAYOUTS if isinstance(each, ChunksLayout))
SCATTERED = (CHUNKS[0], ChunksLayout(Variant.FIXED, 100, senders=3))


class OwnTopics(TopicRecords):
    """Before somebody takes the archive over, whose it is is not read again after a first head: it would be one more step of every seed."""

    def __init__(self, agent: "Agent") -> None:
        super().__init__(agent.repository, agent.world.describe)
        self._agent = agent

    def ensure(self, partition: PartitionId, *, is_first: bool = False) -> None:
        is_needed = self._agent.world.is_taken_over or self._agent.archivers[partition].head is None
        super().ensure(partition, is_first=is_first and is_needed)


class Agent:
    """What it keeps in memory is lost when it dies; its store client's requests outlive it, and so does its data directory.

    It runs two tasks at a time where the world wants so: they share archivers, and with them locks, as the agent's loop, its
    admin endpoint and its releases do.
    """

    def __init__(self, world: "World", name: str, beside: int, store: FaultyStore) -> None:
        self.world, self.name, self.beside, self.store = world, name, beside, store
        self.version = world.versions.choice(list(Version)) if world.theme.versions else Version.PRESENT
        self.tasks = tuple(Task(self, Actor(f"{name}{at}")) for at in range(2 if world.pairs else 1))
        self._look_ups = LookUps()
        self._start()

    def _start(self) -> None:
        world = self.world
        self.logs: LocalLogs = LookedAtLogs(world, self.beside)
        broker = AnsweringBroker(world, self.beside, self._look_ups)
        self.late = LateMetadata(world, self.logs)
        if world.theme.requests:
            self.logs = BrokerLogs(self.late, broker, world.clock)
        meter = StoreMeter(world.clock)
        refuses_joins = partial(world.random.choice, _JOINS_FAIL_BY) if world.theme.unjoined else None
        cuts_joins = world.cuts_join if world.theme.scattered else bool
        self.paused_store = MeteredStore(PausingStore(world, self.store, refuses_joins, cuts_joins), meter)
        self.repository = repository_of(self.version, self.paused_store, world.id, world.limits)
        self.pauses = KnownPauses(self.repository, world.clock)
        self._tails = Tails(world.root / f"{self.name}-tails.json", world.clock)
        self._looks = CleanerLooks(world.root / f"{self.name}-cleaners.json", world.clock)
        self._topics = OwnTopics(self)
        self._announcer = LateAnnouncer(world.control, world.clock)
        self.archivers: dict[PartitionId, PartitionArchiver] = {}
        self.budget = OffloadBudget(world.random.choice((256, 1 << 20)) if world.theme.streams else 1 << 20)
        self._layout = open_layout("segment")
        if world.theme.layouts or world.theme.chunks:
            self._layout = world.layouts.choice(LAYOUTS if world.theme.layouts else SCATTERED if world.theme.scattered else CHUNKS)
        variant = f", {self._layout.variant.value}" if isinstance(self._layout, ChunksLayout) else ""
        world.result.seen[f"an agent starts with layout {self._layout.name}{variant}"] += 1
        sightings = Sightings(world.root / f"{self.name}-sightings", world.clock)
        self._collector = Collector(store=self.paused_store, sightings=sightings, clock=world.clock, writer=self.name)
        self._merged_to: int | None = None
        self.status = world.status_of(self, meter)
        self._releaser: Releaser | BrokerReleaser = Releaser(logs=self.logs, repository=self.repository, writer=self.name, owned=True)
        if world.theme.requests:
            self._releaser = BrokerReleaser(
                logs=self.logs, broker=broker, repository=self.repository, writer=self.name, wait=lambda _: world.pause("wait")
            )

        if world.theme.groups:
            (data_dir := world.root / f"{self.name}-data").mkdir(exist_ok=True)
            self._member = Member()
            self._releases = Releases(
                logs=self.logs,
                repository=self.repository,
                writer=self.name,
                owned=False,
                broker=broker,
                clock=world.clock,
                wait=lambda _: world.pause("wait"),
                data_dir=data_dir,
                free_bytes=list,
            )

    def archiver(self) -> PartitionArchiver:
        partition = self.world.brokers.partition
        if partition not in self.archivers:
            equipment = ArchiverEquipment(
                logs=self.logs,
                store=self.paused_store,
                repository=self.repository,
                announcer=self._announcer,
                topics=self._topics,
                tails=self._tails,
                looks=self._looks,
                writer=self.name,
                new_uid=self.world.id,
                open_segment=self._open,
                runs_max=3 if self.world.result.seed % 4 == 0 else 1,
                budget=self.budget,
            )
            self.archivers[partition] = WatchedArchiver(partition, equipment, self._layout)
        return self.archivers[partition]

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

    @property
    def is_busy(self) -> bool:
        return any(task.is_busy for task in self.tasks)

    def is_at(self, doing: str) -> bool:
        return any(task.is_busy and task.doing == doing for task in self.tasks)

    def archive(self, tail_after_ms: int | None = -1) -> str:
        policy = self._policy(self.world.random.choice((None, 0, 0, 10_000)) if tail_after_ms == -1 else tail_after_ms)
        archiver = self.archiver()
        if self.world.theme.triggers:
            policy = dataclass_replace(policy, triggers=self.world.triggers.set)
        return self._send("archive", lambda: self.step(archiver, policy))

    def _policy(self, tail_after_ms: int | None) -> Policy:
        """Where a seed takes less time than a tombstone is kept, an agent that has not looked for long may continue."""
        return Policy(
            tail_after_ms=tail_after_ms,
            begin_anew_epoch=self.world.begin_anew_epoch,
            min_saved_percent=self.world.random.choice((1, 10, 40)) if self.world.theme.saves else None,
            stale_keys_below=None if self.world.theme.forgets else 2**62,
            stream=self._limits(tail_after_ms),
        )

    def _limits(self, tail_after_ms: int | None) -> StreamLimits | None:
        if not self.world.streams:
            return None
        age_ms = 2**40 if tail_after_ms is None else tail_after_ms
        chunks = None
        if isinstance(self._layout, ChunksLayout):
            limits = CommitLimits(self.world.random.choice((50, 200)), 300, 1)
            if self.world.theme.scattered:
                limits = CommitLimits(self.world.random.choice((200, 600)), 100, 3)
            chunks = ChunkCommits(self._layout.variant, limits, self.world.random.choice((0, 10_000)))
        sizes = (300, 1_500, 6_000) if chunks is None else (1_500, 6_000, 6_000)  # a chunk or some
        return StreamLimits(self.world.random.choice(sizes), age_ms, completes=tail_after_ms == 0, chunks=chunks)

    def step(self, archiver: PartitionArchiver, policy: Policy) -> str:
        if self.world.theme.pauses:
            policy = self.pauses.applied(self.world.brokers.partition.topic_partition, policy)
            self.world.result.seen["an agent is paused"] += policy.is_paused
        try:
            outcome = archiver.step(policy) if policy.triggers is None else self._step_by_triggers(archiver, policy)
        except Exception as error:
            self.status.failed(error)
            raise
        self.status.stepped(outcome.reason)
        if outcome.progressed:
            self.status.committed(archiver.head)
        self.world.result.seen[f"outcome {outcome.action}"] += 1
        self.world.result.seen["space is saved"] += outcome.action == "replaced" and outcome.reason.endswith(SMALLER)
        entry = outcome.entry
        what = f" {entry.base_offset}..{entry.last_offset} epochs {entry.epochs}" if entry else ""
        if not outcome.progressed:
            self._tails.save()
            self._looks.save()
        return f"{outcome.action}{what} {outcome.reason}"

    def _step_by_triggers(self, archiver: PartitionArchiver, policy: Policy) -> Outcome:
        log = self.logs.look(self.world.brokers.partition.topic_partition)
        now_ms, triggers, was_open = self.world.clock.now_ms(), policy.triggers, archiver.open_stream
        assert triggers is not None
        due = due_end(log, triggers, now_ms)
        policy, before = bounded(policy, log, now_ms), archiver.head
        outcome = archiver.step(policy, log)
        next_offset, held_to = archiver.head.next_offset if archiver.head else None, was_open.next_offset if was_open is not None else 0
        self.world.triggers.check(log, triggers, due, outcome, next_offset, held_to)
        if policy.bound is not None and policy.tail_wait_ms is None and before is not None and not held_to:
            self.world.triggers.check_whole(log, outcome, before.next_offset)
        return outcome

    def release(self) -> str:
        archiver = self.archiver()
        return self._send("release", lambda: self._release(archiver))

    def _release(self, archiver: PartitionArchiver) -> str:
        if self.world.theme.groups:
            return self._release_read(archiver)
        released = self._releaser.release(archiver)
        if released.segments:
            self.world.result.seen["segments released"] += 1
        return f"released {len(released.segments)} segments, local start {released.local_start} ({released.reason})"

    def _release_read(self, archiver: PartitionArchiver) -> str:
        """What groups have read."""
        log, record = self.logs.look(archiver.partition.topic_partition), self._member.released
        released = self._releases.release(self._member, archiver, log, ArchivalConfig(release=True, release_ignore_groups_after_s=GONE_S))
        if record.blocked is not None:
            self.world.result.seen["a group holds a release back"] += 1
        return f"released {released.size_bytes} bytes, again in {released.again_s} s, up to {record.end} ({record.reason})"

    def release_to_the_end(self) -> None:
        """Raises Violation where something that may go stays, though all groups have read it."""
        archiver, record = self.archiver(), self._member.released
        for _ in range(12):
            self.world.clock.advance(61_000)
            self._release_read(archiver)
        log = self.logs.look(archiver.partition.topic_partition)
        planned = plan_release(log, archiver.head, self.name) if archiver.head is not None else None
        if planned is not None and planned.segments and planned.local_start > record.end:
            raise Violation(f"I30 all groups have read up to the end, and {planned.local_start} is not released: {record.reason}")

    def merge(self) -> str:
        archiver = self.archiver()
        policy = dataclass_replace(
            self._policy(self.world.random.choice((None, 0))), merge_bytes=self.world.random.choice((600, 1_500, 6_000))
        )
        return self._send("merge", lambda: self.merge_now(archiver, policy))

    def merge_now(self, archiver: PartitionArchiver, policy: Policy) -> str:
        """What is to be archived comes first; then as many merges as there are."""
        for _ in range(_STEPS_BEFORE_MERGE):
            if not archiver.step(policy).progressed:
                break
        done = self._merge(archiver, policy)
        while done.startswith("merged"):
            done = self._merge(archiver, policy)
        return done

    def _merge(self, archiver: PartitionArchiver, policy: Policy) -> str:
        world, before = self.world, self.world.random.choice((0, self._merged_to))
        outcome = archiver.merge(policy, passed=before)
        world.result.seen["chunks stay as they are"] += bool(archiver.merge_trouble)
        self._merged_to = outcome.passed
        world.result.seen["outcome comes first"] += outcome.comes_first
        if outcome.merged is None:
            return f"nothing is merged {outcome.reason}"
        self.status.committed(archiver.head)
        world.result.seen["outcome merged"] += 1
        world.result.seen["chunks become one object"] += outcome.merged.layout == "chunks"
        world.result.seen["a cut entry is merged"] += any(entry.is_cut for entry in outcome.group)
        world.result.seen["entries of two epochs are merged"] += len(outcome.merged.epochs) > 1
        world.result.seen["merged from local bytes"] += outcome.local_bytes > 0
        world.result.seen["merged from the store"] += outcome.local_bytes < outcome.merged.size_bytes
        return f"merged {[entry.base_offset for entry in outcome.group]}..{outcome.merged.last_offset}"

    def announce(self) -> str:
        self._announcer.speak()
        return ""

    def collect(self) -> str:
        return self._send("gc", self._collect)

    def _collect(self) -> str:
        """Trims the archive too where the world wants that: by size or time, or to an offset somebody gives. In half of these worlds never
        beyond the log's start, as where local segments are deleted by us."""
        world, settings, border = self.world, self.world.retention, None
        if world.theme.trims and world.random.random() < 0.5:
            settings = world.random.choice(
                (
                    dataclass_replace(settings, retention_bytes=1),
                    dataclass_replace(settings, retention_bytes=2_000),
                    dataclass_replace(settings, retention_s=1),  # by which all of it is old
                )
            )
        elif world.theme.trims and world.random.random() < 0.3:
            share = world.random.random()

            def border(head: Head) -> int:
                return delete_to(head, head.start_offset + int((head.next_offset - head.start_offset) * share))

        kept_from = self.logs.look(world.brokers.partition.topic_partition).start_offset if world.trims_released else None
        prefixes = [keys.data_prefix(world.brokers.partition)] if world.theme.layouts else []
        prefixes += [keys.STREAM] if world.theme.streams else []
        prefixes += [chunk_keys.CHUNKS] if world.theme.layouts or world.theme.chunks else []
        uploads = [each for prefix in prefixes for each in self.paused_store.unfinished(prefix)]
        done = self._collector.collect(self.archiver(), settings, border=border, kept_from=kept_from, uploads=uploads)
        world.result.seen["unfinished uploads are aborted"] += bool(done.aborted)
        if done.committed:
            self.status.committed(self.archiver().head)
        seen = world.result.seen
        seen["orphans collected"] += bool(done.deleted)
        seen["a collection meets unfinished uploads"] += bool(uploads)
        seen["orphans noted"] += done.orphans > done.deleted
        seen["a fence raised to collect"] += done.committed
        seen["archive trimmed"] += bool(done.trimmed_entries)
        seen["superseded entries forgotten"] += bool(done.forgotten_entries)
        return f"collected {done.deleted} of {done.orphans} orphans, trimmed {done.trimmed_entries} to {done.start_offset}"

    # What the world does with an agent

    def _send(self, doing: str, do: Callable[[], str]) -> str:
        task = next(task for task in self.tasks if not task.is_busy)
        task.start(doing, do)
        if self.tasks[0].is_busy and self.tasks[-1] is task and len(self.tasks) > 1:
            self.world.result.seen["two tasks of one agent are at work"] += 1
        return task.resume()

    def step_now(self) -> str:
        """One step without a pause."""
        archiver = self.archiver()
        policy = self._policy(0)
        replica = self.world.brokers.replicas[self.beside]
        doing = f"{self.name} at rest"
        outcome = self.world.outcome_of(doing, lambda: self.step(archiver, policy), damaged=lambda: bool(replica.damaged))
        self.announce()
        self.world.note(f"  {self.name}: {outcome}")
        return outcome

    def step_of_lost_cluster(self) -> bool:
        """One step without a pause, of an agent whose archive is being taken over; whether it is refused. What else goes wrong does."""
        try:
            self.step(self.archiver(), self._policy(0))
        except ForeignOwner:
            return True
        except (TransientError, Fenced, Conflict, NeedsReplacement, UnrelatedLog):
            pass
        return False

    def spend_a_day(self) -> str:
        """Archive, merge and collect without a pause; what is unreferenced is so for the reader lease, and is collected."""
        world, archiver = self.world, self.archiver()
        policy = dataclass_replace(self._policy(0), merge_bytes=world.random.choice((600, 1_500, 6_000)))
        outcomes = []
        for do in (lambda: self.merge_now(archiver, policy), self._collect, self._collect):
            outcomes.append(world.outcome_of(f"{self.name}'s day", do, damaged=lambda: False))
            world.checks.after_action()
            world.clock.advance(60_000)
        return f"  {self.name} spends a day: {'; '.join(outcomes)}"

    def finish(self) -> None:
        """Let every task go on to its end."""
        for turn in range(_TURNS_MAX):
            busy = [task for task in self.tasks if task.is_busy]
            if not busy:
                return
            busy[turn % len(busy)].resume()
        raise Violation(f"I15 the tasks of {self.name} wait for each other")

    def die(self) -> str:
        at = ", ".join(f"{task.doing} {task.actor.at}" for task in self.tasks if task.is_busy)
        self.kill()
        self.world.result.seen["crash"] += 1
        return f"  {self.name} is killed at {at}"

    def stop(self) -> str:
        """It ends what it does, drops what it holds open, and starts again."""
        self.finish()
        self._tails.save()
        self._looks.save()
        for partition, archiver in self.archivers.items():
            pending = assigned_to(archiver.head) if archiver.head is not None else None
            if not archiver.end() or pending is None:
                continue  # the store keeps what was sent, and did not say so
            written = f"{keys.stream_folder(partition, pending.fence)}{UUID(pending.uid)}"
            self.world.inner.lose_writers(written)
            if list(self.world.inner.unfinished(written)):
                raise Violation(f"{self.name} has stopped, and leaves {written} unfinished")
        if self.budget.used_bytes:
            raise Violation(f"I26 {self.name} has stopped, and the offload buffer has {self.budget.used_bytes} bytes of nothing")
        self._start()
        return f"  {self.name} stops"

    def kill(self) -> None:
        for task in self.tasks:
            if task.is_busy:
                task.actor.crash()
        self._start()

    def restart(self) -> str:
        """Wherever it is; the layout that it has then."""
        self.kill()
        return self._layout.name

    def upgrade(self) -> str:
        """It is stopped, wherever it is, and starts as the next version."""
        self.version = self.version.next
        self.kill()
        self.world.result.seen["an agent is upgraded"] += 1
        return f"  {self.name} is upgraded, and writes format {self.version.value}"

    def land(self) -> str:
        self.store.land(1)
        return f"    a delayed write of {self.name} arrives"


class WatchedArchiver(PartitionArchiver):
    """I28: what is uploaded, and may still be committed, is not thrown away for a collection that can wait."""

    def amend(self, change: Callable[[Head], Head], *, discards: bool = False) -> Head:
        def watched(head: Head) -> Head:
            after = change(head)
            if after is not head and self.is_waiting and not discards:
                raise Violation(f"I28 what waits for its commit under fence {head.fence} has to be uploaded again")
            return after

        return super().amend(watched, discards=discards)


class Task:
    """One thing that an agent does, on an actor of its own."""

    def __init__(self, agent: Agent, actor: Actor) -> None:
        self._agent, self.actor = agent, actor
        self.doing, self._outcome = "", ""

    @property
    def is_busy(self) -> bool:
        return self.actor.is_busy

    def start(self, doing: str, do: Callable[[], str]) -> None:
        self.doing, self._outcome = doing, ""
        self.actor.start(lambda: self._run(do))

    def _run(self, do: Callable[[], str]) -> None:
        world, agent = self._agent.world, self._agent
        replica = world.brokers.replicas[agent.beside]
        self._outcome = world.outcome_of(f"{agent.name}'s {self.doing}", do, damaged=lambda: replica.was_damaged)

    def resume(self) -> str:
        world = self._agent.world
        world.running = self.actor
        try:
            self.actor.resume()
        finally:
            world.running = None
        return f"  {self._agent.name} {self.doing}: {f'… {self.actor.at}' if self.is_busy else self._outcome}"


class Surroundings(Protocol):
    """What looks and calls to the store need of the world that they happen in."""

    @property
    def random(self) -> Random: ...

    @property
    def brokers(self) -> Brokers: ...

    @property
    def compacted(self) -> bool: ...

    @property
    def trouble(self) -> "Trouble": ...

    @property
    def running(self) -> Actor | None: ...

    def pause(self, at: str) -> None: ...


class LookedAtLogs:
    """What LogDirs reports of a broker's directory, at its worst: a look is torn over several moments."""

    def __init__(self, world: "Surroundings", beside: int) -> None:
        self._world, self._beside = world, beside

    def look(self, partition: TopicPartition) -> LocalLog:
        world, random = self._world, self._world.random
        world.pause("look")
        replica = world.brokers.replicas[self._beside]
        checkpoint, leadership = replica.checkpoint, world.brokers.leadership(replica)
        cleaned_to, log_start = replica.cleaned_to, replica.start_checkpoint
        metadata_end = world.brokers.metadata_end(replica)
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
            delete_retention_ms=world.brokers.delete_retention_ms if world.compacted else None,
            retention=world.brokers.retention,
            leadership=leadership,
            metadata_end=metadata_end,
            settled=not any(name.endswith(".swap") for name in names),
        )

    def _list(self, directory: Path) -> list[str]:
        """A listing that was overtaken. Names come in any order, and each is there or not at the moment it comes by."""
        before = os.listdir(directory)
        if self._world.random.random() < 0.7:
            return sorted(before)
        self._world.pause("look: half listed")
        after = os.listdir(directory)
        return [name for name in sorted({*before, *after}) if name in (before if self._world.random.random() < 0.5 else after)]

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
                directory=directory,
                size_bytes=status.st_size,
                generation=Generation(status.st_ino, status.st_mtime_ns),
                is_active=at == len(found) - 1,
            )
            for at, (name, status) in enumerate(found)
        )


class PausingStore:
    """A store whose every call is a place to be overtaken, before and after."""

    def __init__(
        self,
        world: "Surroundings",
        inner: FaultyStore,
        refuses_joins: Callable[[], type[HeadwaterError]] | None = None,
        cuts_joins: Callable[[], bool] = lambda: False,
    ) -> None:
        """cuts_joins: does the next object that is made of others get half of its length, and nobody an answer?"""
        self._world, self._inner, self._refuses_joins, self._cuts_joins = world, inner, refuses_joins, cuts_joins

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def part_bytes_min(self) -> int:
        return self._inner.part_bytes_min

    @property
    def keeps_metadata(self) -> bool:
        return self._inner.keeps_metadata

    def put(self, key: str, data: BinaryIO, *, size_bytes: int, form: ObjectForm = PLAIN) -> str:
        def put() -> str:
            return self._paused("put", lambda: self._inner.put(key, data, size_bytes=size_bytes, form=form))

        return put() if len(form.parts) < 2 else self._put_in_parts(key, len(form.parts), put)

    def _put_in_parts(self, key: str, parts: int, complete: Callable[[], str]) -> str:
        """Between two parts the process may end, which leaves the upload, or somebody's collection take the upload away."""
        store = cast(MemoryStore, self._inner.inner)
        upload = store.begin(key)
        try:
            for _ in range(parts):
                self._world.pause("part")
            if upload not in store.unfinished(key):
                raise UnknownOutcome(f"{key}: the multipart upload is gone")
            digest = complete()
        except Exception:
            if self._world.random.random() < 0.5:  # on a network on which a put fails an abort may, too
                store.abort(upload)
            raise
        store.abort(upload)  # it is an object now
        return digest

    def put_all(self, objects: Sequence[NewObject]) -> list[str]:
        return put_each(self, objects)

    def grow(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> GrowingObject:
        return _PausingGrowth(self._paused, self._inner.grow(key, metadata=metadata))

    def join(self, key: str, ranges: Sequence[ObjectRange], *, digest: str, form: ObjectForm = PLAIN, pace: Pace = at_once) -> None:
        if self._refuses_joins is not None:
            raise self._refuses_joins()("this store makes no object of others")
        if self._cuts_joins():
            size_bytes = sum(each.size_bytes for each in ranges) // 2
            self._paused("join", lambda: self._inner.put(key, io.BytesIO(bytes(size_bytes)), size_bytes=size_bytes, form=form))
            raise UnknownOutcome(f"{key}: no answer")
        self._paused("join", lambda: self._inner.join(key, ranges, digest=digest, form=form, pace=pace))

    def create(self, key: str, document: bytes) -> str:
        return self._paused("create", lambda: self._inner.create(key, document))

    def replace(self, key: str, document: bytes, *, expected_tag: str) -> str:
        return self._paused("replace", lambda: self._inner.replace(key, document, expected_tag=expected_tag))

    def get(self, key: str, *, max_bytes: int = DOCUMENT_BYTES_MAX) -> tuple[bytes, str]:
        return self._paused("get", lambda: self._inner.get(key, max_bytes=max_bytes))

    def read_into(self, key: str, buffer: memoryview, *, start: int) -> Mapping[str, str]:
        return self._paused("read", lambda: self._inner.read_into(key, buffer, start=start))

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

    def unfinished(self, prefix: str) -> Iterator[UnfinishedUpload]:
        return self._paused("unfinished", lambda: self._inner.unfinished(prefix))

    def abort(self, upload: UnfinishedUpload) -> None:
        self._paused("abort", lambda: self._inner.abort(upload))

    def _paused(self, call: str, do: Callable[[], _Answer]) -> _Answer:
        self._world.pause(call)
        self._world.trouble.strike(call)
        try:
            answer = do()
            self._world.trouble.strike(f"{call} done", TROUBLES[:1])
            return answer
        finally:
            if self._world.running:
                self._world.pause(f"{call} done")


class _PausingGrowth:
    """A growing object of a PausingStore."""

    def __init__(self, paused: Callable[[str, Callable[[], Any]], Any], inner: GrowingObject) -> None:
        self._paused, self._inner = paused, inner

    @property
    def key(self) -> str:
        return self._inner.key

    def send(self, number: int, content: bytes | bytearray | memoryview, *, start: int) -> int:
        return int(self._paused("send", lambda: self._inner.send(number, content, start=start)))

    def complete(self, rest: bytes | bytearray | memoryview) -> str:
        return str(self._paused("complete", lambda: self._inner.complete(rest)))

    def abort(self) -> None:
        self._paused("abort", self._inner.abort)


class Trouble:
    """Errors of every class, out of nowhere, at any call. `caused` are those it has raised: no other one is excused."""

    def __init__(self, world: "World", likely: float) -> None:
        self._world, self.likely = world, likely
        self.caused: list[BaseException] = []

    def strike(self, call: str, among: "Sequence[Callable[[str], Exception]] | None" = None) -> None:
        if not self.likely or self._world.random.random() >= self.likely:
            return
        error = self._world.random.choice(among or TROUBLES)(f"trouble at {call}")
        self.caused.append(error)
        self._world.result.seen[f"trouble {type(error).__name__}"] += 1
        raise error

    def explains(self, error: BaseException | None) -> bool:
        while error:
            if any(error is caused for caused in self.caused):
                return True
            error = error.__cause__ or error.__context__
        return False


class Unforeseen(Exception):
    """Of a class that no code knows."""


TROUBLES: tuple[Callable[[str], Exception], ...] = (
    Unforeseen,
    Unauthorised,
    Conflict,
    DiskFull,
    lambda text: CorruptData("somewhere", 0, text),
    lambda text: OSError(5, text),
)


class LossyControl(LocalControl):
    """Announcements may be lost, arrive without anybody hearing so, or fail in any way: archiving must not care (I27)."""

    def __init__(self, world: "World") -> None:
        super().__init__()
        self._world = world
        self.trouble = Trouble(world, 0.0)
        self.deaf = True

    def publish(self, *records: Record, timeout_s: float = 0.0) -> None:
        self.trouble.strike("publish")
        if self.deaf and self._world.random.random() < 0.1:
            raise TransientError("no leader")
        super().publish(*records, timeout_s=timeout_s)
        if self.deaf and self._world.random.random() < 0.1:
            raise UnknownOutcome("no answer")


class LateAnnouncer(Announcer):
    """Its thread speaks when the world lets it."""

    def _publish_soon(self) -> None:
        pass

    def speak(self) -> None:
        self._publish_safely(0.0)


class YieldingLocks:
    """The `threading` of the modules under simulation: waiting for one of its locks lets the world go on.

    Only one thread runs at a time here, so a task that is paused while it holds a real lock would never release it: a task
    that wants it would wait for the world, and the world for the task.
    """

    def __init__(self, world: "World") -> None:
        self._world = world

    def Lock(self) -> "YieldingLock":  # noqa: N802  threading calls it so
        return YieldingLock(self._world)

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)


class YieldingLock:
    def __init__(self, world: "World") -> None:
        self._world, self._held = world, False

    def acquire(self, blocking: bool = True) -> bool:
        while self._held:
            if not blocking:
                return False
            if self._world.running is None:
                raise Crash if self._world.killing else Violation("I15 a lock is held, and no task could release it")
            self._world.result.seen["a task waits for another one's lock"] += 1
            self._world.running.pause("waits for a lock")
        self._held = True
        return True

    def release(self) -> None:
        assert self._held
        self._held = False

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
