"""No impossible value can be made, and none decodes: whoever holds one may trust it."""

import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater_core.errors import CorruptData, UsageError
from manifests.document import seal
from manifests.head import Entry, Head, PageRef, decode_head
from manifests.topic import Current, Owner, TopicManifest
from tests.manifests.builders import PARTITION, TOPIC_ID, a_gap, a_head, an_entry

RUN: dict[str, Any] = {"size_bytes": 100, "live_bytes": 100}
TOPIC: dict[str, Any] = {"cluster_id": "c", "topic": "soup", "topic_id": TOPIC_ID}

IMPOSSIBLE: list[tuple[str, Callable[[], object]]] = [
    ("an entry that ends before it begins", lambda: Entry(base_offset=9, last_offset=3, **RUN)),
    ("an entry that is larger than its object", lambda: Entry(base_offset=0, last_offset=3, size_bytes=1, live_bytes=9)),
    ("an entry of no bytes", lambda: Entry(base_offset=0, last_offset=3)),
    ("a negative fence", lambda: Entry(base_offset=0, last_offset=3, fence=-1, **RUN)),
    ("falling epochs", lambda: Entry(base_offset=0, last_offset=3, epochs=((2, 0), (1, 2)), **RUN)),
    ("a gap with records", lambda: Entry(base_offset=0, last_offset=3, gap=True, records=1)),
    ("a gap with a context", lambda: Entry(base_offset=0, last_offset=3, gap=True, context={"a": "b"})),
    ("a head of nothing", lambda: a_head(version=0, fence=-1, start_offset=9, last_offset=1)),
    ("a head that starts behind its end", lambda: a_head(start_offset=9, last_offset=1)),
    ("a head of no partition", lambda: msgspec.structs.replace(a_head(), partition=-1)),
    ("a page that ends before it begins", lambda: PageRef(key="k", base_offset=9, last_offset=3, entries=1, digest="d")),
    ("a topic without partitions", lambda: TopicManifest(**TOPIC, partitions=0)),
    ("a topic of too many partitions", lambda: TopicManifest(**TOPIC, partitions=2**31 - 1)),
    ("a negative version", lambda: TopicManifest(**TOPIC, partitions=1, version=-1)),
    ("a negative metadata offset", lambda: Current(**TOPIC, as_of=-1)),
    ("an owner of a bad name", lambda: Owner(cluster_id="a/b")),
]


@pytest.mark.parametrize("make", [make for _, make in IMPOSSIBLE], ids=[name for name, _ in IMPOSSIBLE])
def test_what_cannot_be_cannot_be_made(make: Callable[[], object]) -> None:
    with pytest.raises((ValueError, UsageError)):
        make()


numbers = st.sampled_from([-(2**63), -2, -1, 0, 1, 5, 9, 10, 2**31, 2**63 - 2, 2**63 - 1]) | st.integers(-(2**63), 2**63 - 1)


@given(st.dictionaries(st.sampled_from([f.name for f in msgspec.structs.fields(Entry) if f.type is int]), numbers), st.booleans())
def test_an_entry_is_possible_or_is_not(fields: dict[str, Any], gap: bool) -> None:
    builtins = {**msgspec.to_builtins(a_gap(0, 9) if gap else an_entry(0, 9)), **fields}
    try:
        entry = msgspec.convert(builtins, Entry)
    except msgspec.ValidationError:
        with pytest.raises(ValueError, match=r"."):
            msgspec.structs.replace(a_gap(0, 9) if gap else an_entry(0, 9), **fields)
        return
    assert 0 <= entry.base_offset <= entry.last_offset < entry.next_offset < 2**63
    assert gap or 0 < entry.live_bytes <= entry.size_bytes
    assert min(entry.fence, entry.records, entry.index_bytes, entry.aborted, entry.max_producer_id + 1) >= 0


@given(st.dictionaries(st.sampled_from([f.name for f in msgspec.structs.fields(Head) if f.type is int]), numbers, min_size=1))
def test_a_head_is_possible_or_is_corrupt(fields: dict[str, Any]) -> None:
    plain = a_head(an_entry(0, 9))
    loose = msgspec.defstruct("Loose", [(name, Any) for name in plain.__struct_fields__], kw_only=True)
    with contextlib.suppress(CorruptData):
        head = decode_head(seal(loose(**{**msgspec.to_builtins(plain), **fields})), PARTITION)
        assert head.version > 0
        assert 0 <= head.start_offset <= head.next_offset
        assert head.entries[-1].last_offset == head.last_offset
