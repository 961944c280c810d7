"""Passes over the local partitions: every archiver steps until it has nothing left to do, then releases what it may."""

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from archival.announce import Announcer
from archival.archiver import PartitionArchiver
from archival.plan import PolicyFor
from archival.release import Releaser
from archival.tails import Tails
from archival.topics import TopicFacts, TopicRecords
from control.log import ControlLog
from headwater.config import Config
from headwater.opening import Bucket
from layouts import open_layout
from manifests.head import Head
from model.clock import Clock
from model.errors import HeadwaterError, NotFound, SourceChanged, TransientError
from model.partition import PartitionId, TopicPartition
from segments.discover import LogDirs, parse_directory_name
from segments.log import LocalLog

WORKERS = 4  # partitions at once: enough to keep a store busy with small segments, few enough to bound memory
CHANGES_MAX = 5  # how often a pass goes back to a log that changes under its hands


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """What one pass did for one partition. error: why it could not do all; None when it did."""

    place: TopicPartition
    objects: int = 0
    archived_bytes: int = 0
    released_bytes: int = 0
    last_offset: int | None = None
    reason: str = ""
    elapsed_s: float = 0.0
    error: HeadwaterError | None = None


class SharedLogDirs:
    """LogDirs for many threads: one look at a time, which is all that file metadata asks for."""

    def __init__(self, dirs: LogDirs) -> None:
        self._dirs, self._lock = dirs, threading.Lock()

    def look(self, partition: TopicPartition) -> LocalLog:
        with self._lock:
            return self._dirs.look(partition)

    def survey(self) -> tuple[list[LocalLog], list[tuple[Path, HeadwaterError]]]:
        with self._lock:
            found = self._dirs.survey()
        return list(found.logs), list(found.problems)

    def describe(self, partition: PartitionId) -> TopicFacts:
        """What the broker's metadata log says of the topic, when it speaks of this very incarnation."""
        with self._lock:
            metadata = self._dirs.metadata()
        topic = metadata.topics.get(partition.topic) if metadata else None
        if topic is None or topic.topic_id != partition.topic_id:
            return TopicFacts()
        return TopicFacts(partitions=max(topic.partitions, default=-1) + 1 or None, configs=dict(topic.configs))


class Archiving:
    """The archivers of one agent, made as partitions are found. `troubles` says what keeps which partition from being archived."""

    def __init__(self, config: Config, *, dirs: LogDirs, bucket: Bucket, control: ControlLog, writer: str, clock: Clock) -> None:
        self._config, self._bucket, self._writer, self._clock = config, bucket, writer, clock
        self.logs = SharedLogDirs(dirs)
        self.troubles: dict[TopicPartition, str] = {}
        self.committed: Callable[[Head], object] = lambda head: None  # told of every head that a step has committed
        self.announcer = Announcer(control, clock)
        self._topics = TopicRecords(bucket.manifests, self.logs.describe)
        self._tails = Tails(config.node.data_dir / "tails.json", clock)
        self._releaser = Releaser(logs=self.logs, repository=bucket.manifests, writer=writer, owned=config.log.owned)
        self._archivers: dict[PartitionId, PartitionArchiver] = {}
        self._making = threading.Lock()

    def run(
        self,
        policy_for: PolicyFor,
        *,
        wanted: Callable[[TopicPartition], bool] = lambda _: True,
        stop: threading.Event | None = None,
    ) -> Iterator[Archived]:
        """One pass over the wanted partitions, several at a time, each reported as it is done. Ends soon after `stop` is set."""
        ended = threading.Event()  # this pass, whoever else waits for `stop`
        logs, problems = self.logs.survey()
        for path, error in problems:
            place = parse_directory_name(path.name)
            if place is None or wanted(place):
                yield Archived(place=place or TopicPartition("log.dirs", 0), error=error)

        def over() -> bool:
            return ended.is_set() or (stop is not None and stop.is_set())

        present = [log for log in logs if wanted(log.partition.topic_partition)]
        with ThreadPoolExecutor(WORKERS, thread_name_prefix="archive") as workers:
            try:
                yield from self._noted(workers.map(lambda log: self._advance(log, policy_for, over), present))
            finally:
                ended.set()
        self._tails.save()

    def _noted(self, outcomes: Iterable[Archived]) -> Iterator[Archived]:
        for outcome in outcomes:
            if outcome.error and not isinstance(outcome.error, TransientError):
                self.troubles[outcome.place] = str(outcome.error)
            else:
                self.troubles.pop(outcome.place, None)
            yield outcome

    def _advance(self, surveyed: LocalLog, policy_for: PolicyFor, over: Callable[[], bool]) -> Archived:
        """Step one partition to its end, the first step on the look that was surveyed: a pass that finds nothing to do looks once.

        A log that changes under our hands is looked at again, within reason.
        """
        partition = surveyed.partition
        look: LocalLog | None = surveyed
        archiver = self._archiver(partition)
        settings = self._config.archival_for(partition.topic)
        objects = archived_bytes = released_bytes = changes = 0
        reason, started_s = "", self._clock.monotonic_s()
        error: HeadwaterError | None = None
        while not over():
            try:
                log, look = look, None  # a look is good for one step, whatever comes of it
                outcome = archiver.step(policy_for(settings), log)
                if outcome.entry and not outcome.entry.gap:
                    objects += 1
                    archived_bytes += outcome.entry.live_bytes
                if outcome.progressed and archiver.head:
                    self.committed(archiver.head)
                if not outcome.progressed:
                    reason = outcome.reason
                    if self._config.log.owned and settings.release:
                        released_bytes = self._releaser.release(archiver).size_bytes
                    break
            except NotFound:
                with self._making:
                    self._archivers.pop(partition, None)  # the partition was deleted, or moved away, since it was listed
                reason = "gone"
                break
            except SourceChanged as changed:
                changes += 1
                if changes >= CHANGES_MAX:
                    error = changed
                    break
            except HeadwaterError as failed:
                error = failed
                break
            except OSError as failed:  # a file vanished, a disk filled up: this partition's trouble, and perhaps not for long
                error = TransientError(f"{partition.topic_partition}: {failed}")
                break
        head = archiver.head
        return Archived(
            place=partition.topic_partition,
            objects=objects,
            archived_bytes=archived_bytes,
            released_bytes=released_bytes,
            last_offset=head.last_offset if head else None,
            reason=reason,
            elapsed_s=round(self._clock.monotonic_s() - started_s, 3),
            error=error,
        )

    def _archiver(self, partition: PartitionId) -> PartitionArchiver:
        """The one archiver of `partition`: its lock is what keeps two passes, and release, apart."""
        with self._making:
            if partition not in self._archivers:
                self._archivers[partition] = PartitionArchiver(
                    partition,
                    logs=self.logs,
                    store=self._bucket.store,
                    repository=self._bucket.manifests,
                    offloader=open_layout(self._config.archival_for(partition.topic).layout),
                    announcer=self.announcer,
                    topics=self._topics,
                    tails=self._tails,
                    writer=self._writer,
                    new_uid=lambda: uuid4().hex,
                )
            return self._archivers[partition]
