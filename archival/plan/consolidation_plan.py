"""Which live entries are the chunks of one segment that is full, and are to become one object. Values in, a plan out.

A segment is full when nothing is added to it any more: it has its length, as nearly as runs like its last one can fill it, it was written
while it filled, or its writer or its fence is another one now. Its entries become one by the same rules as merged ones do: see
archival.plan.merge_plan. One of a single chunk is one object already.
"""

from collections.abc import Container
from typing import NamedTuple

from archival.plan.chunk_place import ChunkLimits, continued
from archival.plan.merge_plan import LOOKED_AT_MAX, may_be_one
from headwater_core.epochs import EpochHistory
from headwater_core.layouts.chunks import Variant
from headwater_core.layouts.chunks.chunks_layout import CUT_NAME
from manifests import chunk_keys
from manifests.chunk_keys import LAYOUT, ChunkName
from manifests.entry import Entry
from manifests.head import Head


class ConsolidationPlan(NamedTuple):
    """What to consolidate next.

    group   the chunks of one segment; empty: there is none
    passed  below this offset nothing else is to be consolidated, as far as this plan has seen
    is_cut_short  it has not looked at all there is
    """

    group: tuple[Entry, ...]
    passed: int
    is_cut_short: bool = False


def plan_consolidation(
    head: Head,
    history: EpochHistory,
    *,
    end: int,
    span_ms: int,
    passed: int = 0,
    skipped: Container[int] = (),
) -> ConsolidationPlan:
    """The entries of the first full segment of `head`, all of whose chunks are listed.

    end      where what is full ends: see open_from
    span_ms, passed  see plan_merge; a segment that reaches below `passed` is looked at as a whole
    skipped  base offsets of segments that are passed over

    Reads pages from `passed` on. Raises what PageReader.read does.
    """
    group: list[Entry] = []
    for looked_at, entry in enumerate(head.entries.within(_begin(head, passed), end)):
        if looked_at == LOOKED_AT_MAX:
            return ConsolidationPlan((), group[0].base_offset if group else entry.base_offset, is_cut_short=True)
        name = _chunk(entry)
        if name is not None and group and _continues(group[-1], entry, name):
            group.append(entry)
            continue
        if _is_complete(group, head, history, span_ms):
            return ConsolidationPlan(tuple(group), group[0].base_offset)
        group = [entry] if name is not None and name.position == 0 and entry.base_offset not in skipped else []
    if _is_complete(group, head, history, span_ms):
        return ConsolidationPlan(tuple(group), group[0].base_offset)
    return ConsolidationPlan((), max(passed, min(end, head.next_offset)))


def open_from(head: Head, queue: str, limits: ChunkLimits, *, streams: bool = False) -> int:
    """Where the segment begins that the next chunk is added to; where the live entries end when there is none.

    A segment in which a run as long as its last one has no room is full: a partition that has nothing more to archive would never say so.

    queue, limits  of what is written now
    streams        segments are listed when they are closed, and the next chunk is not one of theirs
    """
    last = head.entries[-1] if head.entries and not streams else None
    following = None if last is None else continued(last, queue, limits)
    if last is None or following is None or following.position + last.size_bytes > limits.segment_bytes:
        return head.next_offset
    return following.place.base


def _begin(head: Head, passed: int) -> int:
    """`passed`, or where the segment begins that lies across it."""
    entry = head.entries.at(passed) if passed else None
    name = None if entry is None else _chunk(entry)
    return passed if name is None else min(passed, name.place.base)


def _chunk(entry: Entry) -> ChunkName | None:
    """What the key of a whole chunk says."""
    name = chunk_keys.parse(entry.key) if entry.layout == LAYOUT and not entry.gap and not entry.is_cut else None
    return name if name is not None and name.position is not None else None


def _continues(before: Entry, entry: Entry, name: ChunkName) -> bool:
    last = chunk_keys.named(before.key)
    assert last.position is not None
    return (
        name.place.variant is Variant.APPEND
        and name.place == last.place
        and name.position == last.position + before.size_bytes
        and before.next_offset == entry.base_offset
    )


def _is_complete(group: list[Entry], head: Head, history: EpochHistory, span_ms: int) -> bool:
    if len(group) == 1:
        cut = group[0].context.get(CUT_NAME, "")
        return bool(group[0].digest) and cut.isdecimal() and 0 < int(cut) < group[0].run_bytes
    return len(group) > 1 and may_be_one(group, head, history, span_ms)
