"""What groups have committed, from the archive alone."""

from headwater_core.segments.markers import ABORT
from manifests.repository import ManifestRepository
from recovery.archived_groups import read_groups, read_shares
from tests.recovery.test_requested_ends import at
from tests.recovery.written_archive import Archive, commit, marker, plain, shares, snapshot

TIME_MS = 1_700_000_000_000  # of all records here


def test_the_last_commit_counts_a_tombstone_ends_it_and_transactions_wait_for_their_marker() -> None:
    archive = Archive()
    archive.topic("soup", [plain(0, 10)])
    archive.topic(
        "__consumer_offsets",
        [commit(0, ("a", "soup", 0, 3), ("b", "soup", 0, 4), ("c", "soup", 0, 5)), commit(3, ("a", "soup", 0, 7), ("b", "soup", 0, None))],
        [commit(5, ("c", "soup", 0, 9), producer=1), marker(6, 1, ABORT), commit(7, ("d", "soup", 0, 12), producer=2), marker(8, 2)],
        [commit(9, ("e", "soup", 0, 1), producer=3), commit(10, ("a", "stew", 0, 1))],
    )
    found = read_groups(ManifestRepository(archive.store))
    assert [(each.group, each.topic, each.offset, each.end, each.lag) for each in found.offsets] == [
        ("a", "soup", 7, 10, 3),
        ("a", "stew", 1, None, None),
        ("c", "soup", 5, 10, 5),
        ("d", "soup", 12, 10, 0),
    ]
    assert (found.as_of_ms, found.unread) == (TIME_MS, [])


def test_what_was_written_later_does_not_count() -> None:
    archive = Archive()
    archive.topic("__consumer_offsets", [commit(0, ("a", "soup", 0, 3))])
    assert read_groups(ManifestRepository(archive.store), until_ms=TIME_MS - 1) == ([], None, [])
    (only,) = read_groups(ManifestRepository(archive.store), until_ms=TIME_MS).offsets
    assert (only.offset, only.end) == (3, None)


def test_the_lag_of_a_time_is_counted_to_where_the_log_ended_then() -> None:
    archive = Archive()
    archive.topic("soup", [at(0, 0), at(1, 10)], [at(2, 20), at(3, 30)])
    archive.topic("__consumer_offsets", [commit(0, ("a", "soup", 0, 1))])
    repository = ManifestRepository(archive.store)
    ends = [read_groups(repository, until_ms=TIME_MS + after).offsets[0] for after in (0, 5, 10, 25, 30)]
    assert [(each.end, each.lag) for each in ends] == [(1, 0), (1, 0), (2, 1), (3, 2), (4, 3)]


def test_what_cannot_be_read_is_named_and_the_rest_is_there() -> None:
    archive = Archive()
    assert read_groups(ManifestRepository(archive.store)).unread == ["__consumer_offsets is not archived"]
    kept, lost = archive.topic("__consumer_offsets", [commit(0, ("a", "soup", 0, 3))], [commit(1, ("b", "soup", 0, 4))])
    archive.store.delete(lost.key)
    found = read_groups(ManifestRepository(archive.store))
    assert [each.group for each in found.offsets] == ["a"]
    assert len(found.unread) == 1
    assert found.unread[0].startswith("__consumer_offsets:0: ")
    archive.store.delete(kept.key)
    assert read_groups(ManifestRepository(archive.store)).offsets == []


def test_share_groups_are_done_below_their_start_and_with_what_they_took_above() -> None:
    archive = Archive()
    assert read_shares(ManifestRepository(archive.store), {}) == ([], [])
    archive.topic("soup", [plain(0, 10)])
    archive.topic(
        "__share_group_state",
        [
            shares(0, ("a", snapshot(2, (2, 3, 0, 1), (4, 6, 2, 1))), ("b", snapshot(-1)), ("c", snapshot(4, (8, 14, 4, 5)))),
            shares(3, ("elsewhere", snapshot(7)), topic_id="A" * 22),
        ],
    )
    found = read_shares(ManifestRepository(archive.store), {archive.ids["soup"]: "soup"})
    assert [tuple(each) for each in found.places] == [
        ("a", "soup", 0, 2, 10, 5),
        ("b", "soup", 0, None, 10, None),
        ("c", "soup", 0, 4, 10, 4),
        ("elsewhere", "A" * 22, 0, 7, None, None),
    ]
    assert found.unread == []
    assert read_shares(ManifestRepository(archive.store), {}, until_ms=TIME_MS - 1).places == []
