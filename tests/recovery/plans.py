"""Heads as short as a test wants them, and the plans that they make."""

from typing import Any

from msgspec.structs import replace

from headwater_core.epochs import EpochStart
from headwater_core.partition import PartitionId
from manifests import keys
from manifests.entry import Entry
from manifests.entry_tree import EntryTree
from manifests.head import Head
from manifests.topic import TopicManifest
from recovery.discovery import ArchivedTopic, Found
from recovery.planner import make_plan
from recovery.recovery_plan import Options, PartitionPlan, RecoveryPlan, Request

CLUSTER, TOPIC_ID = "mPtQxumzSB6UIzXMtmWVUg", "le4ruHkrRAmAJUx9PH5t3A"
NOW = 1_000_000


def an_entry(base: int, last: int, *, partition: int = 0, **changes: Any) -> Entry:
    uid = f"{base:032x}"
    key = keys.data(PartitionId(CLUSTER, TOPIC_ID, partition, "orders"), base, last, 1, uid)
    plain = Entry(
        base_offset=base,
        last_offset=last,
        epochs=(EpochStart(0, base),),
        first_timestamp_ms=base,
        last_timestamp_ms=last,
        records=last - base + 1,
        uid=uid,
        fence=1,
        key=key,
        size_bytes=100,
        live_bytes=100,
        digest="crc64nvme:0000000000000000",
        index_key=keys.index(key),
        index_bytes=10,
        max_producer_id=-1,
    )
    return replace(plain, **changes)


def a_gap(base: int, last: int) -> Entry:
    return Entry(base_offset=base, last_offset=last, gap=True)


def a_head(*entries: Entry, partition: int = 0, **changes: Any) -> Head:
    plain = Head(
        cluster_id=CLUSTER,
        topic="orders",
        topic_id=TOPIC_ID,
        partition=partition,
        version=7,
        commit_id="c",
        fence=1,
        writer="w",
        start_offset=entries[0].base_offset if entries else 0,
        last_offset=entries[-1].last_offset if entries else -1,
        entries=EntryTree(entries),
    )
    return replace(plain, **changes)


def a_topic(*heads: Head, partitions: int | None = None, **configs: str) -> ArchivedTopic:
    settings = {name.replace("_", "."): value for name, value in configs.items()}
    manifest = TopicManifest(cluster_id=CLUSTER, topic="orders", topic_id=TOPIC_ID, partitions=partitions or len(heads), configs=settings)
    return ArchivedTopic(manifest=manifest, heads={head.partition: head for head in heads})


def planned(*topics: ArchivedTopic, **options: Any) -> RecoveryPlan:
    request = Request(topics=None, options=Options(**options))
    return make_plan(Found(topics=topics), request, now_ms=NOW, recovery_id="r1", cluster_id="new")


def bases(partition: PartitionPlan) -> list[int]:
    return [entry.base_offset for entry in partition.entries]


ENTRIES = (an_entry(0, 9, last_timestamp_ms=100), an_entry(10, 19, last_timestamp_ms=500), an_entry(20, 29, last_timestamp_ms=300))
