"""The options of a scan, in the manner of Spark's Kafka source, parsed to a Query."""

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from numbers import Integral
from typing import Any

from headwater.pipeline.scan.query import COLUMNS, END_OF_OFFSETS, Bound, Edge, Place, Query, Selection, Time
from headwater_core.errors import UsageError
from headwater_core.partition import TopicPartition, check_topic_name, parse_incarnation

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
_TIMES = ("startingTimestamp", "endingTimestamp", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp")
_MISTAKEN = (  # numbers that are a time of 1973 to 5138 in another unit, and in ms one when there was no Kafka
    (10**8, 10**11, "seconds"),
    (10**14, 10**17, "microseconds"),
    (10**17, 4 * 10**18, "nanoseconds"),  # the largest number of all stands for no end
)


def parse_query(options: Mapping[str, object]) -> Query:
    """A Query from options by name, as Spark passes them (text, any case) or as Python does (snake_case, numbers, lists).

    Raises UsageError for an unknown option, with the nearest known one, for a wrong value, and for options that contradict each other.
    """
    given = _canonical(options)
    chosen = [name for name in _SELECTIONS if name in given]
    if len(chosen) != 1:
        raise UsageError(f"which topics? Give one of {', '.join(_SELECTIONS)}" + (f", not {' and '.join(chosen)}" if chosen else ""))
    on_corrupt = _choice(given, "onCorrupt", ("fail", "quarantine"))
    quarantine_path = given.get("quarantinePath")
    if (on_corrupt == "quarantine") != (quarantine_path is not None):
        raise UsageError("onCorrupt=quarantine and quarantinePath must be given together: damage is listed there")
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
    """The options that are not None, by their names in _OPTIONS, as text."""
    known = {_folded(name): name for name in (*_OPTIONS, *_ALIASES)}
    given: dict[str, str] = {}
    for name, value in options.items():
        if value is None:
            continue
        found = known.get(_folded(name))
        if found is None:
            raise UsageError(f"unknown option {name!r}{_nearest(name, known)}")
        found = _ALIASES.get(found, found)
        if found in _TIMES:
            _check_unit(found, value)
        text = _text(value)
        if given.get(found, text) != text:
            raise UsageError(f"option {found} is given twice: {given[found][:80]!r} and {text[:80]!r}")
        given[found] = text
    return given


def _folded(name: str) -> str:
    return name.replace("_", "").lower()


def _nearest(name: str, known: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(_folded(name), known, n=1, cutoff=0.6)
    return f"; did you mean {known[near[0]]!r}?" if near else f"; known options are {', '.join(_OPTIONS)}"


def _check_unit(name: str, value: object) -> None:
    """Raises UsageError for a number that Python code has in another unit than milliseconds. Text may have come with a stream's options."""
    if isinstance(value, Mapping):
        for inner in value.values():
            _check_unit(name, inner)
    elif isinstance(value, Integral):
        unit = next((unit for first, end, unit in _MISTAKEN if first <= int(value) < end), None)
        if unit:
            raise UsageError(f"{name}: {value} seems to be in {unit}; give milliseconds since 1970, a datetime, or a time as text")


def _text(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case datetime():
            at = value if value.tzinfo else value.replace(tzinfo=UTC)
            return str(-((_EPOCH - at) // timedelta(milliseconds=1)))  # the first whole millisecond at or after it
        case Mapping():
            try:
                return json.dumps(value, default=_text)
            except TypeError as error:
                raise UsageError(f"{str(value)[:80]!r}: names of topics and numbers of partitions are expected as keys: {error}") from None
        case str():
            return value
        case bytes() | bytearray() | memoryview():
            raise UsageError(f"{bytes(value)[:80]!r}: text is expected, not bytes")
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
        raise UsageError(f"{kind} only excludes topics and names none")
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
            raise UsageError(f"{kind} both names and excludes {name}")
        if len({topic_id for each, topic_id in plain if each == name}) > 1:
            raise UsageError(f"{kind} names two incarnations of {name}; give one")
    return selection


def _is_glob(name: str) -> bool:
    return bool(set(name) & set("*?["))


def _bound(given: Mapping[str, str], which: str, edge: Edge) -> Bound:
    names = [name for name in (f"{which}Offsets", f"{which}Timestamp", f"{which}OffsetsByTimestamp") if name in given]
    if len(names) > 1:
        raise UsageError(f"{' and '.join(names)} contradict each other; give one")
    if not names:
        return Bound(edge)
    name, text = names[0], given[names[0]].strip()
    if name == f"{which}Timestamp":
        return Bound(Time(_time_ms(name, text)))
    if name == f"{which}Offsets" and text.lower() in ("earliest", "latest"):
        return Bound(Edge(text.lower()))
    by_time = name.endswith("ByTimestamp")
    document = _json(name, text, '{"orders": {"0": 23, "1": -2}}' + ("" if by_time else ", earliest or latest"))
    named: dict[TopicPartition, Place] = {}
    for topic, numbers in document.items():
        if not isinstance(numbers, dict):
            raise UsageError(f'{name}: {topic} needs partitions and values, such as {{"0": 23}}')
        for number, value in numbers.items():
            named[_partition(name, topic, number)] = Time(_time_ms(name, value)) if by_time else _offset(name, _integer(name, value))
    return Bound(edge, named)


def _time_ms(name: str, value: object) -> int:
    """From milliseconds since 1970, or a time in ISO 8601, which is UTC without a time zone."""
    text = str(value)
    try:
        return _integer(name, value)
    except UsageError:
        expected = "milliseconds since 1970, or a time such as 2026-01-31T12:00:00Z"
        if re.fullmatch(r"[-+0-9.eE]+", text) and not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
            raise UsageError(f"{name}: {text[:80]!r} is not a whole number: {expected}") from None
        try:
            return int(_text(datetime.fromisoformat(text)))
        except ValueError:
            raise UsageError(f"{name}: {text[:80]!r} is neither a whole number of {expected}") from None


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
        raise UsageError(f"columns: {', '.join(unknown) or 'none'} is not one of {', '.join(COLUMNS)}")
    columns = tuple(dict.fromkeys(spelled[name.lower()] for name in wanted))
    if _flag(given, "includeHeaders", False) and "headers" not in columns:
        return (*columns, "headers")
    return columns


def _choice(given: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """One of `choices`; the first when the option is not given."""
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
