"""What /v1/status answers: partitions or topics as this agent knows them, and how old that is. Plain functions of a board's entries."""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import msgspec

from headwater.admin.metrics import STALLED
from headwater.admin.status_board import DAMAGED, UNMEASURED, BoardEntry, state_of
from headwater.drill.report_store import LastDrill
from headwater_core.partition import PartitionId

LIMIT, LIMIT_MAX = 1000, 2000  # topics or partitions on a page: more would take longer than 50 ms
DAMAGED_MAX = 100  # topics that a page names


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
    cached_bytes    of it in the local cache
    known_age_s     how long ago the bucket last said what stands here of the archive
    released_end    what its broker was asked to delete ends before this offset; released_bytes: how much that was; release_reason: why
                    it was not more. All since the agent started
    release_group   which group the release waits for; "" for none. release_group_offset: the first offset that it has not read;
                    release_blocked_ms: since when that is so, milliseconds since the epoch; release_blocked_bytes: how much waits
    trigger_trouble why offload_after or offload_when_local_exceeds is not applied; "" where neither is set, or both are
    stream_trouble  why streaming offload takes nothing more of it for now; "" where it does, or it is not streamed
    merge_trouble   why what is to become one object, such as the chunks of a full segment, does not; "" where it does
    collection_trouble  why nothing that is not listed is deleted, or not all, until a person acts; "" where all is
    damage          which of its objects are known to be damaged, and what to do; "" where none is
    store_try_ms    when the agent tries the store again, which it leaves alone until then
    high_watermark_source  who said the high watermark: `broker`, `checkpoint`, or nobody; high_watermark_age_s: how long ago
    age_s           how long ago all of this was last seen to be so
    """

    topic: str
    partition: int
    topic_id: str
    archive_start: int | None
    local_start: int | None
    last_offset: int | None
    high_watermark: int | None
    lag_bytes: int | None
    lag_s: float | None
    archived_bytes: int | None
    objects: int | None
    cached_bytes: int
    known_age_s: float | None
    state: str
    reason: str
    released_end: int | None
    released_bytes: int
    release_reason: str
    release_group: str
    release_group_offset: int | None
    release_blocked_ms: int | None
    release_blocked_bytes: int
    trigger_trouble: str
    stream_trouble: str
    merge_trouble: str
    collection_trouble: str
    damage: str
    store_try_ms: int | None
    high_watermark_source: str
    high_watermark_age_s: float | None
    age_s: float


class StatusSum(msgspec.Struct, frozen=True, kw_only=True):
    """Several partitions.

    states        how many are in which state
    lag_bytes, lag_s  the sum, and the longest, of those whose lag is known; null: of none. Partitions that another agent archives count
                  in neither
    unknown_lags  partitions whose lag is not known
    worst         the partition that lags longest; null: none does
    archived_bytes    of those whose archive's size is known
    unknown_sizes partitions that may be archived, and of which it is not known how much is
    cached_bytes  in the local cache
    age_s         of what was seen longest ago; null: there are no partitions
    """

    partitions: int
    states: dict[str, int]
    lag_bytes: int | None
    lag_s: float | None
    unknown_lags: int
    worst: str | None
    archived_bytes: int
    unknown_sizes: int
    cached_bytes: int
    age_s: float | None


class TopicRow(StatusSum, frozen=True, kw_only=True):
    """state, reason: of a partition that has stopped, if there is one, else of the one that lags longest"""

    topic: str
    state: str
    reason: str


class ClusterFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Snapshots of the cluster's metadata.

    number, taken_ms  of the newest that this agent knows of; null: of none. A cluster in which nothing changes needs no newer one
    lag_s             for how long the newest state has not been archived; 0: it is
    failure, failed_ms  why and when the last attempt failed; "" and null after one that did not
    """

    number: int | None
    taken_ms: int | None
    lag_s: float
    failure: str
    failed_ms: int | None


class Outage(msgspec.Struct, frozen=True, kw_only=True):
    """
    what      `store` or `broker`
    since_ms  when it last answered, or was first called in vain, milliseconds since the epoch
    reason    of the last call that failed
    """

    what: str
    since_ms: int
    reason: str


class StatusPage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    at_ms       when this was answered, milliseconds since the epoch
    whole       all that the filters let through, on this page or not
    has_log_directories  has this agent any? One without keeps no status: it knows of no partition, and is not wrong about any
    listed      have the log directories been listed? Until then there may be partitions here that are not known
    unseen      partitions to which something has happened that was not looked at yet
    store_failing_s  how long the store has answered no call of the agent's; 0 while it answers, and while it is not called
    outages     what does not answer, or refuses, though it is called; absent while all answers
    damaged_topics   whose documents in the bucket cannot be read, and why: some of their partitions may be missing here
    disk_full_in_s  while releases wait for groups: so long until a disk of the log directories is full at the pace of the last hour,
                where that is sooner than the groups count as gone; else absent
    cluster     absent where this agent archives none, or knows nothing of it yet
    topics      by name; absent with ?partitions=true
    partitions  by topic and number; absent without it
    next_after  the value of `after` for the next page; absent on the last one
    last_drill  what the last recovery drill here has shown; absent where there was none
    """

    at_ms: int
    whole: StatusSum
    has_log_directories: bool
    listed: bool
    unseen: int
    store_failing_s: float
    damaged_topics: dict[str, str]
    outages: list[Outage] | msgspec.UnsetType = msgspec.UNSET
    disk_full_in_s: float | msgspec.UnsetType = msgspec.UNSET
    cluster: ClusterFacts | msgspec.UnsetType = msgspec.UNSET
    topics: list[TopicRow] | msgspec.UnsetType = msgspec.UNSET
    partitions: list[PartitionRow] | msgspec.UnsetType = msgspec.UNSET
    next_after: str | msgspec.UnsetType = msgspec.UNSET
    last_drill: LastDrill | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFacts:
    """What an agent knows beside its partitions, as it is now.

    cached_bytes  by the folder of the cache
    store_try_ms  see PartitionRow
    held_back     the same in words; "" while the store answers
    collection_troubles  by partition: see PartitionRow
    damage        by the folder of the cache: see PartitionRow
    others        see StatusPage
    """

    has_log_directories: bool = True
    listed: bool = True
    unseen: int = 0
    cached_bytes: Mapping[str, int] = field(default_factory=dict)
    store_try_ms: int | None = None
    held_back: str = ""
    store_failing_s: float = 0.0
    outages: Sequence[Outage] = ()
    disk_full_in_s: float | None = None
    collection_troubles: Mapping[PartitionId, str] = field(default_factory=dict)
    damage: Mapping[str, str] = field(default_factory=dict)
    damaged_topics: Mapping[str, str] = field(default_factory=dict)
    cluster: ClusterFacts | None = None
    last_drill: LastDrill | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusQuery:
    """
    topic        a name, or a pattern with * and ?; None: all
    partition    only partitions of this number; None: all
    states       only partitions in one of these; none: all
    lag_above_s  only partitions that lag longer, or whose lag is unknown; None: all
    partitions   a row for each partition, not for each topic
    after        the page begins behind this one
    """

    topic: str | None = None
    partition: int | None = None
    states: frozenset[str] = frozenset()
    lag_above_s: float | None = None
    partitions: bool = False
    after: StatusKey | None = None
    limit: int = LIMIT

    @property
    def is_of_all(self) -> bool:
        """Does it let everything through?"""
        return not (self.topic is not None or self.partition is not None or self.states or self.lag_above_s is not None)

    def names(self, place: tuple[str, int]) -> bool:
        """Is it of the topic and number that are asked for?"""
        topic, partition = place
        return self.partition in (None, partition) and (self.topic is None or fnmatchcase(topic, self.topic))


NO_FACTS = PageFacts()
_key = attrgetter("status.topic", "status.partition")  # which sorts ten thousand in half the time that a function takes


def page_of(entries: Iterable[BoardEntry], query: StatusQuery, facts: PageFacts = NO_FACTS, *, now_s: float, at_ms: int) -> StatusPage:
    """now_s: of the board's clock"""
    found = sorted(entries if query.is_of_all else (entry for entry in entries if _is_wanted(entry, query, facts, now_s)), key=_key)
    start = query.after or StatusKey("", -1)
    topics: list[TopicRow] | msgspec.UnsetType = msgspec.UNSET
    rows: list[PartitionRow] | msgspec.UnsetType = msgspec.UNSET
    more: str | msgspec.UnsetType = msgspec.UNSET
    if query.partitions:
        rest = found[bisect_right(found, (start.topic, start.partition), key=_key) :]
        end = query.limit
        while end < len(rest) and _key(rest[end]) == _key(rest[end - 1]):  # two incarnations of a topic stay on one page
            end += 1
        rows = [row_of(entry, facts, now_s) for entry in rest[:end]]
        if end < len(rest):
            more = f"{rows[-1].topic}:{rows[-1].partition}"
    else:
        topics = []
        for topic, group in groupby(found, key=lambda entry: entry.status.topic):
            if topic > start.topic:
                if len(topics) == query.limit:
                    more = topics[-1].topic
                    break
                topics.append(_topic(topic, list(group), facts, now_s))
    return StatusPage(
        at_ms=at_ms,
        whole=sum_of(found, facts, now_s),
        has_log_directories=facts.has_log_directories,
        listed=facts.listed,
        unseen=facts.unseen,
        store_failing_s=round(facts.store_failing_s, 3),
        damaged_topics=dict(sorted(facts.damaged_topics.items())[:DAMAGED_MAX]),
        outages=list(facts.outages) or msgspec.UNSET,
        disk_full_in_s=msgspec.UNSET if facts.disk_full_in_s is None else round(facts.disk_full_in_s),
        cluster=facts.cluster or msgspec.UNSET,
        topics=topics,
        partitions=rows,
        next_after=more,
        last_drill=facts.last_drill or msgspec.UNSET,
    )


def _is_wanted(entry: BoardEntry, query: StatusQuery, facts: PageFacts, now_s: float) -> bool:
    if query.states and state_of(entry, facts.damage) not in query.states:
        return False
    if (query.topic is not None or query.partition is not None) and not query.names(entry.place):
        return False
    if query.lag_above_s is None:
        return True
    lag_s = entry.lag_s(now_s)
    return _is_measured(entry) and (lag_s is None or lag_s > query.lag_above_s)


def _is_measured(entry: BoardEntry) -> bool:
    return entry.status.state not in UNMEASURED


def sum_of(entries: Iterable[BoardEntry], facts: PageFacts, now_s: float) -> StatusSum:
    """In one pass: there may be ten thousand."""
    states: Counter[str] = Counter()
    lag_bytes = known_lags = unknown_lags = archived_bytes = unknown_sizes = cached_bytes = 0
    lag_s, worst, seen_s, cached = 0.0, None, now_s, facts.cached_bytes
    for entry in entries:
        status = entry.status
        states[state_of(entry, facts.damage) if facts.damage else status.state] += 1
        if entry.now_s < seen_s:
            seen_s = entry.now_s
        if cached:
            cached_bytes += cached.get(entry.folder, 0)
        if entry.is_sized:
            archived_bytes += status.archived_bytes
        else:
            unknown_sizes += 1
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
        unknown_sizes=unknown_sizes,
        cached_bytes=cached_bytes,
        age_s=round(now_s - seen_s, 3) if states else None,
    )


def _topic(topic: str, entries: Sequence[BoardEntry], facts: PageFacts, now_s: float) -> TopicRow:
    def urgency(entry: BoardEntry) -> tuple[bool, bool, float]:
        lag_s = entry.lag_s(now_s) if _is_measured(entry) else 0.0
        return entry.status.state in STALLED, entry.folder in facts.damage, math.inf if lag_s is None else lag_s

    first = max(entries, key=urgency)
    state, reason = state_of(first, facts.damage), _reason(first, facts)
    return TopicRow(**msgspec.structs.asdict(sum_of(entries, facts, now_s)), topic=topic, state=state, reason=reason)


def _reason(entry: BoardEntry, facts: PageFacts) -> str:
    """The reason of its state: of `damaged`, what is damaged comes before what archiving waits for."""
    if state_of(entry, facts.damage) != DAMAGED:
        return entry.status.reason
    return "; ".join(filter(None, (facts.damage[entry.folder], entry.status.reason)))


def _cached(entry: BoardEntry, facts: PageFacts) -> int:
    return facts.cached_bytes.get(entry.folder, 0) if facts.cached_bytes else 0


def row_of(entry: BoardEntry, facts: PageFacts, now_s: float) -> PartitionRow:
    status, lag_s, reason = entry.status, entry.lag_s(now_s), _reason(entry, facts)
    is_held_back = facts.held_back and status.state in ("due", "unknown")
    return PartitionRow(
        topic=status.topic,
        partition=status.partition,
        topic_id=status.topic_id,
        archive_start=status.archive_start,
        local_start=status.local_start,
        last_offset=status.last_offset,
        high_watermark=status.high_watermark,
        lag_bytes=status.lag_bytes,
        lag_s=None if lag_s is None else round(lag_s, 3),
        archived_bytes=status.archived_bytes if entry.is_sized else None,
        objects=status.objects if entry.is_sized else None,
        cached_bytes=_cached(entry, facts),
        known_age_s=None if status.known_age_s is None else round(status.known_age_s + now_s - entry.at_s, 3),
        state=state_of(entry, facts.damage),
        reason=f"{reason}; {facts.held_back}" if is_held_back else reason,
        released_end=status.released_end,
        released_bytes=status.released_bytes,
        release_reason=status.release_reason,
        release_group=status.release_group,
        release_group_offset=status.release_group_offset,
        release_blocked_ms=status.release_blocked_ms,
        release_blocked_bytes=status.release_blocked_bytes,
        trigger_trouble=status.trigger_trouble,
        stream_trouble=status.stream_trouble,
        merge_trouble=status.merge_trouble,
        collection_trouble=facts.collection_troubles.get(entry.partition, "") if entry.partition is not None else "",
        damage=facts.damage.get(entry.folder, ""),
        store_try_ms=facts.store_try_ms,
        high_watermark_source=status.high_watermark_source,
        high_watermark_age_s=None if entry.said_s is None else round(max(0.0, now_s - entry.said_s), 3),
        age_s=round(max(0.0, now_s - entry.now_s), 3),
    )
