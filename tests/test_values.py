"""No impossible value can be made, and none decodes: code that has one may trust it."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archival.config import ArchivalConfig
from archival.plan.cleaner import CleanerLook
from archival.plan.policy import Policy
from archival.plan.steps import ClaimPartition, CutEntries, RecordGap, Revive, Upload
from headwater.pipeline.export.checkpoint import PlannedRange
from headwater.pipeline.scan.query import Predicate
from headwater.pipeline.scan.splits import Split
from headwater_core.control.state import PartitionState
from headwater_core.epochs import EpochStart
from headwater_core.errors import CorruptData, ForeignOwner, UsageError
from headwater_core.layouts.offloader import Offloaded
from headwater_core.objectstore.store import ObjectInfo
from headwater_core.segments.local_log import Leadership
from hydration.answers import Bounds
from hydration.archive.chunks import Chunk
from hydration.archive.manifest_view import extent_of
from hydration.scope import Span
from manifests.entry import Entry
from manifests.head import Head, decode_head
from manifests.page import PageRef
from manifests.topic import Current, Owner, TopicManifest
from recovery.recovery_plan import LostRun, PartitionPlan
from tests.archival.builders import a_log
from tests.manifests import format_1
from tests.manifests.builders import DIGEST, PARTITION, TOPIC_ID, a_gap, a_head, an_entry

RUN: dict[str, Any] = {"size_bytes": 100, "live_bytes": 100}
PAGE: dict[str, Any] = {"uid": "a" * 32, "level": 0, "fence": 1, "entries": 1, "size_bytes": 9, "digest": DIGEST}
TOPIC: dict[str, Any] = {"cluster_id": "c", "topic": "soup", "topic_id": TOPIC_ID}
A_LOG = a_log(0, 10, hw=10)
A_SEGMENT = A_LOG.segments[0]
BOUNDS = Bounds(log_start=0, local_start=0, last_offset=None, high_watermark=10)

IMPOSSIBLE: list[tuple[str, Callable[[], object]]] = [
    ("an entry that ends before it begins", lambda: Entry(base_offset=9, last_offset=3, **RUN)),
    ("an entry that is larger than its object", lambda: Entry(base_offset=0, last_offset=3, size_bytes=1, live_bytes=9)),
    ("an entry of no bytes", lambda: Entry(base_offset=0, last_offset=3)),
    ("a negative fence", lambda: Entry(base_offset=0, last_offset=3, fence=-1, **RUN)),
    ("falling epochs", lambda: Entry(base_offset=0, last_offset=3, epochs=(EpochStart(2, 0), EpochStart(1, 2)), **RUN)),
    ("a gap with records", lambda: Entry(base_offset=0, last_offset=3, gap=True, records=1)),
    ("a gap with a context", lambda: Entry(base_offset=0, last_offset=3, gap=True, context={"a": "b"})),
    ("a head of nothing", lambda: a_head(version=0, fence=-1, start_offset=9, last_offset=1)),
    ("a head that starts after its end", lambda: a_head(start_offset=9, last_offset=1)),
    ("a head of no partition", lambda: msgspec.structs.replace(a_head(), partition=-1)),
    (
        "a page that ends before it begins",
        lambda: PageRef(base_offset=9, last_offset=3, **PAGE),
    ),
    ("a topic without partitions", lambda: TopicManifest(**TOPIC, partitions=0)),
    ("a topic of too many partitions", lambda: TopicManifest(**TOPIC, partitions=2**31 - 1)),
    ("a negative version", lambda: TopicManifest(**TOPIC, partitions=1, version=-1)),
    ("a negative metadata offset", lambda: Current(**TOPIC, as_of=-1)),
    ("an owner of a bad name", lambda: Owner(cluster_id="a/b")),
    ("a gap that ends before it begins", lambda: RecordGap(9, 3)),
    ("a negative wait", lambda: Policy(tail_after_ms=-1)),
    ("a cut up to before itself", lambda: CutEntries(9, 0, end=9)),
    ("a claim of no epoch", lambda: ClaimPartition(0, -2)),
    ("an upload of nothing", lambda: Upload(segment=A_SEGMENT, first=3, read_from=3, end=3)),
    ("an upload that reaches less than it takes", lambda: Upload(segment=A_SEGMENT, first=0, read_from=0, end=3, cover_end=2)),
    ("a revival of nothing", lambda: Revive(an_entry(5, 9), 5)),
    ("a revival of more than there is", lambda: Revive(an_entry(5, 9), 11)),
    ("a look beyond what the cleaner may clean", lambda: CleanerLook(9, 3, 0)),
    ("a negative consent", lambda: ArchivalConfig(stale_keys_below=-1)),
    ("an object too small to be merged into", lambda: ArchivalConfig(merge_bytes=1)),
    ("a replacement that saves nothing", lambda: ArchivalConfig(min_saved_percent=0)),
    ("a replacement that leaves nothing", lambda: ArchivalConfig(min_saved_percent=100)),
    ("a merge at once", lambda: ArchivalConfig(merge_after_s=0)),
    ("a segment of negative length", lambda: replace(A_SEGMENT, size_bytes=-1)),
    ("a segment before all offsets", lambda: replace(A_SEGMENT, base_offset=-1)),
    ("a log in disorder", lambda: replace(A_LOG, segments=(A_SEGMENT, A_SEGMENT))),
    ("a negative high watermark", lambda: replace(A_LOG, high_watermark=-1)),
    ("a negative log start", lambda: replace(A_LOG, log_start=-1)),
    ("a leader of a negative number", lambda: Leadership(leader=-2, leader_epoch=0, node=1, replicas=(), in_sync=())),
    ("an object of negative length", lambda: ObjectInfo("../k", -1, "")),
    ("an offload of nothing", lambda: Offloaded(size_bytes=0, digest="", run_bytes=1, run_digest="", index_bytes=0, index_digest="")),
    ("a span that ends before it begins", lambda: Span(9, 3)),
    ("a chunk of nothing", lambda: Chunk(-1, -1, -1, -1)),
    ("an extent that starts after its end", lambda: replace(extent_of(a_head()), start_offset=1)),
    ("a log start above the high watermark", lambda: Bounds(log_start=9, local_start=None, last_offset=None, high_watermark=3)),
    ("a stable offset that is not readable", lambda: replace(BOUNDS, last_stable_offset=11)),
    ("offsets out of order", lambda: Predicate(first_offset=9, end_offset=3)),
    ("times out of order", lambda: Predicate(first_timestamp_ms=9, end_timestamp_ms=3)),
    ("a task of no offsets", lambda: Split(**TOPIC, partition=0, first=3, end=3, entries=())),
    ("an exported range of no offsets", lambda: PlannedRange(**TOPIC, partition=0, first=3, end=3)),
    ("a recovered log that starts after its end", lambda: PartitionPlan(partition=0, start_offset=9, next_offset=3)),
    ("a recovered log of a negative epoch", lambda: PartitionPlan(partition=0, leader_epoch=-1)),
    ("a lost run that ends before it begins", lambda: LostRun(topic="soup", partition=0, base_offset=9, last_offset=3, reason="")),
    (
        "a partition known to end before it starts",
        lambda: PartitionState(manifest_version=1, fence=1, owner="w", start_offset=9, last_offset=3),
    ),
]


@pytest.mark.parametrize("make", [make for _, make in IMPOSSIBLE], ids=[name for name, _ in IMPOSSIBLE])
def test_what_cannot_be_cannot_be_made(make: Callable[[], object]) -> None:
    with pytest.raises((ValueError, UsageError)):
        make()


numbers = st.sampled_from([-(2**63), -2, -1, 0, 1, 5, 9, 10, 2**31, 2**63 - 2, 2**63 - 1]) | st.integers(-(2**63), 2**63 - 1)


@given(st.dictionaries(st.sampled_from([f.name for f in msgspec.structs.fields(Entry) if f.type is int]), numbers), st.booleans())
def test_an_entry_is_possible_or_is_not(fields: dict[str, Any], gap: bool) -> None:
    written = {f.name: f.encode_name for f in msgspec.structs.fields(Entry)}
    builtins = {**msgspec.to_builtins(a_gap(0, 9) if gap else an_entry(0, 9)), **{written[name]: value for name, value in fields.items()}}
    try:
        entry = msgspec.convert(builtins, Entry)
    except msgspec.ValidationError:
        with pytest.raises(ValueError, match=r"."):
            msgspec.structs.replace(a_gap(0, 9) if gap else an_entry(0, 9), **fields)
        return
    assert 0 <= entry.base_offset <= entry.last_offset < entry.next_offset < 2**63
    assert gap or 0 < entry.live_bytes <= entry.run_bytes
    assert min(entry.fence, entry.records, entry.index_bytes, entry.aborted, entry.max_producer_id + 1) >= 0


@given(st.dictionaries(st.sampled_from([f.name for f in msgspec.structs.fields(Head) if f.type is int]), numbers, min_size=1))
def test_a_head_is_possible_or_is_corrupt(fields: dict[str, Any]) -> None:
    plain = a_head(an_entry(0, 9))
    with contextlib.suppress(CorruptData, ForeignOwner):
        head = decode_head(format_1.encode(plain, **fields), PARTITION)
        assert head.version > 0
        assert 0 <= head.start_offset <= head.next_offset
        assert head.entries[-1].last_offset == head.last_offset
