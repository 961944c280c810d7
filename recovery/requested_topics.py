"""Which topics a request means, and their manifests: what the bucket's documents say, and what the heads still say where those are damaged.

`current.json` says what a name means, and `topic.json` has settings and the partition count; records rest on neither. So a topic of which
one incarnation is in the archive needs no `current.json`, and one whose partitions somebody counts needs no `topic.json`. Where that does
not help, the error says what does.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from headwater_core.counts import count_text
from headwater_core.errors import CorruptData, ForeignOwner, HeadwaterError, NotFound, UnsupportedFormat, UsageError
from headwater_core.objectstore.store import ObjectStore
from headwater_core.partition import PartitionId, parse_incarnation
from manifests import keys
from manifests.repository import ManifestRepository
from manifests.topic import PARTITIONS_MAX, TopicManifest
from manifests.topic_survey import survey_topics

UNREADABLE = (CorruptData, ForeignOwner, NotFound, UnsupportedFormat)
"""What may be wrong with a document, the store having answered."""

INCARNATIONS_SHOWN = 10
_SHOWN = 10
_KEY_CHARS_SHOWN = 200

Heads = Mapping[str, Mapping[str, frozenset[int]]]
"""Numbers of partitions that have a head, by topic and topic id. A listing is a hint."""


class MeantTopics(NamedTuple):
    """
    named     the topics that are named, by name
    matching  those that patterns match; all, where nothing is named
    unread    of those, the ones whose documents cannot be read, and what is wrong
    others    by name, the ids of incarnations that what says its meaning does not know of: a later one, where an older version was put back
    notes     what else was noticed
    """

    named: Mapping[str, TopicManifest]
    matching: Sequence[TopicManifest]
    unread: Mapping[str, HeadwaterError]
    others: Mapping[str, Sequence[str]]
    notes: Sequence[str]


def is_pattern(name: str) -> bool:
    """Whether it stands for every topic that it matches, as `fnmatch` has it."""
    return bool(set(name) & set("*?["))


def meant_topics(
    repository: ManifestRepository, topics: Iterable[str] | None, counts: Mapping[str, int] | None = None, count: int | None = None
) -> MeantTopics:
    """
    topics  names, NAME@TOPIC_ID for one incarnation, and patterns; None: all
    counts  of partitions by name, and `count` of any other: who gives it needs no topic manifest

    Raises what is wrong with a named topic, such as NotFound for a name that the archive does not have, or for a pattern that matches none,
    and UsageError for two incarnations of one topic: their logs would be one directory.
    """
    given = ["*"] if topics is None else list(topics)
    patterns = [each for each in given if is_pattern(each)]
    lookup = _Lookup(repository, counts or {}, count)
    named = {each.topic: each for each in lookup.named([each for each in given if not is_pattern(each)])}
    matching: list[TopicManifest] = []
    unread: dict[str, HeadwaterError] = {}
    if patterns:
        matching, unread = lookup.matching(patterns, named, required=topics is not None)
    return MeantTopics(named, matching, unread, lookup.others, lookup.notes)


def advised(error: HeadwaterError, advice: str) -> HeadwaterError:
    """The same error, with what can be done."""
    if isinstance(error, CorruptData):
        return type(error)(error.where, error.position, f"{error.reason}; {advice}")
    return type(error)(f"{error}; {advice}")


def other_incarnations(topic: str, ids: Iterable[str]) -> str:
    """What to do where some of these are wanted."""
    return f"{topic}@TOPIC_ID recovers an incarnation that is in the archive: {', '.join(sorted(ids)[:INCARNATIONS_SHOWN])}"


class _Lookup:
    def __init__(self, repository: ManifestRepository, counts: Mapping[str, int], count: int | None) -> None:
        self._repository, self._counts, self._count = repository, counts, count
        self.notes: list[str] = []
        self.others: dict[str, Sequence[str]] = {}

    def named(self, topics: Iterable[str]) -> list[TopicManifest]:
        meant: dict[str, str | None] = {}
        for topic, topic_id in map(parse_incarnation, sorted(set(topics))):
            if meant.setdefault(topic, topic_id) != topic_id:
                raise UsageError(f"{topic} is named as two incarnations: recover one at a time")
        return [self._one(topic, topic_id) for topic, topic_id in meant.items()]

    def _one(self, topic: str, topic_id: str | None) -> TopicManifest:
        repository = self._repository
        try:
            found = repository.resolve(topic) if topic_id is None else repository.incarnation(topic, topic_id)
        except UNREADABLE as error:
            return self._without_document(topic, topic_id, error, listed_heads(repository.store, topic))
        if topic_id is None:
            self._find_others(found, listed_heads(repository.store, topic))
        return found

    def matching(
        self, patterns: Sequence[str], named: Container[str], *, required: bool
    ) -> tuple[list[TopicManifest], dict[str, HeadwaterError]]:
        """Those of every topic that a pattern matches and nobody `named`. Raises NotFound for a pattern that matches none and is `required`
        to."""
        manifests, unreadable = survey_topics(self._repository.store)
        known = [*(manifest.topic for manifest in manifests), *(each.topic for each in unreadable)]
        for pattern in patterns:
            if required and not any(fnmatchcase(name, pattern) for name in known):
                raise NotFound(f"no topic in the archive matches {pattern[:300]!r}")
        wanted = {name for name in known for pattern in patterns if name not in named and fnmatchcase(name, pattern)}
        found = [manifest for manifest in manifests if manifest.topic in wanted]
        strays: list[str] = []
        heads = listed_heads(self._repository.store, strays=strays)
        for manifest in found:
            self._find_others(manifest, heads)
        unread: dict[str, HeadwaterError] = {}
        for each in unreadable:
            if each.topic in wanted:
                try:
                    found.append(self._without_document(each.topic, None, each.error, heads))
                except UNREADABLE as error:
                    unread[each.topic] = error
        if strays:
            shown = ", ".join(repr(each[:_KEY_CHARS_SHOWN])[1:-1] for each in strays[:_SHOWN])
            more = f" and {len(strays) - _SHOWN} more" if len(strays) > _SHOWN else ""
            self.notes.append(f"left alone, by names that no part of an archive has: {count_text(len(strays), 'object')}: {shown}{more}")
        return sorted(found, key=lambda manifest: manifest.topic), unread

    def _find_others(self, manifest: TopicManifest, heads: Heads) -> None:
        """See MeantTopics."""
        others = heads.get(manifest.topic, {}).keys() - {manifest.topic_id}
        if not others:
            return
        try:
            current = self._repository.current(manifest.topic)
        except UNREADABLE:
            return  # what it says does not count
        if others := others - {*(current.previous if current else ())}:
            self.others[manifest.topic] = sorted(others)

    def _without_document(self, topic: str, topic_id: str | None, error: HeadwaterError, heads: Heads) -> TopicManifest:
        """The manifest of a topic for which a document cannot be read. Raises `error`, with what can be done."""
        held = heads.get(topic, {})
        meant = topic_id or self._meant(topic)
        if meant is None and len(held) == 1:
            [meant] = held
        if meant is None or meant not in held:
            if topic_id is None and held:
                raise advised(error, other_incarnations(topic, held))
            raise error
        try:
            found = self._repository.load_topic(topic, meant)
        except UNREADABLE:
            found = None
        count = self._counts.get(topic, self._count)
        if found is None and count is None:
            raise advised(
                error,
                f"--partitions {topic}=N recovers it without its settings; {len(held[meant])} have heads, up to number {max(held[meant])}",
            )
        if found is None:
            found = counted_manifest(self._repository, topic, meant, held[meant])
        if found is None:
            raise error
        how = "without its settings" if found.configs is None else f"as {meant}, its only incarnation in the archive"
        self.notes.append(f"{topic}: {error}; it comes back {how}")
        if topic_id is None:
            self._find_others(found, heads)
        return found

    def _meant(self, topic: str) -> str | None:
        try:
            current = self._repository.current(topic)
        except UNREADABLE:
            return None
        return current.topic_id if current else None


def listed_heads(store: ObjectStore, topic: str | None = None, topic_id: str | None = None, *, strays: list[str] | None = None) -> Heads:
    """Of every incarnation; of those of one name, or of one alone. strays: gets the keys that are nobody's."""
    found: dict[str, dict[str, set[int]]] = {}
    prefix = keys.META if topic is None else keys.name_prefix(topic) if topic_id is None else keys.topic_prefix(topic, topic_id)
    for info in store.list(prefix):
        if name := keys.parse_manifest(info.key):
            if name.partition is not None:
                found.setdefault(name.topic, {}).setdefault(name.topic_id, set()).add(name.partition)
        elif strays is not None and not (keys.parse_current(info.key) or keys.parse_page(info.key) or info.key == keys.SETTINGS):
            strays.append(info.key)
    return {name: {topic_id: frozenset(numbers) for topic_id, numbers in ids.items()} for name, ids in found.items()}


def counted_manifest(repository: ManifestRepository, topic: str, topic_id: str, numbers: Iterable[int]) -> TopicManifest | None:
    """A manifest in place of one that cannot be read: with as many partitions as have heads, and settings that nobody knows. None where no
    head says whose the topic is. numbers: of the partitions that have one"""
    known = sorted(number for number in numbers if number < PARTITIONS_MAX)
    for number in known:
        try:  # the cluster is the head's word, so the one that is asked with does not count
            held = repository.load_of_any_owner(PartitionId("unknown", topic_id, number, topic))
        except UNREADABLE:
            continue
        if held is not None:
            return TopicManifest(cluster_id=held.head.cluster_id, topic=topic, topic_id=topic_id, partitions=known[-1] + 1)
    return None
