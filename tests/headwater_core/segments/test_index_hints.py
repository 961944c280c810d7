import struct
from pathlib import Path

from headwater_core.segments.index_hints import hint_by_offset, hint_by_position


def test_hints_end_at_the_zeros_of_a_preallocated_index(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000001000.index"
    entries = [(at * 10 + 9, at * 500) for at in range(1, 40)]
    for tail in (b"", bytes(8_000)):
        path.write_bytes(b"".join(struct.pack(">Ii", *entry) for entry in entries) + tail)
        assert hint_by_offset(path, 1_000, 1_018) is None
        assert hint_by_offset(path, 1_000, 1_019) == (1_019, 500)
        assert hint_by_offset(path, 1_000, 1_250) == (1_249, 12_000)
        assert hint_by_offset(path, 1_000, 9_999) == (1_399, 19_500)
        assert hint_by_position(path, 1_000, 499) is None
        assert hint_by_position(path, 1_000, 12_345) == (1_249, 12_000)
        assert hint_by_position(path, 1_000, 10**9) == (1_399, 19_500)
    assert hint_by_offset(tmp_path / "none.index", 0, 5) is None
    path.write_bytes(b"")
    assert hint_by_offset(path, 0, 5) is None
