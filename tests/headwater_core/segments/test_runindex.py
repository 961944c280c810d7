import struct
from array import array
from dataclasses import replace
from itertools import pairwise

import pytest
from awscrt.checksums import crc32c
from hypothesis import given
from hypothesis import strategies as st

from headwater_core.epochs import EpochStart
from headwater_core.errors import CorruptData, TruncatedData, UnsupportedFormat
from headwater_core.segments import runindex
from headwater_core.segments.producers import ProducerState
from headwater_core.segments.runindex import NO_TIMESTAMP, Points, RunIndex, decode_index, encode_index
from headwater_core.segments.transactions import AbortedTransaction, OpenTransaction
from tests.headwater_core.segments.builders import points_of

i64 = st.integers(-(2**63), 2**63 - 1)
i32 = st.integers(-(2**31), 2**31 - 1)
i16 = st.integers(-(2**15), 2**15 - 1)


@st.composite
def indexes(draw: st.DrawFn) -> RunIndex:
    base = draw(st.integers(0, 2**60))
    last = base + draw(st.integers(0, 2**40))
    within = st.integers(base, last)

    def rising(values: st.SearchStrategy[int], size: int) -> list[int]:
        return sorted(draw(st.sets(values, max_size=size)))

    offsets = [base, *(each for each in rising(within, 5) if each > base)]
    positions = [0, *sorted(draw(st.sets(st.integers(1, 2**31), min_size=len(offsets) - 1, max_size=len(offsets) - 1)))]
    times = sorted(draw(st.lists(i64, min_size=len(offsets) - 1, max_size=len(offsets) - 1)))
    firsts = rising(within, 4)
    epochs = sorted(draw(st.sets(st.integers(0, 2**31 - 1), min_size=len(firsts), max_size=len(firsts))))
    markers = [each for each in rising(within, 4) if each > 0]
    opened = rising(st.integers(0, last), 4)
    return RunIndex(
        base_offset=base,
        last_offset=last,
        size_bytes=positions[-1] + draw(st.integers(1, 2**31)),
        points=points_of(zip(offsets, positions, [NO_TIMESTAMP, *times], strict=True)),
        epochs=tuple(EpochStart(*each) for each in zip(epochs, firsts, strict=True)),
        aborted=tuple(AbortedTransaction(draw(i64), draw(st.integers(0, each - 1)), each, draw(i64)) for each in markers),
        open_transactions=tuple(OpenTransaction(draw(i64), each) for each in opened),
        producers=tuple(draw(st.lists(st.builds(ProducerState, i64, i16, i32, i64, i32, i64, i32, i64), max_size=3))),
    )


AN_INDEX = RunIndex(
    base_offset=10,
    last_offset=99,
    size_bytes=200_000,
    points=points_of([(10, 0, NO_TIMESTAMP), (40, 70_000, 500), (80, 140_000, 500)]),
    epochs=(EpochStart(2, 10), EpochStart(4, 50)),
    aborted=(AbortedTransaction(7, 3, 20, 12), AbortedTransaction(8, 12, 60, 61)),
    open_transactions=(OpenTransaction(9, 5), OpenTransaction(1, 90)),
    producers=(ProducerState(7, 0, 3, 19, 2, 400, 1, -1),),
)


@given(index=indexes())
def test_what_is_written_reads_back(index: RunIndex) -> None:
    assert decode_index(encode_index(index)) == index


def test_any_truncation_is_noticed() -> None:
    raw = encode_index(AN_INDEX)
    assert decode_index(raw) == AN_INDEX
    for cut in range(len(raw)):
        with pytest.raises(TruncatedData):
            decode_index(raw[:cut])
    with pytest.raises(CorruptData):
        decode_index(raw + b"\x00")


def test_any_flipped_bit_is_noticed() -> None:
    raw = encode_index(AN_INDEX)
    for bit in range(len(raw) * 8):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises((CorruptData, UnsupportedFormat)):
            decode_index(damaged)


@pytest.mark.parametrize("count", [2**32 - 1, 2**31 - 1, 2**21])
@pytest.mark.parametrize("section", range(5))
def test_hostile_counts_are_refused_before_anything_is_allocated(section: int, count: int) -> None:
    raw = bytearray(encode_index(AN_INDEX))
    struct.pack_into(">I", raw, 32 + 4 * section, count)
    struct.pack_into(">I", raw, len(raw) - 4, crc32c(bytes(raw[:-4])))
    with pytest.raises(CorruptData, match="rows in a section"):
        decode_index(raw)


@pytest.mark.parametrize(("section", "most"), [("epochs", "EPOCHS_MAX"), ("aborted", "ABORTED_MAX"), ("producers", "PRODUCERS_MAX")])
def test_what_no_reader_takes_is_not_written(section: str, most: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runindex, most, len(getattr(AN_INDEX, section)))
    assert encode_index(AN_INDEX)
    monkeypatch.setattr(runindex, most, len(getattr(AN_INDEX, section)) - 1)
    with pytest.raises(CorruptData, match="rows in a section"):
        encode_index(AN_INDEX)


def test_an_unknown_major_version_is_refused_and_a_minor_one_read() -> None:
    raw = bytearray(encode_index(AN_INDEX))
    raw[5] = 2
    with pytest.raises(UnsupportedFormat, match="format 2"):
        decode_index(raw)
    raw[5], raw[7] = 1, 9
    struct.pack_into(">I", raw, len(raw) - 4, crc32c(bytes(raw[:-4])))
    assert decode_index(raw) == AN_INDEX


def columns(*rows: tuple[int, int, int]) -> Points:
    return points_of(rows)


@pytest.mark.parametrize(
    "lie",
    [
        {"base_offset": -1},
        {"last_offset": 9},
        {"last_offset": 2**63 - 1},
        {"size_bytes": 0},
        {"size_bytes": 140_000},
        {"points": columns()},
        {"points": columns((11, 0, 0))},
        {"points": columns((10, 1, 0))},
        {"points": columns((10, 0, 0), (10, 5, 0))},
        {"points": columns((10, 0, 0), (11, 0, 0))},
        {"points": columns((10, 0, 0), (11, 5, -1))},
        {"points": columns((10, 0, 0), (100, 5, 0))},
        {"epochs": ((4, 10), (2, 50))},
        {"epochs": ((2, 9),)},
        {"epochs": ((-1, 10),)},
        {"aborted": (AbortedTransaction(7, 20, 20, 12),)},
        {"aborted": (AbortedTransaction(7, 3, 100, 12),)},
        {"aborted": (AbortedTransaction(7, -1, 20, 12),)},
        {"aborted": (AbortedTransaction(7, 3, 20, 12), AbortedTransaction(8, 3, 20, 12))},
        {"open_transactions": (OpenTransaction(1, 100),)},
        {"open_transactions": (OpenTransaction(1, 90), OpenTransaction(9, 5))},
    ],
)
def test_an_index_that_is_no_runs_is_refused(lie: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    lying = replace(AN_INDEX, **lie)  # type: ignore[arg-type]
    with pytest.raises(CorruptData):
        encode_index(lying)
    with monkeypatch.context() as careless:
        careless.setattr(runindex, "_check", lambda *_: None)
        raw = encode_index(lying)
    with pytest.raises(CorruptData):
        decode_index(raw)


def test_everything_before_a_points_position_is_older() -> None:
    index = replace(AN_INDEX, points=points_of([(10, 0, NO_TIMESTAMP), (40, 70_000, 500), (80, 140_000, 900)]))
    assert [index.position_for_time(at) for at in (-5, 500, 501, 900, 901)] == [0, 0, 70_000, 70_000, 140_000]
    assert AN_INDEX.position_for_time(501) == 140_000  # two points alike: the later one


def test_columns_are_compact() -> None:
    assert all(isinstance(column, array) for column in decode_index(encode_index(AN_INDEX)).points)
    assert all(a < b for a, b in pairwise(AN_INDEX.points.offsets))
