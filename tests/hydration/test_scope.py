"""Which offsets can be read, and from where."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater_core.epochs import EpochHistory
from headwater_core.segments.local_log import Generation, Leadership, LocalLog, LocalSegment
from hydration.archive.manifest_view import Extent, GapSpan
from hydration.config import ReadPriority
from hydration.scope import Span, Tier, epoch_end, joined, parting_offset, scope_of
from tests.hydration.world import PARTITION

LOCAL, ARCHIVE = Tier.LOCAL, Tier.ARCHIVE


def a_log(
    start: int,
    high_watermark: int | None,
    *,
    epochs: tuple[tuple[int, int], ...] = (),
    log_start: int | None = None,
    compacted: bool = False,
) -> LocalLog:
    directory = Path("/kafka/soup-0")
    segment = LocalSegment(base_offset=start, directory=directory, size_bytes=1, generation=Generation(1, 1), is_active=True)
    return LocalLog(
        partition=PARTITION,
        directory=directory,
        segments=(segment,),
        high_watermark=high_watermark,
        log_start=start if log_start is None else log_start,
        epochs=EpochHistory.of(epochs),
        compacted=compacted,
    )


def an_extent(start: int, last: int, *, epochs: tuple[tuple[int, int], ...] = (), followed: int = -1) -> Extent:
    newest = max((epoch for epoch, _ in epochs), default=-1)
    return Extent(
        version=1,
        commit_id="1",
        start_offset=start,
        last_offset=last,
        leader_epoch=max(followed, newest),
        epochs=EpochHistory.of(epochs),
        open_from=None,
    )


@pytest.mark.parametrize(
    ("priority", "offset", "expected"),
    [
        (ReadPriority.LOCAL_FIRST, 5, (ARCHIVE,)),
        (ReadPriority.LOCAL_FIRST, 15, (LOCAL, ARCHIVE)),
        (ReadPriority.LOCAL_FIRST, 25, (LOCAL,)),
        (ReadPriority.OFFLOADED_FIRST, 15, (ARCHIVE, LOCAL)),
        (ReadPriority.OFFLOADED_FIRST, 25, (LOCAL,)),
        (ReadPriority.LOCAL_FIRST, 30, ()),
    ],
)
def test_the_tiers_that_hold_an_offset_come_in_the_order_of_the_priority(
    priority: ReadPriority, offset: int, expected: tuple[Tier, ...]
) -> None:
    scope = scope_of(a_log(10, 30), an_extent(0, 19), priority)
    assert scope.order(priority, offset) == expected


def test_names_of_other_systems_mean_the_same() -> None:
    assert ReadPriority("bookkeeper-first") is ReadPriority.LOCAL_FIRST
    assert ReadPriority("bookkeeper-only") is ReadPriority.LOCAL_ONLY
    assert ReadPriority("tiered-storage-first") is ReadPriority.OFFLOADED_FIRST
    with pytest.raises(ValueError, match="archive-first"):
        ReadPriority("archive-first")


def test_a_log_begins_and_ends_with_the_tier_that_reaches_farther() -> None:
    scope = scope_of(a_log(10, 30), an_extent(3, 19), ReadPriority.LOCAL_FIRST)
    assert (scope.log_start, scope.high_watermark) == (3, 30)
    scope = scope_of(a_log(10, 15), an_extent(12, 40), ReadPriority.LOCAL_FIRST)
    assert (scope.log_start, scope.high_watermark) == (10, 41)


def test_a_tier_that_has_nothing_does_not_say_where_the_log_begins() -> None:
    assert scope_of(a_log(0, 0), an_extent(20, 40), ReadPriority.LOCAL_FIRST).log_start == 20
    assert scope_of(a_log(20, 40), an_extent(0, -1), ReadPriority.LOCAL_FIRST).log_start == 20
    assert scope_of(a_log(20, 20), an_extent(0, -1), ReadPriority.LOCAL_FIRST).log_start == 20
    assert scope_of(None, an_extent(20, 19), ReadPriority.LOCAL_FIRST).log_start == 20


def test_what_the_broker_deleted_inside_a_segment_is_not_read() -> None:
    scope = scope_of(a_log(10, 30, log_start=17), None, ReadPriority.LOCAL_FIRST)
    assert (scope.log_start, scope.local) == (17, Span(17, 30))


@pytest.mark.parametrize(("open_from", "stable"), [(None, 20), (15, 15), (25, 20), (3, 10)])
def test_the_last_stable_offset_lies_between_log_start_and_high_watermark(open_from: int | None, stable: int) -> None:
    assert scope_of(a_log(10, 20), None, ReadPriority.LOCAL_FIRST).stable(open_from) == stable


def test_the_next_held_offset_is_after_the_gap() -> None:
    scope = scope_of(a_log(40, 50), an_extent(0, 19), ReadPriority.LOCAL_FIRST)
    assert [scope.next_held(offset) for offset in (0, 19, 20, 39, 40, 49, 50)] == [0, 19, 40, 40, 40, 49, 50]


@pytest.mark.parametrize(("archive_start", "expected"), [(0, (ARCHIVE, LOCAL)), (10, (LOCAL, ARCHIVE))])
def test_a_compacted_log_stays_in_the_archive_only_where_a_scan_may_have_begun_there(
    archive_start: int, expected: tuple[Tier, ...]
) -> None:
    scope = scope_of(a_log(10, 30, compacted=True), an_extent(archive_start, 19), ReadPriority.LOCAL_FIRST)
    assert scope.order(ReadPriority.LOCAL_FIRST, 15) == expected


def test_histories_part_where_they_first_differ() -> None:
    old, new = EpochHistory.of(((0, 0), (2, 47))), EpochHistory.of(((0, 0), (4, 47)))
    assert parting_offset(old, new, 137) == 47
    assert parting_offset(old, new, 40) == 40
    assert parting_offset(old, old, 137) == 137
    assert parting_offset(EpochHistory.of(((0, 0),)), EpochHistory.of(((0, 0), (3, 20))), 50) == 20
    assert parting_offset(EpochHistory.of(((1, 10),)), EpochHistory.of(((0, 0), (1, 10))), 50) == 50  # compared from 10 on
    assert parting_offset(EpochHistory.of(((2, 10),)), EpochHistory.of(((0, 0), (1, 10))), 50) == 10


def test_histories_do_not_part_where_one_puts_the_beginning_of_an_epoch_too_late() -> None:
    """Its broker fetched the epoch from a leader whose log was compacted, and leads now; the archive has what was there before."""
    archived, local = EpochHistory.of(((0, 0), (1, 2070))), EpochHistory.of(((0, 0), (1, 4845), (2, 14915)))
    assert parting_offset(archived, local, 14915, compacted=True) == 14915
    assert parting_offset(local, archived, 14915, compacted=True) == 14915
    assert parting_offset(archived, EpochHistory.of(((0, 0), (2, 4845))), 14915, compacted=True) == 2070


def test_without_compaction_no_epoch_begins_too_late() -> None:
    """The archive has what was live below an epoch in a log that was silent about it, and a gap before that epoch."""
    archived, local, gaps = EpochHistory.of(((2, 0), (3, 3))), EpochHistory.of(((3, 1),)), [GapSpan(2, 3)]
    assert parting_offset(archived, local, 10, gaps) == 1
    assert parting_offset(archived, local, 10, gaps, compacted=True) == 10


def test_nor_does_one_in_the_archive_where_that_has_a_record_of_an_older_one() -> None:
    archived, local, gaps = EpochHistory.of(((1, 1), (2, 6), (4, 12))), EpochHistory.of(((2, 0), (4, 12))), [GapSpan(0, 1), GapSpan(3, 5)]
    assert parting_offset(archived, local, 13, gaps, compacted=True) == 1


def test_histories_are_not_compared_where_the_archive_has_a_gap() -> None:
    archived, local = EpochHistory.of(((1, 0), (7, 17), (11, 18))), EpochHistory.of(((4, 12), (7, 17), (8, 18)))
    assert parting_offset(archived, local, 21) == 12
    assert parting_offset(archived, local, 21, [GapSpan(12, 17)]) == 18
    assert parting_offset(archived, EpochHistory.of(((4, 12),)), 21, [GapSpan(12, 17)]) == 17


def test_a_new_leadership_without_data_cuts_nothing() -> None:
    log = a_log(0, 100, epochs=((0, 0), (5, 100)))
    scope = scope_of(log, an_extent(0, 89, epochs=((0, 0),)), ReadPriority.LOCAL_FIRST)
    assert (scope.archive, scope.local, scope.high_watermark, scope.leader_epoch) == (Span(0, 90), Span(0, 100), 100, 5)


def led_by(leader: int) -> Leadership:
    return Leadership(leader=leader, leader_epoch=9, node=1, replicas=(1, 2), in_sync=(1, 2))


def test_a_follower_that_knows_of_a_leadership_may_not_have_cut_its_log_for_it() -> None:
    extent = an_extent(0, 17, epochs=((5, 0), (6, 13)), followed=9)
    follower = replace(a_log(0, 35, epochs=((5, 0), (7, 32))), leadership=led_by(2))
    assert scope_of(follower, extent, ReadPriority.LOCAL_FIRST).local == Span(0, 13)
    leader = replace(a_log(0, 35, epochs=((5, 0), (6, 13))), leadership=led_by(1))
    assert scope_of(leader, extent, ReadPriority.LOCAL_FIRST).local == Span(0, 35)
    later = an_extent(0, 17, epochs=((5, 0), (6, 13)), followed=8)
    assert scope_of(follower, later, ReadPriority.LOCAL_FIRST).archive == Span(0, 13)


def test_a_log_is_behind_where_the_archive_has_followed_a_newer_leadership() -> None:
    def is_behind(log: LocalLog, followed: int) -> bool:
        return scope_of(log, an_extent(0, 9, epochs=((1, 0),), followed=followed), ReadPriority.LOCAL_FIRST).is_local_behind

    log = a_log(0, 10, epochs=((1, 0),))
    assert [is_behind(log, followed) for followed in (1, 2)] == [False, True]
    assert not is_behind(a_log(0, 10), 2)  # it has no history
    leads, follows = (Leadership(leader=leader, leader_epoch=2, node=1, replicas=(1, 2), in_sync=(1, 2)) for leader in (1, 2))
    assert [is_behind(replace(log, leadership=leads), followed) for followed in (2, 3)] == [False, True]
    assert is_behind(replace(log, leadership=follows), 2)


def test_histories_of_both_tiers_join() -> None:
    assert joined(EpochHistory.of(((1, 0), (3, 10))), EpochHistory.of(((3, 15), (6, 20)))).starts == ((1, 0), (3, 10), (6, 20))
    assert joined(EpochHistory.of(((1, 0), (2, 10))), EpochHistory.of(((3, 15),))).starts == ((1, 0), (2, 10), (3, 15))
    assert joined(EpochHistory(), EpochHistory.of(((3, 15),))).starts == ((3, 15),)
    assert joined(EpochHistory.of(((1, 0), (4, 9))), EpochHistory.of(((1, 0), (2, 9)))).starts == ((1, 0), (4, 9))


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=5),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=5),
    st.integers(0, 9),
    st.integers(-1, 40),
    st.integers(0, 50),
    st.integers(0, 9),
    st.sampled_from(list(ReadPriority)),
)
def test_any_two_tiers_make_a_log_that_begins_before_it_ends(
    local: list[tuple[int, int]],
    archived: list[tuple[int, int]],
    local_start: int,
    last: int,
    high_watermark: int,
    archive_start: int,
    priority: ReadPriority,
) -> None:
    log = a_log(local_start, max(high_watermark, local_start), epochs=rising(local))
    extent = an_extent(min(archive_start, last + 1), last, epochs=rising(archived))
    scope = scope_of(log, extent, priority)
    assert 0 <= scope.log_start <= scope.high_watermark
    for offset in range(scope.log_start, scope.high_watermark):
        assert scope.order(priority, offset) or scope.next_held(offset) > offset
        assert scope.holds(scope.next_held(offset)) or scope.next_held(offset) == scope.high_watermark


def rising(jumps: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    steps: list[tuple[int, int]] = []
    for epoch, first in jumps:
        last = steps[-1] if steps else (-1, -1)
        steps.append((last[0] + 1 + epoch, last[1] + 1 + first))
    return tuple(steps)


def test_epoch_ends_are_kafkas() -> None:
    epochs = EpochHistory.of(((1, 5), (3, 10)))
    assert epoch_end(epochs, 0, 20) == (0, 5)
    assert epoch_end(epochs, 1, 20) == (1, 10)
    assert epoch_end(epochs, 2, 20) == (1, 10)
    assert epoch_end(epochs, 3, 20) == (3, 20)
    assert epoch_end(epochs, 4, 20) == (-1, -1)
    assert epoch_end(EpochHistory(), 0, 20) == (-1, -1)


@pytest.mark.parametrize(
    ("base", "checkpoint", "epochs", "expected"),
    [
        (0, 100, (), 100),
        (0, 100, ((3, 100),), 100),
        (0, 100, ((3, 40),), 40),  # truncated below it by an unclean election, less than a minute ago
        (50, 100, ((3, 40),), 50),
        (0, 20, ((3, 40),), 20),
    ],
)
def test_a_log_begins_where_its_epoch_history_does_when_that_is_below_the_checkpoint(
    base: int, checkpoint: int, epochs: tuple[tuple[int, int], ...], expected: int
) -> None:
    scope = scope_of(a_log(base, 200, epochs=epochs, log_start=checkpoint), None, ReadPriority.LOCAL_FIRST)
    assert (scope.local, scope.log_start) == (Span(expected, 200), expected)


def test_no_leader_epoch_has_no_end() -> None:
    assert epoch_end(EpochHistory.of(((0, 3), (2, 10))), -1, 20) == (-1, -1)
