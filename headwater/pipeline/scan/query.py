"""What a scan reads: which partitions, between which bounds, and what a record must satisfy. Values, each checked where it is made."""

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from headwater_core.partition import TopicPartition
from manifests.head import OFFSET_MAX, Entry

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")  # Spark's own names and order
END_OF_OFFSETS = OFFSET_MAX + 1  # exclusive: beyond every offset there can be


class Edge(Enum):
    """One end of a partition."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Time:
    """The first record that is at this time or later, in milliseconds since 1970."""

    ms: int


Place = int | Edge | Time  # an int is an offset


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a scan begins or ends (exclusive): `everywhere`, but for the partitions that are named."""

    everywhere: Place
    named: Mapping[TopicPartition, Place] = field(default_factory=dict)

    def at(self, topic: str, partition: int) -> Place:
        return self.named.get(TopicPartition(topic, partition), self.everywhere) if self.named else self.everywhere


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicate:
    """What a record must satisfy to be wanted; None is anything. Ends are exclusive, timestamps in ms.

    It is exact for records. For an entry it tells whether one of its records may satisfy it.
    """

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    first_offset: int = 0
    end_offset: int = END_OF_OFFSETS
    first_timestamp_ms: int | None = None
    end_timestamp_ms: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.first_offset <= self.end_offset <= END_OF_OFFSETS:
            raise ValueError(f"offsets out of order: {self.first_offset} to {self.end_offset}")
        if self.first_timestamp_ms is not None and self.end_timestamp_ms is not None and self.first_timestamp_ms > self.end_timestamp_ms:
            raise ValueError(f"times out of order: {self.first_timestamp_ms} to {self.end_timestamp_ms}")

    @classmethod
    def of_offsets(cls, first: int, end: int, first_timestamp_ms: int | None = None) -> "Predicate":
        """Offsets [first, end), as far as there are such; none where `end` is not past `first`."""
        first = min(max(first, 0), END_OF_OFFSETS)
        return cls(first_offset=first, end_offset=max(first, min(end, END_OF_OFFSETS)), first_timestamp_ms=first_timestamp_ms)

    @classmethod
    def of_times(cls, first: int, end: int) -> "Predicate":
        return cls(first_timestamp_ms=first, end_timestamp_ms=max(first, end))

    def and_(self, other: "Predicate") -> "Predicate":
        first_offset = max(self.first_offset, other.first_offset)
        first_timestamp_ms = max((t for t in (self.first_timestamp_ms, other.first_timestamp_ms) if t is not None), default=None)
        end_timestamp_ms = min((t for t in (self.end_timestamp_ms, other.end_timestamp_ms) if t is not None), default=None)
        if first_timestamp_ms is not None and end_timestamp_ms is not None:
            end_timestamp_ms = max(first_timestamp_ms, end_timestamp_ms)  # nothing satisfies both
        return Predicate(
            topics=_both(self.topics, other.topics),
            partitions=_both(self.partitions, other.partitions),
            first_offset=first_offset,
            end_offset=max(first_offset, min(self.end_offset, other.end_offset)),
            first_timestamp_ms=first_timestamp_ms,
            end_timestamp_ms=end_timestamp_ms,
        )

    def may_hold(self, topic: str, partition: int) -> bool:
        """Whether records of this partition may satisfy it."""
        if self.first_timestamp_ms is not None and self.end_timestamp_ms is not None and self.first_timestamp_ms >= self.end_timestamp_ms:
            return False
        return (self.topics is None or topic in self.topics) and (self.partitions is None or partition in self.partitions)

    def may_match(self, entry: Entry) -> bool:
        """Whether a record of this entry may satisfy it.

        The largest timestamp of an entry is exact, so what is older as a whole is known. Its smallest is not: it is taken
        from batch headers, which name their first record's time, and create times need not rise. So `end_timestamp`
        excludes no entry; a scan that ends at a time (`endingTimestamp`) ends at an offset, and does.
        """
        if entry.base_offset >= self.end_offset or entry.next_offset <= self.first_offset:
            return False
        if self.first_timestamp_ms is None or entry.gap:
            return True
        if entry.last_timestamp_ms is None:
            return entry.records > 0  # records from before 1970, or without a time
        return entry.last_timestamp_ms >= self.first_timestamp_ms


EVERYTHING = Predicate()


def _both(one: frozenset[Any] | None, other: frozenset[Any] | None) -> frozenset[Any] | None:
    return other if one is None else one if other is None else one & other


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which partitions a scan is about.

    names     topics by name
    globs     shell patterns, as pay*
    pattern   a regular expression that a whole name matches
    assigned  exactly these partitions
    excluded  names and shell patterns that are not meant, whatever else says so
    topic_ids of topics that mean this incarnation, not the one that the name means now

    Internal topics (__*) are matched only by a glob or pattern that begins so itself.
    """

    names: tuple[str, ...] = ()
    globs: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: frozenset[TopicPartition] = frozenset()
    excluded: tuple[str, ...] = ()
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    @property
    def named(self) -> tuple[str, ...]:
        """The topics that are named as such: they have to exist."""
        return tuple(sorted({*self.names, *(each.topic for each in self.assigned)}))

    def matches(self, topic: str) -> bool:
        """Whether this topic is meant without being named."""
        if self.excludes(topic):
            return False
        by_glob = any(fnmatch.fnmatchcase(topic, each) for each in self.globs if not topic.startswith("__") or each.startswith("__"))
        return by_glob or (
            self.pattern is not None
            and (not topic.startswith("__") or self.pattern.startswith("__"))
            and re.fullmatch(self.pattern, topic) is not None
        )

    @property
    def has_wildcards(self) -> bool:
        return bool(self.globs) or self.pattern is not None

    def excludes(self, topic: str) -> bool:
        return any(fnmatch.fnmatchcase(topic, each) for each in self.excluded)

    def holds(self, topic: str, partition: int) -> bool:
        return not self.assigned or TopicPartition(topic, partition) in self.assigned

    def means(self, each: TopicPartition) -> bool:
        """Whether the partition is asked for, by name or without being named."""
        return self.holds(each.topic, each.partition) and (each.topic in self.named or self.matches(each.topic))


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What errors advise, in the words of whom they reach: an option of Spark's is none of the command line's.

    reads      who has read what came before, and how
    anew       what to do when that is no longer what the archive holds
    skip_loss  how to go on without what is not there
    set_aside  how to go on without what is damaged; empty: there is no way
    """

    reads: str = "the stream has read"
    anew: str = "The sink holds records that the log no longer has: start with a new checkpoint, and an empty sink or one rid of them"
    skip_loss: str = "failOnDataLoss=false goes on with what is there"
    set_aside: str = "onCorrupt=quarantine with a quarantinePath lists it there and reads the rest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Everything a scan needs to know, checked. Can be pickled.

    columns           of the result, in this order
    read_committed    stop at the last stable offset, leave out what was aborted
    split_bytes       about so much of the archive is one task; None leaves it to the planner
    min_partitions    at least so many tasks, as far as there is something to divide
    quarantine_path   a URL or a directory: damage becomes rows there and the rest is read; None: damage fails the scan
    fail_on_data_loss gaps, and offsets asked for by number that the archive no longer or not yet has, fail the scan
    push_filters      of Spark's: see docs/spark.md for when that is safe
    require_time      a partition with no record at or after its starting time fails the scan; else nothing of it is read
    """

    selection: Selection
    starting: Bound = Bound(Edge.EARLIEST)
    ending: Bound = Bound(Edge.LATEST)
    columns: tuple[str, ...] = COLUMNS[:-1]
    read_committed: bool = False
    predicate: Predicate = EVERYTHING
    split_bytes: int | None = None
    min_partitions: int = 1
    quarantine_path: str | None = None
    fail_on_data_loss: bool = True
    require_time: bool = False
    push_filters: bool = False
    max_bytes_per_trigger: int | None = None
    max_offsets_per_trigger: int | None = None
    store: str | None = None
    endpoint_url: str | None = None
    region: str | None = None
    words: Words = Words()

    def where(self, predicate: Predicate) -> "Query":
        """The same, and `predicate` too."""
        return replace(self, predicate=self.predicate.and_(predicate))
