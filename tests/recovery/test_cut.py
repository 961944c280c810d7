"""Where logs end against their archives, and what is brought to their ends: as a section of the plan, and as text."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import recovery
from headwater.cut_view import cut_rows, cut_summary
from headwater_core.segments.metadata.metadata_snapshot import read_snapshot
from recovery.cut import Outcome, PartitionCut, _partition_cut, rpo_of
from recovery.entry_list import EntryList
from recovery.initial_metadata import first_producer_id
from recovery.plan_document import decode_plan, encode_plan
from recovery.planner import plan_partition
from recovery.recovery_plan import RecoveryPlan
from recovery.target import read_mark
from tests.manifests.builders import a_head, an_entry
from tests.recovery.test_requested_ends import T0, at
from tests.recovery.written_archive import Archive, commit, data, marker, plain, state

ONGOING, COMPLETE_COMMIT = 1, 4


def an_archive() -> Archive:
    """orders:0 ends inside transactions of 7, which was committed elsewhere, and of 8, which the coordinator has not ended."""
    archive = Archive()
    archive.topic("orders", [plain(0), data(1, 7), data(2, 8)])
    archive.topic("__consumer_offsets", [commit(0, ("reader", "orders", 0, 9), ("other", "orders", 0, 2))])
    archive.topic("__transaction_state", [state(0, "seven", 7, COMPLETE_COMMIT), state(1, "eight", 8, ONGOING, ("orders", 0), ("gone", 3))])
    return archive


def outcomes(plan: RecoveryPlan) -> list[tuple[int, int, Outcome, str]]:
    assert plan.cut is not None
    return [(each.producer_id, each.first_offset, each.outcome, each.coordinator) for each in plan.cut.transactions]


def of_orders(plan: RecoveryPlan) -> PartitionCut:
    assert plan.cut is not None
    return next(each for each in plan.cut.partitions if each.topic == "orders")


def test_each_transaction_and_offset_beyond_the_end_is_listed() -> None:
    plan = an_archive().plan()
    assert plan.cut is not None
    assert outcomes(plan) == [(7, 1, "aborted", "complete-commit"), (8, 2, "aborted", "ongoing")]
    cut = of_orders(plan)
    assert (cut.head, cut.bound, cut.end, cut.log_end) == (3, None, 3, 5)
    assert [(each.group, each.offset, each.log_end) for each in plan.offsets_ahead] == [("reader", 9, 5)]
    assert (plan.cut.retired, plan.cut.torn) == (2, ())
    (unfinished,) = plan.cut.unfinished
    assert (unfinished.transactional_id, unfinished.producer_id, unfinished.status) == ("eight", 8, "ongoing")
    assert (unfinished.partitions, unfinished.missing) == (("gone:3", "orders:0"), ("gone:3",))
    assert decode_plan(encode_plan(plan)).cut == plan.cut


@pytest.mark.parametrize(
    ("how", "expected", "end", "bound"),
    [
        ("keep", [(7, 1, "left open", "complete-commit"), (8, 2, "ended by the coordinator", "ongoing")], 3, None),
        ("cut", [(7, 1, "left out", "complete-commit"), (8, 2, "left out", "ongoing")], 1, 1),
    ],
)
def test_what_was_requested_for_open_transactions_is_listed(how: str, expected: list[object], end: int, bound: int | None) -> None:
    plan = an_archive().plan(open_transactions=how)
    assert outcomes(plan) == expected
    cut = of_orders(plan)
    assert (cut.head, cut.bound, cut.end) == (3, bound, end)
    assert [(each.group, each.log_end) for each in plan.offsets_ahead if each.group == "other"] == ([("other", 1)] if how == "cut" else [])


def test_the_smaller_of_head_and_bound_holds_and_group_offsets_follow() -> None:
    plan = an_archive().plan(to_offsets={"orders:0": 1})
    cut = of_orders(plan)
    assert (cut.head, cut.bound, cut.end, cut.log_end) == (3, 1, 1, 1)
    assert outcomes(plan) == []
    assert sorted((each.group, each.log_end) for each in plan.offsets_ahead) == [("other", 1), ("reader", 1)]


def test_producer_ids_begin_above_what_the_coordinator_has_given(tmp_path: Path) -> None:
    archive = Archive()
    archive.topic("orders", [plain(0), data(1, 7), marker(2, 7)])
    archive.topic("__transaction_state", [state(0, "never wrote", 5_000_000, COMPLETE_COMMIT)])
    plan = archive.plan()
    assert plan.cut is not None
    assert plan.cut.coordinator_producer_id == 5_000_000
    assert plan.cut.next_producer_id == first_producer_id(plan) > 5_000_000
    recovery.apply(plan, tmp_path / "log", archive.store)
    found = read_snapshot((tmp_path / "log" / "bootstrap.checkpoint").read_bytes(), "bootstrap")
    assert found.next_producer_id == plan.cut.next_producer_id


def test_where_the_archive_ends_is_remembered_when_ends_are_decided_again(tmp_path: Path) -> None:
    archive = Archive()
    entries = archive.topic("orders", [plain(0)], [data(1, 7)])
    plan = archive.plan(open_transactions="cut")
    assert (of_orders(plan).head, of_orders(plan).end) == (2, 1)
    archive.store.delete(entries[0].key)
    recovery.apply(plan, tmp_path / "log", archive.store, skip_damaged=True)
    mark = read_mark(tmp_path / "log")
    assert mark is not None
    assert of_orders(mark.plan).head == 2


def test_people_read_what_ends_early_or_was_set_back() -> None:
    plan = an_archive().plan()
    (row,) = cut_rows(plan)
    assert (row["topic"], row["partition"], row["head"], row["bound"], row["end"], row["offsets"]) == ("orders", 0, 3, None, 3, 1)
    assert row["transactions"] == "2 aborted"
    assert cut_summary(plan) == (
        "cut: before the end of the archive: 0 of 3 partitions; 2 open transactions aborted; ended for their coordinator: 1; "
        "1 group offset beyond, set back; new producer ids from 1000000 on"
    )
    assert "before the end of the archive: 1 of 3 partitions; 2 open transactions left out" in cut_summary(
        an_archive().plan(open_transactions="cut")
    )
    assert (list(cut_rows(replace(plan, cut=None))), cut_summary(replace(plan, cut=None))) == ([], "")


def test_a_cut_that_cannot_be_is_refused() -> None:
    for wrong in ({"end": 9}, {"log_end": 1}, {"head": 2}):
        with pytest.raises(ValueError, match="is cut at"):
            replace(PartitionCut(topic="t", partition=0, head=3, bound=None, end=3, log_end=3, last_timestamp_ms=None), **wrong)


@pytest.mark.parametrize(
    ("back_ms", "archived_ms", "taken_ms", "rpo"),
    [
        (None, None, 9, None),  # no record has a time
        (None, 5, 9, None),  # none comes back
        (5, 5, None, (0, "archive")),
        (3, 5, None, (2, "archive")),
        (3, 5, 4, (2, "archive")),
        (5, 5, 9, (4, "snapshot")),
        (3, 5, 9, (6, "snapshot")),
        (7, 5, 6, (0, "archive")),  # timestamps out of order
    ],
)
def test_what_is_lost_reaches_from_the_newest_record_that_comes_back_to_the_newest_that_is_known(
    back_ms: int | None, archived_ms: int | None, taken_ms: int | None, rpo: tuple[int, str] | None
) -> None:
    assert rpo_of(back_ms, archived_ms, taken_ms) == rpo


def test_each_partition_has_its_rpo() -> None:
    archive = Archive()
    archive.topic("orders", [at(0, 10), at(1, 20)], [at(2, 50)])
    archive.topic("menu", [at(0, 15)])

    def rpos(**options: Any) -> dict[str, tuple[int | None, str | None]]:
        cut = archive.plan(**options).cut
        assert cut is not None
        return {each.topic: (each.rpo_ms, each.rpo_from) for each in cut.partitions}

    assert rpos() == rpos(mode="instant") == {"menu": (0, "archive"), "orders": (0, "archive")}
    assert rpos(to_time_ms=T0 + 30) == {"menu": (0, "archive"), "orders": (30, "archive")}
    assert rpos(to_time_ms=T0 + 12) == {"menu": (None, None), "orders": (40, "archive")}


def test_the_head_of_a_log_that_ends_early_is_where_its_archive_ends() -> None:
    archive = Archive()
    archive.topic("orders", [at(0, 10), at(1, 20)], [at(2, 50)], [at(3, 60)])
    cut = archive.plan(to_time_ms=T0 + 12).cut
    assert cut is not None
    assert [(each.head, each.bound, each.end) for each in cut.partitions] == [(4, 1, 1)]


def test_a_record_that_is_dated_ahead_hides_no_loss() -> None:
    """It counts as published then, in what comes back and in what is lost."""
    entries = tuple(
        an_entry(at, at + 9, first_timestamp_ms=1000, last_timestamp_ms=last_ms, published_ms=published_ms)
        for at, last_ms, published_ms in ((0, 1000, 2000), (10, 2**62, 3000), (20, 2900, 3500))
    )
    whole = plan_partition(a_head(entries=entries, last_offset=29))
    assert whole.newest_ms == 3000
    cut = _partition_cut("orders", whole, 30, taken_ms=10_000)
    assert (cut.rpo_ms, cut.rpo_from, cut.last_timestamp_ms) == (7000, "snapshot", 3000)
    shortened = _partition_cut("orders", replace(whole, entries=EntryList.of(entries[:1]), next_offset=10), 30, taken_ms=None)
    assert (shortened.rpo_ms, shortened.rpo_from) == (2000, "archive")
