"""The metadata records with which a freshly formatted broker begins (docs/formats/kafka-recovery.md, procedure A).

bootstrap.checkpoint is read once, when the controller finds its metadata log empty.
"""

from collections.abc import Iterator
from itertools import chain

from headwater_core.segments.metadata.bootstrap_checkpoint import write_checkpoint
from headwater_core.segments.metadata.cluster_metadata import ClusterMetadata
from headwater_core.segments.metadata.metadata_records import (
    NO_LEADER,
    UNASSIGNED,
    ConfigRecord,
    FeatureLevel,
    MetadataRecord,
    Partition,
    ProducerIds,
    Topic,
)
from recovery.cluster_state import injected_records
from recovery.recovery_plan import PartitionPlan, RecoveryPlan, TopicPlan

FEATURES = {  # as kafka-storage of Kafka 4.3 formats a new cluster
    "metadata.version": 30,
    "eligible.leader.replicas.version": 1,
    "group.version": 1,
    "share.version": 1,
    "streams.version": 1,
    "transaction.version": 2,
}
_PRODUCER_IDS_SPARED = 1_000_000  # brokers take them in blocks of 1,000; those handed out but never written are in no log


def bootstrap_checkpoint(plan: RecoveryPlan, state: ClusterMetadata | None = None, *, timestamp_ms: int) -> bytes:
    """The whole file for `plan`: everything on one broker, `plan.node_id`. state: of the whole cluster; None: topics alone"""
    beside = injected_records(state, plan.node_id) if state is not None else ()
    return write_checkpoint(chain((each.encode() for each in bootstrap_records(plan)), beside), timestamp_ms=timestamp_ms)


def bootstrap_records(plan: RecoveryPlan) -> Iterator[MetadataRecord]:
    """Those of features, topics and producer ids, in order."""
    features = plan.cluster.features if plan.cluster else FEATURES
    ordered = sorted(features.items(), key=lambda each: each[0] != "metadata.version")  # without it a controller takes none
    yield from (FeatureLevel(name=name, level=level) for name, level in ordered)
    for topic in plan.topics:
        yield Topic(name=topic.topic, topic_id=topic.topic_id)
        yield from (_partition(topic, partition, plan.node_id) for partition in topic.partitions)
    for topic in plan.topics:
        yield from (ConfigRecord(resource_name=topic.topic, name=name, value=value) for name, value in sorted(topic.configs.items()))
    next_producer_id = plan.next_producer_id // 1000 * 1000 + _PRODUCER_IDS_SPARED
    yield ProducerIds(broker=plan.node_id, broker_epoch=-1, next_producer_id=next_producer_id)


def _partition(topic: TopicPlan, partition: PartitionPlan, node_id: int) -> Partition:
    """Without a leader, and the node known as the last one eligible: the only form in which the controller elects it.

    It counts the first registration as an unclean shutdown and empties the set of replicas in sync. The epoch it then
    begins is one above this one: a consumer that has seen an epoch waits without end for a broker below it.
    """
    return Partition(
        partition=partition.partition,
        topic_id=topic.topic_id,
        replicas=(node_id,),
        in_sync=(node_id,),
        leader=NO_LEADER,
        leader_epoch=partition.first_epoch,
        directories=(UNASSIGNED,),
        last_known_elr=(node_id,),
    )
