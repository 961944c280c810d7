from pathlib import Path

import pytest

from headwater_core.control.snapshot import read_snapshot, write_snapshot
from headwater_core.control.state import EMPTY, apply_all
from headwater_core.errors import CorruptData
from tests.headwater_core.control.builders import advanced, claim


def test_a_snapshot_reads_back_and_any_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    state = apply_all(EMPTY, [advanced(1), claim(2, topic="payments")])
    write_snapshot(path, state, (b"a", 4, 1), (b"b", 5, 1))
    assert read_snapshot(path) == (state, (b"a", 4, 1), (b"b", 5, 1))
    raw = path.read_bytes()
    for position in range(len(raw)):
        path.write_bytes(raw[:position] + bytes([raw[position] ^ 1 << position % 8]) + raw[position + 1 :])
        with pytest.raises(CorruptData):
            read_snapshot(path)
        path.write_bytes(raw[:position])
        with pytest.raises(CorruptData):
            read_snapshot(path)
