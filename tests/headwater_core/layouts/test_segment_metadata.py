"""What the metadata of a run says, damaged."""

from array import array

import pytest

from headwater_core.errors import CorruptData, HeadwaterError
from headwater_core.layouts.segment_metadata import Point, RunFacts, decode_segment_metadata, encode_segment_metadata, shown_points
from headwater_core.layouts.testing import PARTITION, a_run, scanned

MIB = 1 << 20


def test_what_is_written_reads_back() -> None:
    index = scanned(a_run()).index
    positions = array("q", (7 * at for at in index.points.positions))
    ids = array("q", range(len(positions)))
    for entry_ids in (ids, array("q")):
        raw = encode_segment_metadata(RunFacts(PARTITION, 0, 900, index), [Point(5, 0, 0)], positions, entry_ids)
        assert decode_segment_metadata(memoryview(raw), "x") == (index, positions, entry_ids)


def test_points_are_shown_about_a_mib_apart_and_further_for_larger_batches() -> None:
    assert shown_points([0, MIB // 2, MIB, 3 * MIB, 3 * MIB + 1], 4 * MIB) == [0, 2, 3]
    assert shown_points([0], 9 * MIB) == [0]


def test_metadata_that_was_cut_or_describes_another_run_is_noticed() -> None:
    index = scanned(a_run(20)).index
    positions = array("q", range(len(index.points.positions)))
    facts = RunFacts(PARTITION, 0, 900, index)
    raw = encode_segment_metadata(facts, [], positions, positions)
    for end in range(len(raw)):
        try:
            found = decode_segment_metadata(memoryview(raw)[:end], "x")
        except CorruptData:
            continue
        assert not found.entry_ids, "only the last field may be missing, which blocks have not"
    for at in range(len(raw)):
        try:
            decode_segment_metadata(memoryview(raw[:at] + bytes([raw[at] ^ 0x41]) + raw[at + 1 :]), "x")
        except HeadwaterError:
            continue
    for wrong in (encode_segment_metadata(facts, [], positions[:-1]), encode_segment_metadata(facts, [], positions, positions[:-1])):
        with pytest.raises(CorruptData):
            decode_segment_metadata(memoryview(wrong), "x")
