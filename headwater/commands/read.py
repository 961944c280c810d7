"""`headwater read`."""

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from headwater.options import IncarnationSelection, configured, from_option, isolation_option, parse_incarnation_selection, to_option
from headwater.output import emit
from headwater.units import parse_time_ms
from headwater_core.clock import SystemClock, time_text
from headwater_core.errors import HeadwaterError, NotFound, OffsetOutOfRange, Partial, UsageError

if TYPE_CHECKING:
    from headwater.config import Config
    from hydration.answers import Isolation
    from hydration.config import ReadPriority
    from hydration.logs import Logs
    from hydration.partition_log import PartitionLog
    from hydration.reader import ReadRecord

OFFSET_MAX = 2**63 - 1


@click.command()
@click.argument("selection", metavar="TOPIC[@TOPIC_ID][:P]", type=IncarnationSelection())
@from_option
@to_option
@click.option("--count", type=click.IntRange(min=0), help="Print at most this many records.")
@isolation_option("read_uncommitted")
@click.option(
    "--read-priority",
    metavar="PRIORITY",
    help="Which copy is read first: local-first, local-only, offloaded-first or offloaded-only.  [default: the topic's read_priority]",
)
@click.option("-o", "--output", "form", type=click.Choice(["jsonl", "json"]), default="jsonl", show_default=True, help="Output format.")
@configured
def read(
    config: "Config", selection: str, first: str, end: str, count: int | None, isolation: str, read_priority: str | None, form: str
) -> None:
    """Print the records of a topic, from the archive and the local log, one partition after the other.

    TOPIC:P is one partition. TOPIC@TOPIC_ID is a topic that was deleted and created again, as it was before; `headwater topics
    list --all` lists the ids. Keys, values and header values are base64, or null. A time means the first record at or after it; one that is
    dated later than it was published is passed over, with a warning, unless --from finds no other.

    --read-priority holds for this one read: -first falls back to the other copy where the first lacks the data or fails, -only never
    does, and shows the offsets of that copy alone.

    \b
    Examples:
      headwater read orders.placed:0 --from 100 --count 3
      headwater read orders.placed:0 --count 3 --read-priority offloaded-only
    """
    from headwater.known_settings import with_commands
    from headwater.wiring import open_bucket, open_logs
    from hydration.answers import Isolation

    priority = _priority(read_priority)
    topic, topic_id, number = parse_incarnation_selection(selection)
    level = Isolation[isolation.upper()]
    bucket = open_bucket(config)
    config = config if priority else with_commands(config, bucket.manifests)
    with open_logs(config, bucket, priority_for=(lambda _: priority) if priority else None) as logs:
        chosen, lost = _chosen(logs, topic, topic_id, number)
        if number is not None:
            _check_start(chosen[0], first)
        rows = itertools.chain.from_iterable(_rows(log, first, end, level) for log in chosen)
        emit(form, (), itertools.islice(rows, count), ends_with_reader=True)
        if lost and number is None:
            raise Partial(f"only partitions of {topic} in the log directories were read: {lost}")


def _priority(text: str | None) -> "ReadPriority | None":
    from hydration.config import ReadPriority

    try:
        return ReadPriority(text) if text is not None else None
    except ValueError as error:
        raise UsageError(f"--read-priority: {error}") from error


def _chosen(logs: "Logs", topic: str, topic_id: str | None, number: int | None) -> "tuple[Sequence[PartitionLog], HeadwaterError | None]":
    """The requested partitions, and the error that may hide others of them. Raises NotFound."""
    if topic_id is not None:
        found = logs.incarnation(topic, topic_id)
        if number is not None and number >= len(found):
            raise NotFound(f"{topic}@{topic_id} has {len(found)} partitions, and no {number}")
        return found if number is None else found[number : number + 1], None
    known, lost = logs.topics().get(topic), logs.lost.get(topic)
    if lost and (known is None or number not in (None, *known.partitions)):
        raise lost  # the partition may exist or not
    numbers = (number,) if number is not None else known.partitions if known else (0,)
    return [logs.partition(topic, each) for each in numbers], lost


def _rows(log: "PartitionLog", first: str, end: str, isolation: "Isolation") -> Iterator[dict[str, Any]]:
    from hydration.reader import records

    start = _offset(log, first, starting=True)
    if start is None:
        return
    topic, partition = log.partition.topic, log.partition.partition
    found = _within(log, records(log, start, _offset(log, end), isolation))
    for record, leader_epoch, log_append_time in found:
        yield {
            "topic": topic,
            "partition": partition,
            "offset": record.offset,
            "timestamp": record.timestamp_ms,
            "timestamp_type": "LogAppendTime" if log_append_time else "CreateTime",
            "leader_epoch": leader_epoch,
            "key": record.key,
            "value": record.value,
            "headers": record.headers,
        }


def _within(log: "PartitionLog", found: "Iterator[ReadRecord]") -> "Iterator[ReadRecord]":
    """`found`; an offset out of range is reported together with the range."""
    try:
        yield from found
    except OffsetOutOfRange as error:
        raise _out_of_range(log, error.offset, error.start, error.end) from error


def _check_start(log: "PartitionLog", where: str) -> None:
    """Raises HeadwaterError for an offset past the log's end: that is an error, not an empty result."""
    if _is_offset(where) and (start := int(where)) > (bounds := log.bounds()).high_watermark:
        raise _out_of_range(log, start, bounds.log_start, bounds.high_watermark)


def _out_of_range(log: "PartitionLog", offset: int, start: int, end: int) -> HeadwaterError:
    there = f"it has {start} to {end - 1}" if end > start else f"the log is empty and begins at {start}"
    return HeadwaterError(
        f"{log.partition.topic}:{log.partition.partition} has no offset {offset}: {there}; --from earliest starts at the first"
    )


def _offset(log: "PartitionLog", where: str, *, starting: bool = False) -> int | None:
    """The offset that `where` means; None for the end. A time means the first record at or after it, as in Kafka's ListOffsets, but that a
    record which is dated later than it was published is passed over, with a warning.

    starting  where only such records are found, the first of them counts: nothing is to be left out that may be wanted
    """
    if where == "latest":
        return None
    if where == "earliest":
        return log.bounds().log_start
    if _is_offset(where):
        return int(where)
    import structlog

    time_ms, now_ms = parse_time_ms(where), SystemClock().now_ms()
    first = log.offset_for_time(time_ms)
    found = log.offset_for_time(time_ms, now_ms=now_ms) if first else None
    counted = found or (first if starting else None)
    if first and (found != first or first.timestamp_ms > now_ms):
        structlog.get_logger().warning(
            "late_record_found",
            topic=log.partition.topic,
            partition=log.partition.partition,
            offset=first.offset,
            dated=time_text(first.timestamp_ms),
            is_skipped=counted != first,
        )
    return counted.offset if counted else None


def _is_offset(where: str) -> bool:
    """Return whether it is a number. Raises UsageError for one that no offset can be."""
    if not (where.isascii() and where.isdigit()):
        return False
    if len(where) > 19 or int(where) > OFFSET_MAX:
        raise UsageError(f"not an offset: {where[:80]} (at most {OFFSET_MAX})")
    return True
