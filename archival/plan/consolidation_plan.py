"""Which live entries are the chunks of one segment that is full, and are to become one object. Values in, a plan out.

A segment is full when nothing is added to it any more: it has its length, or its writer or its fence is another one now. Its entries become
one by the same rules as merged ones do: see archival.plan.merge_plan. One of a single chunk is one object already.
"""

from archival.plan.chunk_place import ChunkLimits, continued
from archival.plan.merge_plan import may_be_one
from headwater_core.epochs import EpochHistory
from headwater_core.layouts.chunks import Variant
from headwater_core.layouts.chunks.chunks_layout import CUT_NAME
from manifests import chunk_keys
from manifests.chunk_keys import LAYOUT, ChunkName
from manifests.entry import Entry
from manifests.head import Head


def plan_consolidation(
    head: Head, history: EpochHistory, *, queue: str, limits: ChunkLimits, span_ms: int, passed: int = 0
) -> tuple[Entry, ...]:
    """The entries of the first full segment of `head`, all of whose chunks are listed; empty where there is none.

    queue, limits  of what is written now
    span_ms, passed  see plan_merge; a segment that reaches below `passed` is looked at as a whole

    Reads pages. Raises what PageReader.read does.
    """
    group: list[Entry] = []
    for entry in head.entries.within(_begin(head, passed), open_from(head, queue, limits)):
        name = _chunk(entry)
        if name is not None and group and _continues(group[-1], entry, name):
            group.append(entry)
            continue
        if _is_complete(group, head, history, span_ms):
            return tuple(group)
        group = [entry] if name is not None and name.position == 0 else []
    return tuple(group) if _is_complete(group, head, history, span_ms) else ()


def open_from(head: Head, queue: str, limits: ChunkLimits) -> int:
    """Where the segment begins that the next chunk is added to; where the live entries end when there is none."""
    last = head.entries[-1] if head.entries else None
    following = None if last is None else continued(last, queue, limits)
    return head.next_offset if following is None else following.place.base


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
