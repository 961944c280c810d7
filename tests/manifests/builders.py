"""Heads and entries as short as a test wants them, and as odd as Hypothesis likes."""

from typing import Any

from hypothesis import strategies as st

from headwater_core.epochs import EpochStart
from headwater_core.partition import PartitionId, topic_id_text
from manifests import keys
from manifests.entry import EPOCH_MAX, FENCE_MAX, Entry, EpochOffset
from manifests.entry_tree import EntryTree, SupersededEntries
from manifests.head import Head
from manifests.topic import TopicManifest

TOPIC_ID = topic_id_text(bytes(range(16)))
PARTITION = PartitionId("cluster-1", TOPIC_ID, 3, "orders")
DIGEST = "crc64nvme:0123456789abcdef"


def an_entry(base: int, last: int, *, fence: int = 1, partition: PartitionId = PARTITION, **fields: Any) -> Entry:
    """A native entry of 10 bytes a record; what the object's key says follows from the arguments unless `fields` say it."""
    uid = fields.pop("uid", f"{base:016x}{last:016x}")
    key = fields.pop("key", keys.data(partition, base, last, fence, uid))
    size = fields.pop("size_bytes", (last - base + 1) * 10)
    epochs = fields.pop("epochs", ((0, base),))
    return Entry(
        base_offset=base,
        last_offset=last,
        **{
            "epochs": tuple(EpochStart(*each) for each in epochs),
            "first_timestamp_ms": base * 1000,
            "last_timestamp_ms": last * 1000,
            "records": last - base + 1,
            "uid": uid,
            "fence": fence,
            "key": key,
            "size_bytes": size,
            "live_bytes": size,
            "digest": DIGEST,
            "index_key": keys.index(key),
            "index_bytes": 100,
            "index_digest": DIGEST,
            **fields,
        },
    )


def a_gap(base: int, last: int) -> Entry:
    return Entry(base_offset=base, last_offset=last, gap=True)


def a_head(*entries: Entry, partition: PartitionId = PARTITION, **fields: Any) -> Head:
    """A head over `entries`, which abut; empty at offset 0 without any."""
    return Head(
        cluster_id=partition.cluster_id,
        topic=partition.topic,
        topic_id=partition.topic_id,
        partition=partition.partition,
        **{
            "version": 1,
            "commit_id": "c" * 32,
            "fence": 1,
            "writer": "agent-a",
            "start_offset": entries[0].base_offset if entries else 0,
            "last_offset": entries[-1].last_offset if entries else -1,
            **fields,
            "entries": EntryTree(fields.get("entries", entries)),
            "superseded": SupersededEntries(fields.get("superseded", ())),
        },
    )


def a_topic(topic: str = "orders", topic_id: str = TOPIC_ID, cluster_id: str = "cluster-1", partitions: int = 4) -> TopicManifest:
    return TopicManifest(cluster_id=cluster_id, topic=topic, topic_id=topic_id, partitions=partitions)


@st.composite
def heads(draw: st.DrawFn) -> Head:
    """Any head that the rules allow, gaps, cuts, open transactions and superseded entries included."""
    start = draw(st.integers(0, 2**62))
    fence = draw(st.integers(0, FENCE_MAX))
    entries, at = [], start
    for length in draw(st.lists(st.integers(1, 10_000), max_size=6)):
        entries.append(draw(_entries(at, at + length - 1, fence)))
        at += length
    superseded = [draw(_runs(at + 5, at + 9, fence))] if draw(st.booleans()) else []
    return a_head(
        *entries,
        version=draw(st.integers(1, 2**62)),
        fence=fence,
        writer=draw(st.text(min_size=1, max_size=20)),
        leader_epoch=draw(st.integers(-1, 2**31 - 1)),
        start_offset=draw(st.integers(start, start + (entries[0].last_offset - start + 1 if entries else 0))),
        last_offset=at - 1,
        superseded=tuple(superseded),
    )


def _entries(base: int, last: int, fence: int) -> st.SearchStrategy[Entry]:
    return st.just(a_gap(base, last)) | _runs(base, last, fence)


def _runs(base: int, last: int, fence: int) -> st.SearchStrategy[Entry]:
    timestamps = st.none() | st.integers(-(2**62), 2**62)
    return st.builds(
        an_entry,
        st.just(base),
        st.just(last),
        fence=st.integers(0, fence),
        first_timestamp_ms=timestamps,
        last_timestamp_ms=timestamps,
        live_bytes=st.integers(1, (last - base + 1) * 10),
        records=st.integers(0, 2**40),
        aborted=st.integers(0, 5),
        open_from=st.none() | st.integers(0, last),
        published_ms=st.none() | st.integers(0, 2**62),
        displaced_by=st.none() | st.builds(EpochOffset, st.integers(0, EPOCH_MAX), st.integers(0, 2**62)),
        context=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
        max_producer_id=st.integers(-1, 2**62),
    )
