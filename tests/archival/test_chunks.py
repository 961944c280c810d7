"""A topic in RocketMQ's layout: chunks of a segment that become one object, and what is left of them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pytest
from msgspec.structs import replace as with_fields

from archival.collection.collector import Collected, Collector
from archival.collection.sightings import Sightings
from archival.config import ArchivalConfig
from archival.plan.policy import Policy
from headwater_core.errors import DiskFull, HeadwaterError, SourceChanged, TransientError, Unauthorised, UploadStopped, UsageError
from headwater_core.layouts import Offloader, open_layout
from headwater_core.layouts.chunks import Variant
from headwater_core.layouts.chunks.chunks_layout import ChunksLayout
from headwater_core.objectstore.store import PLAIN, ObjectForm, ObjectRange, ObjectStore, Pace, at_once
from headwater_core.partition import PartitionId
from manifests import chunk_keys, keys
from manifests.entry import Entry
from manifests.head import may_have_chunks
from manifests.namesakes import listed_uids
from tests.archival.builders import PARTITION, Agent, Directory, live_bytes, ranges
from tests.archival.test_branches import a_head_at
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.headwater_core.segments.builders import a_batch, a_segment, an_abort

TAILS = Policy(tail_after_ms=0, merge_bytes=4 << 10)
QUEUE = f"chunks/{PARTITION.cluster_id}/agent.1/{PARTITION.topic}/{PARTITION.partition}/commitLog"
BATCH_BYTES = len(a_segment(0, 1))
SUCCESSOR = PartitionId(PARTITION.cluster_id, "AAAAAAAAAAAAAAAAAAAAAQ", PARTITION.partition, PARTITION.topic)


def append(segment_bytes: int = 1 << 30) -> ChunksLayout:
    return ChunksLayout(segment_bytes=segment_bytes)


def fixed(chunk_bytes: int = 3 * BATCH_BYTES) -> ChunksLayout:
    return ChunksLayout(Variant.FIXED, chunk_bytes)


def names(store: ObjectStore, prefix: str = chunk_keys.CHUNKS) -> set[str]:
    return {info.key for info in store.list(prefix)}


def named_by(agent: Agent) -> set[str]:
    """The keys of all that the entries need."""
    found = set[str]()
    for entry in agent.head.entries:
        found |= {entry.index_key, *(key for key, _ in open_layout(entry.layout).data_objects(entry))} - {""}
    return found


class Failing(MemoryStore):
    refused = "nothing"

    def put(self, key: str, data: BinaryIO, *, size_bytes: int, form: ObjectForm = PLAIN) -> str:
        if key.endswith(self.refused):
            raise TransientError(key)
        return super().put(key, data, size_bytes=size_bytes, form=form)


class Bench:
    def __init__(self, root: Path, offloader: Offloader, partition: PartitionId = PARTITION, store: MemoryStore | None = None) -> None:
        clock = ManualClock()
        self.root, self.clock = root, clock
        self.directory = Directory(root / "log", partition)
        self.agent = Agent(root / "log", store or MemoryStore(clock), clock=clock, owned=False, partition=partition, offloader=offloader)
        sightings = Sightings(root / "sightings", clock)
        self.collector = Collector(store=self.agent.store, sightings=sightings, clock=clock, writer="agent-a")
        self.written, self.end, self.policy = b"", 0, TAILS

    def write(self, *ends: int) -> None:
        """Batches up to each of these offsets, archived one after the other from one open segment."""
        if not self.written:
            self.directory.segment(0)
        for end in ends:
            batches = a_segment(self.end, end - self.end)
            self.directory.append(0, batches)
            self.directory.high_watermark(end)
            self.written, self.end = self.written + batches, end
            self.agent.run(self.policy)

    def restart(self, offloader: Offloader | None = None) -> None:
        uids = self.agent.uids
        self.agent = replace(self.agent, offloader=offloader or self.agent.offloader)
        self.agent.uids = uids

    def merge(self) -> int:
        """How many merges there were."""
        count = 0
        while self.agent.archiver.merge(TAILS).merged:
            count += 1
        return count

    def collect(self) -> Collected:
        """As after the readers' lease."""
        self.collector.collect(self.agent.archiver, ArchivalConfig(superseded_retention_s=1))
        self.clock.advance(25 * 3600 * 1000)
        return self.collector.collect(self.agent.archiver, ArchivalConfig(superseded_retention_s=1))

    def keys(self) -> list[str]:
        return [entry.key for entry in self.agent.head.entries]

    def check(self) -> None:
        assert live_bytes(self.agent.store, self.agent.head) == self.written


def test_each_step_adds_a_chunk_until_the_segment_is_full(tmp_path: Path) -> None:
    bench = Bench(tmp_path, append(5 * BATCH_BYTES))
    bench.write(2, 3, 5, 6, 12)
    assert bench.keys() == [
        f"{QUEUE}/seg-0/chunk-0",
        f"{QUEUE}/seg-0/chunk-{2 * BATCH_BYTES}",
        f"{QUEUE}/seg-0/chunk-{3 * BATCH_BYTES}",
        f"{QUEUE}/seg-5/chunk-0",
        f"{QUEUE}/seg-6/chunk-0",  # longer than a segment, and so one of its own
    ]
    assert names(bench.agent.store) == named_by(bench.agent)
    assert may_have_chunks(bench.agent.head)
    bench.check()


def test_how_long_a_segment_may_get_may_change_while_it_is_written(tmp_path: Path) -> None:
    bench = Bench(tmp_path, append(3 * BATCH_BYTES))
    bench.write(1, 2)
    bench.policy = replace(TAILS, segment_bytes=2 * BATCH_BYTES)
    bench.write(3)
    bench.policy = replace(TAILS, segment_bytes=9 * BATCH_BYTES)
    bench.write(7, 9)
    assert bench.keys() == [
        f"{QUEUE}/seg-0/chunk-0",
        f"{QUEUE}/seg-0/chunk-{BATCH_BYTES}",
        f"{QUEUE}/seg-2/chunk-0",
        f"{QUEUE}/seg-2/chunk-{BATCH_BYTES}",
        f"{QUEUE}/seg-2/chunk-{5 * BATCH_BYTES}",
    ]


def test_after_a_restart_the_segment_is_continued(tmp_path: Path) -> None:
    bench = Bench(tmp_path, append())
    bench.write(2)
    bench.restart()
    bench.write(4)
    assert bench.keys() == [f"{QUEUE}/seg-0/chunk-0", f"{QUEUE}/seg-0/chunk-{2 * BATCH_BYTES}"]


def test_another_owner_begins_in_a_place_of_its_own(tmp_path: Path) -> None:
    bench = Bench(tmp_path, append())
    bench.write(2)
    bench.agent = replace(bench.agent, writer="node-b")
    bench.write(4)
    assert bench.keys()[1] == f"{QUEUE.replace('agent.1', 'node.2')}/seg-2/chunk-0"
    bench.check()


@pytest.mark.parametrize("offloader", [append(5 * BATCH_BYTES), fixed()], ids=["append", "fixed"])
def test_a_full_segment_becomes_one_object_and_its_chunks_are_collected(tmp_path: Path, offloader: ChunksLayout) -> None:
    bench = Bench(tmp_path, offloader)
    bench.write(*((2, 3, 5, 7) if offloader.variant is Variant.APPEND else (5, 7)))
    before, chunks = list(bench.agent.head.entries), names(bench.agent.store)
    assert bench.merge() == 1
    first, second = bench.agent.head.entries
    assert first.key == (f"{QUEUE}/seg-0/segment" if offloader.variant is Variant.APPEND else f"{QUEUE}-0-seg")
    assert second == before[-1], "what is being written, or is one object, stays"
    assert (first.base_offset, first.last_offset, first.records) == (0, 4, 5)
    assert names(bench.agent.store) >= chunks, "readers may be in them"
    bench.check()
    done = bench.collect()
    assert done.error is None
    assert names(bench.agent.store) == named_by(bench.agent)
    bench.check()
    assert bench.merge() == 0
    bench.write(9)
    bench.check()


def test_a_consolidation_that_was_cut_short_is_taken_up_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, append(3 * BATCH_BYTES), store=Failing())
    bench.write(1, 2, 3, 5)
    agent = bench.agent
    first = agent.head.entries[0]
    assert isinstance(agent.store, Failing)
    agent.store.refused = "segment.index"
    with pytest.raises(TransientError):
        agent.archiver.merge(TAILS)
    agent.store.refused = "nothing"
    assert f"{QUEUE}/seg-0/segment" in names(agent.store)
    assert agent.head.entries[0] == first
    bench.restart()
    assert bench.merge() == 1
    assert bench.keys()[0] == f"{QUEUE}/seg-0/segment"
    bench.check()


class Joining(MemoryStore):
    """error: what becomes of a join; is_broken: it writes other bytes than it was told to"""

    error: HeadwaterError | None = None
    is_broken = False
    joins = 0

    def join(self, key: str, ranges: Sequence[ObjectRange], *, digest: str, form: ObjectForm = PLAIN, pace: Pace = at_once) -> None:
        self.joins += 1
        if self.error is not None:
            raise self.error
        if self.is_broken:
            self.create(key, b"other bytes")
        else:
            super().join(key, ranges, digest=digest, form=form, pace=pace)


@pytest.mark.parametrize("error", [UsageError("not here"), DiskFull("no room"), Unauthorised("no right"), TransientError("busy")])
def test_a_store_that_makes_no_object_of_chunks_keeps_no_merge_from_its_turn(tmp_path: Path, error: HeadwaterError) -> None:
    """Small objects of before are merged meanwhile; what failed is seen, and is tried again ever less often."""
    store = Joining(ManualClock())
    bench = Bench(tmp_path, open_layout("segment"), store=store)
    bench.write(1, 2, 3, 4)
    bench.restart(append(3 * BATCH_BYTES))
    bench.write(6, 7, 9, 10, 11)
    agent, before = bench.agent, bench.keys()
    store.error = error
    if isinstance(error, TransientError):
        with pytest.raises(TransientError):
            agent.archiver.merge(TAILS)
        outcome = agent.archiver.merge(TAILS)
    else:
        outcome = agent.archiver.merge(TAILS)
        assert (outcome.more, outcome.reason) == (True, str(error))
        outcome = agent.archiver.merge(TAILS)
    assert ranges(outcome.group) == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert str(error) in agent.archiver.merge_trouble
    assert bench.merge() == 0
    assert store.joins == 1
    assert bench.keys()[1:] == before[4:]
    store.error = None
    again_in_s = agent.archiver.merge(TAILS).again_in_s
    assert again_in_s == 60
    bench.clock.advance(60_000)
    assert bench.merge() == 2
    assert ranges(agent.head.entries)[:2] == [(0, 3), (4, 6)]
    assert agent.archiver.merge_trouble == ""
    bench.check()


def stop(_: int = 0) -> None:
    raise UploadStopped("something comes first")


def test_a_segment_becomes_one_object_at_the_pace_of_uploads_and_ends_with_the_agent(tmp_path: Path) -> None:
    bench = Bench(tmp_path, append(3 * BATCH_BYTES))
    bench.write(1, 2, 3, 5)
    archiver, before = bench.agent.archiver, bench.keys()
    with pytest.raises(UploadStopped):
        archiver.merge(TAILS, steady=stop)
    assert bench.keys() == before
    assert f"{QUEUE}/seg-0/segment" not in names(bench.agent.store)
    paced = list[int]()
    assert archiver.merge(TAILS, steady=paced.append).merged
    assert sum(paced) == 3 * BATCH_BYTES
    assert not archiver.merge_trouble


def test_a_partition_that_always_has_something_to_archive_gets_its_segments_consolidated_even_so(tmp_path: Path) -> None:
    bench = Bench(tmp_path, append(3 * BATCH_BYTES))
    bench.write(1, 2, 3, 5)
    for _ in range(3):
        with pytest.raises(UploadStopped):
            bench.agent.archiver.merge(TAILS, check=stop, pace=stop)
    with pytest.raises(UploadStopped):
        bench.agent.archiver.merge(TAILS, check=stop, pace=stop, steady=stop)
    assert bench.agent.archiver.merge(TAILS, check=stop, pace=stop).merged
    bench.check()


def test_an_object_of_chunks_that_turns_out_to_be_broken_is_made_again(tmp_path: Path) -> None:
    """By the same process, under another fence; one whose store breaks each of them does not fill the bucket with them."""
    store = Joining(ManualClock())
    bench = Bench(tmp_path, append(3 * BATCH_BYTES), store=store)
    bench.write(1, 2, 3, 5)
    store.is_broken = True
    with pytest.raises(SourceChanged):
        bench.agent.archiver.merge(TAILS)
    assert bench.merge() == 0
    bench.clock.advance(60_000)
    assert bench.agent.archiver.merge(TAILS).comes_first, "the name is taken, so there is another fence first"
    with pytest.raises(SourceChanged):
        bench.agent.archiver.merge(TAILS)
    assert bench.agent.archiver.merge(TAILS).again_in_s == 120
    store.is_broken = False
    bench.clock.advance(120_000)
    assert bench.agent.archiver.merge(TAILS).comes_first
    assert bench.merge() == 1
    assert bench.keys()[0] == f"{QUEUE.replace('agent.1', 'agent.3')}/seg-0/segment"
    assert (store.joins, bench.agent.archiver.merge_trouble) == (3, "")
    bench.check()
    bench.collect()
    assert names(store) == named_by(bench.agent)


def test_nothing_becomes_of_a_segment_that_lacks_a_chunk(tmp_path: Path) -> None:
    bench = Bench(tmp_path, append(3 * BATCH_BYTES))
    bench.write(1, 2, 3, 5)
    for path in bench.directory.path.glob("*.log"):
        path.unlink()
    bench.directory.segment(5)
    bench.directory.log_start(5)
    bench.agent.store.delete(bench.keys()[1])
    before = bench.keys()
    outcome = bench.agent.archiver.merge(TAILS)
    assert "does not have it" in outcome.reason
    assert bench.agent.archiver.merge(TAILS).merged is None
    assert bench.keys() == before


def test_a_beginning_that_an_attempt_has_left_under_the_next_name_counts(tmp_path: Path) -> None:
    """As when a process was killed between upload and commit, and the tail has grown since. The rest is the next chunk."""
    bench = Bench(tmp_path, append())
    bench.write(2)
    bench.agent.store.create(f"{QUEUE}/seg-0/chunk-{2 * BATCH_BYTES}", a_segment(2, 1))
    bench.restart()
    with pytest.raises(SourceChanged):
        bench.write(4)
    bench.agent.run(TAILS)
    assert bench.keys() == [f"{QUEUE}/seg-0/chunk-{number * BATCH_BYTES}" for number in (0, 2, 3)]
    assert names(bench.agent.store) == named_by(bench.agent)
    bench.check()


@pytest.mark.parametrize("left", [a_segment(2, 3), a_segment(2, 1)[:-1], a_segment(3, 1), b"x"], ids=["longer", "cut", "other", "none"])
def test_what_is_no_beginning_of_the_run_ends_the_segment(tmp_path: Path, left: bytes) -> None:
    bench = Bench(tmp_path, append())
    bench.write(2)
    bench.agent.store.create(f"{QUEUE}/seg-0/chunk-{2 * BATCH_BYTES}", left)
    bench.restart()
    with pytest.raises(SourceChanged):
        bench.write(4)
    bench.agent.run(TAILS)
    assert bench.keys() == [f"{QUEUE}/seg-0/chunk-0", f"{QUEUE}/seg-2/chunk-0"]
    bench.check()
    bench.collect()
    assert names(bench.agent.store) == named_by(bench.agent)


@pytest.mark.parametrize("offloader", [append(), fixed()], ids=["append", "fixed"])
def test_where_every_name_is_taken_another_fence_gives_new_ones(tmp_path: Path, offloader: ChunksLayout) -> None:
    bench = Bench(tmp_path, offloader)
    bench.directory.segment(0)
    taken = f"{QUEUE}/seg-0/chunk-0" if offloader.variant is Variant.APPEND else f"{QUEUE}-0/chunk-0"
    bench.agent.store.create(taken, b"something else")
    with pytest.raises(SourceChanged):
        bench.write(2)
    assert bench.agent.run(TAILS)[:2] == ["assigned", "archived"]
    assert ".2/" in bench.keys()[0]
    assert bench.agent.head.fence == 2
    bench.check()


@pytest.mark.parametrize("layouts", [["segment", "append", "fixed", "blocks", "append"], ["fixed", "streaming", "append", "segment"]])
def test_a_topic_that_changes_its_layout_stays_one_log(tmp_path: Path, layouts: list[str]) -> None:
    bench = Bench(tmp_path, open_layout("segment"))
    made: dict[str, Offloader] = {"append": append(4 * BATCH_BYTES), "fixed": fixed()}
    for layout in layouts:
        bench.restart(made.get(layout) or open_layout(layout))
        bench.write(bench.end + 2, bench.end + 6, bench.end + 9)
        bench.check()
    bench.merge()
    bench.check()
    bench.collect()
    found = names(bench.agent.store) | names(bench.agent.store, keys.DATA)
    assert {key for key in found if not key.startswith(keys.STREAM)} <= named_by(bench.agent)
    assert ranges(bench.agent.head.entries)[-1][1] == bench.end - 1


def test_a_topic_that_was_created_again_shares_no_name_with_its_predecessor(tmp_path: Path) -> None:
    old = Bench(tmp_path / "old", append(2 * BATCH_BYTES))
    old.write(1, 2, 4)
    old.merge()
    store = old.agent.store
    assert isinstance(store, MemoryStore)
    new = Bench(tmp_path / "new", append(2 * BATCH_BYTES), SUCCESSOR, store)
    new.write(1, 2, 4)
    assert new.agent.head.fence > old.agent.head.fence
    new.merge()
    everything = names(store)
    for one, other in ((old, new), (new, old)):
        one.collect()
        assert named_by(one.agent) <= names(store)
        assert named_by(other.agent) <= names(store), "a collection spares what another incarnation lists"
        one.check()
        other.check()
    assert names(store) == named_by(old.agent) | named_by(new.agent) < everything


def test_what_the_other_incarnation_may_list_yet_stays(tmp_path: Path) -> None:
    old = Bench(tmp_path / "old", append())
    old.write(2)
    store = old.agent.store
    assert isinstance(store, MemoryStore)
    new = Bench(tmp_path / "new", append(), SUCCESSOR, store)
    new.write(2)
    uploaded = f"{QUEUE.replace('agent.1', f'agent.{new.agent.head.fence}')}/seg-0/chunk-{2 * BATCH_BYTES}"
    store.create(uploaded, a_segment(2, 2))
    for _ in range(9):
        old.agent.archiver.load()
        old.agent.archiver.amend(lambda head: with_fields(head, fence=head.fence + 1))
        old.collect()
        assert store.stat(uploaded), "its writer holds the fence that is in its name"
    store.delete(keys.head(SUCCESSOR))
    old.collect()
    assert store.stat(uploaded), "a manifest that is lost lists nothing, and proves nothing"


@pytest.mark.parametrize("lost", ["absent", "damaged", "never there"])
def test_an_unreadable_manifest_of_another_topic_id_keeps_only_what_it_may_list(tmp_path: Path, lost: str) -> None:
    old = Bench(tmp_path / "old", append(2 * BATCH_BYTES), SUCCESSOR)
    old.write(1, 2, 4)
    store, theirs = old.agent.store, named_by(old.agent)
    assert isinstance(store, MemoryStore)
    store.delete(keys.head(SUCCESSOR))
    if lost == "damaged":
        store.create(keys.head(SUCCESSOR), b"{}")
    elif lost == "never there":
        for key in theirs:
            store.delete(key)
        theirs = set()
    new = Bench(tmp_path / "new", append(2 * BATCH_BYTES), store=store)
    new.write(1, 2)
    assert new.merge() == 1
    done = new.collect()
    count = len(names(store) - named_by(new.agent))
    assert done.kept.startswith(f"{count} objects below chunks/ may be listed where that cannot be read, and stay: {keys.head(SUCCESSOR)}")
    assert "restore it, or remove meta/" in done.kept
    kept = names(store)
    assert theirs <= kept, "nobody knows what is not wanted of it"
    new.write(3, 4, 5, 6)
    assert new.merge() == 2
    done = new.collect()
    assert names(store) == kept | named_by(new.agent), "a fence was taken since then which is not its"
    assert done.kept
    new.agent.store.create(keys.data(PARTITION, 0, 9, 0, "f" * 32), b"data")
    assert new.collect().deleted == 1, "what names its topic id is nobody else's"
    version = new.agent.head.version
    new.collect()
    assert new.agent.head.version == version, "a fence is taken once"
    for key in names(store, keys.topic_prefix(SUCCESSOR.topic, SUCCESSOR.topic_id)):
        store.delete(key)
    assert new.collect().kept == ""
    assert names(store) == named_by(new.agent), "it was given up"
    new.check()


@pytest.mark.parametrize("variant", Variant)
def test_a_name_that_a_refilled_gap_finds_taken_is_another_ones_next_time(tmp_path: Path, variant: Variant) -> None:
    """A transaction goes across the end of the gap, so what follows is made once more with its true index, where chunks of its consolidated
    segment still lie."""
    before, end = [a_batch(0), a_batch(1, producer=7, transactional=True)], [a_batch(2), an_abort(3, 7), a_batch(4)]
    directory, clock = Directory(tmp_path), ManualClock()
    offloader = append(sum(map(len, end)) + 1) if variant is Variant.APPEND else fixed(len(end[1]))
    agent = Agent(tmp_path, MemoryStore(clock), clock=clock, owned=False, offloader=offloader)
    a_head_at(agent, start=0)
    directory.segment(2, end[0])
    directory.high_watermark(3)
    agent.run(TAILS)
    directory.append(2, *end[1:])
    directory.high_watermark(5)
    agent.run(TAILS)
    more = [a_batch(offset) for offset in (5, 6, 7)]
    for offset, batch in enumerate(more, 5):
        directory.append(2, batch)
        directory.high_watermark(offset + 1)
        agent.run(TAILS)
    assert agent.archiver.merge(TAILS).merged
    (directory.path / f"{2:020}.log").unlink()
    directory.segment(0, *before, *end, *more)
    directory.high_watermark(8)
    agent = replace(agent)  # a process that knows nothing of what lies there
    with pytest.raises(SourceChanged):
        agent.run(TAILS)
    assert "refilled" in agent.run(TAILS)
    assert live_bytes(agent.store, agent.head) == b"".join(before + end + more)
    entry = next(each for each in agent.head.entries if each.base_offset <= 3 <= each.last_offset)
    index = open_layout(entry.layout).read_offloaded(agent.store, entry).read_index()
    assert [(each.producer_id, each.first_offset) for each in index.aborted] == [(7, 1)]


def test_an_entry_says_which_chunk_it_means(tmp_path: Path) -> None:
    bench = Bench(tmp_path, fixed())
    bench.write(5)
    (entry,) = bench.agent.head.entries
    assert [size for _, size in open_layout("chunks").data_objects(entry)] == [3 * BATCH_BYTES, 2 * BATCH_BYTES]
    name = chunk_keys.named(entry.key)
    assert (name.topic, name.partition, name.node, name.fence, name.position) == (PARTITION.topic, PARTITION.partition, "agent", 1, 0)
    assert isinstance(entry, Entry)
    assert {each.hex() for each in listed_uids(bench.agent.head)} == {chunk_keys.named(key).uid for key in named_by(bench.agent)}
    assert (entry.uid, entry.fence, entry.held_offsets) == (name.uid, 1, (0, 4))


@pytest.mark.parametrize("offloader", [append(3 * BATCH_BYTES), fixed()], ids=["append", "fixed"])
def test_what_stayed_as_chunks_when_the_layout_changed_is_rewritten_once_it_is_set_again(tmp_path: Path, offloader: ChunksLayout) -> None:
    bench = Bench(tmp_path, offloader)
    bench.write(1, 2, 3, 4, 9)
    bench.restart(open_layout("segment"))
    bench.write(10)
    before = bench.keys()
    assert bench.merge() == 0
    assert bench.keys() == before, "neighbours of another layout"
    bench.restart(offloader)
    bench.write(11)
    assert bench.merge()
    bench.collect()
    assert names(bench.agent.store) | names(bench.agent.store, keys.DATA) == named_by(bench.agent)
    live = [entry for entry in bench.agent.head.entries if entry.layout == "chunks"]
    assert all(len(list(open_layout("chunks").data_objects(entry))) == 1 for entry in live)
    assert len({chunk_keys.named(entry.key).place for entry in live}) == len(live), "none has several chunks"
    bench.check()
