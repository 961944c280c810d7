"""What a broker's log directories say of a topic: its metadata log, or the partitions that are there."""

from collections.abc import Callable, Iterable

from archival.partition.topics import TopicFacts
from headwater_core.partition import PartitionId, TopicPartition
from headwater_core.segments.log_dirs import LogDirs
from manifests.topic import Sight


class BrokerTopics:
    """Safe to use from many threads."""

    def __init__(self, dirs: LogDirs, identify: Callable[[TopicPartition], PartitionId | None]) -> None:
        """identify  which partition a directory holds now; None when that is not known"""
        self._dirs, self._identify = dirs, identify
        self._widest: dict[str, TopicPartition] = {}  # the last partition of each topic, by number, in the last listing

    def list(self, places: Iterable[TopicPartition]) -> None:
        """These are the partitions that are there now, in order."""
        self._widest = {place.topic: place for place in places}

    def describe(self, partition: PartitionId) -> TopicFacts:
        """The topic of `partition`, as far as what is known is about this very incarnation; nothing where the metadata log has an unknown
        format, or its disk hangs. As of the last look, which each step begins with. Raises what makes the metadata log unusable."""
        metadata, unread = self._dirs.last_metadata()
        if unread is not None:
            return TopicFacts()
        if metadata is None:
            return TopicFacts(partitions=self._partitions_here(partition))
        topic = metadata.topics.get(partition.topic)
        if topic is None or topic.topic_id != partition.topic_id:
            return TopicFacts(sight=Sight(is_replaced=True))
        count = max(topic.partitions, default=-1) + 1
        return TopicFacts(partitions=count or None, configs=dict(topic.configs), sight=Sight(as_of=metadata.end_offset))

    def _partitions_here(self, partition: PartitionId) -> int | None:
        """The topic has at least this many. Counted one by one, each partition with a higher number would change the topic's manifest."""
        widest = self._widest.get(partition.topic)
        identity = self._identify(widest) if widest else None
        return widest.partition + 1 if widest and identity and identity.topic_id == partition.topic_id else None
