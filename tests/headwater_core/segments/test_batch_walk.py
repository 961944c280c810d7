import io
import struct
from collections.abc import Callable

import pytest
from awscrt.checksums import crc64nvme
from hypothesis import given
from hypothesis import strategies as st

from headwater_core.errors import CorruptData, SourceChanged, TruncatedData, UnsupportedFormat
from headwater_core.segments import batch_walk
from headwater_core.segments.batch_walk import BatchWalk, check_batches, headers, locate, walk
from headwater_core.segments.batches import HEADER_BYTES, check_batch
from tests.headwater_core.segments.builders import a_batch, a_commit, a_segment, with_crc


def walked(raw: bytes, *, start: int = 0, end_offset: int | None = None) -> list[int]:
    """Base offsets of the batches in `raw`."""
    return [header.base_offset for _, header in walk(io.BytesIO(raw), start, len(raw), where="test", end_offset=end_offset)]


def test_a_walk_begins_anywhere_a_batch_does() -> None:
    raw = a_segment(0, 5)
    positions = [position for position, _ in headers(io.BytesIO(raw), 0, len(raw), where="test")]
    assert walked(raw, start=positions[2]) == [2, 3, 4]


@pytest.mark.parametrize("end_offset", range(13))
def test_a_walk_takes_only_whole_batches_below_the_high_watermark(end_offset: int) -> None:
    raw = a_segment(0, 4, records=3)
    assert walked(raw, end_offset=end_offset) == [base for base in (0, 3, 6, 9) if base + 3 <= end_offset]


def test_nothing_past_the_high_watermark_is_read() -> None:
    assert walked(a_segment(0, 4) + b"torn", end_offset=4) == [0, 1, 2, 3]
    assert walked(a_segment(0, 4) + a_batch(4)[:-1], end_offset=4) == [0, 1, 2, 3]


def test_a_torn_batch_below_the_high_watermark_is_noticed() -> None:
    with pytest.raises(TruncatedData):
        walked(a_segment(0, 4) + a_batch(4)[:-1], end_offset=5)
    with pytest.raises(TruncatedData):
        walked(a_segment(0, 4) + a_batch(4, 3)[:-1], end_offset=6)


@pytest.mark.parametrize("zeros", [1, 16, 17, 60, 61, 200])
def test_a_tail_of_zeros_is_a_truncation_at_its_first_byte(zeros: int) -> None:
    raw = a_segment(0, 2)
    for look in (walked, lambda data: list(headers(io.BytesIO(data), 0, len(data), where="test"))):
        with pytest.raises(TruncatedData) as caught:
            look(raw + bytes(zeros))
        assert caught.value.position == len(raw)


def test_offsets_must_rise_and_epochs_must_not_fall() -> None:
    for second in (a_batch(2), a_batch(1), a_batch(0)):
        with pytest.raises(CorruptData, match="follows"):
            walked(a_batch(0, 3) + second)
    with pytest.raises(CorruptData, match="leader epoch 3 follows 4"):
        walked(a_batch(0, epoch=4) + a_batch(1, epoch=3))
    assert walked(a_batch(0, epoch=-1) + a_batch(1, epoch=0) + a_batch(9, epoch=0)) == [0, 1, 9]


def test_a_shrunken_file_is_a_changed_source() -> None:
    raw = a_segment(0, 2)
    with pytest.raises(SourceChanged):
        list(walk(io.BytesIO(raw), 0, len(raw) + 100, where="test"))


@pytest.mark.parametrize("window", [HEADER_BYTES, 100, 128, 1000])
def test_windows_change_nothing(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = b"".join((a_batch(0), a_batch(1, [b"x" * 5000]), a_batch(2), a_batch(3, [b"y" * 300]), a_batch(4, [b"z" * 1000]), a_batch(5)))
    monkeypatch.setattr(batch_walk, "WINDOW_BYTES", window)
    run = BatchWalk(io.BytesIO(raw), 0, len(raw), where="test")
    found = [(position, fields[0]) for position, fields in run]
    assert [base for _, base in found] == [0, 1, 2, 3, 4, 5]
    assert run.digest_to(len(raw)) == f"crc64nvme:{crc64nvme(raw):016x}"
    assert [(position, header.base_offset) for position, header in headers(io.BytesIO(raw), 0, len(raw), where="test")] == found


@pytest.mark.parametrize("window", [HEADER_BYTES, 100, 250, 400, 1000])
def test_damage_is_noticed_wherever_a_window_ends(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches inside a window, across its end, and larger than it take different ways; each byte under a CRC is damaged once."""
    found = [a_batch(offset, [b"x" * size]) for offset, size in enumerate((10, 200, 10, 700, 30))]
    raw = b"".join(found)
    monkeypatch.setattr(batch_walk, "WINDOW_BYTES", window)
    assert walked(raw) == [0, 1, 2, 3, 4]
    start = 0
    for batch in found:
        for at in range(start + 21, start + len(batch)):
            with pytest.raises(CorruptData):
                walked(damaged(raw, at * 8))
        start += len(batch)


@pytest.mark.parametrize("batches_taken", range(1, 7))
def test_a_digest_covers_exactly_what_was_taken(batches_taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = b"".join(a_batch(offset, [bytes(100 * offset)]) for offset in range(6)) + b"tail"
    monkeypatch.setattr(batch_walk, "WINDOW_BYTES", 256)
    run = BatchWalk(io.BytesIO(raw), 0, len(raw), where="test", end_offset=batches_taken)
    end = 0
    for position, fields in run:
        end = position + 12 + fields[1]
    assert run.digest_to(end) == f"crc64nvme:{crc64nvme(raw[:end]):016x}"


def test_a_walk_can_be_ended_with_the_batch_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = a_batch(0) + a_batch(1, [b"x" * 5000]) + a_batch(2)
    monkeypatch.setattr(batch_walk, "WINDOW_BYTES", 128)
    run = BatchWalk(io.BytesIO(raw), 0, len(raw), where="test")
    end = 0
    for position, fields in run:
        end = position + 12 + fields[1]
        if fields[0] == 1:
            run.finish()
    assert run.digest_to(end) == f"crc64nvme:{crc64nvme(raw[:end]):016x}"
    assert end < len(raw)


def test_locate_finds_the_batch_that_reaches_an_offset() -> None:
    raw = a_batch(0, 3) + a_batch(10, 2) + a_batch(20, 2)
    second, third = len(a_batch(0, 3)), len(a_batch(0, 3) + a_batch(10, 2))
    for offset, position in ((0, 0), (2, 0), (3, second), (11, second), (12, third), (21, third), (22, len(raw))):
        assert locate(io.BytesIO(raw), offset, 0, len(raw), where="test") == position


def damaged(raw: bytes, bit: int) -> bytes:
    flipped = bytearray(raw)
    flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)


def test_any_flipped_bit_is_noticed_between_neighbours() -> None:
    """Base offset and leader epoch are outside the CRC: there the order of the log is what shows it."""
    before, batch, after = a_batch(3, 2, epoch=6), a_batch(5, 2, epoch=6), a_batch(7, 2, epoch=6)
    assert walked(before + batch + after) == [3, 5, 7]
    for bit in range(len(batch) * 8):
        with pytest.raises((CorruptData, UnsupportedFormat)):
            walked(before + damaged(batch, bit) + after)


def test_any_flipped_bit_under_the_checksum_or_in_the_length_is_noticed_in_a_lone_batch() -> None:
    batch = a_batch(5, 2, epoch=6)
    for bit in [*range(64, 96), *range(128, len(batch) * 8)]:
        with pytest.raises((CorruptData, UnsupportedFormat)):
            check_batch(damaged(batch, bit))


@given(cut=st.integers(0, len(a_segment(0, 3)) - 1))
def test_any_truncation_is_noticed_or_leaves_whole_batches(cut: int) -> None:
    raw = a_segment(0, 3)
    ends = [0, *(position for position, _ in headers(io.BytesIO(raw), 0, len(raw), where="test"))]
    if cut in ends:
        assert len(walked(raw[:cut])) == max(ends.index(cut) - 1, 0)
    else:
        with pytest.raises(TruncatedData):
            walked(raw[:cut])


@given(
    length=st.one_of(st.integers(-(2**31), 2**31 - 1), st.sampled_from([-1, 0, 48, 49, 2**31 - 1])),
    delta=st.integers(-(2**31), 2**31 - 1),
    count=st.integers(-(2**31), 2**31 - 1),
    base=st.sampled_from([0, -1, -(2**63), 2**63 - 1, 2**63 - 2]),
)
def test_hostile_headers_are_typed_errors(length: int, delta: int, count: int, base: int) -> None:
    raw = bytearray(a_batch(0, 2))
    struct.pack_into(">qi", raw, 0, base, length)
    struct.pack_into(">i", raw, 23, delta)
    struct.pack_into(">i", raw, 57, count)
    honest = (base, length, delta, count) == (0, len(raw) - 12, 1, 2)
    for look in (walked, check_batch):
        try:
            look(with_crc(bytes(raw)))
        except CorruptData:
            continue
        assert honest or (length == len(raw) - 12 and 0 <= base <= 2**63 - 2 - delta and 0 <= count <= delta + 1)


@given(
    bits=st.lists(st.integers(0, 8 * 3 * len(a_batch(3, 2, epoch=6)) - 1), max_size=2),
    cut=st.integers(0, 3 * len(a_batch(3, 2, epoch=6))),
    field=st.sampled_from([None, (8, ">i"), (23, ">i"), (57, ">i"), (12, ">i"), (0, ">q")]),
    value=st.integers(-(2**31), 2**31 - 1),
)
def test_a_check_of_bytes_in_memory_ends_as_the_walk_does(bits: list[int], cut: int, field: tuple[int, str] | None, value: int) -> None:
    batch = bytearray(a_batch(5, 2, epoch=6))
    if field is not None:
        struct.pack_into(field[1], batch, field[0], value)
    raw = bytearray(a_batch(3, 2, epoch=6) + with_crc(bytes(batch)) + a_batch(7, 2, epoch=6))
    for bit in bits:
        raw[bit // 8] ^= 1 << bit % 8
    content = memoryview(bytes(raw[:cut] if cut % 3 else raw))

    def outcome(look: Callable[[], object]) -> object:
        try:
            return look()
        except (CorruptData, UnsupportedFormat, SourceChanged) as error:
            return type(error), str(error)

    def by_walk() -> tuple[int, int]:
        found = [header for _, header in walk(io.BytesIO(content), 0, len(content), where="test")]
        return (found[0].base_offset, found[-1].last_offset) if found else (-1, -1)

    assert outcome(lambda: check_batches(content, where="test")) == outcome(by_walk)


def test_a_control_batch_larger_than_the_window_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = a_commit(0, 1)
    monkeypatch.setattr(batch_walk, "WINDOW_BYTES", HEADER_BYTES)
    run = BatchWalk(io.BytesIO(raw), 0, len(raw), where="test")
    with pytest.raises(CorruptData, match="control batch"):
        [run.batch(position, 12 + fields[1]) for position, fields in run]
