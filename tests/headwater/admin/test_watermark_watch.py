"""The broker is asked about what it leads, many with one request, and not more often than it is worth."""

from collections.abc import Collection, Mapping
from typing import cast

from archival.broker.broker_logs import PLACES_MAX, BrokerLogs, Watermark
from headwater.admin.status_board import StatusBoard
from headwater.admin.watermark_watch import ROUND_S, WORK_SHARE, WatermarkWatch
from headwater_core.partition import TopicPartition
from tests.headwater_core.manual_clock import ManualClock


class Broker:
    """It takes a second for each request."""

    def __init__(self, clock: ManualClock) -> None:
        self.asked: list[int] = []
        self.is_silent = False
        self._clock = clock

    def learn(self, places: Collection[TopicPartition]) -> Mapping[TopicPartition, Watermark]:
        self._clock.advance(1_000)
        self.asked.append(len(places))
        return {} if self.is_silent else {place: Watermark(7, 0.0) for place in places}


class Board:
    def __init__(self, partitions: int) -> None:
        self.places = [TopicPartition("orders", number) for number in range(partitions)]
        self.heard: list[tuple[Mapping[TopicPartition, int], float]] = []

    def led(self) -> list[TopicPartition]:
        return self.places

    def said(self, marks: Mapping[TopicPartition, int], asked_s: float) -> None:
        self.heard.append((marks, asked_s))


def a_watch(partitions: int) -> tuple[WatermarkWatch, Board, Broker, ManualClock]:
    clock = ManualClock()
    board, broker = Board(partitions), Broker(clock)
    return WatermarkWatch(cast(StatusBoard, board), cast(BrokerLogs, broker), clock), board, broker, clock


def test_all_that_the_broker_leads_is_asked_about_in_requests_of_a_thousand() -> None:
    watch, board, broker, clock = a_watch(2 * PLACES_MAX + 1)
    began_s = clock.monotonic_s()
    pauses = [watch.turn() for _ in range(3)]
    assert broker.asked == [PLACES_MAX, PLACES_MAX, 1]
    assert board.heard[0] == (dict.fromkeys(board.places[:PLACES_MAX], 7), began_s)
    assert pauses[:2] == [1 / WORK_SHARE - 1] * 2  # of the time, no more than that
    assert pauses[2] == ROUND_S


def test_a_round_begins_no_sooner_than_the_checkpoint_is_written() -> None:
    watch, _, broker, clock = a_watch(1)
    watch.turn()
    assert 0 < watch.turn() <= ROUND_S
    assert broker.asked == [1]
    clock.advance(5_000)
    watch.turn()
    assert broker.asked == [1, 1]


def test_a_broker_that_says_nothing_changes_nothing() -> None:
    watch, board, broker, _ = a_watch(1)
    broker.is_silent = True
    watch.turn()
    assert board.heard == []
