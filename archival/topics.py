"""The bucket learns of a topic before its first claim, and of its partitions and settings whenever they change."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from manifests.repository import ManifestRepository
from manifests.topic import TopicManifest
from model.partition import PartitionId


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """What the broker knows of a topic: how many partitions, and its own settings; None where it does not say."""

    partitions: int | None = None
    configs: dict[str, str] | None = None


class TopicRecords:
    """Remembers what it has written, so that asking again costs nothing. Safe to use from many threads."""

    def __init__(self, repository: ManifestRepository, describe: Callable[[PartitionId], TopicFacts]) -> None:
        self._repository, self._describe = repository, describe
        self._lock = threading.Lock()
        self._owned: set[str] = set()
        self._written: dict[tuple[str, str], TopicManifest] = {}

    def ensure(self, partition: PartitionId) -> None:
        """Raises ForeignOwner when the bucket or the topic is another cluster's."""
        facts = self._describe(partition)
        with self._lock:
            if partition.cluster_id not in self._owned:
                self._repository.ensure_owner(partition.cluster_id)
                self._owned.add(partition.cluster_id)
            place = partition.cluster_id, partition.topic_id
            written = self._written.get(place)
            seen = TopicManifest(
                cluster_id=partition.cluster_id,
                topic=partition.topic,
                topic_id=partition.topic_id,
                partitions=max(facts.partitions or 0, partition.partition + 1, written.partitions if written else 0),
                configs=facts.configs,
            )
            if written and written.partitions == seen.partitions and seen.configs in (None, written.configs):
                return
            self._written[place] = self._repository.ensure_topic(seen)
