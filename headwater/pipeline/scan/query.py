"""What a scan reads: which partitions, between which bounds, and which records. Values, each checked where it is made."""

import fnmatch
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from enum import Enum
from numbers import Integral
from typing import Any

from headwater_core.errors import UsageError
from headwater_core.partition import TopicPartition
from manifests.entry import OFFSET_MAX, Entry
from manifests.page import Item

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")  # Spark's own names and order
END_OF_OFFSETS = OFFSET_MAX + 1  # exclusive: after every possible offset


class Edge(Enum):
    """One end of a partition."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Time:
    """The first record at or after this time, in milliseconds since 1970."""

    ms: int


Place = int | Edge | Time  # an int is an offset


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a scan begins or ends (exclusive): at `everywhere`, except for the partitions in `named`."""

    everywhere: Place
    named: Mapping[TopicPartition, Place] = field(default_factory=dict)

    def at(self, topic: str, partition: int) -> Place:
        return self.named.get(TopicPartition(topic, partition), self.everywhere) if self.named else self.everywhere


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicate:
    """What a record must satisfy; None is anything. Ends are exclusive, timestamps are in ms.

    It is exact for records. For an entry it says whether one of its records may satisfy it.
    """

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    first_offset: int = 0
    end_offset: int = END_OF_OFFSETS
    first_timestamp_ms: int | None = None
    end_timestamp_ms: int | None = None

    def __post_init__(self) -> None:
        for name, kind, wanted in _PREDICATE:
            value = getattr(self, name)
            if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
                raise UsageError(f"Predicate: {name} is {wanted}, not {value!r}")
        if not 0 <= self.first_offset <= self.end_offset <= END_OF_OFFSETS:
            raise ValueError(f"offsets out of order: {self.first_offset} to {self.end_offset}")
        if self.first_timestamp_ms is not None and self.end_timestamp_ms is not None and self.first_timestamp_ms > self.end_timestamp_ms:
            raise ValueError(f"times out of order: {self.first_timestamp_ms} to {self.end_timestamp_ms}")

    @classmethod
    def of_offsets(cls, first: int, end: int, first_timestamp_ms: int | None = None) -> "Predicate":
        """Offsets [first, end), cut to possible ones; no offsets when `end` is not past `first`."""
        first = min(max(first, 0), END_OF_OFFSETS)
        return cls(first_offset=first, end_offset=max(first, min(end, END_OF_OFFSETS)), first_timestamp_ms=first_timestamp_ms)

    @classmethod
    def of_times(cls, first_ms: int, end_ms: int) -> "Predicate":
        """Timestamps [first_ms, end_ms); none when `end_ms` is not past `first_ms`."""
        return cls(first_timestamp_ms=first_ms, end_timestamp_ms=max(first_ms, end_ms))

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
        """Whether a record of this partition may satisfy it."""
        if self.first_timestamp_ms is not None and self.end_timestamp_ms is not None and self.first_timestamp_ms >= self.end_timestamp_ms:
            return False
        return (self.topics is None or topic in self.topics) and (self.partitions is None or partition in self.partitions)

    def may_match(self, item: Item) -> bool:
        """Whether a record of this entry, or of one below this reference, may satisfy it.

        An entry's largest timestamp is exact, so an entry that is too old is known to be. Its smallest timestamp is not exact:
        it comes from batch headers, which have the first record's time, and create times need not rise. So `end_timestamp_ms`
        excludes no entry. The option `endingTimestamp` does: it is resolved to an offset (archive_snapshot.offset_for_time).
        """
        if item.base_offset >= self.end_offset or item.next_offset <= self.first_offset:
            return False
        if self.first_timestamp_ms is None:
            return True
        if not isinstance(item, Entry):
            if item.gaps or item.untimed:
                return True
        elif item.gap:
            return True
        elif item.last_timestamp_ms is None:
            return item.records > 0  # records from before 1970, or without a time
        return item.last_timestamp_ms is not None and item.last_timestamp_ms >= self.first_timestamp_ms


_PREDICATE: tuple[tuple[str, type, str], ...] = (
    ("topics", Set, "a set of names"),
    ("partitions", Set, "a set of numbers"),
    ("first_offset", Integral, "an offset"),
    ("end_offset", Integral, "an offset"),
    ("first_timestamp_ms", Integral, "a number of milliseconds since 1970"),
    ("end_timestamp_ms", Integral, "a number of milliseconds since 1970"),
)
EVERYTHING = Predicate()


def _both(one: frozenset[Any] | None, other: frozenset[Any] | None) -> frozenset[Any] | None:
    return other if one is None else one if other is None else one & other


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which partitions a scan reads.

    names     topics by name
    globs     shell patterns, such as pay*
    pattern   a regular expression for whole names
    assigned  exactly these partitions
    excluded  names and shell patterns of topics that are left out; this wins over all others
    topic_ids by topic name, where another incarnation is requested than the current one

    A glob or pattern matches internal topics (__*) only if it begins with __ itself.
    """

    names: tuple[str, ...] = ()
    globs: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: frozenset[TopicPartition] = frozenset()
    excluded: tuple[str, ...] = ()
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    @property
    def named(self) -> tuple[str, ...]:
        """The topics that are named in full: each of them must exist."""
        return tuple(sorted({*self.names, *(each.topic for each in self.assigned)}))

    def matches(self, topic: str) -> bool:
        """Whether a glob or the pattern selects this topic."""
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

    def includes(self, each: TopicPartition) -> bool:
        """Whether the partition is selected, by name, glob or pattern."""
        return self.holds(each.topic, each.partition) and (each.topic in self.named or self.matches(each.topic))


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Parts of error messages that depend on who reads them: Spark's options are not those of the command line.

    reader      who has read the earlier offsets
    start_over  what to do when the archive has other records there now
    skip_loss   how to continue without offsets that are missing
    set_aside   how to continue without damaged data; empty when that is not possible
    """

    reader: str = "the stream has read"
    start_over: str = (
        "The sink holds records that the log no longer has: start with a new checkpoint, and with an empty sink or without those records"
    )
    skip_loss: str = "failOnDataLoss=false continues without them"
    set_aside: str = "onCorrupt=quarantine with a quarantinePath lists it there and reads the rest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Everything that a scan needs to know, checked. Can be pickled.

    columns           of the result, in this order
    read_committed    end at the last stable offset, without aborted transactions
    split_bytes       about this much of the archive is one task; None: the planner decides
    min_partitions    at least this many tasks, if there is enough to divide
    quarantine_path   a URL or a directory: damage becomes rows there and the rest is read; None: damage fails the scan
    fail_on_data_loss gaps, and requested offsets that the archive no longer has or does not have yet, fail the scan
    push_filters      take filters over from Spark: see docs/spark.md for when that is safe
    require_time      a partition without a record at or after its starting time fails the scan; else it is not read
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
    advice: Advice = Advice()

    def where(self, predicate: Predicate) -> "Query":
        """The same query, for records that also satisfy `predicate`."""
        return replace(self, predicate=self.predicate.and_(predicate))
