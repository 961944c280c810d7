"""Heads that nobody holds, read one by one, and not while the store is silent."""

from collections.abc import Callable
from typing import cast

from headwater.admin.head_reader import HEAD_S, NONE_S, SILENT_S, HeadReader
from headwater.admin.status_board import StatusBoard
from headwater_core.errors import CorruptData, TransientError
from headwater_core.partition import PartitionId
from manifests.head import Head
from tests.headwater_core.manual_clock import ManualClock
from tests.manifests.builders import PARTITION, a_head, an_entry


class Board:
    """What of a board is used here."""

    def __init__(self, *unsized: PartitionId) -> None:
        self.clock = ManualClock()
        self.wanted = list(unsized)
        self.read: list[tuple[PartitionId, Head | None, str]] = []

    def unsized(self) -> list[PartitionId]:
        return self.wanted

    def head_read(self, partition: PartitionId, head: Head | None, trouble: str = "", *, asked_s: float) -> None:
        assert asked_s < self.clock.monotonic_s()  # before the bucket was asked
        self.read.append((partition, head, trouble))
        self.wanted = [each for each in self.wanted if each != partition]


def a_reader(board: Board, load: Callable[[PartitionId], Head | None]) -> HeadReader:
    def loaded(partition: PartitionId) -> Head | None:
        board.clock.advance(1000)
        return load(partition)

    return HeadReader(cast(StatusBoard, board), loaded)


HEAD = a_head(an_entry(0, 9))


def test_each_is_read_once_and_then_there_is_nothing_to_do() -> None:
    board = Board(PARTITION)
    reader = a_reader(board, lambda _: HEAD)
    assert reader.turn() == HEAD_S
    assert board.read == [(PARTITION, HEAD, "")]
    assert reader.turn() == NONE_S
    assert len(board.read) == 1


def test_one_that_is_not_there_and_one_that_is_damaged_are_answers() -> None:
    board = Board(PARTITION)
    assert a_reader(board, lambda _: None).turn() == HEAD_S
    board.wanted = [PARTITION]

    def damaged(_: PartitionId) -> Head | None:
        raise CorruptData("head", 7, "cut")

    assert a_reader(board, damaged).turn() == HEAD_S
    assert [(head, trouble) for _, head, trouble in board.read] == [(None, ""), (None, "head, byte 7: cut")]


def test_a_store_that_is_silent_is_left_alone_for_a_while() -> None:
    board, calls = Board(PARTITION, *[PARTITION] * 3), list[PartitionId]()

    def silent(partition: PartitionId) -> Head | None:
        calls.append(partition)
        raise TransientError("no answer")

    reader = a_reader(board, silent)
    assert reader.turn() == SILENT_S
    assert (len(calls), board.read) == (1, [])
    assert reader.turn() == SILENT_S
    assert len(calls) == 2
