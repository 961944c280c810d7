"""A page reads back as written, and nothing else passes for it."""

import gzip
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_core.errors import CorruptData, UnsupportedFormat
from headwater_core.objectstore.digest import digest_of
from headwater_core.partition import PartitionId
from manifests.document import WRONG
from manifests.entry import Entry, EpochOffset
from manifests.page import (
    DISPLACED_MAX,
    GAPS_MAX,
    PAGE_BYTES_MAX,
    SPANS_MAX,
    DisplacedSpan,
    Item,
    PageRef,
    decode_page,
    encode_page,
    item_from,
    line_of,
    page_key,
    reference,
)
from tests.manifests.builders import PARTITION, a_gap, an_entry, heads

ENTRIES = (an_entry(0, 9), a_gap(10, 19), an_entry(20, 29, fence=3, epochs=((0, 20), (4, 25))))


def a_page(*items: Item, level: int = 0, fence: int = 3) -> tuple[bytes, PageRef]:
    raw = encode_page(PARTITION, level, map(line_of, items))
    return raw, reference(items, uid="a" * 32, level=level, fence=fence, size_bytes=len(raw), digest=digest_of(raw))


def refer_to(raw: bytes, **fields: Any) -> PageRef:
    """A reference to bytes of any kind."""
    return msgspec.structs.replace(a_page(*ENTRIES)[1], size_bytes=len(raw), digest=digest_of(raw), **fields)


def test_a_page_reads_back() -> None:
    raw, ref = a_page(*ENTRIES)
    assert decode_page(raw, PARTITION, ref) == ENTRIES
    above, node = a_page(ref, level=1)
    assert decode_page(above, PARTITION, node) == (ref,)
    assert page_key(PARTITION, ref).endswith(f"/3/{0:020}-{29:020}-0-{3:010}-{'a' * 32}.jsonl.gz")


@settings(max_examples=40, deadline=None)
@given(heads().filter(lambda head: bool(head.entries)))
def test_any_entries_read_back(head: Any) -> None:
    raw, ref = a_page(*head.entries, fence=head.fence)
    assert decode_page(raw, PARTITION, ref) == tuple(head.entries)


def test_the_same_items_are_the_same_bytes() -> None:
    assert a_page(*ENTRIES)[0] == a_page(*ENTRIES)[0]


def test_a_reference_says_what_lies_below_it() -> None:
    late = an_entry(30, 39, fence=1, first_timestamp_ms=None, last_timestamp_ms=None, aborted=2, aborted_from=7, open_from=33, digest="")
    moved = an_entry(40, 49, displaced_by=EpochOffset(2, 60), live_bytes=50)
    _, leaf = a_page(*ENTRIES, late, moved)
    _, node = a_page(leaf, level=1, fence=5)
    for ref, fence in ((leaf, 3), (node, 5)):
        assert (ref.base_offset, ref.last_offset, ref.entries, ref.gaps, ref.fence) == (0, 49, 5, 1, fence)
        assert ref.spans == ((0, 0, 24, False), (4, 25, 29, True), (0, 30, 49, True))
        assert ref.gap_spans == ((10, 19),)
        assert ref.displaced == (DisplacedSpan(2, 60, 60),)
        assert (ref.first_timestamp_ms, ref.last_timestamp_ms) == (0, 49_000)
        assert (ref.records, ref.live_bytes, ref.untimed, ref.unverified) == (40, 350, 1, 1)
        assert (ref.aborted, ref.aborted_from, ref.open_from) == (2, 7, 33)


def test_what_is_too_long_for_a_reference_is_left_to_the_page() -> None:
    epochs = [an_entry(at * 10, at * 10 + 9, epochs=((at, at * 10),)) for at in range(SPANS_MAX + 1)]
    assert a_page(*epochs)[1].spans is None
    assert a_page(*epochs[1:])[1].spans is not None
    assert a_page(a_page(*epochs[1:])[1], level=1)[1].spans is None
    gaps = [a_gap(at * 10, at * 10 + 9) for at in range(GAPS_MAX + 1)]
    assert a_page(*gaps)[1].gap_spans is None
    displaced = [an_entry(at * 10, at * 10 + 9, displaced_by=EpochOffset(at, 9)) for at in range(DISPLACED_MAX + 1)]
    assert a_page(*displaced)[1].displaced is None
    assert a_page(a_page(*displaced)[1], level=1)[1].displaced is None


def test_aborts_of_an_entry_that_does_not_say_where_they_begin_are_unknown() -> None:
    assert a_page(an_entry(0, 9, aborted=1), an_entry(10, 19, aborted=1, aborted_from=3))[1].aborted_from is None


@given(st.data())
def test_a_flipped_bit_is_noticed(data: st.DataObject) -> None:
    raw, ref = a_page(*ENTRIES)
    flipped = bytearray(raw)
    flipped[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptData, match="the manifest says"):
        decode_page(bytes(flipped), PARTITION, ref)


def test_every_cut_is_noticed() -> None:
    raw, ref = a_page(*ENTRIES)
    for length in range(len(raw)):
        with pytest.raises(CorruptData):
            decode_page(raw[:length], PARTITION, ref)
        with pytest.raises((CorruptData, ValueError)):  # though the digest of the rest were right
            decode_page(raw[:length], PARTITION, refer_to(raw[:length]))


def packed(*lines: bytes) -> bytes:
    return gzip.compress(b"\n".join(lines), mtime=0)


FIRST, *LINES = gzip.decompress(a_page(*ENTRIES)[0]).splitlines()


def test_a_page_stays_whosever_archive_it_is_of_by_now() -> None:
    raw = packed(FIRST.replace(b"cluster-1", b"cluster-2"), *LINES)
    assert decode_page(raw, PARTITION, refer_to(raw)) == ENTRIES


@pytest.mark.parametrize(
    "raw",
    [
        packed(),
        packed(FIRST),
        packed(*LINES),
        packed(FIRST, *LINES[1:]),
        packed(FIRST, *LINES, LINES[-1]),
        packed(FIRST, b"[]"),
        packed(FIRST, b"{"),
        packed(FIRST, b"\xff"),
        packed(FIRST, b"[" * 100_000),
        packed(FIRST.replace(b"orders", b"others"), *LINES),
        packed(FIRST.replace(b'"level":0', b'"level":1'), *LINES),
        packed(FIRST, *(line.replace(b'"fence":3', b'"fence":4') for line in LINES)),
        packed(FIRST, *LINES[:-1], line_of(a_page(ENTRIES[-1])[1])),
        gzip.compress(bytes(PAGE_BYTES_MAX + 1), mtime=0),
        b"no gzip",
    ],
)
def test_hostile_pages_are_refused_though_their_digest_is_right(raw: bytes) -> None:
    with pytest.raises(CorruptData) as reported:
        decode_page(raw, PARTITION, refer_to(raw))
    assert str(reported.value).isprintable()


def test_a_page_of_another_partition_is_refused() -> None:
    raw, ref = a_page(*ENTRIES)
    with pytest.raises(CorruptData):
        decode_page(raw, PartitionId(PARTITION.cluster_id, PARTITION.topic_id, 4, "orders"), ref)


def test_a_later_major_version_is_refused_and_a_minor_one_read() -> None:
    later = packed(FIRST.replace(b"[2,2]", b"[2,9]"), *LINES)
    assert len(decode_page(later, PARTITION, refer_to(later))) == 3
    other = packed(FIRST.replace(b"[2,2]", b"[3,0]"), *LINES)
    with pytest.raises(UnsupportedFormat):
        decode_page(other, PARTITION, refer_to(other))


def test_a_key_is_spelled_out_only_where_it_does_not_follow() -> None:
    whole, cut = an_entry(0, 9), an_entry(0, 4, uid=an_entry(0, 9).uid, key=an_entry(0, 9).key, live_bytes=20)
    foreign = msgspec.structs.replace(whole, layout="ledgers", key="ledger/7", index_key="ledger/7-index")
    assert b"key" not in line_of(whole)
    assert b"held" not in line_of(whole)
    assert b"live_bytes" not in line_of(whole)
    assert b'"held":[0,9]' in line_of(cut)
    assert b'"key":"ledger/7"' in line_of(foreign)
    entries: tuple[Entry, ...] = (cut, msgspec.structs.replace(foreign, base_offset=5, epochs=()))
    raw, ref = a_page(*entries)
    assert decode_page(raw, PARTITION, ref) == entries


def test_a_page_of_before_reads_and_its_entries_do_not_know_when_they_were_published() -> None:
    before = packed(FIRST.replace(b"[2,2]", b"[2,1]"), *LINES)
    assert [each.published_ms for each in decode_page(before, PARTITION, refer_to(before)) if isinstance(each, Entry)] == [None] * 3


@pytest.mark.parametrize("epoch", [-1, 2**31])
def test_a_reference_to_an_impossible_leader_epoch_is_refused(epoch: int) -> None:
    body = msgspec.json.decode(line_of(a_page(*ENTRIES)[1]))
    body["spans"][0][0] = epoch
    with pytest.raises(WRONG, match="leader epochs"):
        item_from(body, PARTITION)


def test_a_reference_whose_last_epoch_ends_no_entry_is_refused() -> None:
    """Who compares it with a history would go on to an epoch that is not there."""
    body = msgspec.json.decode(line_of(a_page(*ENTRIES)[1]))
    body["spans"][-1][3] = False
    with pytest.raises(WRONG, match="goes on behind the page"):
        item_from(body, PARTITION)
