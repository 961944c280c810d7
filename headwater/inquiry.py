"""What `headwater explain` answers, as rows: by a survey of one partition, in the agent or without it."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from archival.explanation import Turn, Why, explain
from headwater.config import Config
from headwater.known_settings import with_commands
from headwater.offset_location import locate_offset
from headwater.overview import damage_text
from headwater.survey import Knowledge, Surveyed, survey_each
from headwater.wiring import Bucket, open_bucket, open_cache
from headwater_core.clock import SystemClock
from headwater_core.errors import TransientError, Unauthorised
from headwater_core.partition import TopicPartition


def range_rows(
    config: Config,
    place: TopicPartition,
    *,
    bucket: Bucket | None = None,
    known: Knowledge | None = None,
    turn_of: Callable[[TopicPartition], Turn] | None = None,
) -> Iterator[dict[str, Any]]:
    """One row for each range of local bytes that are not archived. Raises what `survey_each` raises; then nothing may be concluded
    from rows that are missing.

    turn_of  None when no agent archives here
    """
    for found in survey_each(config, str(place), bucket=bucket, known=known):
        if found.partition is None:
            nothing = {"base_offset": None, "next_offset": None, "size_bytes": None}
            yield _identity(found) | nothing | Why("stopped", found.trouble)._asdict()
        if found.log is not None and found.status.state == "unknown":
            yield _identity(found) | _unconfirmed(found)
        if found.log is None or found.status.state == "unknown":
            continue
        ranges = explain(
            found.log,
            found.head,
            policy=found.policy,
            tail_age_ms=found.tail_age_ms,
            now_ms=SystemClock().now_ms(),
            turn=turn_of(place) if turn_of else None,
            trouble=found.status.reason if found.status.state == "recovered" else found.trouble,
            origin=found.origin,
            stream=found.stream,
        )
        for each in ranges:
            yield _identity(found) | {
                "base_offset": each.base_offset,
                "next_offset": each.next_offset,
                "size_bytes": each.size_bytes,
                **each.why._asdict(),
            }


def _unconfirmed(found: Surveyed) -> dict[str, Any]:
    """The range that is not archived by what is known without the store, or the whole log where nothing is known."""
    status, log = found.status, found.log
    assert log is not None
    end = log.high_watermark if log.high_watermark is not None else log.start_offset
    known = "nothing is known of its archive"
    if status.last_offset is not None:
        known = f"by the control log offsets {status.archive_start} to {status.last_offset} are archived"
    elif status.archive_start is not None:
        known = "by the control log nothing is archived"
    first = log.start_offset if status.last_offset is None else max(log.start_offset, status.last_offset + 1)
    why = Why("store-away", f"{status.reason}; {known}")
    return {"base_offset": min(first, end), "next_offset": end, "size_bytes": status.lag_bytes, **why._asdict()}


def offset_rows(
    config: Config,
    place: TopicPartition,
    offset: int,
    *,
    bucket: Bucket | None = None,
    known: Knowledge | None = None,
    damaged: Collection[str] = (),
) -> Iterator[dict[str, Any]]:
    """One row: where `offset` is read. Raises as `range_rows`. damaged: the keys of objects that are known to be damaged"""
    cache = open_cache(config)
    cached = {each.name for each in cache.show()}
    cache.close()
    bucket = bucket or open_bucket(config)
    surveyed, away = list[Surveyed](), None
    try:
        for found in survey_each(config, str(place), bucket=bucket, known=known):
            surveyed.append(found)
    except (TransientError, Unauthorised) as error:
        away = error
    if known is None and away is None:
        config = with_commands(config, bucket.manifests)
    for found in _current(surveyed):
        assert found.partition
        located = locate_offset(
            offset,
            found.partition,
            found.log,
            found.head,
            config.hydration_for(place.topic),
            bucket,
            cached,
            now_ms=SystemClock().now_ms(),
            origin=found.origin,
            set_by=config.origin_for(place.topic, "read_priority"),
            local_trouble=found.trouble if found.log is None else "",
        )
        if away is not None and found.head is None and not located.tiers:  # that the local log lacks it says nothing of the archive
            located = replace(located, reason=f"it is not in the local log, and {found.status.reason}")
        release = known.release_reason(found.partition) if known is not None else ""
        damage = damage_text({located.key}) if located.key in damaged else ""
        yield _identity(found) | asdict(located) | {"release": release, "damage": damage}
    if away is not None:
        raise away


def _current(surveyed: Sequence[Surveyed]) -> Sequence[Surveyed]:
    """Not the archive of a topic that was created again since: readers of the name get the log that is here."""
    every = [each for each in surveyed if each.partition]
    return [each for each in every if each.log] or every


def _identity(found: Surveyed) -> dict[str, Any]:
    return {"topic": found.status.topic, "partition": found.status.partition, "topic_id": found.status.topic_id}
