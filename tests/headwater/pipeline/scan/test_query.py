"""What a predicate says of records and of entries."""

from typing import Any

import pytest

from headwater.pipeline.scan.query import Predicate
from manifests.entry import Entry


def an_entry(**fields: Any) -> Entry:
    plain = {"records": 100, "first_timestamp_ms": 5_000, "last_timestamp_ms": 6_000, "size_bytes": 1, "live_bytes": 1}
    return Entry(base_offset=100, last_offset=199, **{**plain, **fields})


@pytest.mark.parametrize(
    ("predicate", "entry", "may"),
    [
        (Predicate(), an_entry(), True),
        (Predicate(first_offset=200), an_entry(), False),
        (Predicate(first_offset=199), an_entry(), True),
        (Predicate(end_offset=100), an_entry(), False),
        (Predicate(end_offset=101), an_entry(), True),
        (Predicate(first_timestamp_ms=6_001), an_entry(), False),
        (Predicate(first_timestamp_ms=6_000), an_entry(), True),
        (Predicate(end_timestamp_ms=4_000), an_entry(), True),  # a record may be older than its batch says
        (Predicate(first_timestamp_ms=0), an_entry(last_timestamp_ms=None), True),
        (Predicate(first_timestamp_ms=0), an_entry(last_timestamp_ms=None, records=0), False),
        (Predicate(first_timestamp_ms=9_000), Entry(base_offset=100, last_offset=199, gap=True), True),
    ],
)
def test_an_entry_is_left_out_only_when_none_of_its_records_can_match(predicate: Predicate, entry: Entry, may: bool) -> None:
    assert predicate.may_match(entry) is may


def test_predicates_together_ask_for_both() -> None:
    one = Predicate(topics=frozenset("ab"), first_offset=3, end_timestamp_ms=50)
    other = Predicate(
        topics=frozenset("bc"), partitions=frozenset({1}), first_offset=1, end_offset=9, first_timestamp_ms=10, end_timestamp_ms=70
    )
    both = Predicate(
        topics=frozenset("b"), partitions=frozenset({1}), first_offset=3, end_offset=9, first_timestamp_ms=10, end_timestamp_ms=50
    )
    assert one.and_(other) == other.and_(one) == both
    assert both.may_hold("b", 1)
    assert not both.may_hold("b", 2)
    assert not both.may_hold("a", 1)
    assert not both.and_(Predicate(first_timestamp_ms=50)).may_hold("b", 1)
