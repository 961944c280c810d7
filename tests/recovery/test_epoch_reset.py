"""Leader epochs of batches, set to 0 where they stand."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater_core.errors import CorruptData, TruncatedData
from recovery.epoch_reset import reset_epochs
from tests.headwater_core.segments.builders import Producer, a_batch
from tests.recovery.written_archive import batches_in, marker


def a_log(directory: Path, *batches: bytes) -> Path:
    path = directory / f"{0:020}.log"
    path.write_bytes(b"".join(batches))
    return path


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(-1, 2**31 - 1), st.booleans()), max_size=8))
def test_nothing_but_the_epochs_changes_and_every_checksum_holds(made: list[tuple[int, int, bool]]) -> None:
    with TemporaryDirectory() as name:
        batches, offset = [], 0
        for count, epoch, idempotent in sorted(made, key=lambda each: each[1]):
            batches.append(a_batch(offset, count, epoch=epoch, producer=Producer(id=7, sequence=offset) if idempotent else None))
            offset += count
        path = a_log(Path(name), *batches)
        changed = reset_epochs(path)
        assert changed == sum(epoch != 0 for _, epoch, _ in made)
        found = batches_in(Path(name))  # verifies the checksums
        assert [header.leader_epoch for header, _ in found] == [0] * len(batches)
        assert [raw[:12] + raw[16:] for _, raw in found] == [raw[:12] + raw[16:] for raw in batches]
        before = path.read_bytes()
        assert reset_epochs(path) == 0
        assert path.read_bytes() == before


def test_markers_are_batches_too_and_what_was_half_done_is_done(tmp_path: Path) -> None:
    """After a crash any part of the epochs may have reached the disk."""
    old, new = a_batch(0, 2, epoch=5), a_batch(2, 1, epoch=5)
    half = bytearray(new)
    half[12:16] = bytes(4)
    path = a_log(tmp_path, old, bytes(half), marker(3, 7))
    assert reset_epochs(path) == 1
    assert [header.leader_epoch for header, _ in batches_in(tmp_path)] == [0, 0, 0]


def test_damage_is_found_on_the_way(tmp_path: Path) -> None:
    broken = bytearray(a_batch(0, 2, epoch=5))
    broken[-1] ^= 1
    with pytest.raises(CorruptData, match="CRC"):
        reset_epochs(a_log(tmp_path, bytes(broken)))
    with pytest.raises(TruncatedData):
        reset_epochs(a_log(tmp_path, a_batch(0, 2, epoch=5)[:-1]))
    assert reset_epochs(a_log(tmp_path)) == 0
