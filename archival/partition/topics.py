"""Records each topic in the bucket before its first claim, and its partitions and settings whenever they change."""

import math
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass

import structlog

from headwater_core.clock import Clock
from headwater_core.errors import CorruptData, StoreGone
from headwater_core.partition import PartitionId
from manifests.repository import ManifestRepository, foreign_bucket
from manifests.topic import NO_METADATA, PARTITIONS_MAX, Owner, Sight, TopicManifest, turn_command

RECENT_MOVE_MS = 24 * 3600 * 1000  # an incarnation whose heads changed since then is not taken for one that is gone
NAME_RETRY_S = 600.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """What the broker knows of a topic: how many partitions, its own settings, and which incarnation has its name; None for unknown."""

    partitions: int | None = None
    configs: dict[str, str] | None = None
    sight: Sight = NO_METADATA


class TopicRecords:
    """Remembers what it has written, so that a second `ensure` costs nothing. Safe to use from many threads: topics do not wait for each
    other, and a topic's documents are written by one thread at a time."""

    def __init__(
        self,
        repository: ManifestRepository,
        describe: Callable[[PartitionId], TopicFacts],
        *,
        clock: Clock | None = None,
        owner: Callable[[], Owner | None] | None = None,
    ) -> None:
        """
        clock  the store's time, which shows whether an incarnation moves; None: names go to newcomers
        owner  whose archive the store is now; raises when it is another store than the agent knows. None: no agent has settled that, and
               an empty store belongs to the first that takes it
        """
        self._repository, self._describe, self._clock, self._owner = repository, describe, clock, owner
        self._lock = threading.Lock()  # of the tables, held for moments
        self._owning = threading.Lock()
        self._owned: set[str] = set()
        self._topics: dict[tuple[str, str], _Topic] = {}

    def ensure(self, partition: PartitionId, *, is_first: bool = False) -> None:
        """Write what is new about the topic of `partition`.

        is_first  nothing of the partition is in the bucket: check that the bucket is still the one that it was, and not an unmounted disk

        Raises ForeignOwner when the bucket or the topic is another cluster's, StoreGone when the bucket has no owner any more, CorruptData
        for an impossible number of partitions, and what the store raises.
        """
        facts = self._describe(partition)
        self._ensure_owner(partition.cluster_id, is_first)
        with self._lock:
            topic = self._topics.setdefault((partition.cluster_id, partition.topic_id), _Topic())
        with topic.lock:
            written = topic.written
            partitions = max(facts.partitions or 0, partition.partition + 1, written.partitions if written else 0)
            if partitions > PARTITIONS_MAX:
                raise CorruptData(f"topic {partition.topic}", 0, f"{partitions} partitions, limit {PARTITIONS_MAX}")
            seen = TopicManifest(
                cluster_id=partition.cluster_id,
                topic=partition.topic,
                topic_id=partition.topic_id,
                partitions=partitions,
                configs=facts.configs,
            )
            is_due = self._clock is not None and self._clock.monotonic_s() >= topic.check_again_s
            if written and written.partitions == seen.partitions and seen.configs in (None, written.configs) and not is_due:
                return
            since_ms = self._clock.now_ms() - RECENT_MOVE_MS if self._clock else None
            topic.written, is_current = self._repository.ensure_topic(seen, facts.sight, moved_since_ms=since_ms)
            topic.check_again_s = self._clock.monotonic_s() + NAME_RETRY_S if self._clock and not is_current else math.inf
            if not is_current and facts.sight == NO_METADATA and not topic.is_reported:
                topic.is_reported = True
                current = self._repository.current(seen.topic)
                if current is not None and seen.topic_id not in current.previous:  # else it is a former one
                    log.warning(
                        "topic_name_kept", topic=seen.topic, topic_id=seen.topic_id, command=turn_command(seen.topic, seen.topic_id)
                    )

    def retain(self, partitions: Collection[PartitionId]) -> None:
        """Forget the topics that none of them is of."""
        present = {(each.cluster_id, each.topic_id) for each in partitions}
        with self._lock:
            for key in [key for key, topic in self._topics.items() if key not in present and not topic.lock.locked()]:
                del self._topics[key]

    def _ensure_owner(self, cluster_id: str, is_first: bool) -> None:
        """A settled store has headwater.json. One that has none now is no new one: its disk is away."""
        if cluster_id in self._owned and not is_first:
            return
        with self._owning:
            if self._owner is None and cluster_id not in self._owned:
                self._repository.ensure_owner(cluster_id)
            else:
                owner = (self._owner or self._repository.owner)()
                if owner is None:
                    raise StoreGone(f"{self._repository.store.url} has no headwater.json any more: mount it again, or restore the bucket")
                if owner.cluster_id != cluster_id:
                    raise foreign_bucket(self._repository.store.url, owner, cluster_id)
            self._owned.add(cluster_id)


class _Topic:
    """One incarnation.

    written  its manifest as the bucket has it, once it is known
    check_again_s  when to check again whether the topic's name means it by then
    is_reported    an event has said that the name means another one
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.written: TopicManifest | None = None
        self.check_again_s = math.inf
        self.is_reported = False
