"""Positions found in one log, by time and by what negative timestamps mean."""

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.gateway.handlers.list_offsets import UNKNOWN, Position, epoch_at, find, newest
from headwater.gateway.protocol import Code, check_leader_epoch, once_each
from headwater_core.epochs import EpochHistory
from hydration.answers import Bounds
from hydration.partition_log import PartitionLog
from hydration.scope import EpochEnd, epoch_end
from hydration.times import RecordTime

FAR = float("inf")


class TimedLog:
    """Records at these times, one for each offset; epochs begin at these offsets."""

    def __init__(self, times_ms: list[int], epochs: dict[int, int] | None = None) -> None:
        self.times_ms = times_ms
        self.epochs = EpochHistory.of(sorted((epochs or {0: 0}).items()))
        self.lookups = 0

    def offset_for_time(self, timestamp_ms: int, *, timeout_s: float) -> RecordTime | None:
        self.lookups += 1
        return next((RecordTime(at, time_ms) for at, time_ms in enumerate(self.times_ms) if time_ms >= timestamp_ms), None)

    def epoch_end(self, epoch: int, *, timeout_s: float) -> EpochEnd:
        return epoch_end(self.epochs, epoch, len(self.times_ms))


def a_log(times_ms: list[int], epochs: dict[int, int] | None = None) -> PartitionLog:
    return cast(PartitionLog, TimedLog(times_ms, epochs))


def bounds_of(end: int, *, stable: int | None = None, leader_epoch: int = 0, last_offset: int | None = None) -> Bounds:
    return Bounds(
        log_start=2, local_start=4, last_offset=last_offset, high_watermark=end, last_stable_offset=stable, leader_epoch=leader_epoch
    )


@given(st.lists(st.integers(0, 2**50), max_size=30))
def test_the_newest_record_is_the_first_with_the_largest_timestamp(times_ms: list[int]) -> None:
    log = a_log(times_ms)
    expected = RecordTime(times_ms.index(max(times_ms)), max(times_ms)) if times_ms else None
    assert newest(log, FAR) == expected
    assert cast(TimedLog, log).lookups < 100


def test_the_epoch_of_an_offset_is_that_which_wrote_it() -> None:
    log = a_log([0] * 30, {3: 0, 5: 10, 9: 20})
    bounds = bounds_of(30, leader_epoch=9)
    assert [epoch_at(log, bounds, offset, FAR) for offset in (0, 9, 10, 19, 20, 29)] == [3, 3, 5, 5, 9, 9]
    assert epoch_at(log, bounds, 30, FAR) == -1


@pytest.mark.parametrize("leader_epoch", range(3, 16))
def test_a_leader_that_has_written_nothing_hides_no_earlier_epoch(leader_epoch: int) -> None:
    log = a_log([0] * 30, {0: 0, 3: 10})
    bounds = bounds_of(30, leader_epoch=leader_epoch)
    assert [epoch_at(log, bounds, offset, FAR) for offset in (0, 9, 10, 29, 30)] == [0, 0, 3, 3, -1]


@pytest.mark.parametrize(
    ("timestamp_ms", "expected"),
    [
        (-1, Position(8, -1, 0)),
        (-2, Position(2, -1, 0)),
        (-4, Position(4, -1, 0)),
        (-5, Position(5, -1, 0)),
        (-6, Position(6, -1, 0)),
        (-7, UNKNOWN),
        (103, Position(3, 103, 0)),
        (109, UNKNOWN),  # it is there, and not yet readable
    ],
)
def test_a_position_lies_below_the_end(timestamp_ms: int, expected: Position) -> None:
    log = a_log([100 + at for at in range(10)])
    assert find(log, bounds_of(10, stable=8, last_offset=5), timestamp_ms, FAR) == expected


@pytest.mark.parametrize(
    ("claimed", "advertised", "code"), [(1, 2, Code.FENCED_LEADER_EPOCH), (2, 2, 0), (3, 2, 0), (-1, 2, 0), (0, -1, 0)]
)
def test_only_an_older_leader_epoch_is_fenced(claimed: int, advertised: int, code: int) -> None:
    assert check_leader_epoch(claimed, advertised) == code


def test_a_partition_that_is_named_twice_is_answered_once() -> None:
    topics = [{"name": "a", "partitions": [{"at": 1, "n": 1}, {"at": 0, "n": 2}]}, {"name": "a", "partitions": [{"at": 1, "n": 3}]}]
    assert {name: list(partitions.items()) for name, partitions in once_each(topics, "name", "at").items()} == {
        "a": [(1, {"at": 1, "n": 3}), (0, {"at": 0, "n": 2})]
    }
