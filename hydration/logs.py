"""Every partition that can be read: known locally, in the bucket, or both."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from headwater_core.clock import Clock, SystemClock
from headwater_core.errors import (
    CorruptData,
    ForeignOwner,
    HeadwaterError,
    NotFound,
    Superseded,
    TransientError,
    UnsupportedFormat,
    UsageError,
)
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId, TopicPartition
from headwater_core.segments.local_log import LocalLog
from headwater_core.segments.log_dirs import LogDirs, Survey
from headwater_core.threads import DaemonThreads
from hydration.archive.hydrator import Hydrator
from hydration.archive.manifest_view import Archived, EntryIndex, HeldEntries
from hydration.cache.chunk_cache import ChunkCache
from hydration.config import HydrationConfig, ReadPriority
from hydration.local.local_tier import KEPT_S, LOOK_S, LocalTier, Look, OpenFiles
from hydration.partition_log import PartitionLog
from manifests.head import Head
from manifests.repository import ManifestRepository
from manifests.topic import TopicManifest

READ_S = 60.0  # a partition that was read no longer ago is looked at without being asked for
STOP_S = 1.0
_ARCHIVE = "archive"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as clients see it; `partitions` are numbers, sorted."""

    name: str
    topic_id: str
    partitions: tuple[int, ...]


class Logs:
    """The catalogue. topics() and partition() answer from memory as of the last refresh(); refresh() lists directories and bucket.

    Owns the hydrator and its cache. Safe to use from many threads. `lost` are the topics whose partitions the bucket did not tell
    at the last refresh, and why.
    """

    def __init__(
        self,
        dirs: LogDirs | None,
        repository: ManifestRepository,
        hydrator: Hydrator,
        config: HydrationConfig,
        *,
        index: EntryIndex | None = None,
        clock: Clock | None = None,
        priority_for: Callable[[str], ReadPriority] | None = None,
    ) -> None:
        """
        dirs          None where there is no local log
        index         where entries are looked up; in memory when there is none
        priority_for  a topic's own read priority; the configured one for all when there is none
        """
        self.hydrator = hydrator
        self.lost: dict[str, HeadwaterError] = {}
        self._dirs, self._repository = dirs, repository
        self._index = index or HeldEntries()
        self._clock = clock or SystemClock()
        self._priority_for = priority_for or (lambda _: config.read_priority)
        self._files = OpenFiles()
        self._sweeper, self._sweeping = DaemonThreads(1, "sweep"), Future[None]()
        self._sweeping.set_result(None)
        self._lock = threading.Lock()
        self._refreshing = threading.Lock()
        self._topics: dict[str, Topic] = {}
        never = TransientError("not listed yet")
        self._unlisted: dict[object, HeadwaterError] = dict.fromkeys((*(dirs.dirs if dirs is not None else ()), _ARCHIVE), never)
        self._cluster_id = ""
        self._ids: dict[tuple[str, int], PartitionId] = {}
        self._partitions: dict[PartitionId, PartitionLog] = {}
        self._found: dict[TopicPartition, LocalLog] = {}
        self._looks: dict[PartitionId, Look] = {}  # the last survey's
        self._absent: Look | None = None  # what it says of all others
        self._local: dict[TopicPartition, PartitionId] = {}
        self._own_cluster_id = ""  # the directories'; "" while they have not been read
        self._archived: dict[str, TopicManifest] = {}

    @property
    def cluster_id(self) -> str:
        """Of the broker, else of the bucket; "" before the first refresh and for an empty bucket."""
        return self._cluster_id

    def refresh(self) -> None:
        """List directories and bucket anew. What cannot be listed now stays as it was; raises only when nothing can be,
        and ForeignOwner when the bucket is another cluster's than the directories.
        """
        with self._refreshing:
            local_failure = self._list_local()
            if _ARCHIVE in self._unlisted and local_failure is None:
                self._join()  # the archive may take long, and nothing that it has is known yet
            failures = [error for error in (local_failure, self._list_archive()) if error is not None]
            if len(failures) == 2 or (failures and self._dirs is None):
                raise failures[-1]
            self._join()
        self._sweep_files()
        self.hydrator.cache.sweep()

    @property
    def unlisted(self) -> HeadwaterError | None:
        """Why there may be topics that are not known: the bucket, or a log directory, could not be listed even once. None where all
        were: then a topic that is not known was not there when they were last listed."""
        return next(iter(self._unlisted.values()), None)

    def _join(self) -> None:
        ids = self._joined()
        topics, current = _topics(ids.values()), set(ids.values())
        with self._lock:
            self._ids, self._topics = ids, topics
            for partition in self._partitions.keys() - current:
                del self._partitions[partition]

    def _note_listed(self, what: object, failure: HeadwaterError | None) -> None:
        if failure is None:
            self._unlisted = {each: why for each, why in self._unlisted.items() if each != what}
        elif what in self._unlisted:
            self._unlisted = {**self._unlisted, what: failure}

    def _sweep_files(self) -> None:
        """In a thread, which is not waited for when a disk hangs."""
        if self._sweeping.done():
            self._sweeping = self._sweeper.submit(self._files.sweep)
            wait((self._sweeping,), STOP_S)

    def topics(self) -> dict[str, Topic]:
        return self._topics

    def partition(self, topic: str, partition: int) -> PartitionLog:
        """Raises NotFound; TransientError while it may be where nothing could be listed yet."""
        partition_id = self._ids.get((topic, partition))
        if partition_id is None:
            if (why := self.unlisted) is not None:
                raise TransientError(f"whether there is a {topic}:{partition} is not known yet: {why}") from why
            raise NotFound(f"{topic}:{partition} is neither in the log directories nor in the archive")
        with self._lock:
            found = self._partitions.get(partition_id)
            if found is None:
                found = self._partitions[partition_id] = self._open(partition_id)
            return found

    def incarnation(self, topic: str, topic_id: str) -> Sequence[PartitionLog]:
        """The partitions of that incarnation, by number, whatever the bare name means now. Raises NotFound."""
        known = self._topics.get(topic)
        if known is not None and known.topic_id == topic_id:
            return [self.partition(topic, number) for number in known.partitions]
        manifest = self._repository.incarnation(topic, topic_id)
        return [self._open(manifest.partition_id(number)) for number in range(manifest.partitions)]

    def note(self, head: Head) -> None:
        """A head that this process has just committed or read, so that readers need not ask for it."""
        with self._lock:
            found = self._partitions.get(head.partition_id)
        if found is not None and found.archived is not None:
            found.archived.note(head)

    def close(self) -> None:
        self._sweeper.shutdown(wait=False)
        self.hydrator.close()
        self._files.close()

    def _list_local(self) -> HeadwaterError | None:
        if self._dirs is None:
            return None
        began_s = self._clock.monotonic_s()
        try:
            survey, own = self._dirs.survey(), None
            if not survey.logs:
                own = self._dirs.cluster_id
            away = {path for path, _ in survey.problems}
            for path, problem in survey.problems:
                log.warning("log_dir_not_read", directory=str(path), reason=str(problem))
            found = {each.partition.topic_partition: each for each in survey.logs}
            for key, earlier in self._found.items():
                if key not in found and (earlier.directory in away or earlier.directory.parent in away):
                    found[key] = earlier  # a disk that is not there says nothing of what is on it
            self._found = found
            self._publish(survey, began_s)
            self._local = {key: each.partition for key, each in found.items()}
            self._cluster_id = self._own_cluster_id = own or survey.logs[0].partition.cluster_id
            problems = dict(survey.problems)
            for each in self._dirs.dirs:
                self._note_listed(each, problems.get(each))
        except HeadwaterError as error:
            log.warning("log_dirs_not_listed", reason=str(error))
            for each in self._dirs.dirs:
                self._note_listed(each, error)
            return error
        return None

    def _publish(self, survey: Survey, began_s: float) -> None:
        """The survey has looked at every partition: nobody need do so again for a while. Where it found problems it says nothing."""
        seen_s = self._clock.monotonic_s()
        looks = {each.partition: Look(each, None, began_s, seen_s) for each in survey.logs}
        absent = Look(None, None, began_s, seen_s) if not survey.problems else None
        with self._lock:
            self._looks, self._absent = looks, absent
            tiers = [(partition, each.local) for partition, each in self._partitions.items()]
        places = {each.partition.topic_partition: each.partition for each in survey.logs}
        for partition, tier in tiers:
            look = looks.get(partition, absent)
            now = places.get(partition.topic_partition, partition)
            if tier is not None and tier.last_seen is not None and now != partition:
                look = Look(None, _created_again(partition, now), float("-inf"), seen_s)
            if tier is not None and look is not None:
                tier.publish(look)

    @contextmanager
    def kept_fresh(self) -> Iterator[None]:
        """A thread looks once a second at every partition that is read, so that readers need not wait for looks."""
        stop = threading.Event()
        thread = threading.Thread(target=self._keep_fresh, args=(stop,), name="looks", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(STOP_S)  # its disk may hang

    def _keep_fresh(self, stop: threading.Event) -> None:
        while not stop.wait(LOOK_S / 2):
            active_s = self._clock.monotonic_s() - READ_S
            for tier in self._tiers():
                if tier.used_s < active_s:
                    tier.max_age_s = LOOK_S
                    continue
                with suppress(Exception):  # a reader meets it and says so
                    tier.log(LOOK_S / 2)
                tier.max_age_s = KEPT_S
                if stop.is_set():
                    break
        for tier in self._tiers():
            tier.max_age_s = LOOK_S

    def _tiers(self) -> list[LocalTier]:
        with self._lock:
            return [each.local for each in self._partitions.values() if each.local is not None]

    def _list_archive(self) -> HeadwaterError | None:
        try:
            manifests, lost = self._repository.survey_topics()
            cluster_id = self._archive_cluster(manifests)
            if self._own_cluster_id and cluster_id not in ("", self._own_cluster_id):
                raise ForeignOwner(f"the bucket is the archive of cluster {cluster_id}, not of {self._own_cluster_id}")
            archived = {each.topic: each for each in manifests}
            for each in lost:
                log.error("topic_not_listed", topic=each.topic, reason=str(each.error))
                if each.topic in self._archived:
                    archived[each.topic] = self._archived[each.topic]
            self.lost = {each.topic: each.error for each in lost}
            for local in self._local.values():
                known = archived.get(local.topic)
                if known is None or known.topic_id != local.topic_id:  # the name means another incarnation in the bucket
                    own = self._own_manifest(local)
                    archived.pop(local.topic, None)
                    if own is not None:
                        archived[local.topic] = own
            if not self._cluster_id:
                self._cluster_id = cluster_id
            self._archived = archived
            self._note_listed(_ARCHIVE, None)
        except ForeignOwner:
            raise
        except HeadwaterError as error:
            log.warning("archive_not_listed", reason=str(error))
            self._note_listed(_ARCHIVE, error)
            return error
        return None

    def _archive_cluster(self, manifests: Iterable[TopicManifest]) -> str:
        """Whose archive this is; "" for nobody's. While headwater.json is damaged, which keeps writers away, the topics say it."""
        try:
            owner = self._repository.owner()
            return owner.cluster_id if owner is not None else ""
        except CorruptData as error:
            log.error("archive_owner_not_read", reason=str(error))
        others = sorted({each.cluster_id for each in manifests} - {self._own_cluster_id})
        return others[0] if others else self._own_cluster_id

    def _own_manifest(self, local: PartitionId) -> TopicManifest | None:
        try:
            return self._repository.load_topic(local.topic, local.topic_id)
        except (CorruptData, ForeignOwner, UnsupportedFormat) as error:
            log.error("topic_not_listed", topic=local.topic, reason=str(error))
            return None

    def _joined(self) -> dict[tuple[str, int], PartitionId]:
        """Every partition. A topic that is here under another id than in the bucket is the one that is here."""
        found: dict[tuple[str, int], PartitionId] = {}
        for manifest in self._archived.values():
            found.update(((manifest.topic, number), manifest.partition_id(number)) for number in range(manifest.partitions))
        found.update(((local.topic, local.partition), local) for local in self._local.values())
        return found

    def _open(self, partition: PartitionId) -> PartitionLog:
        dirs = self._dirs

        def look() -> LocalLog | None:
            assert dirs is not None
            try:
                found = dirs.look(partition.topic_partition)
            except UsageError as error:  # no log directory, or none at the moment: it may not be mounted
                raise TransientError(str(error)) from error
            if found.partition != partition and tier is not None and tier.last_seen is not None:
                raise _created_again(partition, found.partition)
            return found if found.partition == partition else None

        tier = LocalTier(look, self._files, self._clock, self._looks.get(partition, self._absent)) if dirs is not None else None

        def run(load: Callable[[], None]) -> Future[None]:
            return self.hydrator.join(("head", partition), load)

        return PartitionLog(
            partition,
            local=tier,
            archived=Archived(partition, self._repository, self._index, self._clock, run),
            hydrator=self.hydrator,
            priority=self._priority_for(partition.topic),
        )


def _created_again(former: PartitionId, now: PartitionId) -> Superseded:
    return Superseded(
        f"{former}: topic id {former.topic_id} was deleted here, and the topic created again with id {now.topic_id}. What the archive has "
        f"of the former is {former.topic}@{former.topic_id}"
    )


def _topics(partitions: Iterable[PartitionId]) -> dict[str, Topic]:
    numbers: dict[tuple[str, str], list[int]] = {}
    for each in partitions:
        numbers.setdefault((each.topic, each.topic_id), []).append(each.partition)
    return {topic: Topic(topic, topic_id, tuple(sorted(found))) for (topic, topic_id), found in sorted(numbers.items())}


def open_logs(
    config: HydrationConfig,
    *,
    store: ObjectStore,
    cache_directory: Path,
    dirs: LogDirs | None = None,
    index: EntryIndex | None = None,
    clock: Clock | None = None,
    priority_for: Callable[[str], ReadPriority] | None = None,
) -> Logs:
    """Everything that reading needs, over one bucket. Close it."""
    clock = clock or SystemClock()
    cache = ChunkCache(cache_directory, config.cache_bytes, config.cache_ttl_s, clock)
    hydrator = Hydrator(store, cache, chunk_bytes=config.chunk_bytes, readahead_chunks=config.readahead_chunks)
    return Logs(dirs, ManifestRepository(store), hydrator, config, index=index, clock=clock, priority_for=priority_for)
