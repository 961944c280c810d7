from pathlib import Path
from typing import Any

from headwater_core.segments import flexible
from headwater_core.segments.markers import ABORT
from headwater_core.segments.records import Record, decode_batch
from tests.headwater_core.segments.builders import a_batch
from tests.recovery.written_archive import Archive, aborts, commit, data, marker, plain, state, text


def clamped(archive: Archive, **options: Any) -> dict[str, int]:
    """group of every commit that recovery writes, and the offset it writes."""
    written = archive.partition("__consumer_offsets", **options).written
    found = {}
    for each in written:
        for row in each.commits:
            size = int.from_bytes(row.key[2:4], "big")
            found[row.key[4 : 4 + size].decode()] = int.from_bytes(row.value[2:10], "big")
    return found


def test_offsets_ahead_of_the_recovered_logs_are_set_back_to_their_ends(tmp_path: Path) -> None:
    archive = Archive()
    archive.topic("orders", [plain(0, 5)])
    archive.topic(
        "__consumer_offsets",
        [
            commit(0, ("ahead", "orders", 0, 12), ("level", "orders", 0, 5), ("behind", "orders", 0, 2), ("elsewhere", "gone", 0, 99)),
            commit(4, ("deleted", "orders", 0, 12), ("returned", "orders", 0, 12)),
            commit(6, ("deleted", "orders", 0, None), ("returned", "orders", 0, 3), ("ahead", "orders", 0, 14)),
        ],
    )
    plan = archive.plan()
    assert [(each.group, each.topic, each.partition, each.offset, each.log_end) for each in plan.offsets_ahead] == [
        ("ahead", "orders", 0, 14, 5)
    ]
    assert [note for note in plan.endings if "group ahead has committed 14 of orders:0, which ends at 5" in note]
    assert clamped(archive) == {"ahead": 5}
    header, raw = archive.recovered(tmp_path / "log", "__consumer_offsets")[-1]
    assert (header.base_offset, header.leader_epoch, header.is_transactional) == (9, 5, False)
    [record] = decode_batch(raw)
    assert record.value == flexible.i16(3) + flexible.i64(5) + flexible.i32(-1) + text("m\0") + flexible.i64(5)


def test_offsets_ahead_are_kept_on_request_and_reported_all_the_same() -> None:
    archive = Archive()
    archive.topic("orders", [plain(0, 5)])
    archive.topic("__consumer_offsets", [commit(0, ("ahead", "orders", 0, 12))])
    plan = archive.plan(keep_offsets=True)
    assert len(plan.offsets_ahead) == 1
    assert [note for note in plan.endings if "as requested" in note]
    assert clamped(archive, keep_offsets=True) == {}


def test_an_offset_is_compared_with_the_end_after_the_markers_that_recovery_writes() -> None:
    archive = Archive()
    archive.topic("orders", [plain(0, 4), data(4, 7)])
    archive.topic("__consumer_offsets", [commit(0, ("at.marker", "orders", 0, 6), ("beyond", "orders", 0, 7))])
    assert clamped(archive) == {"beyond": 6}
    assert clamped(archive, open_transactions="cut") == {"at.marker": 4, "beyond": 4}


def test_what_a_transaction_commits_counts_once_it_is_committed() -> None:
    archive = Archive()
    archive.topic("orders", [plain(0, 5)])
    archive.topic(
        "__consumer_offsets",
        [
            commit(0, ("committed", "orders", 0, 10), producer=1),
            commit(1, ("aborted", "orders", 0, 10), producer=2),
            commit(2, ("overtaken", "orders", 0, 10), producer=3),
            commit(3, ("overtaken", "orders", 0, 4)),
            marker(4, 1),
            marker(5, 2, ABORT),
            marker(6, 3),
            commit(7, ("open", "orders", 0, 10), producer=4),
            commit(8, ("known", "orders", 0, 10), producer=5),
        ],
    )
    archive.topic("__transaction_state", [state(0, "five", 5, 2, ("__consumer_offsets", 0))])
    partition = archive.partition("__consumer_offsets")
    assert aborts(partition) == [(9, 4)]
    assert clamped(archive) == {"committed": 5, "known": 5}  # what the coordinator commits later is overtaken by ours
    assert clamped(archive, open_transactions="keep") == {"committed": 5, "open": 5, "known": 5}


def test_unknown_kinds_of_records_are_left_alone_and_noted() -> None:
    archive = Archive()
    archive.topic("orders", [plain(0, 5)])
    later = [Record(0, 0, flexible.i16(99) + b"x", b"y", ()), Record(1, 0, flexible.i16(3) + text("g"), b"\0\0", ())]
    torn = Record(2, 0, flexible.i16(1) + b"\x00\x09x", b"", ())
    archive.topic("__consumer_offsets", [a_batch(0, [*later, torn])])
    plan = archive.plan()
    assert plan.offsets_ahead == ()
    assert len(plan.endings) == 2
    assert [note for note in plan.endings if "record type 99" in note]
