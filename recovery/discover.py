"""What the bucket holds: topics, their settings, and the head of every partition."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from manifests.head import Head
from manifests.repository import ManifestRepository
from manifests.topic import TopicManifest
from model.errors import CorruptData, ForeignOwner, HeadwaterError, NotFound, NothingExamined, UnsupportedFormat, VerificationFailed

_READERS = 16  # heads are small, so it is round trips that take the time


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedTopic:
    """The current incarnation of one topic. heads: of those partitions that have one."""

    manifest: TopicManifest
    heads: Mapping[int, Head]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The topics to recover, by name.

    lost   what cannot be recovered of everything that is there, and why, for people
    notes  what else was noticed
    """

    topics: Sequence[ArchivedTopic]
    lost: Sequence[str] = ()
    notes: Sequence[str] = ()


def discover(repository: ManifestRepository, topics: Iterable[str] | None) -> Found:
    """The named topics, or with None every one that can be read.

    Raises what is wrong with a named topic, NotFound for a name that the archive does not know among it. With None raises
    NothingExamined when there is nothing at all, for a wrong bucket must not look like an empty cluster, and
    VerificationFailed when nothing of what there is can be read.
    """
    if topics is None:
        manifests, unreadable = repository.survey_topics()
        lost = [f"{each.topic}: {each.error}" for each in unreadable]
    else:
        manifests, lost = [repository.resolve(name) for name in sorted(set(topics))], []
    found: list[ArchivedTopic] = []
    with ThreadPoolExecutor(_READERS, "recover-discover") as pool:
        for manifest, archived in zip(manifests, pool.map(lambda each: _archived(repository, each), manifests), strict=True):
            if isinstance(archived, ArchivedTopic):
                found.append(archived)
            elif topics is None:
                lost.append(f"{manifest.topic}: {archived}")
            else:
                raise archived
    if not found and lost:
        raise VerificationFailed("nothing can be recovered: " + "; ".join(lost))
    if not found:
        raise NothingExamined("the bucket holds no topics" if topics is None else "no topic was named")
    return Found(topics=found, lost=lost, notes=_notes(repository))


def _archived(repository: ManifestRepository, manifest: TopicManifest) -> ArchivedTopic | HeadwaterError:
    """The topic with its heads, or what is wrong with it; raises what keeps the store from answering."""
    try:
        partitions = repository.partitions(manifest.topic, manifest.topic_id)
        loaded = ((partition.partition, repository.load(partition)) for partition in partitions)
        heads = {number: versioned.head for number, versioned in loaded if versioned is not None}
    except (CorruptData, ForeignOwner, NotFound, UnsupportedFormat) as error:
        return error
    return ArchivedTopic(manifest=manifest, heads=heads)


def _notes(repository: ManifestRepository) -> Sequence[str]:
    try:
        repository.owner()
    except CorruptData as error:
        return [f"{error}; whose archive this is was taken from the topics"]
    return ()
