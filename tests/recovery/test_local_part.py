"""Which part of an archived partition comes back to the disk."""

import re
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

import recovery
from headwater_core.epochs import EpochStart
from headwater_core.errors import CorruptData, UnsupportedFormat, UsageError, VerificationFailed
from headwater_core.partition import PartitionId
from headwater_core.segments.log_dirs import LogDirs
from manifests import page_limits
from manifests.entry import Entry
from manifests.entry_tree import EntryTree
from manifests.head import Head
from manifests.page import Item, PageRef, page_key, reference
from manifests.repository import ManifestRepository
from recovery.local_part import PartBounds, ReadablePages, select_part
from recovery.planner import plan_partition
from recovery.recovery_plan import RequestedEnd, check_partition
from tests.manifests import trees
from tests.recovery.plans import CLUSTER, ENTRIES, a_gap, a_head, a_topic, an_entry, bases, planned
from tests.recovery.written_archive import Archive, batches_in, plain

DIGEST = "crc64nvme:" + "0" * 16


class Pages:
    """The pages of one partition, which counts those that are read."""

    def __init__(self) -> None:
        self.held: dict[str, tuple[Item, ...]] = {}
        self.read_count = 0
        self.lost = ""

    def page(self, items: list[Entry]) -> PageRef:
        uid = f"{len(self.held):032x}"
        self.held[uid] = tuple(items)
        return reference(items, uid=uid, level=0, fence=1, size_bytes=1, digest=DIGEST)

    def read(self, ref: PageRef) -> tuple[Item, ...]:
        self.read_count += 1
        if ref.uid == self.lost:
            raise CorruptData("a page", 0, "flipped")
        return self.held[ref.uid]


def paged(entries: list[Entry], pages: Pages, at_hand: int, in_page: int = 5) -> Head:
    older = entries[:-at_hand]
    refs = [pages.page(older[at : at + in_page]) for at in range(0, len(older), in_page)]
    return replace(a_head(*entries), entries=EntryTree((*refs, *entries[-at_hand:]), pages))


def test_instant_brings_back_nothing_and_the_log_goes_on_where_the_archive_ends() -> None:
    [topic] = planned(a_topic(a_head(*ENTRIES)), mode="instant").topics
    [partition] = topic.partitions
    assert (partition.start_offset, partition.next_offset, partition.entries, partition.below_retention) == (30, 30, (), 0)
    left = partition.left
    assert left is not None
    assert (left.base_offset, left.last_offset, left.runs, left.records, left.size_bytes) == (0, 29, 3, 30, 300)


def test_instant_reads_no_page_however_long_the_archive_is() -> None:
    pages = Pages()
    entries = [an_entry(at, at, epochs=(EpochStart(at // 10, at),), max_producer_id=at) for at in range(100)]
    partition = plan_partition(paged(entries, pages, 3), PartBounds(mode="instant"))
    assert (partition.start_offset, partition.leader_epoch, partition.max_producer_id, pages.read_count) == (100, 9, 99, 0)
    assert partition.left is not None
    assert (partition.left.runs, partition.left.records) == (100, 100)


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        ({"keep_bytes": 1}, [20]),
        ({"keep_bytes": 100}, [20]),
        ({"keep_bytes": 101}, [10, 20]),
        ({"keep_bytes": 1000}, [0, 10, 20]),
        ({"keep_ms": 1}, [10, 20]),  # of the newest record, at 500, which is not in the newest run
        ({"keep_ms": 399}, [10, 20]),
        ({"keep_ms": 400}, [0, 10, 20]),
        ({"keep_ms": 400, "keep_bytes": 100}, [20]),
    ],
)
def test_partial_brings_back_the_fewest_runs_that_hold_what_was_requested(keep: dict[str, int], kept: list[int]) -> None:
    [topic] = planned(a_topic(a_head(*ENTRIES)), mode="partial", **keep).topics
    [partition] = topic.partitions
    assert bases(partition) == kept
    assert (partition.start_offset, partition.next_offset) == (kept[0], 30)
    assert (partition.left.runs if partition.left else 0) == 3 - len(kept)


@pytest.mark.parametrize("seed", range(50))
def test_partial_is_a_suffix_that_suffices_and_no_shorter_one_does(seed: int) -> None:
    random = Random(seed)
    times = [random.randrange(1000) for _ in range(random.randrange(1, 25))]
    entries = [
        an_entry(at * 10, at * 10 + 9, first_timestamp_ms=0, last_timestamp_ms=time, size_bytes=size, live_bytes=size)
        for at, (time, size) in enumerate((time, random.randrange(1, 300)) for time in times)
    ]
    pages, wants_bytes = Pages(), random.random() < 0.5
    keep_bytes, keep_ms = random.randrange(1, 3000), random.randrange(1, 1000)
    bounds = PartBounds(mode="partial", keep_bytes=keep_bytes) if wants_bytes else PartBounds(mode="partial", keep_ms=keep_ms)
    head = paged(entries, pages, random.randrange(1, len(entries) + 1), random.randrange(1, 4))
    kept = list(select_part(head, bounds).entries)
    assert kept == entries[len(entries) - len(kept) :]
    dropped = entries[: len(entries) - len(kept)]
    if wants_bytes:
        assert sum(each.live_bytes for each in kept[1:]) < keep_bytes
        assert not dropped or sum(each.live_bytes for each in kept) >= keep_bytes
    else:
        since = max(times) - keep_ms
        assert (kept[0].last_timestamp_ms or 0) >= since
        assert all((each.last_timestamp_ms or 0) < since for each in dropped)
    found = plan_partition(head, bounds)
    assert check_partition(head.partition_id, found).next_offset == head.next_offset
    assert (found.left.records if found.left else 0) + found.records == head.entries.records


def test_a_compacted_topic_comes_back_whole_in_every_mode() -> None:
    for mode in ({"mode": "instant"}, {"mode": "partial", "keep_bytes": 1}):
        plan = planned(a_topic(a_head(*ENTRIES), cleanup_policy="compact"), **mode)
        [partition] = plan.topics[0].partitions
        assert (bases(partition), partition.left) == ([0, 10, 20], None)
        assert [note for note in plan.notes if "in full all the same" in note]


@pytest.mark.parametrize("mode", [{"mode": "instant"}, {"mode": "partial", "keep_bytes": 1}, {"retention_bytes": 0}, {"retention_ms": 0}])
def test_the_state_of_kafka_itself_comes_back_whole_in_every_mode(mode: dict[str, Any]) -> None:
    """Kafka reads all of such a topic at its start, and itself deletes what it does not need: share groups' is not compacted."""
    archive = Archive()
    archive.topic("orders", [plain(0, 5)])
    archive.topic("__share_group_state", [plain(0, 5)], [plain(5, 5)], **{"cleanup.policy": "delete", "retention.ms": "-1"})
    plan = archive.plan(**mode)
    [state] = [topic for topic in plan.topics if topic.topic == "__share_group_state"]
    assert (state.records, state.partitions[0].left, state.compacted) == (10, None, False)
    assert (state.configs["retention.ms"], state.configs["retention.bytes"]) == ("-1", "-1")
    assert bool([note for note in plan.notes if "__share_group_state" in note and "in full all the same" in note]) == ("mode" in mode)


def test_a_topic_without_a_policy_of_its_own_is_noted_where_it_matters() -> None:
    plan = planned(a_topic(a_head(*ENTRIES)), mode="instant")
    assert [note for note in plan.notes if "no cleanup.policy of its own: 1 topic, orders among them" in note]
    for other in (planned(a_topic(a_head(*ENTRIES))), planned(a_topic(a_head(*ENTRIES), cleanup_policy="delete"), mode="instant")):
        assert not [note for note in other.notes if "cleanup.policy" in note]


def test_a_part_does_not_begin_with_a_gap_and_nothing_below_the_start_counts() -> None:
    head = a_head(an_entry(0, 9), an_entry(10, 19), a_gap(20, 24), an_entry(25, 29), start_offset=15)
    partial = plan_partition(head, PartBounds(mode="partial", keep_bytes=101))
    assert (bases(partial), partial.start_offset) == ([10, 20, 25], 15)
    assert bases(plan_partition(head, PartBounds(mode="partial", keep_bytes=100))) == [25]
    assert plan_partition(a_head(start_offset=54, last_offset=53), PartBounds(mode="instant")).next_offset == 54


def test_the_runs_in_which_an_open_transaction_began_are_known_though_they_stay_away() -> None:
    entries = (an_entry(0, 9), an_entry(10, 19, open_from=17), an_entry(20, 29, open_from=17), an_entry(30, 39, open_from=17))
    instant = plan_partition(a_head(*entries), PartBounds(mode="instant"))
    assert ([each.base_offset for each in instant.beneath], instant.open_from) == ([10, 20, 30], 40)
    partial = plan_partition(a_head(*entries), PartBounds(mode="partial", keep_bytes=1))
    assert ([each.base_offset for each in partial.beneath], bases(partial)) == ([10, 20], [30])
    assert plan_partition(a_head(*entries)).beneath == ()


def test_the_runs_in_which_a_transaction_began_are_known_where_its_end_may_be_lost() -> None:
    entries = (an_entry(0, 9), an_entry(10, 19, open_from=17), an_entry(20, 29, open_from=17), an_entry(30, 39))
    partial = plan_partition(a_head(*entries), PartBounds(mode="partial", keep_bytes=101))
    assert ([each.base_offset for each in partial.beneath], bases(partial), partial.open_from) == ([10], [20, 30], None)


def test_a_requested_end_leaves_out_what_follows_it() -> None:
    def ending(offset: int, **changes: Any) -> tuple[list[int], int, int]:
        bounds = PartBounds(end=RequestedEnd(offset=offset, records=1))
        found = check_partition(a_head().partition_id, plan_partition(a_head(*ENTRIES, **changes), bounds))
        return bases(found), found.start_offset, found.next_offset

    assert ending(20) == ([0, 10], 0, 20)
    assert ending(15) == ([0, 10], 0, 20)  # the run is cut when it is read
    assert ending(0) == ([], 0, 0)
    assert ending(5, start_offset=12) == ([], 12, 12)


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "partial"},
        {"mode": "partial", "keep_bytes": 0},
        {"mode": "full", "keep_ms": 5},
        {"mode": "instant", "keep_bytes": 5},
        {"mode": "instant", "to_time_ms": 5},
        {"mode": "instant", "open_transactions": "cut"},
        {"mode": "partial", "keep_bytes": 5, "to_offsets": {"orders:0": 5}},
        {"mode": "instant", "renames": {"orders": "menu"}},
    ],
)
def test_modes_and_what_contradicts_them(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        planned(a_topic(a_head()), **options)


def test_another_name_is_another_topic_of_the_same_records() -> None:
    archived = a_topic(a_head(*ENTRIES))
    plan = planned(archived, renames={"orders": "orders.restored"})
    [topic] = plan.topics
    assert (topic.topic, topic.records) == ("orders.restored", 30)
    assert topic.topic_id != archived.manifest.topic_id
    assert topic.archived_id(plan.source_cluster_id, 0) == archived.manifest.partition_id(0)
    for wrong in ({"menu": "orders"}, {"orders": "../x"}, {"orders": "__consumer_offsets"}):
        with pytest.raises(UsageError):
            planned(archived, renames=wrong)


@pytest.mark.parametrize("keep_ms", [1, 3, 9, 20])
def test_a_lost_page_with_what_is_young_is_wanted_and_named(keep_ms: int) -> None:
    pages = Pages()
    head = paged([an_entry(at, at, first_timestamp_ms=at, last_timestamp_ms=at) for at in range(12)], pages, 2)
    _, second, *_ = head.entries.items
    assert isinstance(second, PageRef)
    pages.lost = second.uid
    part = select_part(head, PartBounds(mode="partial", keep_ms=keep_ms))
    assert [each.base_offset for each in part.lost_pages] == ([5] if keep_ms > 1 else [])
    assert [each.base_offset for each in part.entries if not each.gap] == [at for at in range(12) if at >= 11 - keep_ms and at // 5 != 1]


def test_a_page_that_a_later_version_wrote_is_a_hole() -> None:
    class Later(Pages):
        def read(self, ref: PageRef) -> tuple[Item, ...]:
            raise UnsupportedFormat("needs upgrade")

    pages = Pages()
    head = paged([an_entry(at, at) for at in range(12)], pages, 2)
    readable = ReadablePages(Later())
    [ref, *_] = head.entries.references
    [gap] = readable.read(ref)
    assert (gap.base_offset, gap.last_offset, "needs upgrade" in readable.lost[ref.base_offset].reason) == (0, ref.last_offset, True)


@pytest.mark.parametrize("which", [0, -1])
@pytest.mark.parametrize(
    ("options", "end"),
    [
        ({}, 12),
        ({"to_offsets": {"orders:0": 11}}, 11),
        ({"to_offsets": {"orders:0": 2}}, 2),
        ({"mode": "partial", "keep_bytes": 1 << 30}, 12),
    ],
)
def test_a_lost_page_is_named_and_skipped_on_request(
    which: int, options: dict[str, Any], end: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_limits, "LIMITS", trees.SMALL)
    archive = Archive()
    archive.topic("orders", *([plain(at)] for at in range(12)))
    archive.topic("menu", [plain(0)])
    partition = PartitionId(CLUSTER, archive.ids["orders"], 0, "orders")
    held = ManifestRepository(archive.store).load(partition)
    assert held
    lost = held.head.entries.references[which]
    archive.store.delete(key := page_key(partition, lost))
    plan = archive.plan(**options)
    assert archive.plan(mode="instant").holes == ()
    if lost.base_offset >= end:
        assert plan.holes == ()
        return
    [hole] = plan.holes
    assert (hole.base_offset, hole.last_offset, key in hole.reason) == (lost.base_offset, lost.last_offset, True)
    with pytest.raises(VerificationFailed, match=re.escape(key)):
        recovery.apply(plan, tmp_path, archive.store)
    assert recovery.status(tmp_path) is None
    report = recovery.apply(plan, tmp_path, archive.store, skip_damaged=True)
    found = [header.base_offset for header, _ in batches_in(tmp_path / "orders-0")]
    assert found == [at for at in range(end) if not lost.base_offset <= at <= lost.last_offset]
    assert (len(report.left_out), len(batches_in(tmp_path / "menu-0"))) == (1, 1)
    [log] = [each for each in LogDirs([tmp_path]).partitions() if each.partition.topic == "orders"]
    assert log.high_watermark == end
    assert recovery.apply(plan, tmp_path, archive.store).again


@pytest.mark.parametrize("far", [2**63 - 1, 10**15])
@pytest.mark.parametrize("size", [1, 12])
def test_one_record_that_is_dated_ahead_does_not_hide_what_is_young(far: int, size: int) -> None:
    entries = [an_entry(at, at, first_timestamp_ms=at, last_timestamp_ms=far if at == 3 else at, published_ms=at) for at in range(12)]
    head = paged(entries, Pages(), size)
    part = select_part(head, PartBounds(mode="partial", keep_ms=2))
    assert [each.base_offset for each in part.entries] == [9, 10, 11]
    assert [each.base_offset for each in select_part(head, PartBounds(6, now_ms=20)).entries] == [6, 7, 8, 9, 10, 11]
    assert select_part(head, PartBounds(6)).entries[0].base_offset == 3 or far > 2**62
