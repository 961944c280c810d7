"""What /v1/status answers: partitions or topics as this agent knows them, and how old that is. Plain functions of a board's entries."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby
from typing import NamedTuple

import msgspec

from headwater.admin.metrics import STALLED
from headwater.admin.status_board import UNMEASURED, BoardEntry

LIMIT, LIMIT_MAX = 1000, 5000  # topics or partitions on a page


class StatusKey(NamedTuple):
    """Where a page begins or ends: pages are by name, so what is added or removed in between moves nothing else."""

    topic: str
    partition: int


class PartitionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One partition; the fields are those of `headwater status -p -o json`. null: not known, or there is none.

    last_offset     of the archive, inclusive
    high_watermark  first offset that is not committed, as the broker last said
    lag_bytes       committed and not archived
    lag_s           for how long the oldest of it has waited, by its timestamp
    known_age_s     how long ago the bucket last said what stands here of the archive
    age_s           how long ago all of this was last seen to be so
    """

    topic: str
    partition: int
    topic_id: str
    state: str
    reason: str
    archive_start: int | None
    local_start: int | None
    last_offset: int | None
    high_watermark: int | None
    lag_bytes: int | None
    lag_s: float | None
    archived_bytes: int | None
    objects: int | None
    known_age_s: float | None
    age_s: float


class StatusSum(msgspec.Struct, frozen=True, kw_only=True):
    """Several partitions.

    states        how many are in which state
    lag_bytes, lag_s  the sum, and the longest, of those whose lag is known; null: of none. Partitions that another agent archives count
                  in neither
    unknown_lags  partitions whose lag is not known
    worst         the partition that lags longest; null: none does
    archived_bytes    of those whose archive's size is known
    age_s         of what was seen longest ago; null: there are no partitions
    """

    partitions: int
    states: dict[str, int]
    lag_bytes: int | None
    lag_s: float | None
    unknown_lags: int
    worst: str | None
    archived_bytes: int
    age_s: float | None


class TopicRow(StatusSum, frozen=True, kw_only=True):
    """state, reason: of a partition that has stopped, if there is one, else of the one that lags longest"""

    topic: str
    state: str
    reason: str


class StatusPage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    at_ms       when this was answered, milliseconds since the epoch
    whole       all that the filters let through, on this page or not
    topics      by name; absent with ?partitions=true
    partitions  by topic and number; absent without it
    next_after  the value of `after` for the next page; absent on the last one
    """

    at_ms: int
    whole: StatusSum
    topics: list[TopicRow] | msgspec.UnsetType = msgspec.UNSET
    partitions: list[PartitionRow] | msgspec.UnsetType = msgspec.UNSET
    next_after: str | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusQuery:
    """
    topic        a name, or a pattern with * and ?; None: all
    states       only partitions in one of these; none: all
    lag_above_s  only partitions that lag longer, or whose lag is unknown; None: all
    partitions   a row for each partition, not for each topic
    after        the page begins behind this one
    """

    topic: str | None = None
    states: frozenset[str] = frozenset()
    lag_above_s: float | None = None
    partitions: bool = False
    after: StatusKey | None = None
    limit: int = LIMIT


def page_of(entries: Iterable[BoardEntry], query: StatusQuery, *, now_s: float, at_ms: int) -> StatusPage:
    """now_s: of the board's clock"""
    found = sorted((entry for entry in entries if _is_wanted(entry, query, now_s)), key=_key)
    whole = _sum(found, now_s)
    start = query.after or StatusKey("", -1)
    if query.partitions:
        rest = [entry for entry in found if _key(entry) > start]
        rows = [_row(entry, now_s) for entry in rest[: query.limit]]
        more = f"{rows[-1].topic}:{rows[-1].partition}" if len(rest) > query.limit else msgspec.UNSET
        return StatusPage(at_ms=at_ms, whole=whole, partitions=rows, next_after=more)
    topics: list[TopicRow] = []
    for topic, group in groupby(found, key=lambda entry: entry.status.topic):
        if topic > start.topic:
            if len(topics) == query.limit:
                return StatusPage(at_ms=at_ms, whole=whole, topics=topics, next_after=topics[-1].topic)
            topics.append(_topic(topic, list(group), now_s))
    return StatusPage(at_ms=at_ms, whole=whole, topics=topics)


def _is_wanted(entry: BoardEntry, query: StatusQuery, now_s: float) -> bool:
    status = entry.status
    if query.states and status.state not in query.states:
        return False
    if query.topic is not None and not fnmatchcase(status.topic, query.topic):
        return False
    if query.lag_above_s is None:
        return True
    lag_s = entry.lag_s(now_s)
    return _is_measured(entry) and (lag_s is None or lag_s > query.lag_above_s)


def _key(entry: BoardEntry) -> tuple[str, int]:
    return entry.status.topic, entry.status.partition


def _is_measured(entry: BoardEntry) -> bool:
    return entry.status.state not in UNMEASURED


def _sum(entries: Iterable[BoardEntry], now_s: float) -> StatusSum:
    """In one pass: there may be ten thousand."""
    states: Counter[str] = Counter()
    lag_bytes = known_lags = unknown_lags = archived_bytes = 0
    lag_s, worst, seen_s = 0.0, None, now_s
    for entry in entries:
        status = entry.status
        states[status.state] += 1
        seen_s = min(seen_s, entry.now_s)
        if entry.is_sized:
            archived_bytes += status.archived_bytes
        if status.state in UNMEASURED:
            continue
        lag = entry.lag_s(now_s)
        if lag is None:
            unknown_lags += 1
            continue
        known_lags += 1
        lag_bytes += status.lag_bytes or 0
        if lag > lag_s:
            lag_s, worst = lag, status
    return StatusSum(
        partitions=states.total(),
        states=dict(sorted(states.items())),
        lag_bytes=lag_bytes if known_lags else None,
        lag_s=round(lag_s, 3) if known_lags else None,
        unknown_lags=unknown_lags,
        worst=f"{worst.topic}:{worst.partition}" if worst is not None else None,
        archived_bytes=archived_bytes,
        age_s=round(now_s - seen_s, 3) if states else None,
    )


def _topic(topic: str, entries: Sequence[BoardEntry], now_s: float) -> TopicRow:
    def urgency(entry: BoardEntry) -> tuple[bool, float]:
        lag_s = entry.lag_s(now_s) if _is_measured(entry) else 0.0
        return entry.status.state in STALLED, math.inf if lag_s is None else lag_s

    first = max(entries, key=urgency).status
    return TopicRow(**msgspec.structs.asdict(_sum(entries, now_s)), topic=topic, state=first.state, reason=first.reason)


def _row(entry: BoardEntry, now_s: float) -> PartitionRow:
    status, lag_s = entry.status, entry.lag_s(now_s)
    return PartitionRow(
        topic=status.topic,
        partition=status.partition,
        topic_id=status.topic_id,
        state=status.state,
        reason=status.reason,
        archive_start=status.archive_start,
        local_start=status.local_start,
        last_offset=status.last_offset,
        high_watermark=status.high_watermark,
        lag_bytes=status.lag_bytes,
        lag_s=None if lag_s is None else round(lag_s, 3),
        archived_bytes=status.archived_bytes if entry.is_sized else None,
        objects=status.objects if entry.is_sized else None,
        known_age_s=None if status.known_age_s is None else round(status.known_age_s + now_s - entry.at_s, 3),
        age_s=round(max(0.0, now_s - entry.now_s), 3),
    )
