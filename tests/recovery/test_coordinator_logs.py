from pathlib import Path
from typing import Any

from headwater_core.segments import flexible
from headwater_core.segments.coordinator_records import decode_commit_key
from headwater_core.segments.markers import ABORT
from headwater_core.segments.records import Record, decode_batch
from recovery.target import read_mark
from tests.headwater_core.segments.builders import a_batch
from tests.recovery.written_archive import Archive, aborts, commit, data, marker, plain, state, tail_offsets, text


def rewritten(archive: Archive, into: Path, **options: Any) -> dict[str, int]:
    """group of every commit that recovery writes, and the offset it writes."""
    end = archive.partition("__consumer_offsets", **options).next_offset
    return tail_offsets(archive.recovered(into, "__consumer_offsets", **options), end)


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
    header, raw = archive.recovered(tmp_path / "log", "__consumer_offsets")[-1]
    assert (header.base_offset, header.leader_epoch, header.is_transactional) == (9, 5, False)
    found = {decode_commit_key(record.key or b"", "key").group: record.value for record in decode_batch(raw)}  # type: ignore[union-attr]
    assert found.keys() == {"ahead", "level", "behind", "elsewhere", "returned"}
    mark = read_mark(tmp_path / "log")
    assert mark is not None
    time = flexible.i64(mark.started_ms)
    assert found["ahead"] == flexible.i16(3) + flexible.i64(5) + flexible.i32(-1) + text("m\0") + time
    assert (
        found["level"] == flexible.i16(3) + flexible.i64(5) + flexible.i32(-1) + text("m\0") + time
    )  # of a later leader than any archived
    assert found["elsewhere"] == flexible.i16(3) + flexible.i64(99) + flexible.i32(-1) + text("m\0") + time


def test_offsets_ahead_are_kept_on_request_and_reported_all_the_same(tmp_path: Path) -> None:
    archive = Archive()
    archive.topic("orders", [plain(0, 5)])
    archive.topic("__consumer_offsets", [commit(0, ("ahead", "orders", 0, 12))])
    plan = archive.plan(keep_offsets=True)
    assert len(plan.offsets_ahead) == 1
    assert [note for note in plan.endings if "as requested" in note]
    assert rewritten(archive, tmp_path / "log", keep_offsets=True) == {"ahead": 12}


def test_an_offset_is_compared_with_the_end_after_the_markers_that_recovery_writes(tmp_path: Path) -> None:
    archive = Archive()
    archive.topic("orders", [plain(0, 4), data(4, 7)])
    archive.topic("__consumer_offsets", [commit(0, ("at.marker", "orders", 0, 6), ("beyond", "orders", 0, 7))])
    assert rewritten(archive, tmp_path / "log") == {"at.marker": 6, "beyond": 6}
    assert rewritten(archive, tmp_path / "cut", open_transactions="cut") == {"at.marker": 4, "beyond": 4}


def test_what_a_transaction_commits_counts_once_it_is_committed(tmp_path: Path) -> None:
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
    assert aborts(partition) == [(9, 4), (10, 5)]
    wanted = {"committed": 5, "overtaken": 4}
    assert rewritten(archive, tmp_path / "log") == wanted
    assert rewritten(archive, tmp_path / "keep", open_transactions="keep") == wanted  # what is open may be committed yet


def test_what_is_deleted_while_a_transaction_is_open_does_not_come_back_with_it(tmp_path: Path) -> None:
    archive = Archive()
    archive.topic("orders", [plain(0, 5)])
    deleted = [commit(0, ("gone", "orders", 0, 3), producer=1), commit(1, ("gone", "orders", 0, None)), marker(2, 1)]
    archive.topic("__consumer_offsets", deleted)
    assert rewritten(archive, tmp_path / "log") == {}


def test_a_group_without_members_is_without_them_since_the_recovery(tmp_path: Path) -> None:
    archive = Archive()
    idle, busy = (group(name, members, since_ms=17) for name, members in (("idle", 0), ("busy", 1)))
    gone = group("gone", 0, since_ms=17)
    archive.topic(
        "__consumer_offsets",
        [
            a_batch(0, [record._replace(offset=at) for at, record in enumerate([*idle, *busy, *gone])]),
            a_batch(3, [Record(3, 0, gone[0].key, None, ())]),
        ],
    )
    header, raw = archive.recovered(tmp_path / "log", "__consumer_offsets")[-1]
    assert header.base_offset == 4
    mark = read_mark(tmp_path / "log")
    assert mark is not None
    assert [record.value for record in decode_batch(raw)] == [group("idle", 0, since_ms=mark.started_ms)[0].value]


def test_an_older_commit_does_not_come_back_over_one_that_cannot_be_read(tmp_path: Path) -> None:
    archive = Archive()
    archive.topic("orders", [plain(0, 5)])
    [first] = decode_batch(commit(0, ("later", "orders", 0, 2)), where="commit")
    later = Record(1, 0, first.key, flexible.i16(5) + bytes(30), ())
    archive.topic("__consumer_offsets", [commit(0, ("later", "orders", 0, 2)), a_batch(1, [later])])
    assert rewritten(archive, tmp_path / "log") == {}


def group(name: str, members: int, *, since_ms: int) -> list[Record]:
    """The record of a classic group, of version 3."""
    value = flexible.i16(3) + text("consumer") + flexible.i32(4) + text("range") + flexible.i16(-1) + flexible.i64(since_ms)
    return [Record(0, 0, flexible.i16(2) + text(name), value + flexible.i32(members) + b"m" * members, ())]


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
