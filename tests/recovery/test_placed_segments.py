"""Which segments of a partition are in place."""

from msgspec.structs import replace

from recovery.entry_list import EntryList
from recovery.placed_segments import PlacedSegments, common_runs
from recovery.runs import Restored
from tests.recovery.plans import an_entry


def test_what_was_said_of_a_segment_is_what_is_known_of_it() -> None:
    placed = PlacedSegments(EntryList.of(an_entry(at, at) for at in range(3)))
    said = {0: Restored(1, 0, 12), 2: Restored(2**63 - 1, None, None)}
    for at, restored in said.items():
        placed.add(at, restored)
    assert [at in placed for at in range(3)] == [True, False, True]
    assert {at: placed[at] for at in said} == said


def test_runs_are_common_that_are_alike_in_both() -> None:
    before = [an_entry(at * 10, at * 10 + 9) for at in range(300)]
    now = [*before[5:100], replace(before[100], live_bytes=50), an_entry(1010, 1029), *before[103:200], an_entry(5000, 5009)]
    found = list(common_runs(EntryList.of(before), EntryList.of(now)))
    assert found == [*((at, at - 5, at * 10) for at in range(5, 100)), *((at, at - 6, at * 10) for at in range(103, 200))]
    assert not list(common_runs(EntryList(), EntryList.of(now)))
    assert not list(common_runs(EntryList.of(now), EntryList()))
