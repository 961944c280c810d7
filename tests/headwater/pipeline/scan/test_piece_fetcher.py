"""Pieces come in order, some of them ahead of time, and every error in its place."""

from collections.abc import Iterator

import pytest

from headwater.pipeline.scan.piece_fetcher import AHEAD_GETS, MissingObject, PieceFetcher
from headwater.pipeline.scan.pieces import Piece, whole
from headwater.pipeline.scan.scan_counters import ScanCounters
from headwater_core.errors import CorruptData, DataLoss
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.hydration.world import Archive


@pytest.fixture
def counters() -> ScanCounters:
    return ScanCounters()


@pytest.fixture
def fetcher(store: MemoryStore, counters: ScanCounters) -> Iterator[PieceFetcher]:
    with PieceFetcher(store, counters) as made:
        yield made


@pytest.fixture
def pieces(archive: Archive) -> list[Piece]:
    return [whole(entry) for entry in archive.head.entries]


def test_pieces_come_in_order_and_are_counted(
    store: MemoryStore, fetcher: PieceFetcher, pieces: list[Piece], counters: ScanCounters
) -> None:
    found = [(piece, bytes(got)) for piece, got in fetcher.in_order(iter(pieces)) if isinstance(got, memoryview)]
    assert found == [(piece, store.get(piece.entry.key)[0]) for piece in pieces]
    assert (counters.gets, counters.bytes_fetched) == (3, sum(piece.size_bytes for piece in pieces))


def test_no_more_is_in_flight_than_allowed(fetcher: PieceFetcher, pieces: list[Piece], counters: ScanCounters) -> None:
    fetched = fetcher.in_order(iter(pieces * AHEAD_GETS))
    next(fetched)
    assert counters.gets == AHEAD_GETS
    next(fetched)
    assert counters.gets == AHEAD_GETS + 1


def test_an_object_that_is_gone_is_missing_after_what_comes_before_it(
    store: MemoryStore, fetcher: PieceFetcher, pieces: list[Piece]
) -> None:
    store.delete(pieces[1].entry.key)
    fetched = fetcher.in_order(iter(pieces))
    assert next(fetched)[0] == pieces[0]
    with pytest.raises(MissingObject) as raised:
        next(fetched)
    assert (raised.value.entry, raised.value.key) == (pieces[1].entry, pieces[1].entry.key)


def test_a_short_object_is_damage_in_its_place_and_the_next_one_comes(
    store: MemoryStore, fetcher: PieceFetcher, pieces: list[Piece]
) -> None:
    key = pieces[1].entry.key
    content = store.get(key)[0]
    store.delete(key)
    store.create(key, content[:-1])
    assert [isinstance(got, CorruptData) for _, got in fetcher.in_order(iter(pieces))] == [False, True, False]


def test_what_planning_raises_comes_after_the_pieces_before_it(fetcher: PieceFetcher, pieces: list[Piece]) -> None:
    def planned() -> Iterator[Piece]:
        yield pieces[0]
        raise DataLoss("a gap")

    fetched = fetcher.in_order(planned())
    assert next(fetched)[0] == pieces[0]
    with pytest.raises(DataLoss):
        next(fetched)


def test_an_index_that_is_gone_is_missing(store: MemoryStore, fetcher: PieceFetcher, archive: Archive) -> None:
    entry = archive.head.entries[0]
    assert fetcher.index(entry).last_offset == entry.last_offset
    store.delete(entry.index_key)
    with pytest.raises(MissingObject, match=entry.index_key):
        fetcher.index(entry)
