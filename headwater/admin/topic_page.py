"""What /v1/topics answers: what holds for a topic, what is here of it and what is archived, as this agent knows it. Plain functions."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import msgspec

from archival.config import ArchivalConfig
from headwater.admin.status_board import ARCHIVE_ONLY, BoardEntry
from headwater.admin.status_page import PageFacts, PartitionRow, StatusSum, row_of, sum_of
from headwater.gateway.config import GatewayConfig
from hydration.config import HydrationConfig
from manifests.pause_list import PauseList


class TopicRules(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that hold for a topic. ArchivalConfig, HydrationConfig and GatewayConfig say what each of them means."""

    archive: str
    layout: str
    chunk_variant: str
    chunk_bytes: int
    chunks_in_flight: int
    chunk_commit_bytes: int
    chunk_commit_age_s: float
    offload: str
    seal_timeout_s: int
    offload_after_s: int | None
    offload_when_local_exceeds: int | None
    max_segment_bytes: int
    max_segment_age_s: int
    release: bool | None
    release_past_groups: bool
    release_ignore_groups_after_s: int
    release_keep_bytes: int
    release_keep_ms: int
    retention_s: int | None
    retention_bytes: int | None
    superseded_retention_s: int
    merge_bytes: int
    merge_after_s: int
    min_saved_percent: int | None
    begin_anew_epoch: int | None
    stale_keys_below: int | None
    recover_from: str | None
    read_priority: str
    earliest: str

    @classmethod
    def of(cls, archival: ArchivalConfig, hydration: HydrationConfig, gateway: GatewayConfig) -> "TopicRules":
        return cls(
            archive=archival.archive.value,
            layout=archival.layout,
            chunk_variant=archival.chunk_variant.value,
            chunk_bytes=archival.chunk_bytes,
            chunks_in_flight=archival.chunk_senders,
            chunk_commit_bytes=archival.chunk_commit_bytes,
            chunk_commit_age_s=archival.chunk_commit_age_s,
            offload=archival.offload.value,
            seal_timeout_s=archival.seal_timeout_s,
            offload_after_s=archival.offload_after_s,
            offload_when_local_exceeds=archival.offload_when_local_exceeds,
            max_segment_bytes=archival.max_segment_bytes,
            max_segment_age_s=archival.max_segment_age_s,
            release=archival.release,
            release_past_groups=archival.release_past_groups,
            release_ignore_groups_after_s=archival.release_ignore_groups_after_s,
            release_keep_bytes=archival.release_keep_bytes,
            release_keep_ms=archival.release_keep_ms,
            retention_s=archival.retention_s,
            retention_bytes=archival.retention_bytes,
            superseded_retention_s=archival.superseded_retention_s,
            merge_bytes=archival.merge_bytes,
            merge_after_s=archival.merge_after_s,
            min_saved_percent=archival.min_saved_percent,
            begin_anew_epoch=archival.begin_anew_epoch,
            stale_keys_below=archival.stale_keys_below,
            recover_from=archival.recover_from,
            read_priority=hydration.read_priority.value,
            earliest=gateway.earliest.value,
        )


class PauseRow(msgspec.Struct, frozen=True, kw_only=True):
    """One pause in force. topic, partition: what is paused; null: all of them. by: which node or person"""

    topic: str | None
    partition: int | None
    since_ms: int
    by: str


class TopicSummary(StatusSum, frozen=True, kw_only=True):
    """topic_ids: of the incarnations that are here or archived; local_partitions: those that have a log here"""

    topic: str
    topic_ids: list[str]
    local_partitions: int


class TopicList(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """at_ms: when this was answered; topics: by name; next_after: the value of `after` for the next page; absent on the last one"""

    at_ms: int
    topics: list[TopicSummary]
    next_after: str | msgspec.UnsetType = msgspec.UNSET


class TopicPage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    pauses      that hold for any of it; null while the bucket has not said what is paused
    partitions  by number, those of one number by incarnation
    next_after  the number to give as `after` for the next page; absent on the last one
    """

    at_ms: int
    topic: TopicSummary
    settings: TopicRules
    pauses: list[PauseRow] | None
    partitions: list[PartitionRow]
    next_after: int | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True, slots=True)
class TopicSources:
    """settings: of a topic, as they hold now; pauses: as far as the agent knows them, None while it does not. Neither waits."""

    settings: Callable[[str], TopicRules] = lambda _: TopicRules.of(ArchivalConfig(), HydrationConfig(), GatewayConfig())
    pauses: Callable[[], PauseList | None] = lambda: None


def topic_list(entries: Iterable[BoardEntry], facts: PageFacts, *, after: str, limit: int, now_s: float, at_ms: int) -> TopicList:
    """The topics whose names come behind `after`. now_s: of the board's clock"""
    found = sorted((entry for entry in entries if entry.status.topic > after), key=lambda entry: entry.status.topic)
    topics: list[TopicSummary] = []
    for topic, group in groupby(found, key=lambda entry: entry.status.topic):
        if len(topics) == limit:
            return TopicList(at_ms=at_ms, topics=topics, next_after=topics[-1].topic)
        topics.append(_summary(topic, list(group), facts, now_s))
    return TopicList(at_ms=at_ms, topics=topics)


def page_of_topic(
    topic: str,
    entries: Iterable[BoardEntry],
    facts: PageFacts,
    sources: TopicSources,
    *,
    partition: int | None = None,
    after: int = -1,
    limit: int,
    now_s: float,
    at_ms: int,
) -> TopicPage | None:
    """One topic, or one partition of it; None where nothing of that is known. The sum is of all its partitions that are asked for."""
    wanted = [each for each in entries if each.status.topic == topic and partition in (None, each.status.partition)]
    if not wanted:
        return None
    wanted.sort(key=lambda entry: (entry.status.partition, entry.status.topic_id))
    rest = [entry for entry in wanted if entry.status.partition > after]
    end = limit
    while end < len(rest) and rest[end].status.partition == rest[end - 1].status.partition:
        end += 1
    known = sources.pauses()
    return TopicPage(
        at_ms=at_ms,
        topic=_summary(topic, wanted, facts, now_s),
        settings=sources.settings(topic),
        pauses=None if known is None else _pauses(known, topic, partition),
        partitions=[row_of(entry, facts, now_s) for entry in rest[:end]],
        next_after=rest[end - 1].status.partition if end < len(rest) else msgspec.UNSET,
    )


def _pauses(known: PauseList, topic: str, partition: int | None) -> list[PauseRow]:
    return [
        PauseRow(topic=each.topic, partition=each.partition, since_ms=each.since_ms, by=each.by)
        for each in known.pauses
        if each.in_force and each.topic in (None, topic) and (partition is None or each.partition in (None, partition))
    ]


def _summary(topic: str, entries: Sequence[BoardEntry], facts: PageFacts, now_s: float) -> TopicSummary:
    return TopicSummary(
        **msgspec.structs.asdict(sum_of(entries, facts, now_s)),
        topic=topic,
        topic_ids=sorted({each.status.topic_id for each in entries if each.status.topic_id}),
        local_partitions=sum(each.status.state != ARCHIVE_ONLY for each in entries),
    )
