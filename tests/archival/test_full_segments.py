"""Which full segment comes next: over trees of pages, whose reads are counted."""

from msgspec.structs import replace

from archival.partition.full_segments import AGAIN_MS, FullSegments
from archival.partition.run_names import ChunkNames
from archival.plan.merge_plan import with_merged
from archival.plan.policy import ChunkCommits, Policy, StreamLimits
from headwater_core.errors import CorruptData, DiskFull
from headwater_core.layouts.chunks import Variant
from headwater_core.layouts.chunks.chunk_handle import CommitLimits
from manifests import chunk_keys
from manifests.entry import Entry
from manifests.entry_tree import EntryTree
from manifests.head import Head
from manifests.page import Item, PageRef
from tests.archival.test_consolidation_plan import HISTORY, chunks, head_of, names_of
from tests.archival.test_run_names import listed
from tests.headwater_core.manual_clock import ManualClock
from tests.manifests.builders import a_head
from tests.manifests.trees import TINY, Pages, grown

POLICY = Policy()
COMMITS = ChunkCommits(Variant.APPEND, CommitLimits(10, 10, 1), 1_000)
STREAMED = Policy(stream=StreamLimits(1_000, 1_000, chunks=COMMITS))


class Reader:
    def __init__(self, pages: Pages) -> None:
        self.pages, self.reads = pages, 0

    def read(self, ref: PageRef) -> tuple[Item, ...]:
        self.reads += 1
        return self.pages.reader.read(ref)


def one(group: tuple[Entry, ...], names: ChunkNames) -> Entry:
    """What the store would have made of them."""
    place = chunk_keys.named(group[0].key).place
    size_bytes = sum(each.size_bytes for each in group)
    return listed(names.consolidated(place, 1).key, group[0].base_offset, group[-1].last_offset, size_bytes, {})


def test_what_was_looked_at_is_not_read_again() -> None:
    names, pages, count = names_of(20), Pages(TINY), 60
    entries = chunks(names, [10] * 2 * count)
    reader = Reader(pages)
    first = head = replace(a_head(last_offset=entries[-1].last_offset), entries=EntryTree(grown(pages, entries).items, reader))
    segments = FullSegments(names, ManualClock().now_ms)
    depth = reads = 0
    for number in range(count):
        reader.reads = 0
        group = segments.next(head, HISTORY, POLICY, 0).group
        assert [each.base_offset for each in group] == [2 * number, 2 * number + 1]
        depth, reads = max(depth, reader.reads), reads + reader.reads
        head = replace(head, entries=with_merged(head.entries, group, one(group, names)))
        segments.consolidated(group)
    assert depth <= 24, "the way to two entries, and to what follows, some pages deep"
    assert reads <= 16 * count
    reader.reads = 0
    assert not segments.next(head, HISTORY, POLICY, 0).group
    assert not segments.next(head, HISTORY, POLICY, 1).group
    assert reader.reads <= 24
    assert not segments.next(first, HISTORY, POLICY, 0).group
    segments.forget()
    assert len(segments.next(first, HISTORY, POLICY, 0).group) == 2, "something else may be live"


def bases(segments: FullSegments, head: Head, policy: Policy = POLICY) -> list[int]:
    return [each.base_offset for each in segments.next(head, HISTORY, policy, 0).group]


def test_what_was_written_while_it_filled_is_full_when_it_is_listed() -> None:
    names, head = head_of((10, 10))
    segments = FullSegments(names, ManualClock().now_ms)
    assert segments.end(head, POLICY) == 0
    assert bases(segments, head, STREAMED) == [0, 1]


def test_a_damaged_segment_waits_alone() -> None:
    clock = ManualClock()
    names, head = head_of((50, 50), (50, 50), (50, 50))
    segments = FullSegments(names, clock.now_ms)
    damaged = segments.next(head, HISTORY, POLICY, 0).group
    segments.failed(damaged, CorruptData("a", 0, "it is gone"))
    assert "it is gone" in segments.trouble
    assert bases(segments, head) == [2, 3]
    assert bases(segments, head) == [2, 3]
    assert segments.again_in_s == AGAIN_MS / 1000
    clock.advance(AGAIN_MS)
    assert bases(segments, head) == [2, 3], "what is new comes first"
    for _ in range(2):
        group = segments.next(head, HISTORY, POLICY, 0).group
        head = replace(head, entries=with_merged(head.entries, group, one(group, names)))
        segments.consolidated(group)
    assert bases(segments, head) == [0, 1]
    segments.failed(damaged, CorruptData("a", 0, "it is gone"))
    assert bases(segments, head) == []
    assert segments.again_in_s == 2 * AGAIN_MS / 1000
    clock.advance(2 * AGAIN_MS)
    assert bases(segments, head) == [0, 1]
    segments.consolidated(damaged)
    assert not segments.trouble
    assert segments.again_in_s is None


def test_all_wait_for_what_no_segment_can_help() -> None:
    clock = ManualClock()
    names, head = head_of((50, 50), (50, 50))
    segments = FullSegments(names, clock.now_ms)
    waits = []
    for _ in range(14):
        group = segments.next(head, HISTORY, POLICY, 0).group
        segments.failed(group, DiskFull("no room"))
        assert bases(segments, head) == []
        assert segments.again_in_s is not None
        waits.append(segments.again_in_s)
        clock.advance(int(segments.again_in_s * 1000))
    assert waits[:4] == [60, 120, 240, 480]
    assert waits[-1] == 24 * 3600
    assert "no room" in segments.trouble


def test_what_failed_and_is_something_else_now_is_forgotten() -> None:
    clock = ManualClock()
    names, head = head_of((50, 50), (50, 50))
    segments = FullSegments(names, clock.now_ms)
    segments.failed(segments.next(head, HISTORY, POLICY, 0).group, CorruptData("a", 0, "gone"))
    head = replace(head, entries=head.entries.split_at(2)[1], start_offset=2)
    clock.advance(AGAIN_MS)
    group = segments.next(head, HISTORY, POLICY, 2).group
    head = replace(head, entries=with_merged(head.entries, group, one(group, names)))
    segments.consolidated(group)
    assert segments.next(head, HISTORY, POLICY, 2).group == ()
    assert segments.trouble == ""
