import re
from collections import Counter
from pathlib import Path
from typing import Literal

import pytest
from msgspec.structs import replace

import recovery
from headwater_core.segments import checkpoints, flexible
from headwater_core.segments.markers import ABORT, read_marker
from headwater_core.segments.records import Record
from manifests.repository import ManifestRepository
from recovery.log_ends import PRODUCER_EPOCH_MAX
from recovery.open_transactions import RunIndexes
from recovery.recovery_plan import Abort
from recovery.target import read_mark
from tests.headwater_core.objectstore.meter import MeteredStore
from tests.headwater_core.segments.builders import a_batch
from tests.recovery.written_archive import Archive, aborts, batches_in, data, marker, plain, state, text


def test_a_transaction_that_no_coordinator_ends_is_aborted_where_the_log_ends(tmp_path: Path) -> None:
    archive = Archive()
    archive.topic("orders", [plain(0), data(1, 7, producer_epoch=2)], [marker(2, 9), data(3, 8), plain(4)])
    assert archive.partition("orders").open_from is None
    found = archive.recovered(tmp_path / "log", "orders")
    ends = found[-2:]
    assert [(header.base_offset, header.producer_id, header.producer_epoch, header.leader_epoch) for header, _ in ends] == [
        (5, 7, 3, 5),  # above the data's, as the end of a transaction of version 2 has it
        (6, 8, 1, 5),
    ]
    assert [read_marker(raw).type for _, raw in ends] == [ABORT, ABORT]
    assert all(header.is_transactional for header, _ in ends)
    log = tmp_path / "log"
    assert (log / "orders-0" / checkpoints.LEADER_EPOCHS).read_text() == "0\n2\n0 0\n5 5\n"
    assert (log / checkpoints.HIGH_WATERMARKS).read_text() == "0\n1\norders 0 7\n"
    assert {path.name for path in (log / "orders-0").glob("*5.*")} == {f"{5:020}{suffix}" for suffix in (".log", ".index", ".timeindex")}
    assert recovery.apply(archive.plan(), log, archive.store).again


def test_a_log_that_recovery_has_written_to_begins_above_the_epoch_of_that(tmp_path: Path) -> None:
    """A leader of the epoch in which the markers are would share it with them: an epoch has one leader. Without any, none is spent."""
    archive = Archive()
    archive.topic("open", [plain(0), data(1, 7)])
    archive.topic("closed", [plain(0), plain(1)])
    partitions = {name: archive.partition(name) for name in ("open", "closed")}
    assert [(each.leader_epoch, each.first_epoch) for each in partitions.values()] == [(4, 5), (4, 4)]
    [*_, (marker_header, _)] = archive.recovered(tmp_path / "log", "open")
    assert marker_header.leader_epoch == partitions["open"].first_epoch


def test_no_transaction_is_left_to_the_recovered_coordinator_unless_it_is_to_be_kept() -> None:
    """It may know an older one of the same producer, and would end this one with what it had decided of that."""
    archive = Archive()
    archive.topic("orders", [data(0, 7), data(1, 8), data(2, 9), data(3, 10)])
    archive.topic(
        "__transaction_state",
        [
            state(0, "seven", 7, 1, ("orders", 0)),
            state(1, "eight", 8, 1, ("menu", 0)),  # ongoing, and elsewhere
            state(2, "nine", 9, 1, ("orders", 0)),
            state(3, "nine", 9, 4, ("orders", 0)),  # committed since
            state(4, "ten", 10, 2, ("orders", 0)),
        ],
    )
    partition = archive.partition("orders")
    assert aborts(partition) == [(4, 7), (5, 8), (6, 9), (7, 10)]
    assert partition.open_from is None
    kept = archive.plan(open_transactions="keep").cut
    assert kept is not None
    assert [each.outcome for each in kept.transactions] == [
        "ended by the coordinator",
        "left open",
        "left open",
        "ended by the coordinator",
    ]
    assert kept.retired == 0


def test_a_coordinator_without_a_timeout_with_an_older_epoch_or_unreadable_ends_nothing() -> None:
    archive = Archive()
    archive.topic(
        "orders", [data(0, 7), data(1, 8, producer_epoch=1), data(2, 9, producer_epoch=2), data(3, 10, producer_epoch=1), data(4, 11)]
    )
    later = Record(5, 0, flexible.i16(0) + text("eleven"), flexible.i16(9), ())
    archive.topic(
        "__transaction_state",
        [
            state(0, "seven", 7, 1, ("orders", 0), timeout_ms=2**31 - 1),  # two-phase: only its transaction manager ends it
            state(1, "eight", 8, 2, ("orders", 0)),  # the commit of a former one: leaders refuse its marker
            state(2, "nine", 9, 1, ("orders", 0)),
            state(3, "ten", 10, 1, ("orders", 0)),  # the timeout is one epoch later
            state(4, "eleven", 11, 1, ("orders", 0)),
            a_batch(5, [later]),  # the state of a later version: nobody knows what its coordinator does
        ],
    )
    kept = archive.plan(open_transactions="keep").cut
    assert kept is not None
    assert [each.outcome for each in kept.transactions] == ["left open", "left open", "left open", "ended by the coordinator", "left open"]


def test_an_epoch_that_is_used_up_or_not_known_is_not_exceeded() -> None:
    archive = Archive()
    archive.topic("orders", [data(0, 7, producer_epoch=PRODUCER_EPOCH_MAX)])
    assert [each.producer_epoch for each in archive.partition("orders").written[0].aborts] == [PRODUCER_EPOCH_MAX]


def test_a_marker_has_the_coordinator_epoch_of_the_producer_s_last_one() -> None:
    archive = Archive()
    archive.topic("orders", [data(0, 7), marker(1, 7), data(2, 7), data(3, 8)])
    assert [(each.producer_id, each.coordinator_epoch) for each in archive.partition("orders").written[0].aborts] == [(7, 3), (8, 0)]


def test_what_finds_no_room_in_a_gap_ends_where_the_log_ends() -> None:
    archive = Archive()
    opened = [data(at, 100 + at) for at in range(12)]
    archive.topic("orders", opened, None, [plain(22)])
    partition = archive.partition("orders")
    assert aborts(partition) == [*((12 + at, 100 + at) for at in range(10)), (23, 110), (24, 111)]
    assert partition.open_from is None


def test_what_finds_no_room_in_a_gap_and_is_ended_behind_it_is_not_ended_again() -> None:
    """Its own marker may have a later epoch than ours would."""
    archive = Archive()
    opened = [data(at, 100 + at) for at in range(12)]
    archive.topic("orders", opened, None, [marker(22, 110, ABORT, producer_epoch=2)])
    assert aborts(archive.partition("orders")) == [*((12 + at, 100 + at) for at in range(10)), (23, 111)]


def test_an_open_transaction_is_kept_on_request_and_the_way_out_is_named() -> None:
    archive = Archive()
    archive.topic("orders", [plain(0), data(1, 7)])
    partition = archive.partition("orders", open_transactions="keep")
    assert (partition.written, partition.open_from) == ((), 1)
    [note] = archive.plan(open_transactions="keep").endings
    assert "kafka-transactions.sh abort --topic orders --partition 0 --start-offset 1" in note


def test_one_of_a_thing_is_no_plural_in_a_plan() -> None:
    archive = Archive()
    archive.topic("orders", [plain(0), data(1, 7)])
    archive.topic("__transaction_state", [state(0, "seven", 7, 1, ("orders", 0))])
    plan = archive.plan()
    found = [note for note in (*plan.notes, *plan.endings) if re.search(r"\b1 (open transaction|transactional id|topic)\b", note)]
    assert len(found) == 3
    assert not [note for note in (*plan.notes, *plan.endings) if re.search(r"\b1 [a-z ]*(transactions|ids|topics)\b", note)]


def test_a_log_is_cut_on_request_before_the_first_transaction_that_no_coordinator_ends(tmp_path: Path) -> None:
    """What is cut may have ended another one, which is open then, too."""
    archive = Archive()
    archive.topic("orders", [plain(0, 2), data(2, 7), plain(3)], [data(4, 8), marker(5, 7), plain(6)])
    partition = archive.partition("orders", open_transactions="cut")
    assert (partition.next_offset, partition.written, partition.open_from) == (2, (), None)
    found = archive.recovered(tmp_path / "log", "orders", open_transactions="cut")
    assert [header.last_offset for header, _ in found] == [1]
    assert [note for note in archive.plan(open_transactions="cut").endings if "cut at offset 2" in note]


def test_a_log_of_nothing_else_is_cut_to_nothing() -> None:
    archive = Archive()
    archive.topic("orders", [data(0, 7)], [plain(1)])
    partition = archive.partition("orders", open_transactions="cut")
    assert (partition.entries, partition.start_offset, partition.log_end) == ((), 0, 0)


def test_transactions_are_aborted_where_a_gap_begins() -> None:
    """What ended them is in the gap; the producer's next marker, a commit, would end them as well."""
    archive = Archive()
    archive.topic("orders", [plain(0), data(1, 7)], None, [data(12, 7), marker(13, 7)])
    assert aborts(archive.partition("orders")) == [(2, 7)]
    assert archive.partition("orders").log_end == 14
    assert archive.partition("orders", open_transactions="keep").written == ()


def test_what_is_open_before_a_gap_and_behind_it_is_named_once_and_ended_by_its_coordinator(tmp_path: Path) -> None:
    """Its epoch is known before the gap alone."""
    archive = Archive()
    _, lost, _ = archive.topic("orders", [data(0, 7, producer_epoch=3)], [data(1, 7, producer_epoch=3)], [plain(2)])
    archive.topic("__transaction_state", [state(0, "seven", 7, 1, ("orders", 0), epoch=3)])
    for key in (lost.key, lost.index_key):
        archive.store.delete(key)
    recovery.apply(archive.plan(open_transactions="keep"), tmp_path / "log", archive.store, skip_damaged=True)
    mark = read_mark(tmp_path / "log")
    assert mark is not None
    cut = mark.plan.cut
    assert cut is not None
    assert [(each.first_offset, each.producer_epoch, each.outcome) for each in cut.transactions] == [(0, 3, "ended by the coordinator")]


def test_a_transaction_of_which_the_log_has_nothing_left_is_not_open(tmp_path: Path) -> None:
    """Nobody waits for its end, though an index that is left lists it."""
    archive = Archive()
    lost, _ = archive.topic("orders", [data(0, 7, producer_epoch=3)], [plain(1)])
    archive.topic("__transaction_state", [state(0, "seven", 7, 2, ("orders", 0), epoch=1)])
    for key in (lost.key, lost.index_key):
        archive.store.delete(key)
    recovery.apply(archive.plan(open_transactions="keep"), tmp_path / "log", archive.store, skip_damaged=True)
    mark = read_mark(tmp_path / "log")
    assert mark is not None
    cut = mark.plan.cut
    assert cut is not None
    assert cut.transactions == ()
    assert not any("ends inside a transaction" in note for note in mark.plan.endings)


@pytest.mark.parametrize("status", [1, 2])
def test_a_leader_takes_no_marker_that_is_older_than_what_its_producer_wrote_behind_a_gap(status: int) -> None:
    """To it the transaction before the gap is still open, with the epoch of the last batch."""
    archive = Archive()
    archive.topic("orders", [data(0, 7, producer_epoch=1)], None, [data(11, 7, producer_epoch=4)])
    archive.topic("__transaction_state", [state(0, "seven", 7, status, ("orders", 0), epoch=1)])
    cut = archive.plan(open_transactions="keep").cut
    assert cut is not None
    assert [(each.first_offset, each.outcome) for each in cut.transactions] == [(0, "left open"), (11, "left open")]


@pytest.mark.parametrize("mode", ["full", "instant"])
def test_what_cannot_be_read_yet_is_not_taken_for_nothing_left(mode: str) -> None:
    """The run of orders that is left has lost its index, and what was open before it is known by a run that is lost."""
    archive = Archive()
    lost, blind, _ = archive.topic("orders", [data(0, 7)], [data(1, 7)], [plain(2)])
    for key in (lost.key, lost.index_key, blind.index_key):
        archive.store.delete(key)
    cut = archive.plan(open_transactions="keep", mode=mode).cut
    assert cut is not None
    assert [each.outcome for each in cut.transactions] == ["left open"]


def test_a_lost_run_without_producers_hides_nothing_that_is_open_around_it() -> None:
    """It has neither begun nor ended a transaction, so the run behind it can be read without an index."""
    archive = Archive()
    _, lost, blind = archive.topic("orders", [data(0, 7, producer_epoch=3)], [plain(1)], [data(2, 7, producer_epoch=3)])
    for key in (lost.key, lost.index_key, blind.index_key):
        archive.store.delete(key)
    [written] = archive.partition("orders", mode="instant").written
    assert [(abort.producer_id, abort.producer_epoch) for abort in written.aborts] == [(7, 4)]


@pytest.mark.parametrize("index_is_lost", [True, False])
def test_a_lost_run_in_what_stays_in_the_archive_ends_nothing_that_was_open_before_it(index_is_lost: bool) -> None:
    """What the recovered log begins with ends it, as in a full recovery; its index tells, where it is left, that it had ended before."""
    archive = Archive()
    log = [data(0, 7, producer_epoch=3), data(1, 8)], [marker(2, 7, ABORT, producer_epoch=4), plain(3)], [plain(4)]
    _, lost, _ = archive.topic("orders", *log)
    archive.store.delete(lost.key)
    if index_is_lost:
        archive.store.delete(lost.index_key)
    [written] = archive.partition("orders", mode="instant").written
    assert {each.producer_id for each in written.aborts} == ({7, 8} if index_is_lost else {8})
    assert any("which stay in the archive, cannot be read" in note for note in archive.plan(mode="instant").endings) is index_is_lost


@pytest.mark.parametrize(("mode", "expected"), [("full", "left open"), ("instant", "ended by the coordinator")])
def test_a_leader_refuses_no_marker_for_what_stays_in_the_archive(mode: str, expected: str) -> None:
    archive = Archive()
    archive.topic("orders", [data(0, 7, producer_epoch=3)])
    archive.topic("__transaction_state", [state(0, "seven", 7, 2, ("orders", 0), epoch=1)])  # an earlier one's
    cut = archive.plan(open_transactions="keep", mode=mode).cut
    assert cut is not None
    assert [each.outcome for each in cut.transactions] == [expected]


def test_what_is_open_is_known_by_the_last_index_where_the_run_of_its_records_is_lost() -> None:
    """In what stays in the archive, where no gap takes its place. Its epoch is not known: the marker has the highest."""
    archive = Archive()
    lost, _ = archive.topic("orders", [data(0, 7, producer_epoch=3)], [plain(1)])
    for key in (lost.key, lost.index_key):
        archive.store.delete(key)
    [written] = archive.partition("orders", mode="instant").written
    assert [(each.producer_id, each.producer_epoch) for each in written.aborts] == [(7, PRODUCER_EPOCH_MAX)]


@pytest.mark.parametrize("loss", ["gone", "damaged"])
def test_without_its_index_a_run_is_read_itself(loss: str) -> None:
    archive = Archive()
    entries = archive.topic("orders", [data(0, 7, producer_epoch=4)], [plain(1)], [plain(2)])
    for entry in entries[1:]:
        archive.store.delete(entry.index_key)
        if loss == "damaged":
            archive.store.create(entry.index_key, b"x" * 100)
    assert archive.partition("orders").written[0].aborts == (Abort(producer_id=7, producer_epoch=5, coordinator_epoch=0),)


def test_many_runs_without_an_index_are_read_one_after_the_other() -> None:
    """Each knows what is open before it by the one before."""
    archive = Archive()
    entries = archive.topic("orders", [data(0, 7, producer_epoch=4)], *([plain(at)] for at in range(1, 1200)))
    for entry in entries:
        archive.store.delete(entry.index_key)
    assert [each.first_offset for each in RunIndexes(archive.store, entries).of(1199).open_transactions] == [0]


@pytest.mark.parametrize("how", ["abort", "cut", "keep"])
@pytest.mark.parametrize(
    "runs",
    [
        [[data(0, 7, producer_epoch=4)], *([data(at, 8 + at % 2)] for at in range(1, 300))],
        [[data(2 * at, at + 1), marker(2 * at + 1, at)] for at in range(100)],
    ],
    ids=["open from the beginning", "one after the other"],
)
def test_a_plan_reads_runs_without_indexes_a_few_times(how: Literal["abort", "cut", "keep"], runs: list[list[bytes]]) -> None:
    """Once for each question, not once for each of its successors."""
    archive = Archive()
    entries = archive.topic("orders", *runs)
    for entry in entries:
        archive.store.delete(entry.index_key)
    metered = MeteredStore(archive.store, log_calls=1_000_000)
    recovery.plan(ManifestRepository(metered), None, recovery.Options(open_transactions=how))
    reads = Counter(call.key for call in metered.log if call.operation == "read_into")
    assert max(reads[entry.key] for entry in entries) <= 6


def test_a_run_that_was_cut_tells_what_is_open_where_it_was_cut() -> None:
    archive = Archive()
    [entry] = archive.topic("orders", [plain(0), data(1, 7), marker(2, 7), plain(3)])
    raw = archive.store.get(entry.key)[0]
    live = len(raw) - len(plain(3)) - len(marker(2, 7))
    cut = replace(entry, last_offset=1, live_bytes=live, open_from=1, records=2)
    assert [each[:3] for each in RunIndexes(archive.store, [cut]).open_after(0)] == [(7, 1, 0)]


def test_what_cannot_be_read_is_noted_and_stays_open() -> None:
    archive = Archive()
    [entry] = archive.topic("orders", [data(0, 7)])
    archive.store.delete(entry.key)
    archive.store.delete(entry.index_key)
    plan = archive.plan()
    assert plan.topics[0].partitions[0].open_from == 0
    assert [note for note in plan.endings if "cannot be read" in note]
    assert len(plan.holes) == 1


@pytest.mark.parametrize("how", ["keep", "abort", "cut"])
def test_a_transaction_that_began_in_what_is_lost_and_is_known_by_nothing_else_ends_nothing(how: str, tmp_path: Path) -> None:
    archive = Archive()
    first, second = archive.topic("orders", [data(0, 7)], [plain(1)])
    archive.store.delete(first.key)
    archive.store.delete(first.index_key)
    archive.store.delete(second.index_key)
    plan = archive.plan(open_transactions=how)
    recovery.apply(plan, tmp_path / "log", archive.store, skip_damaged=True)
    assert [header.base_offset for header, _ in batches_in(tmp_path / "log" / "orders-0")] == [1]
