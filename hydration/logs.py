"""Every partition that can be read: known locally, in the bucket, or both."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

from headwater_core.clock import Clock, SystemClock
from headwater_core.errors import (
    HeadwaterError,
    NotFound,
    Superseded,
    TransientError,
    UsageError,
)
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId
from headwater_core.segments.local_log import LocalLog
from headwater_core.segments.log_dirs import LogDirs, Roster
from headwater_core.threads import DaemonThreads
from hydration.archive.archive_tier import ArchiveTier
from hydration.archive.hydrator import Hydrator
from hydration.archive.manifest_view import EntryIndex, HeldEntries, ManifestView
from hydration.cache.chunk_cache import ChunkCache
from hydration.catalogue import Catalogue
from hydration.config import HydrationConfig, ReadPriority
from hydration.local.local_tier import LocalTier, Look, OpenFiles
from hydration.local.look_keeper import LookKeeper
from hydration.partition_log import PartitionLog, Pending
from hydration.resumption import run_blocking
from manifests.head import Head
from manifests.repository import ManifestRepository
from manifests.topic import TopicManifest

SWEEP_WAIT_S = 1.0
RECHECK_TIMEOUT_S = 300.0  # longer than a store's retries


@dataclass(frozen=True, slots=True)
class KnownTopic:
    """A topic as clients see it; `partitions` are numbers, sorted."""

    name: str
    topic_id: str
    partitions: tuple[int, ...]


class Logs:
    """topics() and partition() answer from memory as of the last refresh(); refresh() lists directories and bucket.

    Owns the hydrator and its cache. Safe to use from many threads. Close it.
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
        priority_for  a topic's own read priority, which is asked before each read: it may change; the configured one for all when
                      there is none
        """
        self.hydrator = hydrator
        self._dirs, self._repository = dirs, repository
        self._index = index or HeldEntries()
        self._clock = clock or SystemClock()
        self._priority_for = priority_for or (lambda _: config.read_priority)
        self._files = OpenFiles()
        self._sweeper, self._sweeping = DaemonThreads(1, "sweep"), Future[None]()
        self._sweeping.set_result(None)
        self._lock = threading.Lock()
        self._refreshing = threading.Lock()
        self._catalogue = Catalogue(dirs, repository)
        self._topics: dict[str, KnownTopic] = {}
        self._ids: dict[tuple[str, int], PartitionId] = {}
        self._partitions: dict[PartitionId, PartitionLog] = {}
        self._here: Set[PartitionId] = frozenset()  # in the log directories, by their last listing
        self._is_swept = False  # is all that the index has of this process?
        self._absent: Look | None = None  # what it shows of all others: they are not there

    @property
    def cluster_id(self) -> str:
        """Of the broker, else of the bucket; "" before the first refresh and for an empty bucket."""
        return self._catalogue.cluster_id

    @property
    def lost(self) -> dict[str, HeadwaterError]:
        """Topics whose partitions the bucket's last listing could not read, and why."""
        return self._catalogue.lost

    @property
    def archived(self) -> Mapping[str, TopicManifest]:
        """The topics in the bucket, by name, as last listed."""
        return self._catalogue.archived

    @property
    def unlisted(self) -> HeadwaterError | None:
        """Why there may be topics that are not known; None where directories and bucket were all listed at least once."""
        return self._catalogue.unlisted

    @property
    def has_listed_dirs(self) -> bool:
        """Whether each log directory was listed at least once."""
        return self._catalogue.has_dirs

    def refresh(self) -> None:
        """List directories and bucket again. What cannot be listed now stays as it was; raises only when nothing can be,
        and ForeignOwner when the bucket is another cluster's than the directories.
        """
        with self._refreshing:
            local_failure = self._list_local()
            if not self._catalogue.has_archive and local_failure is None:
                self._join()  # the archive may take long, and nothing that it has is known yet
            failures = [error for error in (local_failure, self._catalogue.list_archive()) if error is not None]
            if len(failures) == 2 or (failures and self._dirs is None):
                raise failures[-1]
            self._join()
            if not (failures or self.lost or self._is_swept):
                self._sweep_index(set(self._ids.values()))
        self._sweep_files()
        self.hydrator.cache.sweep()

    def topics(self) -> dict[str, KnownTopic]:
        """By name, as of the last refresh()."""
        return self._topics

    def priority_of(self, topic: str) -> ReadPriority:
        """As it holds now."""
        return self._priority_for(topic)

    def partition(self, topic: str, partition: int, priority: ReadPriority | None = None) -> PartitionLog:
        """To be called for each request: the topic's read priority may change.

        priority   of what is read with the result; None: the topic's

        Raises NotFound; TransientError while it may be where nothing could be listed yet.
        """
        partition_id = self._ids.get((topic, partition))
        if partition_id is None:
            if (why := self.unlisted) is not None:
                raise TransientError(f"whether there is a {topic}:{partition} is not known yet: {why}") from why
            raise NotFound(f"{topic}:{partition} is neither in the log directories nor in the archive")
        current = self._priority_for(topic)
        with self._lock:
            found = self._partitions.get(partition_id)
            if found is None:
                found = self._partitions[partition_id] = self._open(partition_id, current)
            elif found.priority is not current:
                found = self._partitions[partition_id] = found.with_priority(current)
        return found if priority is None else found.with_priority(priority)

    def try_leader_epoch(self, topic: str, partition: int) -> int | Pending[int]:
        """The newest that is known, -1 when there is none, without blocking. Of a partition that is here and that nobody reads, what the
        last listing of the log directories has: Metadata names ten thousand, and none of them is opened or looked at for that.

        Raises as `partition`, and what that one's try_leader_epoch raises.
        """
        local = self._catalogue.local(topic, partition)
        if not self._catalogue.has_dirs or (local is not None and local.leader_epoch >= 0):
            with self._lock:
                opened = self._partitions.get(self._ids[topic, partition]) if (topic, partition) in self._ids else None
            if opened is None:
                return local.leader_epoch if local is not None else -1
        return self.partition(topic, partition).try_leader_epoch()

    def incarnation(self, topic: str, topic_id: str, priority: ReadPriority | None = None) -> Sequence[PartitionLog]:
        """The partitions of that incarnation, by number, whatever the bare name means now. Raises NotFound. priority: as in partition()"""
        known = self._topics.get(topic)
        if known is not None and known.topic_id == topic_id:
            return [self.partition(topic, number, priority) for number in known.partitions]
        manifest, priority = self._repository.incarnation(topic, topic_id), priority or self._priority_for(topic)
        return [self._open(manifest.partition_id(number), priority) for number in range(manifest.partitions)]

    def update_manifest(self, head: Head) -> None:
        """A head that this process has just committed or read, so that readers need not request it."""
        with self._lock:
            found = self._partitions.get(head.partition_id)
        if found is not None and found.manifest is not None:
            found.manifest.update(head)

    def kept_fresh(self) -> AbstractContextManager[None]:
        """As long as that context is open, readers need not wait for looks."""
        return LookKeeper(self._tiers, self._clock)

    def recheck_damage(self) -> None:
        """Read again the damaged object that is due, if one is: it may be well, or no manifest lists it any more.

        Raises what the store raises, and CorruptData where it is still damaged.
        """
        damage = self.hydrator.damage.due()
        if damage is None:
            return
        found = self._repository.load(damage.partition)
        entry = found.head.entries.at(damage.offset) if found is not None else None
        if entry is None or entry.uid != damage.uid:
            self.hydrator.damage.forget(damage.name, "no manifest lists the object any more")
        else:
            run_blocking(self.hydrator.read_damaged(damage, entry), RECHECK_TIMEOUT_S)

    def close(self) -> None:
        """Ends all reading; waits for workers, except those that a disk holds up."""
        self._sweeper.shutdown(wait=False)
        self.hydrator.close()
        self._files.close()

    def _list_local(self) -> HeadwaterError | None:
        if self._dirs is None:
            return None
        began_s = self._clock.monotonic_s()
        found = self._catalogue.list_local()
        if isinstance(found, HeadwaterError):
            return found
        self._publish(found, began_s)
        return None

    def _join(self) -> None:
        ids = self._catalogue.partitions()
        topics, current = _topics(ids.values()), set(ids.values())
        with self._lock:
            self._ids, self._topics = ids, topics
            for partition in self._partitions.keys() - current:
                del self._partitions[partition]

    def _sweep_index(self, present: Set[PartitionId]) -> None:
        """What an earlier process knew and is gone since. What goes later may still have a reader here, to whom it ends in words."""
        with suppress(HeadwaterError):  # what is gone takes room there, no more
            self._index.retain(present)
        self._is_swept = True

    def _publish(self, roster: Roster, began_s: float) -> None:
        """Readers of what is not here any more need not find out by themselves. With problems a roster proves no absence."""
        seen_s = self._clock.monotonic_s()
        here = {each.partition for each in roster.partitions.values()}
        absent = Look(None, None, began_s, seen_s) if not roster.problems else None
        with self._lock:
            self._here, self._absent = here, absent
            tiers = [(partition, each.local) for partition, each in self._partitions.items() if partition not in here]
        for partition, tier in tiers:
            look, local = absent, roster.partitions.get(partition.topic_partition)
            if tier is not None and tier.last_seen is not None and local is not None:
                look = Look(None, _created_again(partition, local.partition), float("-inf"), seen_s)
            if tier is not None and look is not None:
                tier.publish(look)

    def _tiers(self) -> list[LocalTier]:
        with self._lock:
            return [each.local for each in self._partitions.values() if each.local is not None]

    def _sweep_files(self) -> None:
        """In a thread, which is waited for a moment only: its disk may hang."""
        if self._sweeping.done():
            self._sweeping = self._sweeper.submit(self._files.sweep)
            wait((self._sweeping,), SWEEP_WAIT_S)

    def _open(self, partition: PartitionId, priority: ReadPriority) -> PartitionLog:
        dirs = self._dirs

        def look() -> LocalLog | None:
            assert dirs is not None
            try:
                found = dirs.look(partition.topic_partition)
            except UsageError as error:  # no log directory, or none at the moment: it may not be mounted
                raise TransientError(str(error)) from error
            except NotFound:
                if partition in self._here and tier is not None and tier.last_seen is None:  # how far it reached is not known
                    raise TransientError(f"{partition} was in {listed_in} when that was listed, and is gone since") from None
                raise
            if found.partition != partition and tier is not None and tier.last_seen is not None:
                raise _created_again(partition, found.partition)
            return found if found.partition == partition else None

        last = None if partition in self._here else self._absent
        local = self._catalogue.local(partition.topic, partition.partition)
        listed_in = local.directory.parent if local is not None else None
        tier = LocalTier(look, self._files, self._clock, last, listed_in) if dirs is not None else None

        def run(name: str, load: Callable[[], None]) -> Future[None]:
            return self.hydrator.join(("manifest", partition, name), load)

        return PartitionLog(
            partition,
            local=tier,
            archive=ArchiveTier(ManifestView(partition, self._repository, self._index, self._clock, run), self.hydrator),
            hydrator=self.hydrator,
            priority=priority,
        )


def _created_again(former: PartitionId, now: PartitionId) -> Superseded:
    return Superseded(
        f"{former}: topic id {former.topic_id} was deleted here, and the topic created again with id {now.topic_id}. What the archive has "
        f"of the former is {former.topic}@{former.topic_id}"
    )


def _topics(partitions: Iterable[PartitionId]) -> dict[str, KnownTopic]:
    numbers: dict[tuple[str, str], list[int]] = {}
    for each in partitions:
        numbers.setdefault((each.topic, each.topic_id), []).append(each.partition)
    return {topic: KnownTopic(topic, topic_id, tuple(sorted(found))) for (topic, topic_id), found in sorted(numbers.items())}


def open_logs(
    config: HydrationConfig,
    *,
    store: ObjectStore,
    cache_directory: Path,
    dirs: LogDirs | None = None,
    index: EntryIndex | None = None,
    clock: Clock | None = None,
    priority_for: Callable[[str], ReadPriority] | None = None,
    damage_path: Path | None = None,
) -> Logs:
    """Everything that reading needs, over one bucket. Close it. damage_path: see Hydrator"""
    clock = clock or SystemClock()
    cache = ChunkCache(cache_directory, config.cache_bytes, config.cache_ttl_s, clock)
    hydrator = Hydrator(store, cache, chunk_bytes=config.chunk_bytes, readahead_chunks=config.readahead_chunks, damage_path=damage_path)
    return Logs(dirs, ManifestRepository(store), hydrator, config, index=index, clock=clock, priority_for=priority_for)
