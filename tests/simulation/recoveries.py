"""A person who recovers the topic of a simulated world from its bucket, again and again, while everything else goes on.

One plans from the head of some moment and downloads what that lists; meanwhile the archive is trimmed, merged, replaced and collected.
It only reads, and draws from a random source of its own: with or without it a seed does the same. It can be overtaken at every call to
the store, and killed there; then it is run again, in the same directory. What it leaves when it says that it is finished is all that one
head listed, byte for byte, and no head from before it began (I17); nothing else ends it but an error that running it again overcomes.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import dropwhile, takewhile
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import recovery
from headwater_core.errors import NotFound, TransientError, UsageError
from headwater_core.partition import PartitionId
from headwater_core.segments.log_dirs import LogDirs
from headwater_core.segments.markers import ABORT, read_marker
from headwater_core.segments.transactions import Transactions
from manifests import keys
from manifests.entry import Entry
from manifests.head import Head
from manifests.repository import ManifestRepository
from recovery.recovery_plan import Mode, Options, PartitionPlan
from recovery.runs import segment_name
from recovery.target import read_mark
from tests.headwater_core.objectstore.faulty import BAD_NETWORK, NO_FAULTS, FaultyStore
from tests.headwater_core.segments.builders import BASE_TIME
from tests.recovery.written_archive import batches_in
from tests.simulation.actors import Actor
from tests.simulation.agents import PausingStore
from tests.simulation.brokers import TOPIC
from tests.simulation.bucket import Violation
from tests.simulation.readers import Beside, Inline, header_of

if TYPE_CHECKING:
    from tests.simulation.world import World


_HOW: tuple[Literal["abort", "keep", "cut"], ...] = ("abort", "abort", "keep", "cut")


_MODES: tuple[Mode, ...] = ("full", "full", "partial", "instant")


_TAKE_OVER = Options(partitions=1, take_over=True)
_TAKEN_AFTER = 40  # attempts
_KEPT_MAX = 30  # turns for which a plan, or an unfinished recovery, may lie there


class InlinePool(Inline):
    """A pool of threads without threads: so pauses are those of the task that has it, and a crash ends it."""

    def __enter__(self) -> "InlinePool":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, work: Any, *arguments: object, **_: object) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*arguments))
        except Exception as error:
            done.set_exception(error)
        return done

    def map(self, work: Callable[..., Any], *arguments: Iterable[Any]) -> Iterator[Any]:
        return iter([work(*each) for each in zip(*arguments, strict=False)])

    def run_each(self, work: Callable[[Any], object], items: Iterable[Any]) -> None:
        for item in items:
            work(item)


class ScatteredPool(InlinePool):
    """Its order is that of threads: what is submitted runs in any, and what has failed does not keep the rest from it."""

    def __init__(self, random: Random, *_: object, **__: object) -> None:
        self._random = random
        self._submitted: list[Callable[[], None]] = []

    def __exit__(self, *raised: object) -> None:
        if not any(raised):
            self._random.shuffle(self._submitted)
            for run in self._submitted:
                run()

    def submit(self, work: Any, *arguments: object, **_: object) -> Future[Any]:
        done: Future[Any] = Future()

        def run() -> None:
            try:
                done.set_result(work(*arguments))
            except Exception as error:
                done.set_exception(error)

        self._submitted.append(run)
        return done

    def map(self, work: Callable[..., Any], *arguments: Iterable[Any]) -> Iterator[Any]:
        given = list(enumerate(zip(*arguments, strict=False)))
        self._random.shuffle(given)
        done = {number: work(*each) for number, each in given}
        return iter([done[number] for number in sorted(done)])


@dataclass(frozen=True, slots=True)
class Listed:
    """What a head listed, read when it was the newest: its pages may be gone by now."""

    start_offset: int
    next_offset: int
    entries: tuple[Entry, ...]

    @property
    def kept(self) -> list[Entry]:
        """Of which a log is made: it begins with a record, not with a gap."""
        return list(dropwhile(lambda entry: entry.gap, (entry for entry in self.entries if entry.next_offset > self.start_offset)))


class Written(NamedTuple):
    """What is in a recovered log: the archive's batches, and after them, or in gaps, the recovery's own."""

    archived: list[bytes]
    everything: list[bytes]


class Recoverer:
    """One recovery at a time, in a directory of its own."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.random = random = Random(f"recovery {world.result.seed}")
        self._beside = Beside(world, random)
        self._store = FaultyStore(world.inner, random, BAD_NETWORK if random.random() < 0.5 else NO_FAULTS)
        self._often = random.choice((0.05, 0.1, 0.4))
        self._actor = Actor("recovery")
        self._heads: dict[PartitionId, dict[int, Listed]] = {}  # by version
        self._number = self._waits = 0
        self._is_taken = False
        self._begin_anew()

    def _begin_anew(self) -> None:
        shutil.rmtree(self._into, ignore_errors=True)
        self._number += 1
        self._options = self._some_options()
        self._is_begun = self._is_finished = False

    def _some_options(self) -> Options:
        how = self.random.choice(_HOW)
        random = Random(f"mode {self._world.result.seed} {self._number}")
        mode = random.choice(_MODES)
        if mode == "full" or how == "cut":
            return Options(partitions=1, open_transactions=how, to_time_ms=self._some_time() if how != "cut" else None)
        keep_bytes = random.randrange(1, 4000) if mode == "partial" else None
        return Options(partitions=1, open_transactions=how, mode=mode, keep_bytes=keep_bytes)

    def _some_time(self) -> int | None:
        """Records have the time of their offset."""
        random = Random(f"end {self._world.result.seed} {self._number}")
        ends = [head.next_offset for versions in self._heads.values() for head in versions.values()]
        return BASE_TIME + random.randrange(-2, max(ends, default=20) + 5) if random.random() < 0.4 else None

    @property
    def _into(self) -> Path:
        return self._world.root / "recovered" / str(self._number)

    def close(self) -> None:
        if self._actor.is_busy:
            self._actor.crash()

    # What the world has it do

    def after_action(self) -> None:
        """Something has happened; go on, or not."""
        self._note()
        random = self.random
        if random.random() >= self._often:
            return
        if self._waits:
            self._waits -= 1
            return
        if not self._actor.is_busy:
            if self._is_finished:
                self._begin_anew()
            self._begin()
        elif random.random() < 0.02:
            self._actor.crash()
            self._waits = random.randrange(_KEPT_MAX)
            self._saw("a recovery is killed")
            return
        self._go_on()

    def _note(self) -> None:
        for partition, head in self._world.checks.heads.items():
            versions = self._heads.setdefault(partition, {})
            if head.version not in versions:
                versions[head.version] = Listed(head.start_offset, head.next_offset, tuple(head.entries))

    def _begin(self) -> None:
        self._remember()
        self._actor.start(self._recover)

    def _remember(self) -> None:
        if not self._is_begun:
            self._since = {partition: max(versions) for partition, versions in self._heads.items()}
            self._is_begun = True

    def _go_on(self) -> None:
        self._beside.running = self._actor
        try:
            self._actor.resume()
        finally:
            self._beside.running = None

    def rest(self) -> None:
        """Nothing moves any more: what was begun comes to its end when it is run again, and what is begun now has all there is."""
        self._note()
        self._store.faults = NO_FAULTS
        while self._actor.is_busy:
            self._go_on()
        for is_wanted in (self._is_begun, self.random.random() < 0.5):
            if is_wanted and not self._is_finished:
                self._remember()
                self._recover()
                if not self._is_finished:
                    raise Violation("I17 at rest a recovery has to be run again")
            self._begin_anew()

    def hand_over(self) -> None:
        """The archive changes hands, while the agents of the old cluster still archive: until the head is taken, and never after."""
        random = self.random
        self._store.faults = BAD_NETWORK
        self._world.is_taken_over = True
        lost = False
        for attempt in range(_TAKEN_AFTER):
            is_calm = attempt >= _TAKEN_AFTER // 2
            if is_calm:
                self._store.faults = NO_FAULTS
            self._actor.start(self._take_over)
            while self._actor.is_busy:
                self._go_on()
                if random.random() < 0.2 and not is_calm:
                    lost = self._old_cluster_acts() or lost
                if self._actor.is_busy and random.random() < 0.02:
                    self._actor.crash()
                    self._saw("a take-over is killed")
            if self._is_taken:
                break
        else:
            raise Violation(f"I17 an archive is not taken over in {_TAKEN_AFTER} attempts")
        for _ in range(3):
            lost = self._old_cluster_acts() or lost
        self._saw("an archive is taken over")
        if lost:
            self._saw("an agent is refused by an archive that was taken over")

    # What it does

    def _take_over(self) -> None:
        """Planned once, and applied until it is finished, or more was archived than it knows."""
        world, store = self._world, PausingStore(self._beside, self._store)
        into = self._world.root / "recovered" / f"taken {self._number}"
        try:
            plan = recovery.begun_plan(into, recovery.request_of(None, _TAKE_OVER))
            plan = plan or recovery.plan(ManifestRepository(store), None, _TAKE_OVER, clock=world.clock)
            recovery.apply(plan, into, store, clock=world.clock, workers=1, recorded=False)
        except TransientError:
            return
        except UsageError as error:
            self._saw("more was archived than a take-over knows")
            if "more was archived" not in str(error) or (into / "meta.properties").exists():
                raise Violation(f"I17 a take-over is refused: {error}") from error
            self._number += 1
            return
        except Exception as error:
            raise Violation(f"I17 a take-over fails: {type(error).__name__}: {error}") from error
        mark = read_mark(into)
        assert mark
        ends = {(topic.topic_id, each.partition): each.next_offset for topic in mark.plan.topics for each in topic.partitions}
        for key, head in self._heads_now().items():
            if head.cluster_id != mark.plan.cluster_id:
                raise Violation(f"I8 {key} is not taken over")
            if ends.get((head.topic_id, head.partition), head.next_offset) != head.next_offset:
                raise Violation(f"I17 {key} ends at {head.next_offset}, its recovered log at {ends[head.topic_id, head.partition]}")
        self._is_taken = True

    def _heads_now(self) -> dict[str, Head]:
        repository, names = ManifestRepository(self._world.inner), [info.key for info in self._world.inner.list(keys.META)]
        return {key: repository.load_unchecked(key) for key in names if key.endswith("/manifest.json")}

    def _old_cluster_acts(self) -> bool:
        """Something is written, and an agent tries to archive it: was it refused?"""
        world = self._world
        for do in (world.brokers.write, lambda: world.brokers.roll(world.brokers.leader), world.brokers.write_checkpoint):
            do()
        before = self._heads_now()
        agent = self.random.choice(world.agents)
        is_refused = agent.step_of_lost_cluster()
        owner = ManifestRepository(world.inner).owner()
        for key, head in self._heads_now().items():
            held = before.get(key)
            is_taken = held is not None and owner is not None and held.cluster_id not in owner.former and bool(owner.former)
            if is_taken and held != head:
                raise Violation(f"I8 an agent of the cluster that has lost its archive commits version {head.version} of {key}")
        return is_refused

    def _recover(self) -> None:
        world, store = self._world, PausingStore(self._beside, self._store)
        is_known = TOPIC in world.inner.names
        try:
            plan = recovery.plan(ManifestRepository(store), [TOPIC], self._options, clock=world.clock)
            if read_mark(self._into) is None:
                self._begun_with = plan.topics[0].partitions[0].manifest_version
            if self._beside.running and self.random.random() < 0.5:
                for _ in range(self.random.randrange(_KEPT_MAX)):  # in a file, and applied later
                    self._actor.pause("planned")
            recovery.apply(plan, self._into, store, clock=world.clock, workers=1, recorded=False)
        except TransientError:
            self._saw("a recovery has to be run again")
            return
        except NotFound as error:
            if is_known:
                raise Violation(f"I17 a recovery does not find what is archived: {error}") from error
            return
        except Exception as error:
            raise Violation(f"I17 a recovery fails: {type(error).__name__}: {error}") from error
        self._check()
        self._is_finished = True

    def _check(self) -> None:
        mark = read_mark(self._into)
        assert mark
        [topic] = mark.plan.topics
        [planned] = topic.partitions
        partition = PartitionId(mark.plan.source_cluster_id, topic.topic_id, 0, TOPIC)
        if not planned.manifest_version:
            if partition in self._since:
                raise Violation(f"I17 what is archived comes back empty: {mark.plan.left_out}")
            return
        if planned.manifest_version < self._since.get(partition, 0):
            raise Violation(f"I17 version {planned.manifest_version} is recovered, there was {self._since[partition]} when it began")
        left_out = [each for each in mark.plan.left_out if self._options.to_time_ms is None or "end early" not in each]
        if left_out or mark.plan.holes:
            raise Violation(f"I17 a recovery leaves out {mark.plan.left_out} {mark.plan.holes}")
        self._saw("a recovery is finished")
        if planned.manifest_version != self._begun_with:
            self._saw("a recovery is planned again")
        listed = self._heads[partition][planned.manifest_version]
        if listed is not self._heads[partition][max(self._heads[partition])]:
            self._saw("a recovery is finished of what is out of date")
        self._compare(planned, listed)

    def _compare(self, planned: PartitionPlan, listed: Listed) -> None:
        """The directory, as a broker will find it, and what was archived."""
        found = self._written(planned)
        kept: Sequence[Entry] = listed.kept
        if planned.left is not None:
            self._saw(f"a recovery is {self._options.mode}")
            kept = self._wanted_of(kept)
        stored = [(entry, batch.data) for entry in kept for batch in self._world.checks.stored(entry)]
        wanted = [raw for _, raw in stored]
        if (time_ms := self._options.to_time_ms) is not None:

            def is_before(entry: Entry, raw: bytes) -> bool:
                header = header_of(raw)
                time = header.max_timestamp_ms
                return time <= time_ms or (not header.is_control and entry.is_late(time))  # dated later than it was published

            before = [raw for _, raw in takewhile(lambda pair: is_before(*pair), stored)]
            is_early = len(before) < len(wanted)
            is_below = is_early and header_of(wanted[len(before)]).base_offset <= listed.start_offset  # a log does not end below its start
            wanted = [] if is_below else before
            if is_early:
                self._saw("a recovery ends at a time")
            if planned.manifest_version != self._begun_with:  # the end stays where it was found first
                wanted = wanted[: len(found.archived)]
        if self._options.open_transactions == "cut":
            if found.archived != wanted[: len(found.archived)]:
                raise Violation(f"I17 what is recovered of version {planned.manifest_version} is not how it begins")
        elif found.archived != wanted:
            lost, more = [
                [header_of(each).base_offset for each in a if each not in b]
                for a, b in ((wanted, found.archived), (found.archived, wanted))
            ]
            raise Violation(f"I17 recovered from version {planned.manifest_version}: {lost} are missing, {more} are not of it")
        [log] = LogDirs([self._into]).partitions()
        if self._options.to_time_ms is not None:
            if log.high_watermark != planned.log_end:
                raise Violation(f"I17 a recovered log ends at {log.high_watermark}, planned is {planned.log_end}")
            self._check_transactions(planned, found, is_whole=False)
            return
        start = max(listed.start_offset, kept[0].base_offset) if kept else listed.next_offset
        if log.start_offset != start:
            raise Violation(f"I17 a recovered log starts at {log.start_offset}, the archive at {start}")
        if log.high_watermark != planned.log_end or (planned.log_end < listed.next_offset and self._options.open_transactions != "cut"):
            raise Violation(f"I17 a recovered log ends at {log.high_watermark}, the archive at {listed.next_offset}")
        is_whole = planned.left is None and not listed.start_offset and not any(entry.gap for entry in kept)
        self._check_transactions(planned, found, is_whole=is_whole)

    def _wanted_of(self, kept: Sequence[Entry]) -> Sequence[Entry]:
        """The newest runs that hold as many bytes as were requested, and no more runs."""
        wanted: list[Entry] = []
        for entry in reversed(kept):
            if sum(each.live_bytes for each in wanted) >= (self._options.keep_bytes or 0):
                break
            wanted.append(entry)
        return list(dropwhile(lambda entry: entry.gap, reversed(wanted)))

    def _written(self, planned: PartitionPlan) -> Written:
        own = {segment_name(each.base_offset) for each in planned.written}
        directory = self._into / f"{TOPIC}-0"
        everything = [(header.base_offset, raw) for header, raw in batches_in(directory)]
        names = sorted(path.name for path in directory.glob("*.log"))
        archived = []
        for base, raw in everything:
            name = max(each for each in names if each <= segment_name(base))
            if name not in own:
                archived.append(raw)
        return Written(archived, [raw for _, raw in everything])

    def _check_transactions(self, planned: PartitionPlan, found: Written, *, is_whole: bool) -> None:
        """What is open where a log ends is ended as requested, and what is not is let be."""
        before, after = _open_at_end(found.archived), _open_at_end(found.everything)
        aborted = {abort.producer_id for each in planned.written for abort in each.aborts if each.base_offset == planned.next_offset}
        how = self._options.open_transactions
        if how == "keep" and planned.written:
            raise Violation("I17 a recovery ends transactions that were to be kept")
        if how != "keep" and after and planned.open_from is None:
            raise Violation(f"I25 a recovered log ends inside the transactions of {sorted(after)}")
        if aborted and is_whole and aborted - before:
            raise Violation(f"I25 a recovery aborts transactions of {sorted(aborted)}, those of {sorted(before)} are open")
        if aborted:
            self._saw("a recovery aborts what is open at the end")

    def _saw(self, what: str) -> None:
        self._world.result.seen[what] += 1


def _open_at_end(batches: Iterable[bytes]) -> set[int]:
    transactions = Transactions()
    for raw in batches:
        header = header_of(raw)
        if header.is_control:
            aborts = read_marker(memoryview(raw), where="recovered").type == ABORT
            transactions.marker(header.producer_id, header.base_offset, aborts=aborts)
        elif header.is_transactional:
            transactions.data(header.producer_id, header.base_offset)
    return {each.producer_id for each in transactions.open}
