"""What a recovery will do, decided from heads and options alone."""

from typing import Any

import pytest
from msgspec.structs import replace

from headwater_core.epochs import EpochStart
from headwater_core.errors import CorruptData, HeadwaterError, ManifestChanged, TransientError, UsageError, VerificationFailed
from manifests.entry_tree import EntryTree, SupersededEntries
from manifests.head import Head
from manifests.page import Item, PageRef, reference
from recovery.discovery import ArchivedTopic, Found
from recovery.local_part import PartBounds
from recovery.plan_document import decode_plan, encode_plan
from recovery.planner import make_plan, plan_partition, without
from recovery.recovery_plan import LostRun, Options, PartitionPlan, Request, check_plan
from tests.recovery.plans import ENTRIES, NOW, a_gap, a_head, a_topic, an_entry, bases, planned


def test_everything_live_is_planned() -> None:
    plan = planned(a_topic(a_head(an_entry(0, 9), an_entry(10, 19))))
    [partition] = plan.topics[0].partitions
    assert (partition.start_offset, partition.next_offset, bases(partition)) == (0, 20, [0, 10])
    assert (plan.records, plan.size_bytes, plan.problems, plan.cluster_id) == (20, 200, (), "new")


def test_an_emptied_log_keeps_its_offsets() -> None:
    partition = plan_partition(a_head(start_offset=54, last_offset=53))
    assert (partition.start_offset, partition.next_offset, len(partition.files)) == (54, 54, 0)


def test_a_run_below_the_log_start_stays_away_and_the_start_may_lie_inside_the_first() -> None:
    inside = plan_partition(a_head(an_entry(0, 9), an_entry(10, 19), start_offset=4))
    assert (inside.start_offset, bases(inside)) == (4, [0, 10])
    everything_deleted = plan_partition(a_head(an_entry(0, 9), start_offset=10))
    assert (everything_deleted.start_offset, everything_deleted.next_offset, len(everything_deleted.files)) == (10, 10, 0)


def test_a_gap_is_reported_and_a_log_does_not_begin_with_one() -> None:
    plan = planned(a_topic(a_head(a_gap(0, 4), an_entry(5, 9), a_gap(10, 14), an_entry(15, 19))))
    [partition] = plan.topics[0].partitions
    assert (partition.start_offset, partition.gaps) == (5, ((10, 14),))
    assert any("offset 10 to 14" in note for note in plan.notes)


def test_the_epoch_is_the_highest_anywhere_dead_branches_included() -> None:
    dead = an_entry(5, 8, epochs=((6, 5),), max_producer_id=4000)
    head = a_head(an_entry(0, 4, epochs=((0, 0), (3, 2)), max_producer_id=17), superseded=(dead,), leader_epoch=5)
    assert plan_partition(head).leader_epoch == 6
    assert planned(a_topic(head)).next_producer_id == 4001


def test_an_open_transaction_is_the_last_entry_s() -> None:
    plan = planned(a_topic(a_head(an_entry(0, 9, open_from=7), an_entry(10, 19, open_from=7))))
    assert plan.topics[0].partitions[0].open_from == 7
    assert plan_partition(a_head(an_entry(0, 9, open_from=7), an_entry(10, 19))).open_from is None


@pytest.mark.parametrize(
    ("before_ms", "retention_bytes", "kept"),
    [
        (None, None, [0, 10, 20]),
        (100, None, [0, 10, 20]),  # a record exactly that old stays
        (101, None, [10, 20]),
        (400, None, [10, 20]),  # from the oldest on: a younger run keeps the older ones that follow it
        (501, None, []),
        (None, 300, [0, 10, 20]),
        (None, 299, [0, 10, 20]),  # at least so many bytes stay
        (None, 200, [10, 20]),
        (None, 0, []),
        (101, 100, [20]),
    ],
)
def test_retention_leaves_out_whole_runs_from_the_oldest_on(before_ms: int | None, retention_bytes: int | None, kept: list[int]) -> None:
    partition = plan_partition(a_head(*ENTRIES), PartBounds(before_ms, retention_bytes))
    assert bases(partition) == kept
    assert partition.start_offset == (kept[0] if kept else 30)
    assert partition.next_offset == 30


def test_runs_without_user_data_are_no_reason_to_keep_what_is_older() -> None:
    markers = an_entry(10, 10, last_timestamp_ms=None, first_timestamp_ms=None, records=0)
    assert bases(
        plan_partition(a_head(an_entry(0, 9, last_timestamp_ms=100), markers, an_entry(11, 20, last_timestamp_ms=900)), PartBounds(200))
    ) == [11]


def test_retention_is_held_back_unless_it_was_requested() -> None:
    topic = a_topic(a_head(*ENTRIES), retention_ms="600", segment_bytes="1048576")
    [held] = planned(topic).topics
    assert held.configs == {"retention.ms": "-1", "retention.bytes": "-1", "segment.bytes": "1048576"}
    assert held.held == {"retention.ms": "600", "retention.bytes": None}
    assert len(held.partitions[0].entries) == 3


def test_the_topics_own_retention_bounds_the_recovery_on_request() -> None:
    topic = a_topic(a_head(*ENTRIES), retention_ms=str(NOW - 101), retention_bytes="-1")
    [applied] = planned(topic, apply_retention=True).topics
    assert bases(applied.partitions[0]) == [10, 20]
    assert applied.held == {}
    assert applied.configs == topic.manifest.configs


def test_a_given_retention_wins_over_the_topics_own() -> None:
    [given] = planned(a_topic(a_head(*ENTRIES), retention_ms="5", retention_bytes="5"), retention_bytes=200).topics
    assert bases(given.partitions[0]) == [10, 20]
    assert given.configs == {"retention.ms": "-1", "retention.bytes": "200"}
    assert given.held == {"retention.ms": "5"}


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_retention_is_for_topics_that_delete(policy: str) -> None:
    [topic] = planned(a_topic(a_head(*ENTRIES), cleanup_policy=policy), retention_bytes=0).topics
    assert topic.compacted
    assert bool(topic.partitions[0].entries) == (policy == "compact")


def test_remote_storage_is_set_aside() -> None:
    settings = {"remote_storage_enable": "true", "local_retention_ms": "5", "remote_log_copy_disable": "true"}
    settings |= {"remote_log_delete_on_disable": "true"}
    [topic] = planned(a_topic(a_head(), cleanup_policy="compact", **settings)).topics  # type: ignore[arg-type]
    assert topic.configs == {"cleanup.policy": "compact"}
    assert topic.held == {name.replace("_", "."): value for name, value in settings.items()}


def test_what_is_lost_is_left_out_by_name_and_what_was_noticed_is_noted() -> None:
    found = Found(topics=[a_topic(a_head())], lost=["soup: gone"], notes=["headwater.json is damaged"])
    plan = make_plan(found, Request(topics=None, options=Options()), now_ms=NOW, recovery_id="r1", cluster_id="new")
    assert (plan.left_out, plan.problems, plan.notes[0]) == (("soup: gone",), (), "headwater.json is damaged")
    assert decode_plan(encode_plan(plan)) == plan


def test_a_partition_without_a_head_comes_back_empty_at_its_number_and_is_left_out() -> None:
    plan = planned(a_topic(a_head(partition=0), a_head(partition=2), partitions=4))
    assert plan.problems == ()
    assert [partition.manifest_version for partition in plan.topics[0].partitions] == [7, 0, 7, 0]
    [reason] = plan.left_out
    assert reason.startswith("orders: of partitions 1, 3 ")


def test_a_partition_beyond_what_is_archived_is_requested_and_not_left_out() -> None:
    assert planned(a_topic(a_head(partition=0)), partitions=3).left_out == ()


def test_a_partition_that_no_broker_could_serve_comes_back_empty_and_the_others_whole() -> None:
    odd = a_head(an_entry(0, 9, partition=1, layout="bricks"), partition=1)
    plan = planned(a_topic(a_head(an_entry(0, 9)), odd, a_head(partition=2, leader_epoch=2**31 - 1)))
    assert check_plan(plan) == plan
    assert [partition.records for partition in plan.topics[0].partitions] == [10, 0, 0]
    assert [reason.partition(" ")[0] for reason in plan.left_out] == ["orders:1", "orders:2"]
    with pytest.raises(VerificationFailed, match="bricks"):
        planned(a_topic(odd, partitions=2))


def test_a_head_beyond_the_count_is_a_problem_and_left_out_on_request_only() -> None:
    topic = a_topic(a_head(partition=0), a_head(partition=1), partitions=1)
    assert planned(topic).problems
    assert len(planned(topic, partitions=2).topics[0].partitions) == 2
    assert len(planned(topic, partition_counts={"orders": 2}).topics[0].partitions) == 2
    [problem] = planned(topic, partitions=1).problems
    assert "--drop-partitions" in problem
    narrowed = planned(topic, partitions=1, drop_partitions=True)
    assert narrowed.problems == ()
    assert len(narrowed.topics[0].partitions) == 1
    assert any("left out" in note for note in narrowed.notes)


def test_counts_and_settings_that_no_broker_gave_are_not_taken_for_true() -> None:
    given = a_topic(a_head(), partitions=1)
    never = ArchivedTopic(manifest=replace(given.manifest, configs=None), heads=given.heads)
    assert (planned(given).problems, planned(given).notes) == ((), planned(given).notes)
    [problem] = planned(never).problems
    assert "--partitions orders=1" in problem
    confirmed = planned(never, partition_counts={"orders": 1})
    assert confirmed.problems == ()
    assert [note for note in confirmed.notes if "no broker ever gave its settings" in note]
    assert not [note for note in planned(given).notes if "no broker" in note]


@pytest.mark.parametrize(
    "options",
    [
        {"partitions": 0},
        {"apply_retention": True, "retention_ms": 5},
        {"retention_bytes": -1},
        {"node_id": -1},
        {"cluster_id": "../etc"},
        {"partition_counts": {"orders": 0}},
        {"partition_counts": {"menu": 3}},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        planned(a_topic(a_head()), **options)


def test_a_partition_count_is_for_one_topic() -> None:
    with pytest.raises(UsageError):
        planned(a_topic(a_head()), a_topic(a_head()), partitions=2)


def test_a_lost_run_becomes_a_gap_and_every_other_record_keeps_its_offset() -> None:
    plan = planned(a_topic(a_head(*(an_entry(base, base + 9) for base in (0, 10, 20, 30)))))

    def holes(*bases: int) -> PartitionPlan:
        found = [LostRun(topic="orders", partition=0, base_offset=base, last_offset=base + 9, reason="gone") for base in bases]
        patched = check_plan(without(replace(plan, holes=tuple(found)), found))
        assert len(patched.left_out) == len(bases)
        assert patched.holes == ()
        [partition] = patched.topics[0].partitions
        return partition

    assert (holes(10).gaps, holes(10).start_offset, holes(10).next_offset) == (((10, 19),), 0, 40)
    assert (holes(0).gaps, holes(0).start_offset) == ((), 10)
    assert (holes(30).gaps, holes(30).next_offset) == (((30, 39),), 40)
    everything = holes(0, 10, 20, 30)
    assert (everything.entries, everything.start_offset, everything.next_offset) == ((), 40, 40)


class Unreadable:
    """Pages that raise `error`."""

    def __init__(self, error: HeadwaterError) -> None:
        self.error = error

    def read(self, ref: PageRef) -> tuple[Item, ...]:
        raise self.error


def a_paged_head(error: HeadwaterError, partition: int = 0) -> Head:
    below = reference([an_entry(0, 9, partition=partition)], uid="f" * 32, level=0, fence=1, size_bytes=1, digest="crc64nvme:" + "0" * 16)
    entries = EntryTree((below, an_entry(10, 19, partition=partition)), Unreadable(error))
    return replace(a_head(an_entry(0, 19), partition=partition), entries=entries)


def test_a_damaged_page_of_dead_branches_costs_no_record() -> None:
    """Its reference says what new epochs and producer ids must be above."""
    dead = [an_entry(0, 9, epochs=(EpochStart(6, 0),), max_producer_id=4000)]
    page = reference(dead, uid="f" * 32, level=0, fence=1, size_bytes=1, digest="crc64nvme:" + "0" * 16)

    def plan_with(ref: PageRef, error: HeadwaterError) -> PartitionPlan:
        return plan_partition(replace(a_head(an_entry(0, 9), leader_epoch=5), superseded=SupersededEntries((ref,), Unreadable(error))))

    damaged = plan_with(page, CorruptData("a page", 0, "flipped"))
    assert (bases(damaged), damaged.leader_epoch, damaged.max_producer_id) == ([0], 6, 4000)
    with pytest.raises(CorruptData):
        plan_with(replace(page, spans=None), CorruptData("a page", 0, "flipped"))
    with pytest.raises(TransientError):
        plan_with(replace(page, spans=None), TransientError("timed out"))


@pytest.mark.parametrize("error", [TransientError("timed out"), ManifestChanged("replaced")])
def test_a_page_that_the_store_does_not_give_leaves_nothing_out(error: HeadwaterError) -> None:
    with pytest.raises(type(error)):
        planned(a_topic(a_paged_head(error)), a_topic(a_head(an_entry(0, 9))))


def test_a_damaged_page_is_a_gap_and_what_else_is_there_comes_back() -> None:
    plan = planned(a_topic(a_head(an_entry(0, 9)), a_paged_head(CorruptData("a page", 0, "flipped"), partition=1)))
    assert [bases(partition) for partition in plan.topics[0].partitions] == [[0], [10]]
    [page] = plan.topics[0].partitions[1].lost_pages
    assert ((page.base_offset, page.last_offset), page.reason.startswith("a page"), plan.left_out) == ((0, 9), True, ())
