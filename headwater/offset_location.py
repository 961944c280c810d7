"""Where one offset of a partition is read: which tier, object and chunk serve it, or why it cannot be read."""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from archival.watermark import WatermarkOrigin
from headwater.wiring import Bucket
from headwater_core.clock import time_text
from headwater_core.errors import CorruptData, HeadwaterError
from headwater_core.layouts import open_layout
from headwater_core.partition import PartitionId
from headwater_core.segments.local_log import LocalLog
from hydration.archive.chunks import plan_chunks
from hydration.archive.manifest_view import extent_of
from hydration.cache.cache_directory import chunk_name
from hydration.config import HydrationConfig, ReadPriority
from hydration.scope import Scope, Tier, scope_of
from manifests import keys
from manifests.entry import Entry
from manifests.entry_tree import EntryTree
from manifests.head import Head
from manifests.page import is_ahead, page_key


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetLocation:
    """One line of `headwater explain TOPIC:P@OFFSET`; None and "" where there is nothing to say.

    tiers       those that hold the offset, the one that is asked first in front: local, archive
    answers     the first of them that can be read now; "" when none can
    why         why it is that one
    read_priority  the topic's, and where it was set
    reason      why no tier can serve it; what is uncertain about one that can
    segment     the local file that holds it
    key         the archived object that serves it
    chunk       which of the object's chunks, counted from 0; chunk_position and chunk_bytes: where it lies in the object
    cached      is the chunk in the local cache?
    listed_in   the document or page that lists the object, or the gap
    superseded  objects of dead branches, or that were replaced, which held the offset
    uncommitted the open transaction that hides it from readers of committed records
    dated       which time a record of the object has that is later than its publication, or than now, and what it counts as
    """

    offset: int
    readable: bool
    tiers: tuple[str, ...] = ()
    answers: str = ""
    why: str = ""
    read_priority: str = ""
    read_priority_origin: str = ""
    reason: str = ""
    segment: str = ""
    key: str = ""
    base_offset: int | None = None
    last_offset: int | None = None
    chunk: int | None = None
    chunk_position: int | None = None
    chunk_bytes: int | None = None
    cached: bool | None = None
    listed_in: str = ""
    superseded: tuple[str, ...] = ()
    uncommitted: str = ""
    dated: str = ""


@dataclass(frozen=True, slots=True)
class _Chunk:
    number: int
    position: int
    size_bytes: int
    cached: bool


def locate_offset(
    offset: int,
    partition: PartitionId,
    log: LocalLog | None,
    head: Head | None,
    settings: HydrationConfig,
    bucket: Bucket,
    cached: Collection[str],
    *,
    now_ms: int,
    origin: WatermarkOrigin | None = None,
    set_by: str = "",
    local_trouble: str = "",
) -> OffsetLocation:
    """By the entry's index, which is read from the bucket.

    cached         the names of the cached files
    origin         of the log's high watermark
    set_by         where the read priority was set
    local_trouble  why there is no `log` although there is a directory

    Raises what a page of the head raises; an index that cannot be read is a reason.
    """
    extent = extent_of(head) if head else None
    scope = scope_of(log, extent, settings.read_priority)
    entry, listed_in = _look_up(partition, head, offset) if head else (None, "")
    tiers = tuple(tier for tier in scope.order(settings.read_priority, offset) if tier is Tier.LOCAL or (entry and not entry.gap))
    segment = _segment(log, offset) if Tier.LOCAL in tiers else ""
    chunk, doubt = None, ""
    if entry and not entry.gap and Tier.ARCHIVE in tiers:
        try:
            chunk = _chunk(partition, entry, offset, settings.chunk_bytes, bucket, cached)
        except HeadwaterError as error:
            doubt = f"the object's index cannot be read: {error}"
    live = entry if entry and not entry.gap else None
    troubles = {Tier.LOCAL: local_trouble or _unreadable_segment(segment), Tier.ARCHIVE: doubt}
    answers = next((tier for tier in tiers if not troubles[tier]), None)
    unread = "; ".join(filter(None, (troubles[tier] for tier in tiers)))
    return OffsetLocation(
        offset=offset,
        readable=answers is not None,
        tiers=tuple(tier.value for tier in tiers),
        answers=answers.value if answers else "",
        why=explain_tier(answers, settings.read_priority, scope, offset, troubles) if answers else "",
        read_priority=settings.read_priority.value,
        read_priority_origin=set_by,
        reason=unread if tiers else local_trouble or _unreadable(scope, head, entry, offset, origin if log else None),
        segment=segment,
        key=live.key if live else "",
        base_offset=entry.base_offset if entry else None,
        last_offset=entry.last_offset if entry else None,
        chunk=chunk.number if chunk else None,
        chunk_position=chunk.position if chunk else None,
        chunk_bytes=chunk.size_bytes if chunk else None,
        cached=chunk.cached if chunk else None,
        listed_in=listed_in,
        superseded=tuple(each.key for each in _superseded(head, offset)) if head else (),
        uncommitted=_uncommitted(extent.open_from, offset) if live and extent else "",
        dated=dated_text(live, now_ms) if live else "",
    )


def _uncommitted(open_from: int | None, offset: int) -> str:
    if open_from is None or offset < open_from:
        return ""
    return f"at the end of the archive a transaction is open from offset {open_from} on: read_committed scans and exports end there"


def dated_text(entry: Entry, now_ms: int) -> str:
    """`OffsetLocation.dated`: "" where no record is dated later than it was published, or, where that is not known, later than now."""
    last_ms, counts_ms = entry.last_timestamp_ms, entry.newest_ms
    if last_ms is not None and is_ahead(entry, now_ms):
        return f"up to {time_text(last_ms)}, later than now, in a run of an older version: retention keeps it and what follows until then"
    if last_ms is None or counts_ms is None or last_ms == counts_ms:
        return ""
    return f"up to {time_text(last_ms)}, later than it was published: it counts as {time_text(counts_ms)}"


def explain_tier(answers: Tier, priority: ReadPriority, scope: Scope, offset: int, troubles: Mapping[Tier, str]) -> str:
    """Why that tier answers for `offset`, which it holds. troubles: why one cannot be read now; "" for none. Pure."""
    if priority in (ReadPriority.LOCAL_ONLY, ReadPriority.OFFLOADED_ONLY):
        return f"{priority.value}: no other tier is asked"
    preferred = Tier.ARCHIVE if priority.prefers_archive else Tier.LOCAL
    if answers is preferred:
        return f"{priority.value}, and it holds the offset"
    named = "the archive" if preferred is Tier.ARCHIVE else "the local log"
    if troubles[preferred]:
        return f"{priority.value}, but {named} cannot be read: {troubles[preferred]}"
    span = scope.archive if preferred is Tier.ARCHIVE else scope.local
    if span is None:
        return f"{priority.value}, but {named} holds nothing"
    if offset < span.start:
        return f"{priority.value}, but {named} begins at offset {span.start}"
    if offset >= span.end:
        return f"{priority.value}, but {named} ends before offset {span.end}"
    if preferred is Tier.LOCAL and scope.keeps_scans_in_archive:
        return f"{priority.value}, but the log is compacted, and its archive begins before it: a scan stays there as far as that reaches"
    return f"{priority.value}, but {named} has a gap there"


def _unreadable_segment(path: str) -> str:
    """Why the local file cannot be read; "" where it can, as far as its first and last bytes show."""
    if not path:
        return ""
    try:
        with open(path, "rb") as file:
            for position in {0, max(0, os.fstat(file.fileno()).st_size - 1)}:
                os.pread(file.fileno(), 1, position)
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    return ""


def _look_up(partition: PartitionId, head: Head, offset: int) -> tuple[Entry | None, str]:
    """The live entry that holds `offset`, gap entries included, and the key of the document that lists it."""
    entries, listed_in = head.entries, keys.head(partition)
    while True:
        item = next((each for each in entries.items if each.base_offset <= offset <= each.last_offset), None)
        if item is None or isinstance(item, Entry):
            return item, listed_in if item else ""
        entries, listed_in = EntryTree(entries.pages.read(item), entries.pages), page_key(partition, item)


def _superseded(head: Head, offset: int) -> list[Entry]:
    held = head.superseded.where(lambda ref: ref.base_offset <= offset <= ref.last_offset)
    return [entry for entry in held if offset in entry and not entry.gap]


def _segment(log: LocalLog | None, offset: int) -> str:
    found = next(iter(log.segments_from(offset)), None) if log else None
    return str(found.segment.path) if found else ""


def _chunk(partition: PartitionId, entry: Entry, offset: int, chunk_bytes: int, bucket: Bucket, cached: Collection[str]) -> _Chunk:
    index = open_layout(entry.layout).read_offloaded(bucket.store, entry).read_index()
    chunk = plan_chunks(index, entry.live_bytes, chunk_bytes).chunk_for(offset)
    try:
        name = chunk_name(partition, entry.uid, chunk.position, chunk.size_bytes)
    except CorruptData:  # a uid that is no name is never cached
        return _Chunk(chunk.number, chunk.position, chunk.size_bytes, False)
    return _Chunk(chunk.number, chunk.position, chunk.size_bytes, name in cached)


def _unreadable(scope: Scope, head: Head | None, entry: Entry | None, offset: int, origin: WatermarkOrigin | None) -> str:
    if offset < scope.log_start:
        return f"below the log start {scope.log_start}: retention has taken it, or it was deleted"
    if offset >= scope.high_watermark:
        said = f" ({origin})" if origin else ""
        return f"at or above the high watermark {scope.high_watermark}{said}: not written, or not replicated yet"
    if entry and entry.gap:
        why = f" ({entry.reason})" if entry.reason else ""
        return f"in a gap: offsets {entry.base_offset} to {entry.last_offset} were gone from the log before they were archived{why}"
    if head and _superseded(head, offset):
        return "superseded: only a dead branch held it"
    return "no tier that may be read holds it: see read_priority, and headwater status"
