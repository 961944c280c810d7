"""Which snapshots of the cluster's metadata are kept."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headwater_core.errors import CorruptData
from manifests.cluster_list import (
    ANOTHER_LIFE_MS,
    LEASE_MS,
    ClusterList,
    ListedSnapshot,
    adopted,
    decode_cluster_list,
    encode_cluster_list,
    is_newer,
    kept_snapshots,
)
from manifests.keys import SnapshotName, cluster_snapshot, parse_cluster_snapshot

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
NOW_MS = 400 * DAY_MS


def a_snapshot(number: int, age_ms: int = 0, **fields: object) -> ListedSnapshot:
    base = ListedSnapshot(
        number=number, end_offset=number * 10, end_epoch=1, uid=f"{number:032x}", taken_ms=NOW_MS - age_ms, size_bytes=5, appended_ms=NOW_MS
    )
    return replace(base, **fields)


def decoded(raw: bytes) -> ClusterList | None:
    try:
        return decode_cluster_list(raw)
    except CorruptData:
        return None


def a_list(*snapshots: ListedSnapshot) -> ClusterList:
    return ClusterList(cluster_id="kitchen", snapshots=snapshots)


def ages_of(snapshots: Iterable[ListedSnapshot], later_ms: int = 0) -> dict[SnapshotName, int]:
    return {each.name: NOW_MS + later_ms - each.taken_ms for each in snapshots}


def test_the_older_the_fewer_are_kept_and_what_holds_when_retention_begins_is_one_of_them() -> None:
    minutes = range(20 * 24 * 60, -1, -1)
    snapshots = tuple(a_snapshot(at + 1, age * MINUTE_MS) for at, age in enumerate(minutes))
    kept = kept_snapshots(snapshots, ages_of(snapshots), retention_ms=10 * DAY_MS)
    ages = [NOW_MS - each.taken_ms for each in kept]
    assert sum(age <= 2 * HOUR_MS for age in ages) == 121
    assert 70 <= sum(2 * HOUR_MS < age <= 3 * DAY_MS for age in ages) <= 72
    assert 7 <= sum(3 * DAY_MS < age <= 10 * DAY_MS for age in ages) <= 9
    assert [age for age in ages if age > 10 * DAY_MS] == [10 * DAY_MS + MINUTE_MS]
    assert kept_snapshots(kept, ages_of(kept), retention_ms=10 * DAY_MS) == kept


@given(
    ages=st.lists(st.integers(0, 400 * DAY_MS), min_size=1, max_size=40),
    retention_ms=st.none() | st.integers(1, 500 * DAY_MS),
    later_ms=st.integers(-DAY_MS, 800 * DAY_MS),
)
def test_the_newest_is_always_kept_and_none_is_kept_again_that_was_dropped(
    ages: list[int], retention_ms: int | None, later_ms: int
) -> None:
    snapshots = tuple(a_snapshot(at + 1, age) for at, age in enumerate(sorted(ages, reverse=True)))
    kept = kept_snapshots(snapshots, ages_of(snapshots, later_ms), retention_ms=retention_ms)
    assert kept[-1] == snapshots[-1]
    assert set(kept) <= set(snapshots)
    assert a_list(*kept).newest == snapshots[-1]


def test_what_held_at_a_time_is_the_last_one_before() -> None:
    listed = a_list(a_snapshot(1, 30), a_snapshot(2, 20), a_snapshot(5, 10))
    numbers = [found.number if (found := listed.at(NOW_MS - age)) else None for age in (31, 30, 21, 20, 10, 0)]
    assert numbers == [None, 1, 1, 2, 5, 5]


def test_one_whose_age_is_not_known_stays() -> None:
    snapshots = tuple(a_snapshot(at, (9 - at) * DAY_MS) for at in range(1, 9))
    ages_ms = ages_of(snapshots)
    assert [each.number for each in kept_snapshots(snapshots, ages_ms, retention_ms=2 * DAY_MS)] == [6, 7, 8]
    del ages_ms[snapshots[1].name]
    assert [each.number for each in kept_snapshots(snapshots, ages_ms, retention_ms=2 * DAY_MS)] == [2, 6, 7, 8]


def test_what_is_dropped_is_remembered_for_a_while_and_the_newest_is_never_dropped() -> None:
    old, new = a_snapshot(1, 50 * DAY_MS), a_snapshot(2, 40 * DAY_MS)
    listed = a_list(old).followed_by(new, now_ms=NOW_MS)
    assert listed.snapshots == (old, new)
    assert listed.dropped == ()
    after = listed.only((), now_ms=NOW_MS)
    assert after.snapshots == (new,)
    assert [each.uid for each in after.dropped] == [old.uid]
    assert (after.refers_to(old.name), after.refers_to(new.name)) == (False, True)
    assert after.followed_by(a_snapshot(3), now_ms=NOW_MS + LEASE_MS).dropped == ()


def test_a_higher_epoch_is_newer_whatever_the_offset_and_another_life_is_known_by_its_time() -> None:
    listed = a_snapshot(7, end_epoch=5, end_offset=1000)
    assert is_newer((6, 1), 0, listed)
    assert is_newer((5, 1001), 0, listed)
    assert is_newer((9, 5000), NOW_MS - ANOTHER_LIFE_MS, listed)
    assert not is_newer((9, 5000), NOW_MS - ANOTHER_LIFE_MS - 1, listed)
    assert is_newer((9, 5000), NOW_MS, replace(listed, appended_ms=NOW_MS * 2))  # whose clock was ahead
    assert not is_newer((5, 1000), NOW_MS * 2, listed)
    assert not is_newer((4, 5000), NOW_MS, listed)
    assert not is_newer((1, 5), NOW_MS + ANOTHER_LIFE_MS, listed)
    assert is_newer((1, 5), NOW_MS + ANOTHER_LIFE_MS + 1, listed)
    assert not is_newer((1, 5), NOW_MS * 2, replace(listed, appended_ms=0))


def test_a_lost_list_is_made_again_from_names() -> None:
    names = [SnapshotName(2, 30, 1, "b" * 32), SnapshotName(1, 10, 1, "a" * 32), SnapshotName(2, 20, 1, "c" * 32)]
    found = adopted("kitchen", [(names[0], 5, 300), (names[1], 6, 400), (names[2], 7, 200)])
    assert found is not None
    assert [(each.number, each.end_offset, each.taken_ms) for each in found.snapshots] == [(1, 10, 400), (2, 30, 400)]
    assert adopted("kitchen", []) is None


def test_it_reads_back_and_any_change_of_a_byte_is_noticed() -> None:
    listed = a_list(
        a_snapshot(1, 9, digest="crc64nvme:" + "0" * 16, content="1" * 64, open_content="2" * 64), a_snapshot(2, has_secrets=False)
    )
    raw = encode_cluster_list(listed)
    assert decode_cluster_list(raw) == listed
    for at in range(0, len(raw), 7):
        broken = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
        if (found := decoded(broken)) is not None:
            assert found == listed


@pytest.mark.parametrize(
    "wrong",
    [
        {"uid": "../../etc/passwd"},
        {"number": 0},
        {"number": 10**10},
        {"end_offset": -1},
        {"size_bytes": 1 << 40},
        {"taken_ms": 1 << 62},
        {"digest": "md5:1"},
        {"content": "x"},
    ],
)
def test_hostile_values_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"snapshot|times|digest|SHA"):
        replace(a_snapshot(1), **wrong)


def test_numbers_and_times_rise() -> None:
    for wrong in ((a_snapshot(2), a_snapshot(1)), (a_snapshot(1), a_snapshot(1)), (a_snapshot(1, 5), a_snapshot(2, 9)), ()):
        with pytest.raises(ValueError, match="snapshots"):
            a_list(*wrong)


def test_a_key_names_what_is_in_the_object() -> None:
    name = SnapshotName(3, 77, 4, "a" * 32)
    key = cluster_snapshot(name)
    assert key == f"cluster/0000000003/{77:020}-0000000004-{'a' * 32}.checkpoint.gz"
    assert parse_cluster_snapshot(key) == name
    for other in ("cluster/latest.json", "cluster/recoveries/x.json", key + ".partial", key.replace("cluster", "meta"), "cluster/3/x"):
        assert parse_cluster_snapshot(other) is None
