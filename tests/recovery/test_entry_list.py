"""Packed entries are as good as a tuple of them."""

import gc
import subprocess
import sys
import weakref
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifests.entry import Entry
from recovery import entry_list
from recovery.entry_list import BLOCK_ENTRIES, EntryList
from recovery.recovery_plan import PartitionPlan
from recovery.spill_file import SpilledPiece
from tests.recovery.plans import a_gap, an_entry


def entries(count: int, *, gaps: frozenset[int] = frozenset(), opened: frozenset[int] = frozenset()) -> tuple[Entry, ...]:
    def one(at: int) -> Entry:
        changes: dict[str, Any] = {"open_from": at * 10} if at in opened else {}
        return a_gap(at * 10, at * 10 + 9) if at in gaps else an_entry(at * 10, at * 10 + 9, **changes)

    return tuple(map(one, range(count)))


lengths = st.sampled_from([0, 1, 2, BLOCK_ENTRIES - 1, BLOCK_ENTRIES, BLOCK_ENTRIES + 1, 3 * BLOCK_ENTRIES, 3 * BLOCK_ENTRIES + 7])
places = st.integers(-4 * BLOCK_ENTRIES, 4 * BLOCK_ENTRIES)


@given(lengths, st.frozensets(st.integers(0, 3 * BLOCK_ENTRIES)), st.one_of(st.none(), places), st.one_of(st.none(), places))
def test_a_list_says_what_a_tuple_says(count: int, gaps: frozenset[int], first: int | None, end: int | None) -> None:
    expected = entries(count, gaps=gaps)
    packed = EntryList.of(iter(expected))
    assert (len(packed), tuple(packed), tuple(reversed(packed)), bool(packed)) == (count, expected, expected[::-1], bool(expected))
    assert packed == expected
    assert packed == EntryList.of_reversed(reversed(expected))
    assert tuple(packed[first:end]) == expected[first:end]
    assert tuple(packed[first:end] + packed[:end]) == expected[first:end] + expected[:end]
    assert tuple(packed[::-3]) == expected[::-3]
    assert (packed.records, packed.live_bytes) == (sum(each.records for each in expected), sum(each.live_bytes for each in expected))
    assert tuple(packed.runs) == tuple(each for each in expected if not each.gap)
    assert tuple(packed.gaps) == tuple(each for each in expected if each.gap)


@given(lengths, st.frozensets(st.integers(0, 3 * BLOCK_ENTRIES), max_size=2))
def test_it_knows_whether_a_transaction_is_open_after_one_of_them(count: int, opened: frozenset[int]) -> None:
    expected = entries(count, opened=opened)
    assert EntryList.of(expected).is_open is any(each.open_from is not None for each in expected)


def test_one_is_found_by_its_place_and_all_say_where_they_begin() -> None:
    packed = EntryList.of(entries(300, gaps=frozenset({130})))
    for at in (0, 1, 127, 128, 130, 299):
        assert packed[at] == packed[at - 300]
        assert packed[at].base_offset == at * 10
    assert list(packed.base_offsets()) == [at * 10 for at in range(300)]
    for place in (300, -301):
        with pytest.raises(IndexError, match="of 300"):
            packed[place]


def test_lists_differ_where_one_entry_does() -> None:
    expected = entries(300)
    packed = EntryList.of(expected)
    for at in (0, 150, 299):
        other = EntryList.of((*expected[:at], an_entry(at * 10, at * 10 + 9, records=1), *expected[at + 1 :]))
        assert packed != other
        assert other[at].records == 1
    assert packed != packed[1:]
    assert packed != 7
    assert EntryList() != ""


def test_a_part_shares_what_it_has_as_a_whole() -> None:
    packed = EntryList.of(entries(10 * BLOCK_ENTRIES))
    part = packed[1:]
    assert part._blocks[1:] == packed._blocks[1:]
    assert all(mine is theirs for mine, theirs in zip(part._blocks[1:], packed._blocks[1:], strict=True))
    assert packed.runs is packed
    assert EntryList.of(packed) is packed


def test_a_partition_packs_whatever_it_is_given() -> None:
    given_entries = entries(3)
    partition = PartitionPlan(partition=0, next_offset=30, entries=given_entries)
    assert type(partition.entries) is EntryList
    assert partition.entries == given_entries
    assert [first for first, _ in pairwise(partition.files)] == list(given_entries[:2])


def test_what_was_read_last_is_given_up_with_the_list() -> None:
    packed = EntryList.of(entries(5 * BLOCK_ENTRIES))
    assert len(list(packed)) == 5 * BLOCK_ENTRIES
    piece = packed._blocks[0]._packed
    assert isinstance(piece, SpilledPiece)
    file = weakref.ref(piece.file)
    del packed, piece
    gc.collect()
    assert file() is None or file() is _newest_file()


def _newest_file() -> object:
    newest = entry_list._spill._newest
    return newest() if newest is not None else None


def test_few_blocks_are_unpacked_at_a_time() -> None:
    lists = [EntryList.of(entries(3 * BLOCK_ENTRIES)) for _ in range(10)]
    for each in (*lists, *lists):
        assert len(list(each)) == 3 * BLOCK_ENTRIES
    assert sum(block._at_hand is not None for each in lists for block in each._blocks) <= entry_list._BLOCKS_AT_HAND


def test_thirty_thousand_take_next_to_nothing() -> None:
    """A process of its own: what this one has used before says nothing."""
    program = (
        "import resource, sys; from recovery.entry_list import EntryList; from tests.recovery.plans import an_entry\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "packed = EntryList.of(an_entry(at, at) for at in range(int(sys.argv[1])))\n"
        "assert sum(entry.records for entry in packed) == len(packed)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    taken = int(subprocess.run([sys.executable, "-c", program, "30000"], check=True, capture_output=True, text=True).stdout)
    assert taken < 10 << 10  # KiB; 30,000 values take 50 MiB
