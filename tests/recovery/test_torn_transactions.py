"""Transactions of which a part comes back, because partitions were archived at different moments."""

import re
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import recovery
from headwater.recovery_text import check_complete
from headwater_core.errors import Partial
from headwater_core.segments.batches import BatchHeader
from headwater_core.segments.markers import ABORT, COMMIT, read_marker
from headwater_core.segments.records import Record, decode_batch
from recovery.cut import TornTransaction
from recovery.target import read_mark
from recovery.torn_transactions import _Parts
from tests.headwater_core.segments.builders import BASE_TIME, Producer, a_batch
from tests.recovery.written_archive import Archive, aborts, batches_in, commit, data, marker, plain, state

ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = 1, 2, 3, 4, 5
LATER = BASE_TIME + 60_000
LOGS = ("menu", "orders", "stock")


def torn(archive: Archive, **options: Any) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    cut = archive.plan(**options).cut
    assert cut is not None
    return [(each.transactional_id, each.committed, each.missing) for each in cut.torn]


@pytest.mark.parametrize("data_epoch", [0, 5])
def test_a_commit_of_version_2_elsewhere_is_of_the_open_transaction(data_epoch: int) -> None:
    archive = Archive()
    archive.topic("orders", [data(0, 7, producer_epoch=data_epoch), marker(1, 7, producer_epoch=data_epoch + 1)])
    archive.topic("menu", [plain(0), data(1, 7, producer_epoch=data_epoch)])
    assert torn(archive) == [("", ("orders:0",), ("menu:0",))]
    assert aborts(archive.partition("menu")) == [(2, 7)]
    [found] = archive.plan().torn
    assert f"producer id 7, epoch {data_epoch}" in found
    assert "orders:0 offset 1" in found
    assert "menu:0 offset 1" in found


def test_an_earlier_or_later_transaction_of_version_2_elsewhere_is_another() -> None:
    archive = Archive()
    ended = [data(0, 7, producer_epoch=3), marker(1, 7, producer_epoch=4), data(2, 7, producer_epoch=6), marker(3, 7, producer_epoch=7)]
    archive.topic("orders", ended)
    archive.topic("menu", [data(0, 7, producer_epoch=4)])
    assert torn(archive) == []


@pytest.mark.parametrize(("ends", "expected"), [([COMMIT], True), ([ABORT], False), ([ABORT, COMMIT], False), ([COMMIT, ABORT], True)])
def test_the_first_marker_of_version_1_that_is_not_older_is_the_transaction_s(ends: list[int], expected: bool) -> None:
    archive = Archive()
    log = []
    for at, kind in enumerate(ends):
        log += [data(2 * at, 7), marker(2 * at + 1, 7, kind, time_ms=LATER + at * 60_000)]
    archive.topic("orders", [data_at(0, 7, BASE_TIME - 10)], [marker(1, 7, time_ms=BASE_TIME - 1), plain(2)])
    archive.topic("menu", log)
    archive.topic("stock", [data(0, 7)])
    assert torn(archive) == ([("", ("menu:0",), ("stock:0",))] if expected else [])


def test_the_marker_before_may_be_younger_than_what_is_open() -> None:
    """A commit returns before its markers are written, and the next record has its time by then."""
    archive = Archive()
    archive.topic("menu", [data(0, 7), marker(1, 7, time_ms=BASE_TIME + 3), data(2, 7)])
    archive.topic("orders", [data(0, 7), marker(1, 7, time_ms=BASE_TIME + 5)], [data(2, 7), marker(3, 7, ABORT, time_ms=LATER)])
    archive.topic("stock", [data(0, 7), marker(1, 7, time_ms=BASE_TIME + 4)])
    assert torn(archive) == []


@pytest.mark.parametrize("how", ["abort", "cut"])
def test_transactions_of_version_1_are_told_apart_by_their_markers(how: Literal["abort", "cut"]) -> None:
    """One lacks its end in `menu`, the next of the same producer in `stock`."""
    archive = Archive()
    first, second = (marker(1, 7, time_ms=LATER), marker(3, 7, time_ms=LATER + 120_000))
    again = a_batch(2, [Record(2, LATER + 60_000, None, b"soup", ())], producer=Producer(id=7), transactional=True)
    archive.topic("orders", [data(0, 7), first], [again, second])
    archive.topic("menu", [data(0, 7)])
    archive.topic("stock", [data(0, 7), first], [again])
    expected = [("", ("orders:0", "stock:0"), ("menu:0",)), ("", ("orders:0",), ("stock:0",))]
    assert torn(archive, open_transactions=how) == (expected if how == "abort" else [])
    if how == "abort":
        cut = archive.plan().cut
        assert cut is not None
        assert [each.markers for each in cut.torn] == [(1, 1), (3,)]


@given(st.lists(st.frozensets(st.sampled_from(LOGS), min_size=1), min_size=1, max_size=5), st.tuples(*[st.integers(1, 10)] * len(LOGS)))
def test_each_torn_transaction_of_version_1_is_named_by_its_own_markers(transactions: list[frozenset[str]], ends: tuple[int, ...]) -> None:
    """transactions: the logs of each, all of one producer. ends: how many batches of each log are archived"""
    logs: dict[str, list[bytes]] = {log: [] for log in LOGS}
    markers: list[dict[str, int]] = []
    for number, chosen in enumerate(transactions):
        time_ms = BASE_TIME + number * 60_000
        markers.append({})
        for log in sorted(chosen):
            at = markers[-1][log] = len(logs[log]) + 1
            again = a_batch(at - 1, [Record(at - 1, time_ms, None, b"soup", ())], producer=Producer(id=7), transactional=True)
            logs[log] += [again, marker(at, 7, time_ms=time_ms + 1000)]
    archive = Archive()
    for log, end in zip(LOGS, ends, strict=True):
        archive.topic(log, logs[log][:end] or [plain(0)])
    cut = archive.plan().cut
    assert cut is not None
    named = [({*zip(each.committed, each.markers, strict=True)}, {*each.missing}) for each in cut.torn]
    archived = dict(zip(LOGS, ends, strict=True))
    for offsets in markers:
        committed = {(f"{log}:0", offset) for log, offset in offsets.items() if offset < archived[log]}
        missing = {f"{log}:0" for log, offset in offsets.items() if offset == archived[log]}
        assert not (committed and missing) or any(committed <= whole and missing <= part for whole, part in named), (offsets, named)


def test_what_the_coordinator_names_and_is_not_there_is_missing() -> None:
    """Nothing of the transaction is in the archive of `menu`, which ends before it."""
    archive = Archive()
    archive.topic("orders", [data(0, 7), marker(1, 7, time_ms=LATER)])
    archive.topic("menu", [plain(0)])
    times = (LATER, BASE_TIME)
    states = [
        state(0, "payer", 7, PREPARE_COMMIT, ("orders", 0), ("menu", 0), times_ms=times),
        state(1, "payer", 7, COMPLETE_COMMIT, times_ms=times),
    ]
    archive.topic("__transaction_state", states)
    assert torn(archive) == [("payer", ("orders:0",), ("menu:0",))]
    assert torn(archive, to_offsets={"orders:0": 0}) == []  # none of it comes back


@pytest.mark.parametrize(("kind", "expected"), [(COMMIT, [("payer", ("orders:0",), ("menu:0",))]), (ABORT, [])])
def test_a_coordinator_that_had_not_decided_yet_names_the_partitions(kind: int, expected: list[object]) -> None:
    archive = Archive()
    archive.topic("orders", [data(0, 7), marker(1, 7, kind, time_ms=LATER)])
    archive.topic("menu", [plain(0)])
    archive.topic("__transaction_state", [state(0, "payer", 7, ONGOING, ("menu", 0), times_ms=(BASE_TIME, BASE_TIME))])
    assert torn(archive) == expected  # it had not been told of orders:0 yet


@pytest.mark.parametrize("index_is_lost", [False, True])
def test_a_marker_behind_a_run_that_is_lost_counts(index_is_lost: bool) -> None:
    """With the run in which its transaction began, and the index of that run, in what stays in the archive."""
    archive = Archive()
    lost, marked = archive.topic("orders", [data(0, 7)], [marker(1, 7, time_ms=LATER)])
    archive.topic("menu", [plain(0)])
    archive.topic("__transaction_state", [state(0, "payer", 7, ONGOING, ("menu", 0), times_ms=(BASE_TIME, BASE_TIME))])
    for key in (lost.key, lost.index_key, *([marked.index_key] if index_is_lost else [])):
        archive.store.delete(key)
    assert torn(archive, mode="instant") == [("payer", ("orders:0",), ("menu:0",))]


def test_what_was_committed_as_a_whole_is_not_torn() -> None:
    archive = Archive()
    for topic in ("menu", "orders"):
        archive.topic(topic, [data(0, 7), marker(1, 7, time_ms=LATER)])
    archive.topic("__transaction_state", [state(0, "payer", 7, PREPARE_COMMIT, ("orders", 0), ("menu", 0), times_ms=(LATER, BASE_TIME))])
    plan = archive.plan()
    assert plan.torn == ()
    check_complete(plan.left_out, plan.torn)


def test_a_group_whose_commits_are_lost_with_a_transaction_that_is_not_is_named() -> None:
    archive = Archive()
    archive.topic("orders", [data(0, 7), marker(1, 7, time_ms=LATER)])
    archive.topic("__consumer_offsets", [commit(0, ("reader", "menu", 0, 4), producer=7)])
    assert torn(archive) == [("", ("orders:0",), ("__consumer_offsets:0",))]


def test_a_cut_ends_every_log_before_a_torn_transaction(tmp_path: Path) -> None:
    """And before those that are torn by that."""
    archive = Archive()
    archive.topic("menu", [data(0, 7, producer_epoch=2)])
    archive.topic("orders", [plain(0), data(1, 8), data(2, 7, producer_epoch=2), marker(3, 7, producer_epoch=3), marker(4, 8), plain(5)])
    archive.topic("stock", [plain(0), data(1, 8), marker(2, 8, time_ms=LATER), plain(3)])
    assert torn(archive) == [("", ("orders:0",), ("menu:0",))]
    plan = archive.plan(open_transactions="cut")
    assert {topic.topic: topic.partitions[0].log_end for topic in plan.topics} == {"menu": 0, "orders": 1, "stock": 1}
    assert plan.torn == ()
    recovery.apply(plan, tmp_path / "log", archive.store)
    assert [header.last_offset for header, _ in batches_in(tmp_path / "log" / "orders-0")] == [0]


def test_people_are_told_and_the_recovery_is_a_partial_success(tmp_path: Path) -> None:
    archive = Archive()
    archive.topic("orders", [data(0, 7), marker(1, 7, producer_epoch=1)])
    archive.topic("menu", [data(0, 7)])
    report = recovery.apply(archive.plan(), tmp_path / "log", archive.store)
    assert report.torn == archive.plan().torn
    with pytest.raises(Partial, match="restored in part: 1 transaction,"):
        check_complete(report.left_out, report.torn)


def test_a_torn_transaction_of_many_partitions_is_shown_in_short() -> None:
    many = tuple(f"orders:{number}" for number in range(20))
    shown = str(
        TornTransaction(
            transactional_id="payer",
            producer_id=7,
            producer_epoch=1,
            committed=many,
            markers=tuple(range(20)),
            missing=("menu:0",),
            missing_from=(4,),
        )
    )
    assert re.search(r"orders:7 offset 7 and 12 more, and its records are not in menu:0 offset 4", shown)


def test_a_coordinator_older_than_the_data_ends_nothing_and_blocks_no_id(tmp_path: Path) -> None:
    """Version 2: each transaction has an epoch of its own. The coordinator has epoch 1, Ongoing; the log's open transaction has epoch 5."""
    archive = Archive()
    archive.topic("orders", [data(0, 7, producer_epoch=1), marker(1, 7, producer_epoch=2), data(2, 7, producer_epoch=5)])
    archive.topic("__transaction_state", [state(0, "seven", 7, ONGOING, ("orders", 0), epoch=1)])
    recovery.apply(archive.plan(), tmp_path / "log", archive.store)
    header, raw = batches_in(tmp_path / "log" / "orders-0")[-1]
    assert (header.base_offset, header.producer_epoch, read_marker(raw).type) == (3, 6, ABORT)
    assert tombstones(tmp_path / "log") == ["seven"]


def test_a_prepared_commit_of_the_transaction_before_commits_nothing() -> None:
    """The log has the marker of the one that the coordinator is about to commit, and the beginning of the next."""
    archive = Archive()
    archive.topic("orders", [data(0, 7), marker(1, 7), data(2, 7)])
    states = [state(0, "seven", 7, ONGOING, ("orders", 0)), state(1, "seven", 7, PREPARE_COMMIT, ("orders", 0))]
    archive.topic("__transaction_state", states)
    assert aborts(archive.partition("orders")) == [(3, 7)]
    assert [note for note in archive.plan().endings if "had decided to commit" in note and "seven (producer id 7, epoch 0)" in note]


@pytest.mark.parametrize(("step_ms", "is_event_time"), [(1000, False), (15_000, False), (15_000, True), (3_000_000, True)])
def test_a_cut_takes_no_transaction_of_version_1_for_the_one_before(step_ms: int, is_event_time: bool) -> None:
    """However close they are, and whatever times their records have: each marker is of the one that is nearest."""
    orders, menu = [], []
    for number in range(12):
        time_ms = BASE_TIME + number * step_ms
        created_ms = BASE_TIME - 10**9 + number if is_event_time else time_ms
        orders += [data_at(2 * number, 7, created_ms), marker(2 * number + 1, 7, time_ms=time_ms + 50)]
        menu += [data_at(2 * number, 7, created_ms), marker(2 * number + 1, 7, time_ms=time_ms + 60)]
    archive = Archive()
    archive.topic("orders", orders[:-1])
    archive.topic("menu", menu)
    assert {topic.topic: topic.partitions[0].next_offset for topic in archive.plan(open_transactions="cut").topics} == {
        "menu": 22,
        "orders": 22,
    }
    assert torn(archive) == [("", ("menu:0",), ("orders:0",))]


def test_what_retention_has_emptied_lacks_nothing_where_an_end_is_requested_too() -> None:
    archive = Archive()
    archive.topic("orders", [data(0, 7), marker(1, 7, time_ms=LATER)], [plain(2)])
    archive.topic("menu", [data(0, 7), marker(1, 7, time_ms=LATER)], **{"cleanup.policy": "compact"})
    archive.topic("__transaction_state", [state(0, "payer", 7, PREPARE_COMMIT, ("orders", 0), ("menu", 0), times_ms=(LATER, BASE_TIME))])
    for options in ({}, {"to_offsets": {"orders:0": 2}}):
        assert torn(archive, retention_bytes=0, **options) == []


@pytest.mark.parametrize("mode", ["full", "instant"])
def test_a_lost_run_between_the_data_and_the_end_hides_no_torn_transaction(mode: str) -> None:
    archive = Archive()
    _, lost, _ = archive.topic("orders", [data(0, 7, producer_epoch=3)], [data(1, 7, producer_epoch=3)], [plain(2)])
    archive.topic("menu", [data(0, 7, producer_epoch=3), marker(1, 7, producer_epoch=4, time_ms=LATER)])
    for key in (lost.key, lost.index_key):
        archive.store.delete(key)
    assert torn(archive, mode=mode) == [("", ("menu:0",), ("orders:0",))]
    said = "not all of its epochs" if mode == "full" else "cannot be read, nor what ended there"
    assert any(said in note for note in archive.plan(mode=mode).endings)


@pytest.mark.parametrize("behind", [[marker(22, 110, ABORT, producer_epoch=2)], [data(22, 110, producer_epoch=3)]])
def test_what_finds_no_room_in_a_gap_is_named_where_it_is_torn(behind: list[bytes]) -> None:
    """Whatever its producer has behind the gap."""
    archive = Archive()
    archive.topic("orders", [data(at, 100 + at) for at in range(12)], None, behind)
    archive.topic("menu", [data(0, 110), marker(1, 110, producer_epoch=1, time_ms=LATER)])
    assert torn(archive) == [("", ("menu:0",), ("orders:0",))]


def test_what_the_plan_names_is_named_after_damage_was_found_elsewhere(tmp_path: Path) -> None:
    """The ends of logs are decided again then, of logs that are cut already."""
    archive = Archive()
    archive.topic("orders", [plain(0), data(1, 7), marker(2, 7, time_ms=LATER)])
    archive.topic("menu", [data(0, 7), marker(1, 7, time_ms=LATER)])
    lost, _ = archive.topic("stock", [plain(0)], [plain(1)])
    plan = archive.plan(to_offsets={"orders:0": 1})
    for key in (lost.key, lost.index_key):
        archive.store.delete(key)
    report = recovery.apply(plan, tmp_path / "log", archive.store, skip_damaged=True)
    assert report.torn == plan.torn
    assert len(plan.torn) == 1


def test_a_transaction_that_is_aborted_before_a_gap_and_committed_behind_it_is_named() -> None:
    """In one log: of version 2 its epoch tells."""
    archive = Archive()
    archive.topic("orders", [data(0, 7, producer_epoch=3)], None, [data(11, 7, producer_epoch=3), marker(12, 7, producer_epoch=4)])
    assert torn(archive) == [("", ("orders:0",), ("orders:0",))]


@pytest.mark.parametrize(("elsewhere", "is_torn"), [(None, True), (ABORT, False), (COMMIT, True)])
def test_a_transaction_of_version_1_over_a_gap_is_named_unless_it_is_known_to_have_ended_in_it(
    elsewhere: int | None, is_torn: bool
) -> None:
    """Its epoch does not tell: it may be the next one of that producer, so an earlier end in another log has to."""
    archive = Archive()
    archive.topic("orders", [data(0, 7)], None, [data_at(11, 7, LATER), marker(12, 7, time_ms=LATER + 1000)])
    if elsewhere is not None:
        archive.topic("menu", [data(0, 7), marker(1, 7, elsewhere, time_ms=BASE_TIME + 1000)])
    expected = ("menu:0",) if elsewhere is not None else ("orders:0",)
    assert torn(archive) == ([("", expected, ("orders:0",))] if is_torn else [])


def test_a_commit_of_the_next_epoch_is_none_of_a_producer_of_version_1() -> None:
    """Whatever the epoch of its data was, which is lost: a marker of the epoch before has data of that same epoch."""
    archive = Archive()
    ended = [data(0, 7), marker(1, 7, time_ms=BASE_TIME - 1000)]
    for before, expected in ((ended, []), ([plain(0), plain(1)], [("", ("orders:0",), ("menu:0",))])):
        archive = Archive()
        archive.topic("orders", before, None, [marker(12, 7, producer_epoch=1, time_ms=LATER)])
        archive.topic("menu", [data_at(0, 7, LATER - 1000)])
        assert torn(archive) == expected


@pytest.mark.parametrize("index_is_lost", [True, False])
def test_a_cut_counts_what_ended_in_a_lost_run_as_missing(index_is_lost: bool) -> None:
    """orders is cut before what is open there, with records of another one whose COMMIT is in the lost run: stock has both."""
    archive = Archive()
    records = [plain(0), data(1, 8), data(2, 7, producer_epoch=3)]
    _, lost, _ = archive.topic("orders", records, [marker(3, 7, producer_epoch=4, time_ms=LATER)], [plain(4)])
    archive.topic("stock", [plain(0), data(1, 7, producer_epoch=3), marker(2, 7, producer_epoch=4, time_ms=LATER)])
    archive.store.delete(lost.key)
    if index_is_lost:
        archive.store.delete(lost.index_key)
    assert archive.partition("orders", open_transactions="cut").next_offset == 1
    assert archive.partition("stock", open_transactions="cut").next_offset == 1


@pytest.mark.parametrize("kind", [COMMIT, ABORT])
def test_what_ended_behind_a_lost_run_is_not_missing_by_a_cut(kind: int) -> None:
    """stock has that producer's next transaction, of version 1, and all of it."""
    archive = Archive()
    behind = [marker(5, 7, kind, time_ms=LATER), plain(6)]
    _, lost, _ = archive.topic("orders", [plain(0), data(1, 8), data(2, 7)], [data(3, 9), marker(4, 9, ABORT, time_ms=LATER)], behind)
    late = LATER + 3_600_000
    archive.topic("stock", [plain(0), data_at(1, 7, late), marker(2, 7, time_ms=late + 1000), plain(3)])
    for key in (lost.key, lost.index_key):
        archive.store.delete(key)
    assert archive.partition("orders", open_transactions="cut").next_offset == 1
    assert archive.partition("stock", open_transactions="cut").next_offset == 4


def test_a_second_lost_run_hides_nothing_that_a_cut_leaves_in_part() -> None:
    archive = Archive()
    runs = [plain(0), data(1, 8)], [plain(2)], [data(3, 7, producer_epoch=3)], [marker(4, 7, producer_epoch=4, time_ms=LATER)], [plain(5)]
    _, first, _, second, _ = archive.topic("orders", *runs)
    archive.topic("stock", [plain(0), data(1, 7, producer_epoch=3), marker(2, 7, producer_epoch=4, time_ms=LATER)])
    for key in (first.key, first.index_key, second.key, second.index_key):
        archive.store.delete(key)
    assert archive.partition("stock", open_transactions="cut").next_offset == 1


@pytest.mark.parametrize("how", ["abort", "cut"])
def test_a_transaction_of_version_1_a_month_behind_a_gap_is_another(how: str) -> None:
    archive = Archive()
    late = LATER + 30 * 86_400_000
    archive.topic("orders", [data(0, 7)], None, [data_at(11, 7, late), marker(12, 7, time_ms=late + 1000), plain(13)])
    assert torn(archive, open_transactions=how) == []
    assert archive.partition("orders", open_transactions=how).next_offset == 14


@pytest.mark.parametrize("mode", ["full", "instant"])
def test_what_its_own_commit_ends_behind_a_gap_is_whole(mode: str) -> None:
    """Nothing is written for it: in the gap is no room, or it lies in what stays in the archive."""
    archive = Archive()
    if mode == "full":
        archive.topic("orders", [data(at, 100 + at) for at in range(12)], None, [data(22, 110), marker(23, 110, time_ms=LATER), plain(24)])
    else:
        before = [data(0, 9), data(1, 110)]
        _, lost, *_ = archive.topic("orders", before, [data(2, 8)], [data(3, 110), marker(4, 110, time_ms=LATER)], [plain(5)])
        for key in (lost.key, lost.index_key):
            archive.store.delete(key)
    archive.topic("menu", [data(0, 110), marker(1, 110, time_ms=LATER)])
    assert torn(archive, mode=mode) == []


def test_an_end_in_a_run_of_which_the_index_is_left_may_be_an_abort() -> None:
    """Both runs stay in the archive, so no gap takes their places: what is open before them is named."""
    archive = Archive()
    before = [data(0, 7, producer_epoch=3), data(1, 9)]
    _, lost, ends, _ = archive.topic("orders", before, [data(2, 8)], [marker(3, 7, ABORT, producer_epoch=4)], [plain(4)])
    archive.topic("menu", [data(0, 7, producer_epoch=3), marker(1, 7, producer_epoch=4, time_ms=LATER)])
    for key in (lost.key, lost.index_key, ends.key):
        archive.store.delete(key)
    assert torn(archive, mode="instant") == [("", ("menu:0",), ("orders:0",))]


def test_what_a_cut_leaves_out_is_listed_after_damage_was_found_elsewhere(tmp_path: Path) -> None:
    archive = Archive()
    archive.topic("orders", [plain(0), data(1, 7)])
    lost, _ = archive.topic("stock", [plain(0)], [plain(1)])
    plan = archive.plan(open_transactions="cut")
    for key in (lost.key, lost.index_key):
        archive.store.delete(key)
    recovery.apply(plan, tmp_path / "log", archive.store, skip_damaged=True)
    mark = read_mark(tmp_path / "log")
    assert mark is not None
    for cut in (plan.cut, mark.plan.cut):
        assert cut is not None
        assert [(each.topic, each.first_offset, each.outcome) for each in cut.transactions] == [("orders", 1, "left out")]


@pytest.mark.parametrize("behind", [[], [[marker(11, 7, time_ms=LATER + 1)]]])
def test_a_marker_behind_a_gap_hides_no_torn_transaction_before_it(behind: list[list[bytes]]) -> None:
    archive = Archive()
    archive.topic("orders", [data(0, 7)], None, *(behind or [[plain(11)]]))
    archive.topic("menu", [data(0, 7), marker(1, 7, time_ms=LATER)])
    assert ("", ("menu:0",), ("orders:0",)) in torn(archive)


def test_what_an_end_below_the_start_of_a_log_leaves_out_is_missing() -> None:
    """Nothing of it comes back, which is not what retention does."""
    archive = Archive()
    archive.topic("orders", [plain(0)])
    archive.replace("orders", [data(11, 7), marker(12, 7, time_ms=LATER)], start_offset=11)
    archive.topic("menu", [data(0, 7), marker(1, 7, time_ms=LATER)])
    archive.topic("__transaction_state", [state(0, "payer", 7, PREPARE_COMMIT, ("orders", 0), ("menu", 0), times_ms=(LATER, BASE_TIME))])
    assert torn(archive) == []
    assert torn(archive, to_offsets={"orders:0": 0}) == [("payer", ("menu:0",), ("orders:0",))]


@pytest.mark.parametrize("how", ["abort", "cut"])
def test_a_commit_in_the_run_behind_its_data_is_of_their_transaction(how: str) -> None:
    """The transaction of orders is an hour younger than that of menu, and of version 1: they have one epoch."""
    younger = BASE_TIME + 3_600_000
    open_one = a_batch(1, [Record(1, younger, None, b"soup", ())], producer=Producer(id=8), transactional=True)
    for runs in (
        ([data_at(0, 7, younger), open_one, marker(2, 7, time_ms=younger + 1000)],),
        ([data_at(0, 7, younger)], [open_one, marker(2, 7, time_ms=younger + 1000)]),
    ):
        archive = Archive()
        archive.topic("orders", *runs)
        archive.topic("menu", [data(0, 7), marker(1, 7, time_ms=BASE_TIME + 1000)])
        assert torn(archive, open_transactions=how, to_offsets={"orders:0": 2}) == []
        assert archive.partition("menu", open_transactions=how).next_offset == 2


@pytest.mark.parametrize("how", ["abort", "cut"])
def test_a_commit_is_not_of_an_older_epoch_because_its_data_are_in_another_run(how: str) -> None:
    """In orders the transaction that is open in menu was aborted; its next one was committed."""
    aborted, later = [data(0, 7), marker(1, 7, ABORT, time_ms=BASE_TIME + 1000)], BASE_TIME + 3_600_000
    committed = [data_at(2, 7, later, producer_epoch=1)], [marker(3, 7, producer_epoch=1, time_ms=later + 1000)]
    archive = Archive()
    archive.topic("orders", aborted + committed[0], committed[1])
    archive.topic("menu", [data(0, 7)])
    assert torn(archive, open_transactions=how) == []
    assert archive.partition("orders", open_transactions=how).next_offset == 4


def test_many_transactions_of_one_epoch_are_compared_with_few_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many comparisons as transactions, not as pairs of them."""
    compare, compared = _Parts.is_one_with, []

    def is_one_with(self: _Parts, other: _Parts) -> bool:
        compared.append(other)
        return compare(self, other)

    monkeypatch.setattr(_Parts, "is_one_with", is_one_with)
    archive, count = Archive(), 300
    log, states = list[bytes](), list[bytes]()
    for at in range(count):
        time_ms = BASE_TIME + at * 60_000
        log += [data_at(2 * at, 7, time_ms), marker(2 * at + 1, 7, time_ms=time_ms + 1000)]
        states.append(state(at, "seven", 7, COMPLETE_COMMIT, ("orders", 0), ("menu", 0), times_ms=(time_ms + 1000, time_ms)))
    archive.topic("orders", log)
    archive.topic("menu", [data_at(0, 7, BASE_TIME - 60_000), marker(1, 7, time_ms=BASE_TIME - 59_000)])
    archive.topic("__transaction_state", states)
    assert len(torn(archive)) == count
    assert len(compared) <= 2 * count


@pytest.mark.parametrize("status", [0, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT])
def test_every_id_that_is_live_gets_a_tombstone_in_its_partition(status: int, tmp_path: Path) -> None:
    archive = Archive()
    archive.topic("__transaction_state", [state(0, "live", 7, status), state(1, "gone", 8, COMPLETE_COMMIT)], [gone(2, "gone")])
    plan = archive.plan()
    recovery.apply(plan, tmp_path / "log", archive.store)
    assert tombstones(tmp_path / "log") == ["live"]
    assert plan.cut is not None
    assert plan.cut.retired == 1


def test_prepared_two_phase_transactions_are_named_one_by_one() -> None:
    archive = Archive()
    archive.topic("orders", [data(0, 7), data(1, 8)])
    states = [
        state(0, "atomic", 7, ONGOING, ("orders", 0), timeout_ms=2**31 - 1),
        state(1, "plain", 8, ONGOING, ("orders", 0)),
    ]
    archive.topic("__transaction_state", states)
    assert len([note for note in archive.plan().endings if "two-phase transaction of atomic" in note]) == 1
    assert not [note for note in archive.plan().endings if "two-phase transaction of plain" in note]


def test_a_coordinator_is_not_believed_at_a_gap(tmp_path: Path) -> None:
    """It may have ended there what it had begun before."""
    archive = Archive()
    archive.topic("orders", [data(0, 7)])
    archive.topic("__transaction_state", [state(0, "seven", 7, PREPARE_COMMIT, ("orders", 0))], None, [state(11, "eight", 8, 4)])
    plan = archive.plan()
    assert aborts(archive.partition("orders")) == [(1, 7)]
    assert [note for note in plan.endings if "__transaction_state:0: offsets 1-10 are lost" in note]


def data_at(offset: int, producer: int, time_ms: int, *, producer_epoch: int = 0) -> bytes:
    of = Producer(id=producer, epoch=producer_epoch)
    return a_batch(offset, [Record(offset, time_ms, None, b"soup", ())], producer=of, transactional=True)


def gone(offset: int, transactional_id: str) -> bytes:
    from headwater_core.segments.encoder import encode_batch

    [record] = decode_batch(state(0, transactional_id, 0, 0), where="state")
    return encode_batch(offset, [(record.key, None)], leader_epoch=0, timestamp_ms=BASE_TIME)


def tombstones(log: Path) -> list[str]:
    """The transactional ids of which the last record in __transaction_state:0 is a tombstone."""
    last: dict[str, bool] = {}
    found: list[tuple[BatchHeader, bytes]] = batches_in(log / "__transaction_state-0")
    end = max(header.base_offset for header, _ in found)
    for header, raw in found:
        for record in decode_batch(raw, where="state"):
            if header.base_offset == end:
                last[(record.key or b"")[4:].decode()] = record.value is None
    assert all(last.values())
    return sorted(last)
