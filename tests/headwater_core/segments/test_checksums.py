from random import Random

import pytest

from headwater_core.segments.checksums import SUM_BYTES, sums_of

SIZE = 3 * SUM_BYTES + 17


@pytest.mark.parametrize("position", [0, SUM_BYTES - 1, SUM_BYTES, SIZE - 1])
def test_any_changed_byte_changes_the_sum_of_its_piece_and_no_other(position: int) -> None:
    raw = bytearray(Random(1).randbytes(SIZE))

    def read(start: int, length: int) -> bytes:
        return bytes(raw[start : start + length])

    before = sums_of(read, SIZE)
    assert len(before) == 4 * 4
    raw[position] ^= 1
    after = sums_of(read, SIZE)
    changed = [at for at in range(4) if before[4 * at : 4 * at + 4] != after[4 * at : 4 * at + 4]]
    assert changed == [position // SUM_BYTES]


def test_what_ends_early_has_other_sums() -> None:
    raw = Random(2).randbytes(SIZE)
    assert sums_of(lambda start, length: raw[start : start + length], SIZE) != sums_of(
        lambda start, length: raw[:-1][start : start + length], SIZE
    )
