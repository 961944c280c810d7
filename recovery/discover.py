"""What the bucket holds: topics, their settings, and the head of every partition."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from manifests.head import Head
from manifests.repository import ManifestRepository
from manifests.topic import TopicManifest
from model.errors import NothingExamined
from model.partition import PartitionId

_READERS = 16  # heads are small, so it is round trips that take the time


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedTopic:
    """The current incarnation of one topic. heads: of those partitions that have one."""

    manifest: TopicManifest
    heads: Mapping[int, Head]


def discover(repository: ManifestRepository, topics: Iterable[str] | None) -> Sequence[ArchivedTopic]:
    """The named topics, or with None all of them, by name.

    Raises NotFound for a name that the archive does not know, and NothingExamined when there is nothing at all: a wrong
    bucket must not look like an empty cluster.
    """
    manifests = repository.topics() if topics is None else [repository.resolve(name) for name in sorted(set(topics))]
    if not manifests:
        raise NothingExamined("the bucket holds no topics" if topics is None else "no topic was named")
    with ThreadPoolExecutor(_READERS, "recover-discover") as pool:
        partitions = list(pool.map(lambda each: repository.partitions(each.topic, each.topic_id), manifests))
        heads = list(pool.map(lambda of_topic: _heads(repository, of_topic), partitions))
    return [ArchivedTopic(manifest=manifest, heads=found) for manifest, found in zip(manifests, heads, strict=True)]


def lost(repository: ManifestRepository, topics: Iterable[str] | None) -> Sequence[str]:
    """Why these topics, or with None any, cannot be recovered although the bucket holds something of them."""
    wanted = None if topics is None else set(topics)
    return [f"{each.topic}: {each.key} is {each.problem}" for each in repository.lost() if wanted is None or each.topic in wanted]


def _heads(repository: ManifestRepository, partitions: Iterable[PartitionId]) -> dict[int, Head]:
    loaded = ((partition.partition, repository.load(partition)) for partition in partitions)
    return {number: versioned.head for number, versioned in loaded if versioned is not None}
