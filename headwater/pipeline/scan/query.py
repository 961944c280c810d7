"""What a scan was asked for: options in the manner of Spark's Kafka source, and what a record must satisfy. Pure."""

import difflib
import fnmatch
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

from headwater_core.errors import UsageError
from headwater_core.partition import TopicPartition, check_topic_name, parse_incarnation
from manifests.head import OFFSET_MAX, Entry

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")  # Spark's own names and order
END_OF_OFFSETS = OFFSET_MAX + 1  # exclusive: beyond every offset there can be

_OPTIONS = (
    "topics",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "includeHeaders",
    "columns",
    "isolation",
    "splitBytes",
    "minPartitions",
    "onCorrupt",
    "quarantinePath",
    "failOnDataLoss",
    "pushFilters",
    "maxBytesPerTrigger",
    "maxOffsetsPerTrigger",
    "store",
    "endpointUrl",
    "region",
)
_ALIASES = {"kafka.isolation.level": "isolation", "path": "store"}
_SELECTIONS = ("topics", "subscribe", "subscribePattern", "assign")
_SIZE = re.compile(r"([0-9]{1,18}) *(?:([kmgt])(?:ib)?)?", re.IGNORECASE)  # "64m" as Spark has it, "64MiB" as we do
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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


def parse_query(options: Mapping[str, object]) -> Query:
    """A Query from options by name, as Spark hands them out (text, any case) or as Python does (snake_case, numbers, lists).

    Raises UsageError for what it does not know, naming the nearest, and for what contradicts itself.
    """
    given = _canonical(options)
    chosen = [name for name in _SELECTIONS if name in given]
    if len(chosen) != 1:
        raise UsageError(f"which topics? Give one of {', '.join(_SELECTIONS)}" + (f", not {' and '.join(chosen)}" if chosen else ""))
    on_corrupt = _choice(given, "onCorrupt", ("fail", "quarantine"))
    quarantine_path = given.get("quarantinePath")
    if (on_corrupt == "quarantine") != (quarantine_path is not None):
        raise UsageError("onCorrupt=quarantine and quarantinePath belong together: where damage is listed")
    return Query(
        selection=_selection(chosen[0], given[chosen[0]]),
        starting=_bound(given, "starting", Edge.EARLIEST),
        ending=_bound(given, "ending", Edge.LATEST),
        columns=_columns(given),
        read_committed=_choice(given, "isolation", ("read_uncommitted", "read_committed")) == "read_committed",
        split_bytes=_size(given, "splitBytes"),
        min_partitions=_size(given, "minPartitions") or 1,
        quarantine_path=quarantine_path,
        fail_on_data_loss=_flag(given, "failOnDataLoss", True),
        require_time=_choice(given, "startingOffsetsByTimestampStrategy", ("latest", "error")) == "error",
        push_filters=_flag(given, "pushFilters", False),
        max_bytes_per_trigger=_size(given, "maxBytesPerTrigger"),
        max_offsets_per_trigger=_size(given, "maxOffsetsPerTrigger"),
        store=given.get("store"),
        endpoint_url=given.get("endpointUrl"),
        region=given.get("region"),
    )


def _canonical(options: Mapping[str, object]) -> dict[str, str]:
    """Options by the name that _OPTIONS spells, as text; those that are None are not given."""
    known = {_folded(name): name for name in (*_OPTIONS, *_ALIASES)}
    given: dict[str, str] = {}
    for name, value in options.items():
        if value is None:
            continue
        found = known.get(_folded(name))
        if found is None:
            raise UsageError(f"unknown option {name!r}{_nearest(name, known)}")
        found = _ALIASES.get(found, found)
        text = _text(value)
        if given.get(found, text) != text:
            raise UsageError(f"option {found} is given twice: {given[found][:80]!r} and {text[:80]!r}")
        given[found] = text
    return given


def _folded(name: str) -> str:
    return name.replace("_", "").lower()


def _nearest(name: str, known: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(_folded(name), known, n=1, cutoff=0.6)
    return f"; did you mean {known[near[0]]!r}?" if near else f"; known are {', '.join(_OPTIONS)}"


def _text(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case datetime():
            at = value if value.tzinfo else value.replace(tzinfo=UTC)
            return str(-((_EPOCH - at) // timedelta(milliseconds=1)))  # the first whole millisecond at or after it
        case Mapping():
            return json.dumps(value)
        case str():
            return value
        case Iterable():
            return ",".join(map(str, value))
        case _:
            return str(value)


def _selection(kind: str, text: str) -> Selection:
    if kind == "assign":
        document = _json(kind, text, '{"orders": [0, 1]}')
        pairs = [(topic, number) for topic, numbers in document.items() for number in _list(kind, numbers)]
        if not pairs:
            raise UsageError("assign names no partition")
        return Selection(assigned=frozenset(_partition(kind, topic, number) for topic, number in pairs))
    if kind == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise UsageError(f"subscribePattern: not a regular expression: {error}") from None
        return Selection(pattern=text)
    names = [name for each in text.split(",") if (name := each.strip())]
    if not names:
        raise UsageError(f"{kind} names no topic")
    excluded = [name.removeprefix("!").strip() for name in names if kind == "topics" and name.startswith("!")]
    meant = [name for name in names if kind != "topics" or not name.startswith("!")]
    globs = [name for name in meant if kind == "topics" and _is_glob(name)]
    plain = [parse_incarnation(name) if kind == "topics" else (name, None) for name in meant if name not in globs]
    if not meant:
        raise UsageError(f"{kind} names no topic, only what is left out")
    for name in excluded:
        if not _is_glob(name):
            check_topic_name(name)
    selection = Selection(
        names=tuple(dict.fromkeys(check_topic_name(name) for name, _ in plain)),
        globs=tuple(globs),
        excluded=tuple(excluded),
        topic_ids={name: topic_id for name, topic_id in plain if topic_id is not None},
    )
    for name in selection.names:
        if selection.excludes(name):
            raise UsageError(f"{kind} names {name} and leaves it out")
        if len({topic_id for each, topic_id in plain if each == name}) > 1:
            raise UsageError(f"{kind} names {name} twice: one incarnation of a topic at a time")
    return selection


def _is_glob(name: str) -> bool:
    return bool(set(name) & set("*?["))


def _bound(given: Mapping[str, str], which: str, edge: Edge) -> Bound:
    names = [name for name in (f"{which}Offsets", f"{which}Timestamp", f"{which}OffsetsByTimestamp") if name in given]
    if len(names) > 1:
        raise UsageError(f"{' and '.join(names)} say the same thing twice; give one")
    if not names:
        return Bound(edge)
    name, text = names[0], given[names[0]].strip()
    if name == f"{which}Timestamp":
        return Bound(Time(_integer(name, text)))
    if name == f"{which}Offsets" and text.lower() in ("earliest", "latest"):
        return Bound(Edge(text.lower()))
    by_time = name.endswith("ByTimestamp")
    document = _json(name, text, '{"orders": {"0": 23, "1": -2}}' + ("" if by_time else ", earliest or latest"))
    named: dict[TopicPartition, Place] = {}
    for topic, numbers in document.items():
        if not isinstance(numbers, dict):
            raise UsageError(f'{name}: {topic} wants partitions and values, such as {{"0": 23}}')
        for number, value in numbers.items():
            at = _integer(name, value)
            named[_partition(name, topic, number)] = Time(at) if by_time else _offset(name, at)
    return Bound(edge, named)


def _offset(name: str, value: int) -> Place:
    if value == -2:
        return Edge.EARLIEST
    if value == -1:
        return Edge.LATEST
    if not 0 <= value <= END_OF_OFFSETS:
        raise UsageError(f"{name}: not an offset: {value} (-2 is earliest, -1 latest)")
    return value


def _columns(given: Mapping[str, str]) -> tuple[str, ...]:
    if "columns" not in given:
        return COLUMNS if _flag(given, "includeHeaders", False) else COLUMNS[:-1]
    spelled = {name.lower(): name for name in COLUMNS}
    wanted = [name.strip() for name in given["columns"].split(",") if name.strip()]
    unknown = [name for name in wanted if name.lower() not in spelled]
    if unknown or not wanted:
        raise UsageError(f"columns: {', '.join(unknown) or 'none'} is not among {', '.join(COLUMNS)}")
    columns = tuple(dict.fromkeys(spelled[name.lower()] for name in wanted))
    if _flag(given, "includeHeaders", False) and "headers" not in columns:
        return (*columns, "headers")
    return columns


def _choice(given: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """One of `choices`; the first when nothing is given."""
    value = given.get(name, choices[0]).strip().lower()
    if value not in choices:
        raise UsageError(f"{name}: {value[:80]!r} is not {' or '.join(choices)}")
    return value


def _flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    return _choice({name: given.get(name, str(default))}, name, ("true", "false")) == "true"


def _size(given: Mapping[str, str], name: str) -> int | None:
    if name not in given:
        return None
    match = _SIZE.fullmatch(given[name].strip())
    value = int(match[1]) << _UNITS[(match[2] or "").lower()] if match else 0
    if not 0 < value <= END_OF_OFFSETS:
        raise UsageError(f"{name}: {given[name][:80]!r} is not a positive number such as 1000 or 64MiB")
    return value


def _json(name: str, text: str, example: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise UsageError(f"{name}: {text[:80]!r}; expected {example}")
    return document


def _list(name: str, value: object) -> list[Any]:
    if not isinstance(value, list):
        raise UsageError(f"{name}: {str(value)[:80]!r} is not a list of partitions")
    return value


def _partition(name: str, topic: str, number: object) -> TopicPartition:
    return TopicPartition(topic, _integer(name, number))


def _integer(name: str, value: object) -> int:
    text = str(value)
    if isinstance(value, bool) or not re.fullmatch(r"-?[0-9]{1,19}", text) or not -(2**63) <= int(text) < 2**63:
        raise UsageError(f"{name}: {text[:80]!r} is not a whole number")
    return int(text)
